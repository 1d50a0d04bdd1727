"""The gradients of a bucket's parameters: where they lie, and what of them has changed since the last step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from refopt.checks.dtypes import SIZES
from refopt.torch.arrays import FLOATS, arrays_of, layout


class Gradients:
    """What a plan reads of some parameters' gradients.

    PyTorch's setter of ``.grad`` sees to shape, dtype and device, so address, strides and ``None`` are what a step looks
    at. A gradient that lies in another order than its parameter is copied into that order, in every step.

    Attributes:
        tensors: what the plan reads, by parameter; ``None`` where there is no gradient.
        present: whether each parameter has a gradient.
    """

    def __init__(self, params: Sequence[Tensor], label: Callable[[int], str]) -> None:
        """Read the gradients of some parameters; ``label`` is what errors call the gradient of one."""
        self._params, self._label = list(params), label
        # By `grad_dtype` a parameter may have gradients of other dtypes: then each is looked at.
        self._free = any(getattr(param, "grad_dtype", param.dtype) is not param.dtype for param in params)
        self._copies: dict[int, Tensor] = {}
        self._places: list[int] = []
        self._strides: list[Any] = []
        self._dtypes: list[torch.dtype | None] = []
        self.tensors: list[Tensor | None] = []
        self.present: list[bool] = []
        self._read([param.grad for param in params])

    def arrays(self) -> list[Any]:
        """The device arrays of a plan."""
        return arrays_of(self.tensors)

    def look(self) -> tuple[bool, bool]:
        """Whether any gradient lies elsewhere than before, and whether any has come, gone or changed its dtype."""
        grads = [param.grad for param in self._params]
        try:
            places = [0 if grad is None else grad.data_ptr() for grad in grads]
            strides = [None if grad is None else grad.stride() for grad in grads]
        except RuntimeError:  # of a sparse one, which is refused below
            strides = []
        if strides != self._strides or self._copies or self._free:
            before = self._dtypes
            self._read(grads)
            return True, before != self._dtypes
        if places == self._places:
            return False, False
        self._places, self.tensors = places, grads
        return True, False

    def hand_to(self, plan: Any) -> None:
        """Have a plan read them where they lie."""
        plan.rebind(grads=self.arrays())

    def _read(self, grads: list[Tensor | None]) -> None:
        """Look at everything; raises, naming the gradient, before anything has changed."""
        for i, grad in enumerate(grads):
            if grad is not None:
                self._check(i, grad)
        self._copies = {i: grad for i, grad in enumerate(grads) if grad is not None and self._lies_otherwise(i, grad)}
        self._strides = [None if grad is None else grad.stride() for grad in grads]
        self._copies = {i: torch.empty_like(self._params[i], dtype=grad.dtype).copy_(grad.detach())
                        for i, grad in self._copies.items()}  # fmt: skip
        self.tensors = [self._copies.get(i, grad) for i, grad in enumerate(grads)]
        self._places = [0 if tensor is None else tensor.data_ptr() for tensor in self.tensors]
        self._dtypes = [None if grad is None else grad.dtype for grad in grads]
        self.present = [grad is not None for grad in grads]

    def _lies_otherwise(self, i: int, grad: Tensor) -> bool:
        return layout(grad) != layout(self._params[i]) or grad.is_neg()

    def _check(self, i: int, grad: Tensor) -> None:
        if grad.layout is not torch.strided:
            raise RuntimeError(f"{self._label(i)}: expected a dense gradient, not a sparse one, got {grad.layout}")
        if grad.dtype not in FLOATS:
            got = str(grad.dtype).removeprefix("torch.")
            raise TypeError(f"{self._label(i)}: expected a gradient of {', '.join(SIZES)}, got {got}")
