"""The classes: those of ``torch.optim`` with merged steps, and four that PyTorch does not have."""

from collections.abc import Iterable
from functools import partial
from inspect import signature
from typing import Any

import torch

from refopt.cpu.blocks import Blocks, cut
from refopt.cpu.muon import MUON, WHOLE
from refopt.torch import formulas
from refopt.torch.arrays import described, has_memory
from refopt.torch.merged import Merged
from refopt.torch.options import check_one
from refopt.torch.sharded import local


class SGD(Merged, torch.optim.SGD):
    """``torch.optim.SGD``, with momentum and without: `refopt.cpu.momentum` and `refopt.cpu.sgd`."""

    formula = staticmethod(formulas.sgd)


class Adam(Merged, torch.optim.Adam):
    """``torch.optim.Adam``, and AMSGrad: `refopt.cpu.adam`."""

    formula = staticmethod(formulas.adam)


class AdamW(Merged, torch.optim.AdamW):
    """``torch.optim.AdamW``: `refopt.cpu.adamw`."""

    formula = staticmethod(formulas.adam)


class Adamax(Merged, torch.optim.Adamax):
    """``torch.optim.Adamax``: `refopt.cpu.adamax`."""

    formula = staticmethod(partial(formulas.formula, "adamax"))


class Adagrad(Merged, torch.optim.Adagrad):
    """``torch.optim.Adagrad``: `refopt.cpu.adagrad`."""

    formula = staticmethod(formulas.adagrad)


class Adadelta(Merged, torch.optim.Adadelta):
    """``torch.optim.Adadelta``: `refopt.cpu.adadelta`."""

    formula = staticmethod(partial(formulas.formula, "adadelta"))


class RMSprop(Merged, torch.optim.RMSprop):
    """``torch.optim.RMSprop``: `refopt.cpu.rmsprop`."""

    formula = staticmethod(formulas.rmsprop)


class NAdam(Merged, torch.optim.NAdam):
    """``torch.optim.NAdam``: `refopt.cpu.nadam`."""

    formula = staticmethod(formulas.nadam)


class RAdam(Merged, torch.optim.RAdam):
    """``torch.optim.RAdam``: `refopt.cpu.radam`."""

    formula = staticmethod(partial(formulas.formula, "radam"))


class _OfBlocks(getattr(torch.optim, "Muon", torch.optim.Optimizer)):  # type: ignore[misc]
    """PyTorch's Muon with more options in its groups, and with parameters of any shape."""

    def __init__(
        self, params: Iterable[Any], *args: Any, blocks: Blocks = WHOLE, restarts: tuple[int, ...] | None = None,
        compute: str = "bfloat16", beta2: float | None = None, **named: Any,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise RuntimeError(f"Muon: expected PyTorch 2.9 or later, with torch.optim.Muon, got {torch.__version__}")
        given = signature(torch.optim.Muon).bind([torch.empty(0, 0)], *args, **named)
        ratio = given.arguments.get("adjust_lr_fn")
        given.arguments["adjust_lr_fn"] = None if ratio in MUON.choices["adjust_lr"] else ratio  # 2.13 lacks one
        defaults = torch.optim.Muon(*given.args, **given.kwargs).defaults  # which are checked there
        own = {"blocks": blocks, "restarts": restarts, "compute": compute, "beta2": beta2, "use_muon": True}
        torch.optim.Optimizer.__init__(self, params, defaults | {"adjust_lr_fn": ratio} | own)


class Muon(Merged, _OfBlocks):
    """``torch.optim.Muon``, for matrices: `refopt.cpu.muon`, with iterations in bf16 on tensor cores.

    In addition to the arguments of PyTorch's class it takes the following; all but the last are options of groups:

    Args:
        blocks: how parameters are cut into matrices, `refopt.cpu.Blocks`: heads, fused queries, keys and values,
            experts, and convolutions, so that parameters may have three axes or more.
        ns_coefficients: as in PyTorch, or a triple for each iteration, or ``"jordan"``, ``"polar_express"`` or
            ``"you"``.
        restarts: None, or where Gram Newton-Schulz restarts, such as ``(2,)`` with ``compute="float16"``.
        compute: the dtype of the iterations, ``"bfloat16"``, ``"float16"`` or ``"float32"``.
        beta2: None, or for NorMuon (Li et al., arXiv:2510.05491) the weight of the previous average of each row's
            squares, usually 0.95: `refopt.cpu.normuon`. The averages are in the state's ``second_momentum_buffer``.
        adjust_lr_fn: as in PyTorch 2.14, whichever is installed, or ``"none"``.
        options: ``masters`` and ``max_norm``, as `Merged` has them.

    Parameters are fp32, bf16 or fp16. A group with ``use_muon=False`` has parameters of any shape, such as vectors and
    embeddings: they are updated by AdamW, with the group's ``betas``, ``eps`` and ``weight_decay``.
    """

    formula = staticmethod(formulas.muon)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Like PyTorch's; a group with ``use_muon=False`` has the defaults of `AdamW` for ``betas`` and ``eps``."""
        if isinstance(param_group, dict) and not param_group.get("use_muon", True):
            param_group = {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "maximize": False} | param_group
        super().add_param_group(param_group)

    def _check_group(self, k: int, group: dict[str, Any]) -> None:
        if isinstance(group["blocks"], Blocks):
            group["blocks"] = tuple(group["blocks"])  # which loads from a checkpoint without refopt
        super()._check_group(k, group)

    def _check_param(self, k: int, i: int, param: torch.Tensor, formula: formulas.Formula) -> None:
        super()._check_param(k, i, param, formula)
        if formula.blocks is None:
            return
        if param.dtype == torch.float64:
            raise TypeError(f"{self._label(k, i)}: expected float32, float16 or bfloat16, got float64, which "
                            f"torch.optim.Muon takes")
        if has_memory(param):
            of, blocks = described(local(param)), f"{self._group_label(k)}['blocks']"
            cut(self._label(k, i), of, formula.blocks, blocks, instead="a group with use_muon=False")


class LARS(Merged):
    """Momentum with layer-wise adaptive rates (You et al., arXiv:1708.03888): `refopt.cpu.lars_momentum`.

    Args:
        params: as for any optimizer of PyTorch's.
        lr: learning rate, at least 0.
        momentum: at least 0.
        weight_decay: at least 0.
        trust_coefficient: at least 0; a layer's rate is this times the ratio of norms.
        eps: added to the denominator of the ratio, at least 0.
        options: ``masters`` and ``max_norm``, as `Merged` has them.
    """

    formula = staticmethod(partial(formulas.formula, "lars_momentum"))

    def __init__(
        self, params: Iterable[Any], lr: Any = 0.1, momentum: float = 0.9, weight_decay: float = 0.0005,
        trust_coefficient: float = 0.001, eps: float = 0.0, **options: Any,
    ) -> None:
        super().__init__(params, _checked(locals()), **options)


class LAMB(Merged):
    """LAMB (You et al., arXiv:1904.00962): `refopt.cpu.lamb`.

    Args:
        params: as for any optimizer of PyTorch's.
        lr: learning rate, at least 0.
        betas: of both moments, at least 0 and below 1.
        eps: added to the root of the second moment, at least 0.
        weight_decay: at least 0.
        always_adapt: whether tensors without weight decay also have a trust ratio.
        options: ``masters`` and ``max_norm``, as `Merged` has them.
    """

    formula = staticmethod(partial(formulas.formula, "lamb"))

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
        weight_decay: float = 0.01, always_adapt: bool = False, **options: Any,
    ) -> None:
        super().__init__(params, _checked(locals()), **options)


class Lion(Merged):
    """Lion (Chen et al., arXiv:2302.06675): `refopt.cpu.lion`.

    Args:
        params: as for any optimizer of PyTorch's.
        lr: learning rate, at least 0.
        betas: of the step and of the average, at least 0 and below 1.
        weight_decay: apart from the gradient, at least 0.
        options: ``masters`` and ``max_norm``, as `Merged` has them.
    """

    formula = staticmethod(partial(formulas.formula, "lion"))

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0, **options: Any,
    ) -> None:
        super().__init__(params, _checked(locals()), **options)


class NovoGrad(Merged):
    """NovoGrad (Ginsburg et al., arXiv:1905.11286): `refopt.cpu.novograd`.

    Args:
        params: as for any optimizer of PyTorch's.
        lr: learning rate, at least 0.
        betas: of both moments, at least 0 and below 1.
        eps: added to the root of the second moment, at least 0.
        weight_decay: at least 0.
        grad_averaging: whether what enters the first moment is multiplied by 1 - beta1.
        options: ``masters`` and ``max_norm``, as `Merged` has them.
    """

    formula = staticmethod(partial(formulas.formula, "novograd"))

    def __init__(
        self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.95, 0.98), eps: float = 1e-8,
        weight_decay: float = 0.0, grad_averaging: bool = False, **options: Any,
    ) -> None:
        super().__init__(params, _checked(locals()), **options)


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """The options among the local names of a constructor, which PyTorch does not check here."""
    own = {name: x for name, x in given.items() if name not in ("self", "params", "options", "__class__")}
    for name, value in own.items():
        check_one(f"{type(given['self']).__name__}: {name}", name, value)
    return own
