"""The gradients of a bucket's parameters: their addresses, and what has changed since the last step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refopt.torch import host
from refopt.torch.arrays import arrays_of, is_stored, layout, require_alike, unusable
from refopt.torch.sharded import is_dtensor, local, placed


class Gradients:
    """The gradients of some parameters, as a plan reads them.

    PyTorch's setter of ``.grad`` checks shape, dtype and device, but the parameter may have changed since: a step
    examines address, shape, strides, dtype and ``None``. A gradient whose memory order differs from its parameter's, or
    that has the negative bit, is copied in every step, and so is a ZeroTensor.

    Attributes:
        places: their addresses, 0 if there is none, int64.
        kind: the dtype of each, ``None`` if there is none: one plan can read all gradients of one kind.
    """

    def __init__(self, params: Sequence[Any], labels: Sequence[str], form: Any, steady: Any, instead: str) -> None:
        """Read the gradients of some parameters.

        ``labels`` are the names of the gradients in errors; ``instead`` follows that of a sparse one.
        ``form`` is that of `refopt.torch.host`, and ``steady``, if given, tells whether the parameters are as planned.
        """
        self._owners, self._params, self._labels = list(params), [local(param) for param in params], labels
        self._instead = instead
        self._sharded, self._steady = any(map(is_dtensor, params)), steady
        self._reader = form.Reader(self._owners, steady)
        self._copies: dict[int, Tensor] = {}
        self._placed: dict[int, Tensor] = {}  # of gradients whose placements differ from their parameters'
        self._on_gpu = self._params[0].is_cuda
        self.places = self._reader.places
        self.kind: tuple[torch.dtype | None, ...] = ()
        self._read(self._now())

    @property
    def present(self) -> np.ndarray:
        """Whether each parameter has a gradient."""
        return self._reader.present

    def _now(self) -> list[Tensor | None]:
        """The current gradients; of DTensors, this rank's parts."""
        grads: list[Any] = [param.grad for param in self._owners]
        if self._sharded:
            parts = [None if grad is None else placed(grad, p) for grad, p in zip(grads, self._owners, strict=True)]
            self._placed = {i: x for i, x in enumerate(parts) if x is not None and x is not local(grads[i])}
            return parts
        return grads

    def compare(self) -> bool | None:
        """Whether any gradient has moved, appeared or disappeared since the last call; None if a parameter has changed.

        Raises:
            RuntimeError, TypeError: a gradient is sparse, has no memory of its own, or is of a dtype that no kernel
                has; the message names it.
        """
        grads = self._now() if self._sharded else None  # which C++ asks for itself
        found = self._reader.compare(grads)
        if found is None:
            if self._steady is not None and not self._steady(self._owners):
                return None
            self._read(self._now() if grads is None else grads)
            return True
        if found == host.OTHERS:
            self._copies, self.places = {}, self._reader.places
            self.kind = tuple(param.dtype if there else None
                              for param, there in zip(self._params, self.present, strict=True))
        return found != host.STAY

    def arrays(self) -> list[Any]:
        """The gradients for a plan, by parameter, as device arrays; ``None`` if there is no gradient."""
        kept = self._placed | self._copies
        return arrays_of([kept.get(i, local(param.grad)) for i, param in enumerate(self._owners)])

    def located(self) -> tuple[Any, list[Any] | None]:
        """Addresses, and the arrays to keep alive: on a GPU none, since PyTorch may reuse the memory."""
        arrays = None if self._on_gpu else self.arrays()
        return self.places if arrays is None else [0 if x is None else x.address for x in arrays], arrays

    def pass_to(self, plan: Any) -> None:
        """Make a plan for gradients of this kind read them at their current addresses."""
        plan.move("grads", *self.located())

    def _read(self, grads: list[Tensor | None]) -> None:
        """Examine all gradients; errors name the gradient, and are raised before anything has changed."""
        some = {i: grad for i, grad in enumerate(grads) if grad is not None}
        for i, grad in some.items():
            self._check(i, grad)
        self._copies = {
            i: torch.empty_like(self._params[i], dtype=grad.dtype, requires_grad=False).copy_(grad.detach())
            for i, grad in some.items() if layout(grad) != layout(self._params[i]) or not is_stored(grad)
        }
        # By `grad_dtype` a parameter may have gradients of other dtypes than its own; `kind` has to be read then.
        free = [i for i, grad in some.items() if grad.dtype is not self._params[i].dtype]
        self._reader.note(grads, [*self._copies, *free])
        self.places = self._reader.places.copy() if self._copies else self._reader.places
        for i, copy in self._copies.items():
            self.places[i] = copy.data_ptr()
        self.kind = tuple(None if grad is None else grad.dtype for grad in grads)

    def _check(self, i: int, grad: Tensor) -> None:
        if because := unusable(grad):
            kind = TypeError if grad.layout is torch.strided else RuntimeError  # which PyTorch raises for sparse ones
            raise kind(f"{self._labels[i]}: {because}{self._instead * grad.is_sparse}")
        require_alike(self._labels[i], grad, self._params[i])


class Rows:
    """The sparse gradients of some parameters, as a lazy plan reads them: the rows that they name, and their values.

    Attributes:
        kind: the dtype of each, ``None`` if there is none.
        present: whether each parameter has one.
    """

    def __init__(self, params: Sequence[Tensor], labels: Sequence[str]) -> None:
        """Read the gradients of some parameters; ``labels`` are the names of the gradients in errors."""
        self._params, self._labels = params, labels
        self.compare()

    def compare(self) -> bool:
        """Read the current gradients; returns True, since a lazy plan takes them in each step.

        Raises:
            RuntimeError, TypeError, ValueError: a gradient has several sparse dimensions, differs from its parameter in
                shape or device, or names, on the CPU, a row that is none; the message names it.
        """
        found = [(None, None) if x.grad is None else self._parts(i, x, x.grad) for i, x in enumerate(self._params)]
        self._indices, self._values = map(list, zip(*found, strict=True))
        self.kind = tuple(None if values is None else values.dtype for values in self._values)
        self.present = np.array([dtype is not None for dtype in self.kind])
        return True

    def arrays(self) -> tuple[list[Any], list[Any]]:
        """The rows and the values for a plan, by parameter; ``None`` if there is no gradient."""
        return arrays_of(self._indices), arrays_of(self._values)

    def pass_to(self, plan: Any) -> None:
        """Make a lazy plan read the gradients."""
        plan.rebind(*self.arrays())

    def _parts(self, i: int, param: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        if grad.sparse_dim() != 1:
            raise RuntimeError(f"{self._labels[i]}: expected one sparse dimension, got {grad.sparse_dim()}")
        require_alike(self._labels[i], grad, param)
        rows, values = (x.detach().resolve_neg().contiguous() for x in (grad._indices()[0], grad._values()))
        if not grad.is_cuda:  # PyTorch could not add to a sparse gradient whose memory NumPy has shared
            rows, values = rows.clone(), values.clone()
        if because := unusable(values):
            raise TypeError(f"{self._labels[i]}: {because}")
        if not rows.is_cuda and (wrong := rows[(rows < 0) | (rows >= len(param))]).numel():  # a GPU leaves it out
            raise ValueError(f"{self._labels[i]}: expected rows from 0 to {len(param) - 1}, got {wrong[0]}")
        return rows, values
