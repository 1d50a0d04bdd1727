"""`cuda.jit`: kernels, their launch configuration and their arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from . import initialized
from . import launch as launching
from .arguments import whole
from .arrays import DeviceArray, as_cuda_array, is_cuda_array, to_device
from .captures import bound
from .compiled import compiled
from .errors import LaunchError
from .launch import Launch
from .memory import FIRST_BASE
from .observed import ObservedArray
from .shared import SHARED_LIMIT
from .state import current, one_at_a_time
from .streams import Stream, as_stream

MAX_THREADS_PER_BLOCK = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)


def jit(func_or_sig: Any = None, argtypes: Any = None, device: bool = False, **options: Any) -> Any:
    """Numba's `cuda.jit`. Signatures and compiler options are accepted and ignored."""
    if not inspect.isfunction(func_or_sig):
        return functools.partial(jit, device=device)
    return func_or_sig if device else Kernel(func_or_sig)


class Kernel:
    """A kernel: `kernel[grid, block, stream, dynamic_shared_bytes](*args)` launches it."""

    def __init__(self, function: Callable) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.parameters = list(inspect.signature(function).parameters)

    def __getitem__(self, configuration: Any) -> Configured:
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError(
                "a launch needs [grid, block], [grid, block, stream] or [grid, block, stream, bytes]"
            )
        grid, block, stream, dynamic_bytes = (*configuration, 0, 0)[:4]
        return Configured(
            self, _extent(grid, "grid", MAX_GRID), _block(block), as_stream(stream), _shared(dynamic_bytes)
        )

    def __call__(self, *_: Any) -> None:
        raise LaunchError(f"kernel {self.__name__} needs a launch configuration: kernel[grid, block](...)")

    def max_cooperative_grid_blocks(self, block: Any, dynamic_shared_bytes: int = 0) -> int:
        """The most blocks that a cooperative launch may have."""
        x, y, z = _block(block)
        _shared(dynamic_shared_bytes)
        return launching.MAX_RESIDENT_THREADS // (x * y * z)

    __name__: str


class Configured(NamedTuple):
    """A kernel with its launch configuration."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    stream: Stream
    dynamic_bytes: int

    def __call__(self, *args: Any) -> None:
        """Launch."""
        kernel = self.kernel
        if len(args) != len(kernel.parameters):
            raise LaunchError(
                f"kernel {kernel.__name__} takes {len(kernel.parameters)} arguments, not {len(args)}"
            )
        with one_at_a_time:
            written_back: list[tuple[np.ndarray, DeviceArray]] = []
            converted = tuple(
                _argument(arg, name, written_back) for arg, name in zip(args, kernel.parameters, strict=True)
            )
            typed = compiled(kernel.py_func, converted)  # type: ignore[arg-type]
            if current.observer is not None:
                current.observer.typed(kernel.__name__, converted, typed)
            run = Launch(bound(typed.function, _captured), kernel.__name__, self.grid, self.block, self.dynamic_bytes)
            operation = self.stream.enqueue(kernel.__name__)
            observer = current.observer
            with observer.launch(run, operation, self.stream) if observer is not None else nullcontext():
                run.run(converted)
            for host, copy in written_back:
                copy.copy_to_host(host)


def _captured(array: DeviceArray, name: str) -> Any:
    return _argument(array, name, [])


def _argument(arg: Any, name: str, written_back: list[tuple[np.ndarray, DeviceArray]]) -> Any:
    """What the kernel sees for an argument."""
    watching = current.observer is not None and current.observer.watching
    if isinstance(arg, int | np.integer) and arg >= FIRST_BASE and not watching:
        initialized.assume_all()  # it may be an address
    if isinstance(arg, np.int64):
        return int(arg)
    if isinstance(arg, np.bool_):
        return bool(arg)
    if type(arg) is float:
        return np.float64(arg)
    if isinstance(arg, tuple):
        parts = [_argument(part, f"{name}[{i}]", written_back) for i, part in enumerate(arg)]
        return type(arg)(*parts) if hasattr(arg, "_fields") else tuple(parts)
    if isinstance(arg, np.ndarray):
        host, arg = arg, to_device(arg)
        if host.flags.writeable:
            written_back.append((host, arg))
    if not isinstance(arg, DeviceArray):
        if not is_cuda_array(arg):
            return arg
        arg = as_cuda_array(arg)
    if not watching:
        initialized.taken(arg)
        if current.observer is None or not current.observer.concerns(arg.buffer):
            return arg.data
    arg.buffer.parameter = name
    return ObservedArray(arg.buffer, arg.data, current.observer)


def _extent(value: Any, what: str, limits: tuple[int, int, int]) -> tuple[int, int, int]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(values) <= 3 or not all(type(n) is int or isinstance(n, np.integer) for n in values):
        raise LaunchError(f"{what} must be one to three integers, not {value!r}")
    x, y, z = (*(int(n) for n in values), 1, 1)[:3]
    if not all(1 <= n <= limit for n, limit in zip((x, y, z), limits, strict=True)):
        raise LaunchError(f"{what} {(x, y, z)} must be at least 1 and at most {limits} in each dimension")
    return x, y, z


def _block(value: Any) -> tuple[int, int, int]:
    x, y, z = _extent(value, "block", MAX_BLOCK)
    if x * y * z > MAX_THREADS_PER_BLOCK:
        raise LaunchError(f"block {(x, y, z)} has {x * y * z} threads, more than {MAX_THREADS_PER_BLOCK}")
    return x, y, z


def _shared(nbytes: Any) -> int:
    if whole("bytes of dynamic shared memory", nbytes) > SHARED_LIMIT:
        raise LaunchError(f"{nbytes} bytes of dynamic shared memory: must be between 0 and {SHARED_LIMIT}")
    return int(nbytes)
