"""The options of a parameter group: each is checked when it is set, loaded, or has changed before a step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from refopt.checks.arguments import chosen, flag, number, rounded, shown, whole
from refopt.cpu.blocks import Blocks
from refopt.cpu.muon import MUON
from refopt.cpu.newton_schulz import restarting, schedule
from refopt.torch.formulas import plain

CHOICES = {
    "masters": (None, "fp32", "remainder", "remainder8"), "states": (None, "8bit"), "sparse": (None, "rows"),
    "adjust_lr_fn": (None, *MUON.choices["adjust_lr"]),
    "compute": tuple(x for x in MUON.choices["compute"] if x != "float64"),  # which takes parameters of fp64
}
AT_LEAST_0 = {"lr", "eps", "weight_decay", "momentum", "dampening", "lr_decay", "initial_accumulator_value",
              "momentum_decay", "trust_coefficient"}
FLAGS = {"always_adapt", "grad_averaging", "use_muon"}  # PyTorch's own are taken as they are
SEEDS = 2**24  # which fp32 has exactly


def check(where: str, group: Mapping[str, Any], names: Iterable[str], params: Sequence[torch.Tensor]) -> None:
    """Check some options of a group.

    Args:
        where: the name of the group in errors.
        group: the options by name.
        names: of the options to check.
        params: the group's parameters; numbers must also be in range in their arithmetic type.

    Raises:
        TypeError, ValueError: naming the option, what was expected and what came.
    """
    real = np.float64 if params and all(param.dtype == torch.float64 for param in params) else np.float32
    for name in names:
        check_one(f"{where}['{name}']", name, group[name], real)
    if "ns_steps" in group and "ns_coefficients" in group:
        schedule(f"{where}['ns_coefficients']", group["ns_coefficients"], group["ns_steps"])
        compute = group.get("compute", MUON.choices["compute"][0])
        restarting(f"{where}['restarts']", group.get("restarts"), group["ns_steps"], compute)
    on_gpu = [name for name, x in group.items() if getattr(x, "is_cuda", False)]
    if group.get("capturable") and on_gpu:
        expected = "expected a number or a tensor on the CPU for capturable=True, since the host reads it"
        raise ValueError(f"{where}['{on_gpu[0]}']: {expected}, got one on {group[on_gpu[0]].device}")


def check_one(what: str, name: str, value: Any, real: type = np.float64) -> None:
    """Check an option of some name; ``what`` is what errors call it, ``real`` the type that kernels have it in."""
    value = plain(value)
    if name in AT_LEAST_0:
        _number(what, value, real, finite=True)
    elif name in ("alpha", "rho") or (name == "beta2" and value is not None):
        _number(what, value, real, below=1)
    elif name == "betas":
        if not isinstance(value, Sequence) or len(value) != 2:
            raise ValueError(f"{what}: expected two numbers, got {shown(value)}")
        for i, beta in enumerate(value):
            _number(f"{what}[{i}]", plain(beta), real, below=1)
    elif name == "ns_steps":
        whole(what, value, 0, 99)
    elif name == "blocks" and (not isinstance(value, tuple) or len(value) != len(Blocks._fields)):
        raise TypeError(f"{what}: expected Blocks, got {shown(value)}")
    elif name in FLAGS:
        flag(what, value)
    elif name in CHOICES:
        chosen(what, value, CHOICES[name])
    elif name == "seed":
        whole(what, value, 0, SEEDS - 1)
    elif name == "max_norm":
        raise ValueError(f"{what}: expected none in a group, since it applies to all groups, got {shown(value)}")
    elif name == "differentiable" and value:
        raise ValueError(f"{what}: expected False, since kernels are not part of autograd's graph, got {shown(value)}")


def _number(what: str, value: Any, real: type, **limits: Any) -> None:
    """A number of at least 0 that is in its range as it is given, and as kernels have it."""
    stored = float(rounded(number(what, value, 0, **limits), real))
    try:
        number(what, stored, 0, **limits)
    except ValueError as error:
        expected = str(error).partition(", got ")[0]
        raise ValueError(f"{expected} in {np.dtype(real).name}, got {shown(value)}, which is {stored} there") from None
