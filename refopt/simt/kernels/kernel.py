"""`cuda.jit`: kernels, their launch configuration and their arguments."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from ..base.arguments import shown, whole
from ..base.errors import LaunchError
from ..base.places import unsupported
from ..base.state import current, one_at_a_time
from ..base.streams import Stream, as_stream
from ..base.tracebacks import own_traceback
from ..compiled import Compiled, compiled
from ..compiled.captures import bound
from ..compiled.lifted import with_undefined
from ..lanes import How, attempt, decide
from ..machine import launch as launching
from ..machine.devices import Device
from ..machine.launch import Launch
from ..machine.occupancy import resident_blocks
from .passed import Copies, argument
from .signatures import as_declared, parsed

MAX_THREADS_PER_BLOCK = Device.MAX_THREADS_PER_BLOCK
MAX_BLOCK = Device.MAX_BLOCK_DIM_X, Device.MAX_BLOCK_DIM_Y, Device.MAX_BLOCK_DIM_Z
MAX_GRID = Device.MAX_GRID_DIM_X, Device.MAX_GRID_DIM_Y, Device.MAX_GRID_DIM_Z


# The last line has numba-cuda-mlir's.
_OPTIONS = """abi abi_info boundscheck cache cooperative debug error_model extensions fastmath forceinline inline
launch_bounds lineinfo link lto max_registers nopython opt shared_memory_carveout
chip dump dump_cubin dump_ptx features opt_level print_after_all profile_jit"""


def jit(func_or_sig: Any = None, argtypes: Any = None, device: bool = False, **options: Any) -> Any:
    """Numba's `cuda.jit`, of a function, or with signatures, to which arguments are converted, and options.

    Compiler options have no effect, except ``launch_bounds``, whose maximum of threads per block is enforced. An option
    unknown to Numba is a TypeError, and ``link``, for code in other languages, is `Unsupported`.
    """
    unknown = sorted(options.keys() - set(_OPTIONS.split()))
    if unknown:
        raise TypeError(f"cuda.jit: option {unknown[0]}: expected one of {', '.join(_OPTIONS.split())}")
    if options.get("link"):
        raise unsupported("cuda.jit(link=...)", "it runs only Python")
    if inspect.isfunction(func_or_sig):
        return jit(argtypes, None, device, **options)(func_or_sig)
    declared_types = argtypes if func_or_sig is None else func_or_sig
    signatures = () if declared_types is None else parsed(declared_types)

    def decorate(function: Any) -> Any:
        if not inspect.isfunction(function):
            raise TypeError(f"cuda.jit: expected a function, got {shown(function)}")
        vars(function)["__simt_device__"] = True  # as in Numba, a kernel may call it, even if it is a kernel itself
        if device:
            vars(function)["__simt_signatures__"] = signatures  # to which calls convert arguments and results
            return function
        return Kernel(function, tuple(args for _, args in signatures), options)

    return decorate


class Kernel:
    """A kernel: `kernel[grid, block, stream, dynamic_shared_bytes](*args)` launches it."""

    translated: Callable[[Callable], Callable]  # by `translate`, which needs kernels

    def __init__(self, function: Callable, signatures: tuple[tuple, ...] = (), options: Any = None) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.parameters = list(inspect.signature(function).parameters)
        self._function: Callable | None = None
        self.ptx: Callable[[tuple], Any] | None = None  # compiles it for Numba types, if its owner sets this
        self.argument_types = signatures  # of explicit signatures
        bounds = (options or {}).get("launch_bounds")
        self.most_threads = bounds[0] if isinstance(bounds, tuple) else bounds
        self.extensions = list((options or {}).get("extensions") or ())  # whose prepare_args sees each argument

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Configured:
        """The kernel with its launch configuration, like ``kernel[griddim, blockdim, stream, sharedmem]``."""
        return self[griddim, blockdim, stream, sharedmem]

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> ForAll:
        """The kernel with enough blocks of `tpb` threads (by default 128) for one thread per task."""
        return ForAll(self, whole("ntasks", ntasks), whole("tpb", tpb) or 128, stream, sharedmem)

    @property
    def function(self) -> Callable:
        """The function that runs: a copy in which the executor's names replace Numba's, as of the first launch."""
        if self._function is None:
            self._function = Kernel.translated(self.py_func)
        return self._function

    def specialize(self, *_: Any) -> Kernel:
        """The kernel specialized for arguments: itself, since nothing is compiled."""
        return self

    @property
    def overloads(self) -> Overloads:
        """Compiled versions by signature: for any signature, the kernel itself."""
        return Overloads(self)

    def __getitem__(self, configuration: Any) -> Configured:
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError("a launch needs [grid, block], [grid, block, stream] or [grid, block, stream, bytes]")
        grid, block, stream, dynamic_bytes = (*configuration, 0, 0)[:4]
        return Configured(
            self, _extent(grid, "grid", MAX_GRID), _block(block), as_stream(stream), _shared(dynamic_bytes)
        )

    def __call__(self, *args: Any) -> Any:
        """From a kernel, a call as a device function: as in Numba, that does not need `device=True`."""
        if current.inside:
            return self.function(*args)
        raise LaunchError(f"kernel {self.__name__} needs a launch configuration: kernel[grid, block](...)")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in _OF_COMPILED.split():
            raise AttributeError(f"kernel {self.__dict__.get('__name__')} has no {name}")
        raise unsupported(f"{name} of kernels", "it compiles nothing")

    def max_cooperative_grid_blocks(self, block: Any, dynamic_shared_bytes: int = 0) -> int:
        """The most blocks that a cooperative launch may have; static shared memory may allow fewer."""
        extents, nbytes = _block(block), _shared(dynamic_shared_bytes)
        return min(launching.MAX_RESIDENT_THREADS // math.prod(extents), resident_blocks(extents, nbytes))

    __name__: str


_OF_COMPILED = """compile compile_device get_const_mem_size get_local_mem_per_thread
get_max_threads_per_block get_metadata get_regs_per_thread get_shared_mem_per_block inspect_asm inspect_llvm
inspect_lto_ptx inspect_sass inspect_sass_cfg inspect_types nopython_signatures recompile signatures
specialized stats"""


class Overloads:
    """Kernels by signature, all the same one."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, signature: Any) -> Kernel:
        return self.kernel

    def values(self) -> tuple[Kernel, ...]:
        """The kernel."""
        return (self.kernel,)


class ForAll(NamedTuple):
    """A kernel that is launched with a thread per task."""

    kernel: Kernel
    ntasks: int
    tpb: int
    stream: Any
    sharedmem: int

    def __call__(self, *args: Any) -> None:
        """Launch, unless there are no tasks."""
        if self.ntasks:
            self.kernel[-(-self.ntasks // self.tpb), self.tpb, self.stream, self.sharedmem](*args)


class Configured(NamedTuple):
    """A kernel with its launch configuration."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    stream: Stream
    dynamic_bytes: int

    def __call__(self, *args: Any) -> None:
        """Launch."""
        try:
            self._launch(args)
        except Exception as error:
            error.__traceback__ = own_traceback(error)
            raise  # adds no traceback entry of its own

    def arguments(self, args: tuple, written_back: Copies, after: list[Callable[[], Any]]) -> tuple:
        """The arguments as the kernel sees them, after all checks of the launch.

        To be done after it: copies ``written_back`` to the host, and calls that extensions append to ``after``.
        """
        kernel = self.kernel
        if len(args) != len(kernel.parameters):
            raise LaunchError(f"kernel {kernel.__name__} takes {len(kernel.parameters)} arguments, not {len(args)}")
        threads = math.prod(self.block)
        if kernel.most_threads and threads > kernel.most_threads:
            most = f"launch_bounds {kernel.most_threads}"
            raise LaunchError(f"kernel {kernel.__name__}: block of {threads} threads, {most}")
        if kernel.argument_types:
            args = as_declared(kernel.__name__, kernel.parameters, kernel.argument_types, args)
        for extension in reversed(kernel.extensions):
            prepared = (extension.prepare_args(None, arg, stream=self.stream, retr=after) for arg in args)
            args = tuple(value for _, value in prepared)
        _shared(self.dynamic_bytes)  # checked again, since another device may be claimed by now
        return tuple(argument(arg, name, written_back) for arg, name in zip(args, kernel.parameters, strict=True))

    def _launch(self, args: tuple) -> None:
        written_back: Copies = []
        after: list[Callable[[], Any]] = []
        with one_at_a_time:
            converted = self.arguments(args, written_back, after)
            typed = compiled(self.kernel.function, converted)  # type: ignore[arg-type]
            if attempt(self, typed, converted):
                self.stream.enqueue(self.kernel.__name__)
            else:
                self._by_threads(typed, converted)
            for host, copy in written_back:
                copy.copy_to_host(host)
        for call in after:
            call()

    def _by_threads(self, typed: Compiled, args: tuple) -> None:
        """Launch by threads, with converted arguments."""
        kernel, observer = self.kernel, current.observer
        if observer is not None:
            observer.typed(kernel, args, typed)
        prepare = with_undefined if observer is not None and observer.watching else lambda function: function
        function = bound(prepare(typed.function), lambda array, name: argument(array, name, []))
        operation = self.stream.enqueue(kernel.__name__)

        def once() -> None:
            untyped = bool(typed.untyped)
            run = Launch(function, kernel.__name__, self.grid, self.block, self.dynamic_bytes, untyped)
            with observer.launch(run, operation, self.stream) if observer is not None else nullcontext():
                run.run(args)

        if observer is None:
            once()
        else:
            observer.run(operation, once)


def how(launch: Configured, *args: Any) -> How:
    """How a launch with arguments would run: by lanes, or by threads and why; nothing is launched.

        >>> import numpy as np
        >>> from refopt import simt
        >>> @simt.cuda.jit
        ... def double(x):
        ...     x[simt.cuda.grid(1)] *= 2
        >>> print(simt.how(double[4, 64], np.ones(256)))
        by lanes
        >>> print(simt.how(double[1, 64], np.ones(64)))
        by threads: 64 threads are fewer than 128

    Args:
        launch: a kernel with its launch configuration, ``kernel[grid, block]``.
        args: the arguments of the launch, or similar ones.

    Raises:
        TypeError: ``launch`` is not a configured kernel.
        Exception: what the launch would raise for these arguments.
    """
    if not isinstance(launch, Configured):
        raise TypeError(f"how: launch: expected a kernel with its configuration, got {shown(launch)}")
    with one_at_a_time:
        converted = launch.arguments(args, [], [])
        return decide(launch, compiled(launch.kernel.function, converted), converted)[0]  # type: ignore[arg-type]


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
    limit = current.claim.has.shared_of_block
    if whole("bytes of dynamic shared memory", nbytes) > limit:
        raise LaunchError(f"{nbytes} bytes of dynamic shared memory: must be between 0 and {limit}")
    return int(nbytes)
