"""`vectorize` for the device: applies a function of elements to whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.arguments import shown
from ..base.numba_types import dtype_of
from ..base.places import unsupported
from ..machine import indices
from ..memory.arrays import DeviceArray, as_cuda_array, is_cuda_array, to_device
from .kernel import jit
from .signatures import parsed

_THREADS = 128


class Vectorized:
    """A function of scalars that is called with arrays whose shapes broadcast: ``f(x, y, out=None, stream=0)``.

    The first signature is used to whose types all arguments can be cast safely, or else all arrays can. The result is
    `out`, if given, or else is on the device if an argument is.
    """

    def __init__(self, function: Callable[..., Any], signatures: Any) -> None:
        self.__name__ = getattr(function, "__name__", "vectorized")
        self.signatures = [(_dtype(returned), [_dtype(arg) for arg in args]) for returned, args in parsed(signatures)]

        def apply(out: Any, inputs: Any) -> None:
            i = indices.grid(1)
            if i < out.shape[0]:
                out[i] = function(*indices.elements(inputs, i))

        apply.__name__ = self.__name__
        self._kernel = jit(apply)

    def __call__(self, *args: Any, out: Any = None, stream: Any = 0) -> Any:
        """Apply the function to each element.

        Raises:
            TypeError: no signature accepts the arguments.
            ValueError: their shapes do not broadcast.
        """
        on_device = any(is_cuda_array(arg) for arg in args)
        arrays = [as_cuda_array(arg).data if is_cuda_array(arg) else np.asarray(arg) for arg in args]
        returned, taken = self._signature(args, arrays)
        inputs = [x.astype(dtype, copy=False) for x, dtype in zip(arrays, taken, strict=True)]
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        flat = [to_device(np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(-1), stream) for x in inputs]
        result = to_device(np.empty(shape, returned or np.result_type(*taken)), stream, copy=False)
        count = result.size
        if count:
            self._kernel[-(-count // _THREADS), _THREADS, stream](result.reshape(-1), tuple(flat))
        if out is None:
            return result if on_device else result.copy_to_host(stream=stream)[()]
        if isinstance(out, DeviceArray):
            out.copy_to_device(result, stream)
        else:
            np.copyto(out, result.copy_to_host(stream=stream))
        return out

    def _signature(self, args: Any, arrays: list[np.ndarray]) -> tuple[Any, list[np.dtype]]:
        if not self.signatures:
            return None, [x.dtype for x in arrays]
        plain = (bool, int, float, complex)
        pairs = zip(args, arrays, strict=True)
        types = [arg if isinstance(arg, plain) and not isinstance(arg, np.generic) else x.dtype for arg, x in pairs]
        scalar = [x.ndim == 0 and not is_cuda_array(arg) for arg, x in zip(args, arrays, strict=True)]
        for coerced in (False, True):  # as in Numba, numbers are coerced if no signature fits better
            for returned, taken in self.signatures:
                if len(taken) == len(types) and all(
                    _fits(one, dtype) or (coerced and number and np.asarray(arg).dtype.kind in "biuf")
                    for one, dtype, arg, number in zip(types, taken, args, scalar, strict=True)
                ):
                    return returned, taken
        shapes = ", ".join(str(x.dtype) for x in arrays)
        raise TypeError(f"{self.__name__}: no signature takes ({shapes})")

    def __getattr__(self, name: str) -> Any:
        if name in ("reduce", "accumulate", "outer", "at", "max_blocksize"):
            raise unsupported(f"{name} of vectorized functions")
        raise AttributeError(f"vectorized function {self.__dict__.get('__name__')} has no {name}")


def _fits(type_: Any, taken: np.dtype) -> bool:
    """Whether a dtype can be cast safely; for a Python number only the kind counts, as in NumPy."""
    if isinstance(type_, np.dtype):
        return np.can_cast(type_, taken, "safe")
    return np.can_cast(np.asarray(type_).dtype, taken, "same_kind")


def _dtype(type_: Any) -> Any:
    dtype = None if type_ is None else dtype_of(type_)
    if dtype is not None and not isinstance(dtype, np.dtype):
        raise TypeError(f"vectorize: expected a signature of scalars, got one with {shown(type_)}")
    return dtype


def vectorize(signatures: Any = None, target: str = "cuda", **_: Any) -> Any:
    """Numba's ``vectorize(signatures, target="cuda")``."""
    if callable(signatures):
        return Vectorized(signatures, [])
    listed = signatures if isinstance(signatures, (list, tuple)) else [signatures]
    return lambda function: Vectorized(function, list(listed))


class CUDAVectorize:
    """The interface of a target of Numba's own `vectorize`."""

    def __init__(self, function: Callable[..., Any], *_: Any, **__: Any) -> None:
        self.function = function
        self.signatures: list[Any] = []

    def add(self, sig: Any = None) -> None:
        """Add a signature."""
        self.signatures.append(sig)

    def disable_compile(self) -> None:
        """Nothing to do: no more signatures follow."""

    def build_ufunc(self) -> Vectorized:
        """The function of arrays."""
        return Vectorized(self.function, self.signatures)
