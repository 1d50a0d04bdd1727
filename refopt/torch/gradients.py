"""The gradients of a bucket's parameters: where they lie, and what of them has changed since the last step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refopt.checks.dtypes import SIZES
from refopt.torch.arrays import FLOATS, Alike, arrays_of, layout, places_of


class Gradients:
    """What a plan reads of some parameters' gradients.

    PyTorch's setter of ``.grad`` sees to shape, dtype and device, but the parameter may have got other ones since:
    a step looks at address, shape, strides, dtype and ``None``. A gradient that lies in another order than its
    parameter, or has the negative bit, is copied in every step.

    Attributes:
        present: whether each parameter has a gradient.
        places: where they lie, 0 where there is none.
        changed: whether any has come, gone or changed its dtype since a plan was given them.
        unlike: whether any is of another dtype or size than the first was, for which a plan was made.
    """

    def __init__(self, params: Sequence[Tensor], label: Callable[[int], str]) -> None:
        """Read the gradients of some parameters; ``label`` is what errors call the gradient of one."""
        self._params, self._label = list(params), label
        # By `grad_dtype` a parameter may have gradients of other dtypes: then each is looked at.
        self._free = any(getattr(param, "grad_dtype", param.dtype) is not param.dtype for param in params)
        self._copies: dict[int, Tensor] = {}
        self._dtypes: list[torch.dtype | None] = []
        self._on_gpu = self._params[0].is_cuda
        self.places = np.zeros(0, np.int64)
        self.present: list[bool] = []
        self._read([param.grad for param in params])
        first = (param if param.grad is None else param.grad for param in params)
        self._first = [(x.dtype, x.nbytes) for x in first]
        self.changed = self.unlike = False

    def look(self) -> bool:
        """Whether any gradient lies elsewhere than at the last look, has come or gone.

        Raises:
            RuntimeError, TypeError: naming the gradient: it is sparse, or of a dtype that no kernel has.
        """
        grads = [param.grad for param in self._params]
        try:  # as fast as can be, since this is most of what a step costs the host
            places = places_of(grads)
            alike = self._complete and self._alike(grads)
        except (TypeError, RuntimeError):  # of None, or of a sparse one, which `_read` refuses
            if any(grad is not None and grad.layout is not torch.strided for grad in grads):
                self._read(grads)
            places = np.array([0 if grad is None else grad.data_ptr() for grad in grads], np.int64)
            present = [grad is not None for grad in grads]
            alike = present == self.present and self._alike([grad for grad in grads if grad is not None])
        if not alike or self._copies or self._free:
            before = self._dtypes
            self._read(grads)
            self.changed |= before != self._dtypes
            pairs = zip(grads, self._first, strict=True)
            self.unlike |= any(grad is not None and (grad.dtype, grad.nbytes) != first for grad, first in pairs)
            return True
        if places.tobytes() == self.places.tobytes():
            return False
        self.places = places
        return True

    def arrays(self) -> list[Any]:
        """What a plan reads, by parameter, as device arrays; ``None`` where there is no gradient."""
        return arrays_of([self._copies.get(i, param.grad) for i, param in enumerate(self._params)])

    def give(self, plan: Any) -> None:
        """Have a plan read them where they lie. On a GPU it does not keep them alive: PyTorch may want their memory."""
        if self.changed:
            plan.rebind(grads=self.arrays())
            self.changed = False
        elif not self._on_gpu:
            arrays = self.arrays()
            plan.move("grads", [0 if array is None else array.address for array in arrays], arrays)
        if self._on_gpu:
            plan.move("grads", self.places)

    def _read(self, grads: list[Tensor | None]) -> None:
        """Look at everything; raises, naming the gradient, before anything has changed."""
        for i, grad in enumerate(grads):
            if grad is not None:
                self._check(i, grad)
        self._dtypes = [None if grad is None else grad.dtype for grad in grads]
        self._copies = {
            i: self._in_order(i, grad) for i, grad in enumerate(grads)
            if grad is not None and (layout(grad) != layout(self._params[i]) or grad.is_neg())  # of the other sign
        }  # fmt: skip
        tensors = [self._copies.get(i, grad) for i, grad in enumerate(grads)]
        self.places = np.array([0 if tensor is None else tensor.data_ptr() for tensor in tensors], np.int64)
        self.present = [grad is not None for grad in grads]
        self._complete = all(self.present)
        self._alike = Alike([grad for grad in grads if grad is not None])

    def _in_order(self, i: int, grad: Tensor) -> Tensor:
        """A copy with the elements in the order of the parameter's."""
        return torch.empty_like(self._params[i], dtype=grad.dtype, requires_grad=False).copy_(grad.detach())

    def _check(self, i: int, grad: Tensor) -> None:
        if grad.layout is not torch.strided:
            raise RuntimeError(f"{self._label(i)}: expected a dense gradient, not a sparse one, got {grad.layout}")
        if grad.dtype not in FLOATS:
            got = str(grad.dtype).removeprefix("torch.")
            raise TypeError(f"{self._label(i)}: expected a gradient of {', '.join(SIZES)}, got {got}")
