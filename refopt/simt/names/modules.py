"""The modules that replace `numba.cuda`, its submodules, and `numba` where it is not installed."""

from __future__ import annotations

import functools
import types
from typing import Any

from .. import cuda
from ..base import numba_types
from ..base.errors import SimtError
from ..base.places import unsupported
from ..kernels.elementwise import CUDAVectorize, vectorize
from ..kernels.kernel import Kernel
from ..kernels.reduction import Reduce
from ..machine import devices, half, xoroshiro
from ..memory import host_memory
from ..memory.arrays import DeviceArray, is_cuda_array

# The module names of Numba's `cuda`.
CUDA = (
    "numba.cuda", "numba_cuda.numba.cuda", "numba_cuda.cuda", "numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda",
)
PACKAGES = ("numba.cuda", "numba_cuda", "numba_cuda_mlir")


class CudaSupportError(ImportError):
    """CUDA is not available: never raised here."""


class CudaDriverError(Exception):
    """The driver failed: never raised here."""


def _raise_driver_not_found() -> None:
    raise CudaSupportError("the executor does not look for a driver")


def _no_guvectorize(*_: Any, **__: Any) -> None:
    raise unsupported("guvectorize for the device")


_TYPES = {**numba_types.TYPES, "Float": numba_types.Scalar, "Integer": numba_types.Scalar}

# The available names of each submodule of `numba.cuda`.
_BELOW: dict[str, dict[str, Any]] = {
    "types": _TYPES,
    "fp16": {name: getattr(half.fp16, name) for name in vars(half.fp16) if name.startswith("h")},
    "api": {name: getattr(cuda, name) for name in cuda.__all__},
    "args": {"In": host_memory.In, "Out": host_memory.Out, "InOut": host_memory.InOut},
    "compiler": {},
    "cudadrv": {},
    "cudadrv.devicearray": {"DeviceNDArray": DeviceArray, "is_cuda_ndarray": is_cuda_array},
    "cudadrv.devices": {"gpus": devices.gpus, "get_context": devices.current_context},
    "cudadrv.driver": {
        "CudaAPIError": SimtError,
        "_raise_driver_not_found": _raise_driver_not_found,
    },
    "cudadrv.error": {"CudaDriverError": CudaDriverError, "CudaSupportError": CudaSupportError},
    "decorators": {"jit": cuda.jit},
    "dispatcher": {"CUDADispatcher": Kernel},
    "vectorizers": {"CUDAVectorize": CUDAVectorize, "CUDAGUFuncVectorize": _no_guvectorize},
    "kernels": {},
    "random": {name: value for name, value in vars(xoroshiro).items() if "xoroshiro" in name},
    "kernels.reduction": {"Reduce": Reduce},
}


def _module(name: str, content: dict[str, Any]) -> types.ModuleType:
    """A module that raises `Unsupported` for missing names."""
    module = types.ModuleType(name, "Of refopt.simt, in place of Numba's.")
    module.__path__ = []
    module.__dict__.update(content)

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        inner = below(f"{name}.{attribute}".removeprefix("numba.cuda."))
        if inner is None:
            raise unsupported(f"{name}.{attribute}")
        return inner

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module


@functools.cache
def below(name: str) -> types.ModuleType | None:
    """The replacement of a submodule, by its name relative to `numba.cuda`; None if there is none."""
    content = _BELOW.get(name)
    return None if content is None else _module(f"numba.cuda.{name}", content)


vars(cuda)["_below"] = below


@functools.cache
def replacements() -> dict[str, types.ModuleType]:
    """The modules by the names under which they are imported, except `numba` itself."""
    modules: dict[str, types.ModuleType] = {name: cuda for name in CUDA}
    for package in CUDA:
        for name in _BELOW:
            modules[f"{package}.{name}"] = below(name)  # type: ignore[assignment]
    nested = _module("numba_cuda.numba", {"cuda": cuda})
    modules["numba_cuda"] = _module("numba_cuda", {"cuda": cuda, "numba": nested, **_TYPES})
    modules["numba_cuda.numba"] = nested
    mlir = {"cuda": cuda, "numba_cuda": cuda, "types": below("types"), **_TYPES}
    modules["numba_cuda_mlir"] = _module("numba_cuda_mlir", mlir)
    modules["numba_cuda_mlir.types"] = modules["numba.cuda.types"]
    return modules


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    """`numba.njit` without Numba: the function runs as Python."""
    if not isinstance(function, types.FunctionType):
        return _as_it_is
    vars(function)["__simt_device__"] = True  # a kernel may call it
    return function


def prange(*limits: int) -> range:
    """`numba.prange`, which kernels cannot use."""
    return range(*limits)


class NumbaWarning(Warning):
    """Numba's warnings, which are not raised here."""


class NumbaError(Exception):
    """Numba's errors, which are not raised here."""


@functools.cache
def stub() -> dict[str, types.ModuleType]:
    """`numba` where it is not installed, by module name: its types, and `njit` and `jit`, which change nothing."""
    names = {name: value for name, value in numba_types.TYPES.items() if isinstance(value, numba_types.Type)}
    errors = _module("numba.core.errors", {
        "NumbaWarning": NumbaWarning, "NumbaPerformanceWarning": NumbaWarning, "NumbaError": NumbaError,
        "NumbaDeprecationWarning": NumbaWarning, "TypingError": type("TypingError", (NumbaError,), {}),
    })
    config = _module("numba.core.config", {"ENABLE_CUDASIM": False, "DISABLE_JIT": False})
    core = _module("numba.core", {"errors": errors, "config": config, "types": cuda.types})
    of_types = _module("numba.types", _TYPES)
    content: dict[str, Any] = {
        "cuda": cuda, "types": of_types, "core": core, "config": config, "errors": errors, "njit": _as_it_is,
        "jit": _as_it_is, "prange": prange, "vectorize": vectorize,
        "literal_unroll": lambda items: items, "__version__": "0+refopt.simt",
        "NumbaPerformanceWarning": NumbaWarning, "NumbaWarning": NumbaWarning, **names,
    }
    modules = {"numba": _module("numba", content), "numba.core": core, "numba.core.errors": errors}
    modules |= {"numba.types": of_types, "numba.core.types": of_types, "numba.core.config": config}
    return modules
