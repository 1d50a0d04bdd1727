"""The two machines that run kernels, behind one interface: a CUDA GPU, and the executor of `refopt.simt`.

Only `device` decides which of them a call without arrays uses. A call on arrays uses the machine of the arrays;
`to_device` uses the one that `device` returns: the GPU if there is one, unless ``REFOPT_DEVICE`` (``gpu`` or
``executor``) or `use` selects another.
"""

import contextlib
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from refopt import checks, simt
from refopt.checks.arguments import is_whole, rounded, shown
from refopt.gpu import cache
from refopt.gpu.arrays import device_of, ordinal_of
from refopt.gpu.compiling import INSTALL, no_compiler
from refopt.gpu.kernels import Kernel
from refopt.gpu.machine import Event, Filler, Properties, Uploader, require

if TYPE_CHECKING:
    from refopt.gpu.driver import Gpu

Device: TypeAlias = "Executor | Gpu"  # both have the same methods; streams and the like belong to one of them


class Executor:
    """The CPU, running `refopt.simt`. Blocks have one warp, which changes no bit (N6), unless a launch is "whole"."""

    name = "executor"
    index = None
    warpgroups = False

    @property
    def properties(self) -> Properties:
        """Properties of the device that the executor claims to be: ``simt.claim``."""
        return Properties.of(simt.cuda.get_current_device())

    def enter(self) -> Callable[[], Any] | None:
        """Nothing: launches from several threads run one after another."""
        return None

    def to_device(self, array: np.ndarray) -> Any:
        """A copy in the same order of axes if the array is dense, else in C order."""
        array = checks.dense(array)
        copy = simt.cuda.device_array(array.shape, array.dtype, strides=array.strides if array.size else None)
        copy.copy_to_device(array)
        return copy

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return simt.cuda.device_array(shape, dtype)

    def pinned(self, array: np.ndarray) -> Any:
        """A copy in C order, in host memory that the device can access: here, an ordinary device array."""
        return simt.cuda.to_device(np.asarray(array, order="C"))

    def view(self, array: Any, first: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any = None) -> Any:
        """A view of a flat array from element ``first`` on, with a dense shape and strides in bytes.

        With a ``dtype``, the bytes are viewed as elements of that dtype.
        """
        offset = array.offset + first * array.dtype.itemsize
        dtype = array.dtype if dtype is None else dtype
        return simt.DeviceArray(array.buffer, np.ndarray(shape, dtype, array.buffer.data, offset, strides))

    def stream(self, stream: Any, where: str = "stream") -> Any:
        """The stream itself, or its handle; if it is neither, the error names ``where``."""
        if not isinstance(stream, simt.outside.Stream) and not (is_whole(stream) and stream >= 0):
            raise TypeError(f"{where}: expected a stream of the executor or its handle, got {shown(stream)}")
        return stream if isinstance(stream, simt.outside.Stream) else int(stream)

    def new_stream(self, multiprocessors: int | None = None) -> Any:
        """A stream; the executor has no multiprocessors to reserve."""
        return simt.cuda.stream()

    def new_event(self, timing: bool = False) -> Event:
        """An event; its time is the host's, since all work is done in the call that enqueues it."""
        return simt.cuda.event(timing)

    def copier(self, source: Any, target: Any) -> Callable[[Any], None]:
        """A function that copies an array to another of the same shape and dtype, in stream order."""
        return lambda stream: target.copy_to_device(source, stream)

    def capturing(self, stream: Any) -> bool:
        return False

    def uploader(self, array: Any) -> Uploader:
        flat = array.reshape(array.size)
        return lambda first, values, stream: flat[first : first + values.size].copy_to_device(values, stream)

    def filler(self, array: Any, first: int, count: int) -> Filler:
        upload = self.uploader(array)
        return lambda value, stream: upload(first, rounded(np.full(count, value), array.dtype), stream)

    def resident(self, kernel: Kernel, block: int, args: tuple, wanted: int) -> int:
        """Blocks of a cooperative launch that has work for ``wanted`` blocks.

        They are few if it may run as threads, each of which exists until the launch ends, and many if the work is so
        large that it runs as lanes.
        """
        return min(wanted, 256 if wanted >= 1024 else 4)

    def prepare(self, kernel: Kernel, grid: int, block: int, args: tuple, mode: str = "") -> Callable[[Any], None]:
        kernel.require(self.properties)
        threads = block if mode == "whole" else 32
        return lambda stream: kernel.executor[grid, threads, stream](*args)

    def sequence(self, launches: Sequence[Callable[[Any], None]]) -> Callable[[Any], bool]:
        def run(stream: Any) -> bool:
            for launch in launches:
                launch(stream)
            return not self.capturing(stream)

        return run

    def synchronize(self) -> None:
        simt.cuda.synchronize()


_forced: list[str] = []


def device(name: str | None = None) -> Device:
    """The machine of that name, ``"gpu"`` or ``"executor"``; without a name, the current one.

    Raises:
        RuntimeError: there is no GPU, or kernels are not compiled for its compute capability.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"device: expected gpu or executor, got {shown(name)}")
    name = name or (_forced[-1] if _forced else os.environ.get("REFOPT_DEVICE"))
    if name not in (None, "gpu", "executor"):
        raise ValueError(f"device: expected gpu or executor, got {name!r}")
    missing = "" if name == "executor" else _why_no_gpu()
    if name == "gpu" and missing:
        raise RuntimeError(f"device: expected a CUDA GPU, got none: {missing}")
    return _able(_executor() if name == "executor" or missing else _gpu())


def _able(machine: Device) -> Device:
    """The machine, if it can run kernels."""
    require("device", machine.properties)
    return machine


def machine_of(*lists: Any) -> Device:
    """The machine of the first device array in some lists; of several GPUs, that array's.

    Arguments that are not lists are skipped. Without any device array it is the one that `device` returns.
    """
    for values in lists:
        for value in values if isinstance(values, Sequence) else ():
            if name := device_of([value]):
                found = device(name)
                index = ordinal_of(value) if name == "gpu" and gpus() > 1 else None
                return found if index is None else _able(_gpu(index))
    return device()


def gpus() -> int:
    """How many GPUs there are."""
    from refopt.gpu.streams import device_count

    return device_count()


@contextlib.contextmanager
def use(name: str) -> Iterator[Device]:
    """Force the machine that `to_device` uses within a ``with``."""
    chosen = device(name)
    _forced.append(name)
    try:
        yield chosen
    finally:
        _forced.pop()


_executor = lru_cache(Executor)


@lru_cache
def _gpu(index: int | None = None) -> Device:
    """The GPU with an index, or the current one."""
    from refopt.gpu.driver import Gpu

    return Gpu(index)


@lru_cache
def _why_no_gpu() -> str:
    """Empty if kernels can be launched here, else the reason why they cannot, in one line.

    Kernels that an earlier process compiled are on disk. If none are, a compiler is needed.
    """
    try:
        gpus()
    except ModuleNotFoundError as error:
        return f"cuda-bindings is not installed ({error})"
    except Exception as error:  # from a broken driver, or from importing its bindings
        why = f"{type(error).__name__}: {textwrap.shorten(str(error), 200)}"
        there = not re.match(r"DynamicLibNotFoundError|.*CUDA_ERROR_NO_DEVICE", why)
        return f"the CUDA driver fails ({why})" if there else "no CUDA device or driver was found"
    reason = no_compiler() if cache.is_empty() else ""
    return reason and f"{reason}; {INSTALL}"
