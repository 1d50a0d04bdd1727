"""The arrays of libraries, converted from and to NumPy, without importing what has not been imported."""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.checks.dtypes import numpy_dtype
from refopt.checks.optional import library
from refopt.oracle.subject import Arrays, Lacks, NumPy, Wrong

NAMES = "numpy", "torch", "jax", "cupy"


def arrays_of(name: str, device: str | None = None) -> Arrays:
    """The arrays of a library, by name; raises ModuleNotFoundError if it is not installed."""
    if name == "torch":
        return Torch(device or "cpu")
    if device is not None:
        raise ValueError(f"check: device: expected none except for torch, got {device!r} for {name}")
    libraries: dict[str, Callable[[], Arrays]] = {"numpy": NumPy, "jax": Jax, "cupy": CuPy}
    return libraries[name]()


class Torch:
    """Tensors of a device. On the CPU they share memory with NumPy arrays of any strides and address."""

    def __init__(self, device: str = "cpu") -> None:
        self.torch: Any = library("torch")
        try:
            self.device = self.torch.device(device)
            self.torch.zeros(1, device=self.device).cpu()
        except Exception as error:  # AssertionError in a build without CUDA, others without a driver
            why = " ".join(str(error).split())
            raise ValueError(f"check: device: expected one that PyTorch can use, got {device!r}: {why}") from None
        if self.device.type == "cuda":
            from refopt.gpu.machine import Properties, require

            about = self.torch.cuda.get_device_properties(self.device)
            found = Properties(about.name, (about.major, about.minor), about.multi_processor_count, about.L2_cache_size)
            try:
                require("check: device", found)
            except RuntimeError as error:
                raise ValueError(str(error)) from None

    def of(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":
            tensor = self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        else:
            tensor = self.torch.from_numpy(array)
        return tensor.to(self.device)

    def back(self, array: Any) -> np.ndarray:
        if not isinstance(array, self.torch.Tensor):
            raise Wrong(f"expected a tensor, got {kind_of(array)}")
        if type(array) not in (self.torch.Tensor, self.torch.nn.Parameter):
            raise Wrong(f"expected torch.Tensor itself, got {kind_of(array)}, which may compute when it is read")
        host = array.detach().cpu()
        if host.dtype == self.torch.bfloat16:
            return host.view(self.torch.int16).numpy().view(numpy_dtype("bfloat16"))
        return host.numpy()


class Jax:
    """Arrays that cannot be changed in place: steps return new lists."""

    def __init__(self) -> None:
        self.jax: Any = library("jax")

    def of(self, array: np.ndarray) -> Any:
        copied = self.jax.numpy.asarray(array)
        if copied.dtype != array.dtype:
            raise Lacks("JAX has no fp64 without jax_enable_x64")
        return copied

    def back(self, array: Any) -> np.ndarray:
        if not isinstance(array, self.jax.Array):
            raise Wrong(f"expected an array of JAX, got {kind_of(array)}")
        return np.array(array)


class CuPy:
    """Arrays on the current GPU."""

    def __init__(self) -> None:
        self.cupy: Any = library("cupy")

    def of(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":
            raise Lacks("CuPy has no bfloat16")
        return self.cupy.asarray(array, order="K")

    def back(self, array: Any) -> np.ndarray:
        if not isinstance(array, self.cupy.ndarray):
            raise Wrong(f"expected an array of CuPy, got {kind_of(array)}")
        return self.cupy.asnumpy(array, order="A")
