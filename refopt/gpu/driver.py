"""Launching on a CUDA GPU, through the driver API.

Numba's dispatcher takes at least 10 microseconds for a launch, since it examines every argument. Here the arguments are
packed once, and a step costs the host only the driver call. The launches of a step are one graph, so that they take
one call.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from cuda.bindings import driver

from refopt.checks import Array, dense
from refopt.checks.arguments import rounded
from refopt.checks.dtypes import ITEM_SIZES, numpy_dtype
from refopt.gpu import memory
from refopt.gpu.arrays import describer
from refopt.gpu.compiler import Linked
from refopt.gpu.instructions import OVERLAPS
from refopt.gpu.kernels import Kernel
from refopt.gpu.machine import WARPGROUPS, Filler, Properties, Uploader
from refopt.gpu.staging import Pinned, Staging
from refopt.gpu.streams import Event, Stream, capturing, checked, context, handle_of, primary
from refopt.gpu.target import signature_of


class Sequenced:
    """Consecutive launches as one graph: one call, and shorter gaps between them. Returns whether they will run.

    A single launch is a graph, too, since its call takes the host less than half the time of a launch.

    If the stream is itself being captured, the launches become part of its graph and do not run.
    """

    def __init__(self, launches: Sequence[Callable[[Any], None]]) -> None:
        self._launches = list(launches)
        self._graph: Any = None  # made for the stream on which it is first launched

    def __call__(self, stream: int) -> bool:
        if capturing(stream):
            for launch in self._launches:
                launch(stream)
            return False
        if self._graph is None:
            self._graph = self._captured(stream)
        checked(driver.cuGraphLaunch(self._graph, stream))
        return True

    def _captured(self, stream: int) -> Any:
        """The graph, captured on a similar stream: kernels stay on the multiprocessors of the capturing stream."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        other = Stream.like(stream)
        checked(driver.cuStreamBeginCapture(other.handle, mode))
        for launch in self._launches:
            launch(other.handle)
        graph = checked(driver.cuStreamEndCapture(other.handle))
        executable = checked(driver.cuGraphInstantiate(graph, 0))
        checked(driver.cuGraphDestroy(graph))
        return executable

    def __del__(self) -> None:
        if self._graph is not None:
            driver.cuGraphExecDestroy(self._graph)


class Gpu:
    """A CUDA device: the one with an index, or the current one."""

    name = "gpu"
    new_stream, new_event, sequence = Stream, Event, Sequenced
    capturing, empty = staticmethod(capturing), staticmethod(memory.empty)

    def __init__(self, index: int | None = None) -> None:
        self.index = index
        self._thread = threading.local()

    @cached_property
    def properties(self) -> Properties:
        """The device's properties, from the driver."""
        device = _current_device() if self.index is None else checked(driver.cuDeviceGet(self.index))

        def ask(name: str) -> int:
            attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return checked(driver.cuDeviceGetAttribute(attribute, device))

        name = checked(driver.cuDeviceGetName(256, device)).split(b"\0")[0].decode()
        capability = ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")
        return Properties(name, capability, ask("MULTIPROCESSOR_COUNT"), ask("L2_CACHE_SIZE"))

    @property
    def warpgroups(self) -> bool:
        """Whether it multiplies by warpgroups."""
        return self.properties.capability == WARPGROUPS

    def enter(self) -> Callable[[], Any] | None:
        """Make the context current in this thread, which driver calls need; returns how to leave it if it was not."""
        if self.index is None:
            if not hasattr(self._thread, "entered"):
                self._thread.entered = context()
            return None
        own = primary(self.index)
        if int(checked(driver.cuCtxGetCurrent())) == own:
            return None
        checked(driver.cuCtxPushCurrent(own))
        return driver.cuCtxPopCurrent

    def synchronize(self) -> None:
        """Wait for all work of the current device."""
        context()
        checked(driver.cuCtxSynchronize())

    def to_device(self, array: np.ndarray) -> Any:
        """A copy in the same order of axes if the array is dense, else in C order."""
        array = dense(array)
        copy = memory.empty(array.shape, array.dtype, array.strides if array.size else None)
        copy.copy_to_device(array)
        return copy

    def pinned(self, array: np.ndarray) -> Any:
        """A copy in C order, in page-locked host memory, which kernels can access and copies use at full speed."""
        if not array.nbytes:
            return self.empty(array.shape, array.dtype)
        dense, block = np.asarray(array, order="C"), Pinned(array.nbytes)
        block.bytes[:] = dense.reshape(-1).view(np.uint8)
        # With unified addressing, which 64-bit systems have, the device uses the host's address of the memory.
        return memory.at(block, block.address, dense.shape, dense.dtype)

    def view(self, array: Any, first: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any = None) -> Any:
        """A view of a flat array from element ``first`` on, with a dense shape and strides in bytes.

        With a ``dtype``, the bytes are viewed as elements of that dtype. The array may be another library's.
        """
        own = describer(self.name)(array, "view")
        kind = numpy_dtype(own.dtype)
        owner = array.owner if isinstance(array, memory.DeviceArray) else array
        start = own.address + first * kind.itemsize
        return memory.at(owner, start, shape, kind if dtype is None else dtype, strides)

    def stream(self, stream: Any, where: str = "stream") -> Any:
        """The handle of a stream, as `Launch` takes it."""
        return handle_of(stream, where)

    def copier(self, source: Any, target: Any) -> Callable[[Any], None]:
        """A function that copies an array to another of the same shape and dtype, in stream order.

        Either may be in page-locked host memory; both must be C-contiguous.
        """
        ends = [describer(self.name)(array, "copy") for array in (source, target)]
        for end in ends:
            if end.shape != ends[0].shape or end.dtype != ends[0].dtype or not end.in_c_order():
                expected = f"expected C-contiguous arrays of {ends[0].dtype} and shape {ends[0].shape}"
                raise ValueError(f"copy: {expected}, got {end.dtype} of shape {end.shape} and strides {end.strides}")
        start, stop = (end.address for end in ends)
        nbytes, call, keep = ends[0].size * ITEM_SIZES[ends[0].dtype], driver.cuMemcpyAsync, (source, target)

        def copy(stream: int, keep: Any = keep) -> None:
            checked(call(stop, start, nbytes, stream))

        return copy if nbytes else lambda stream: None

    def uploader(self, array: Any) -> Uploader:
        """A function that copies values to a C-contiguous array of their dtype, from element ``first`` on, in stream
        order; it keeps page-locked memory for the copies.
        """
        item = array.dtype.itemsize
        staging = Staging(array.__cuda_array_interface__["data"][0] or 0, array.size * item)
        return lambda first, values, stream: staging.upload(first * item, values, stream)

    def filler(self, array: Any, first: int, count: int) -> Filler:
        """A function that sets ``count`` elements from ``first`` on to one number, in stream order, quickly."""
        if array.dtype != np.float32:
            upload = self.uploader(array)
            return lambda value, stream: upload(first, rounded(np.full(count, value), array.dtype), stream)
        address = array.__cuda_array_interface__["data"][0] + 4 * first
        word = ctypes.c_float()
        bits = ctypes.c_uint32.from_buffer(word)
        memset = driver.cuMemsetD32Async  # the call takes the value itself, so no memory must be kept

        def fill(value: float, stream: int) -> None:
            word.value = value
            checked(memset(address, bits.value, count, stream))

        return fill

    def tensor_maps(self, addresses: Sequence[int], sizes: Sequence[tuple[int, int, int]]) -> Any:
        """Tensor maps of matrices of 16-bit elements, for copies of boxes of 64 x 64: (N, 16) words.

        ``sizes`` has rows, columns, and the elements from row to row in memory, a multiple of eight.
        """
        boxes, ones = [driver.cuuint32_t(64)] * 2, [driver.cuuint32_t(1)] * 2
        words = []
        for address, (rows, columns, pitch) in zip(addresses, sizes, strict=True):
            made = checked(driver.cuTensorMapEncodeTiled(
                driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, address,
                [driver.cuuint64_t(columns), driver.cuuint64_t(rows)], [driver.cuuint64_t(2 * pitch)], boxes, ones,
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
                driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ))
            words.append([int(word) for word in made.opaque])
        return self.to_device(np.array(words, np.uint64).reshape(-1, 16))

    def resident(self, kernel: Kernel, block: int, args: tuple, wanted: int) -> int:
        """Blocks of a cooperative launch: ``wanted``, or fewer if that many cannot be resident at once."""
        described = self._described(kernel, args)
        function = _loaded(kernel.linked(signature_of(described), self.properties))
        context()
        if kernel.dynamic_shared:
            _allow(function, kernel.dynamic_shared)
        ask = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
        blocks = checked(ask(driver.CUfunction(int(function)), block, kernel.dynamic_shared))
        return min(wanted, blocks * self.properties.multiprocessors)

    def prepare(self, kernel: Kernel, grid: int, block: int, args: tuple, mode: str = "") -> Callable[[Any], None]:
        described = self._described(kernel, args)
        return Launch(kernel, self.properties, grid, block, described, mode, keep=args)

    def _described(self, kernel: Kernel, args: tuple) -> tuple:
        """The arguments of a launch, with a description of each array."""
        describe = describer(self.name)
        return tuple(
            x if isinstance(x, int | np.float32) else describe(x, f"{kernel.name}: args[{k}]")
            for k, x in enumerate(args)
        )


class Launch:
    """One kernel with its arguments packed for Numba's calling convention.

    ``mode`` is ``"cooperative"`` for kernels with a grid barrier, ``"overlapping"`` for kernels that may start while
    the previous launch drains and wait for it themselves, or anything else.
    """

    def __init__(
        self, kernel: Kernel, machine: Properties, grid: int, block: int, args: tuple, mode: str, keep: Any = None
    ) -> None:
        self._kernel = _loaded(kernel.linked(signature_of(args), machine))
        self._keep = keep
        words: list[int] = []
        for arg in args:
            if isinstance(arg, Array):
                words += [0, 0, arg.size, ITEM_SIZES[arg.dtype], arg.address, *arg.shape, *arg.strides]
            else:  # fp32 in the lower half of a word
                words.append(arg if isinstance(arg, int) else int(arg.view(np.uint32)))
        self._words = (ctypes.c_int64 * len(words))(*words)
        base = ctypes.addressof(self._words)
        self._pointers = (ctypes.c_void_p * len(words))(*(base + 8 * i for i in range(len(words))))
        self._function = driver.CUfunction(int(self._kernel))
        if kernel.dynamic_shared:
            _allow(self._kernel, kernel.dynamic_shared)
        self._params = ctypes.addressof(self._pointers)
        self._config = config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = kernel.dynamic_shared
        attribute = driver.CUlaunchAttribute()
        overlaps = machine.capability >= OVERLAPS
        if mode == "cooperative":
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
        elif mode == "overlapping" and overlaps:
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs = [attribute] if mode == "cooperative" or (mode == "overlapping" and overlaps) else []
        config.numAttrs = len(config.attrs)

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        return checked(driver.cuKernelGetAttribute(attribute, self._kernel, _current_device()))

    def __call__(self, stream: int) -> None:
        self._config.hStream = stream
        checked(driver.cuLaunchKernelEx(self._config, self._function, self._params, 0))


@cache
def _loaded(code: Linked) -> Any:
    """Load a kernel; it belongs to no context, and stays loaded."""
    context()
    library = checked(driver.cuLibraryLoadData(code.cubin, [], [], 0, [], [], 0))
    return checked(driver.cuLibraryGetKernel(library, code.entry.encode()))


def _allow(kernel: Any, nbytes: int) -> None:
    """Allow a kernel ``nbytes`` bytes of dynamic shared memory on the current device."""
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    checked(driver.cuKernelSetAttribute(attribute, nbytes, kernel, _current_device()))


def _current_device() -> Any:
    context()
    return checked(driver.cuCtxGetDevice())
