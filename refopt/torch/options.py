"""What a parameter group may say: each option is checked where it is set, loaded, or has changed before a step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from refopt.checks.arguments import chosen, flag, number, shown, whole
from refopt.torch.formulas import plain

MASTERS = None, "fp32", "remainder"
AT_LEAST_0 = {"lr", "eps", "weight_decay", "momentum", "dampening", "lr_decay", "initial_accumulator_value",
              "momentum_decay", "trust_coefficient"}  # fmt: skip
FLAGS = {"always_adapt", "grad_averaging"}  # PyTorch's own are taken as they are
SEEDS = 2**24  # which fp32 has exactly


def check(where: str, group: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check some options of a group.

    Args:
        where: what errors call the group.
        group: the options by name.
        names: of those that are to be checked.

    Raises:
        TypeError, ValueError: naming the option, what was expected and what came.
    """
    for name in names:
        check_one(f"{where}['{name}']", name, group[name])
    if group.get("capturable"):
        _check_capturable(where, group)


def check_one(what: str, name: str, value: Any) -> None:
    """Check an option of some name; ``what`` is what errors call it."""
    value = plain(value)
    if name in AT_LEAST_0:
        number(what, value, 0, finite=True)
    elif name in ("alpha", "rho"):
        number(what, value, 0, below=1)
    elif name == "betas":
        if not isinstance(value, Sequence) or len(value) != 2:
            raise ValueError(f"{what}: expected two numbers, got {shown(value)}")
        for i, beta in enumerate(value):
            number(f"{what}[{i}]", plain(beta), 0, below=1)
    elif name in FLAGS:
        flag(what, value)
    elif name == "masters":
        chosen(what, value, MASTERS)
    elif name == "seed":
        whole(what, value, 0, SEEDS - 1)
    elif name == "max_norm":
        raise ValueError(f"{what}: expected none in a group, since it is of all of them, got {shown(value)}")
    elif name == "differentiable" and value:
        raise ValueError(f"{what}: expected False, since kernels are no part of autograd's graph, got {shown(value)}")


def _check_capturable(where: str, group: Mapping[str, Any]) -> None:
    on_gpu = [name for name, x in group.items() if getattr(x, "is_cuda", False)]
    if on_gpu:
        expected = "expected a number or a tensor on the CPU for capturable=True, since the host reads it"
        raise ValueError(f"{where}['{on_gpu[0]}']: {expected}, got one on {group[on_gpu[0]].device}")
