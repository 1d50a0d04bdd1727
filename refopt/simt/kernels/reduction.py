"""`cuda.reduce`: a reduction over an array, from a function of two elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.arguments import shown, whole
from ..memory.arrays import DeviceArray, device_array, to_device
from .kernel import Kernel, jit


class Reduce:
    """A reduction: ``total = cuda.reduce(lambda a, b: a + b)``, then ``total(array)``.

    It folds from the first element to the last, Numba by warps and blocks: floats may differ in rounding.
    """

    def __init__(self, functor: Callable[[Any, Any], Any]) -> None:
        if isinstance(functor, Kernel):
            functor = functor.py_func
        if not callable(functor):
            raise TypeError(f"cuda.reduce: expected a function of two elements, got {shown(functor)}")

        def fold(out: Any, values: Any, first: Any) -> None:
            total = first[0]
            for i in range(len(values)):
                total = functor(total, values[i])
            out[0] = total

        self._fold = jit(fold)

    def __call__(self, arr: Any, size: int | None = None, res: Any = None, init: Any = 0, stream: Any = 0) -> Any:
        """The reduction of the first `size` elements and `init`, written to ``res[0]`` if `res` is given."""
        if getattr(arr, "ndim", None) != 1:
            raise TypeError(f"arr: expected an array of one dimension, got {shown(arr)}")
        count = len(arr) if size is None else whole("size", size)
        values = to_device(arr, stream)
        first = to_device(np.array([init], values.dtype), stream)
        out = device_array(1, values.dtype) if res is None else res
        if not isinstance(out, DeviceArray):
            raise TypeError(f"res: expected a device array, got {shown(res)}")
        self._fold[1, 1, stream](out[:1], values[:count], first)
        return out[0] if res is None else None
