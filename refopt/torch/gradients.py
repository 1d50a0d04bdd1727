"""The gradients of a bucket's parameters: where they lie, and what of them has changed since the last step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refopt.checks.dtypes import SIZES
from refopt.torch.arrays import FLOATS, Alike, arrays_of, layout, places_of
from refopt.torch.recent import Recent
from refopt.torch.sharded import is_dtensor, local, placed

ALL = b""  # the mask where every parameter has a gradient


class Gradients:
    """What a plan reads of some parameters' gradients.

    PyTorch's setter of ``.grad`` sees to shape, dtype and device, but the parameter may have got other ones since:
    a step looks at address, shape, strides, dtype and ``None``. A gradient that lies in another order than its
    parameter, or has the negative bit, is copied in every step.

    Attributes:
        present: whether each parameter has a gradient.
        places: where they lie, 0 where there is none.
        kind: the dtype of each, ``None`` where there is none: those of one kind can be read by one plan.
    """

    def __init__(self, params: Sequence[Any], label: Callable[[int], str]) -> None:
        """Read the gradients of some parameters; ``label`` is what errors call the gradient of one."""
        self._owners, self._params, self._label = list(params), [local(param) for param in params], label
        self._spreads = [param.placements if is_dtensor(param) else None for param in params]
        self._sharded = any(spread is not None for spread in self._spreads)
        # By `grad_dtype` a parameter may have gradients of other dtypes: then each is looked at.
        self._free = any(getattr(param, "grad_dtype", param.dtype) is not param.dtype for param in params)
        self._copies: dict[int, Tensor] = {}
        self._placed: dict[int, Tensor] = {}  # of gradients that have other placements than their parameters
        self._on_gpu = self._params[0].is_cuda
        self.places = np.zeros(0, np.int64)
        self.present: list[bool] = []
        self.kind: tuple[torch.dtype | None, ...] = ()
        self._mask = ALL
        self._masks: Recent[bytes, tuple[tuple, Alike]] = Recent()  # by which there are, what they are like
        self._read(self._now())

    def _now(self) -> list[Tensor | None]:
        """The gradients there are; of DTensors, this rank's parts."""
        grads: list[Any] = [param.grad for param in self._owners]
        if self._sharded:
            self._placed = {}
            for i, (grad, spread) in enumerate(zip(grads, self._spreads, strict=True)):
                if grad is not None and spread is not None:
                    if grad.placements == spread:
                        grads[i] = grad._local_tensor
                    else:
                        grads[i] = self._placed[i] = placed(grad, self._owners[i])
        return grads

    def look(self) -> bool:
        """Whether any gradient lies elsewhere than at the last look, has come or gone.

        Raises:
            RuntimeError, TypeError: naming the gradient: it is sparse, or of a dtype that no kernel has.
        """
        grads = self._now()
        places, present, some = self._places_of(grads)
        kind, alike = self._masks.get(present, ((), None))
        if alike is None or not alike(some) or self._copies or self._free:
            self._read(grads)
            return True
        if present == self._mask and places.tobytes() == self.places.tobytes():
            return False
        if present != self._mask:
            self._mask, self.kind, self.present = present, kind, [grad is not None for grad in grads]
        self.places = places
        return True

    def _places_of(self, grads: list[Tensor | None]) -> tuple[np.ndarray, bytes, list[Any]]:
        """Where gradients lie, which there are, and those; as fast as can be, since this is most of a step's cost."""
        try:
            return places_of(grads), ALL, grads
        except (TypeError, RuntimeError):  # of None, or of a sparse one, which `_read` refuses
            if any(grad is not None and grad.layout is not torch.strided for grad in grads):
                self._read(grads)
        places, present = np.zeros(len(grads), np.int64), [grad is not None for grad in grads]
        some = [grad for grad in grads if grad is not None]
        places[present] = places_of(some)
        return places, bytes(present), some

    def arrays(self) -> list[Any]:
        """What a plan reads, by parameter, as device arrays; ``None`` where there is no gradient."""
        kept = self._placed | self._copies
        return arrays_of([kept.get(i, local(param.grad)) for i, param in enumerate(self._owners)])

    def give(self, plan: Any) -> None:
        """Have a plan for gradients of this kind read them where they lie.

        On a GPU it does not keep them alive: PyTorch may want their memory.
        """
        if self._on_gpu:
            plan.move("grads", self.places)
        else:
            arrays = self.arrays()
            plan.move("grads", [0 if array is None else array.address for array in arrays], arrays)

    def _read(self, grads: list[Tensor | None]) -> None:
        """Look at everything; raises, naming the gradient, before anything has changed."""
        for i, grad in enumerate(grads):
            if grad is not None:
                self._check(i, grad)
        self._copies = {
            i: self._in_order(i, grad) for i, grad in enumerate(grads)
            if grad is not None and (layout(grad) != layout(self._params[i]) or grad.is_neg())  # of the other sign
        }  # fmt: skip
        tensors = [self._copies.get(i, grad) for i, grad in enumerate(grads)]
        self.places = np.array([0 if tensor is None else tensor.data_ptr() for tensor in tensors], np.int64)
        self.present = [grad is not None for grad in grads]
        self.kind = tuple(None if grad is None else grad.dtype for grad in grads)
        self._mask = ALL if all(self.present) else bytes(self.present)
        self._masks.use(self._mask, (self.kind, Alike([grad for grad in grads if grad is not None])))

    def _in_order(self, i: int, grad: Tensor) -> Tensor:
        """A copy with the elements in the order of the parameter's."""
        return torch.empty_like(self._params[i], dtype=grad.dtype, requires_grad=False).copy_(grad.detach())

    def _check(self, i: int, grad: Tensor) -> None:
        if grad.layout is not torch.strided:
            raise RuntimeError(f"{self._label(i)}: expected a dense gradient, not a sparse one, got {grad.layout}")
        if grad.dtype not in FLOATS:
            got = str(grad.dtype).removeprefix("torch.")
            raise TypeError(f"{self._label(i)}: expected a gradient of {', '.join(SIZES)}, got {got}")
