"""The one simulated device and its context, with Numba's host interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from ..base.arguments import whole
from ..base.errors import LaunchError
from ..base.state import current
from ..base.streams import synchronize
from ..memory import buffers as memory
from ..memory.shared import STATIC_SHARED_LIMIT
from .claims import DEFAULT
from .occupancy import REGISTERS


class Device:
    """The simulated device, with the properties of the claimed one."""

    id = 0
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    supports_float16 = True
    supports_bfloat16 = False
    WARP_SIZE = 32
    MAX_THREADS_PER_BLOCK = 1024
    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = 1024, 1024, 64
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = 2**31 - 1, 65535, 65535
    MAX_SHARED_MEMORY_PER_BLOCK = STATIC_SHARED_LIMIT
    MAX_REGISTERS_PER_BLOCK = MAX_REGISTERS_PER_MULTIPROCESSOR = REGISTERS
    UNIFIED_ADDRESSING = 1

    compute_capability = property(lambda self: current.claim.capability)
    COMPUTE_CAPABILITY_MAJOR = property(lambda self: current.claim.capability[0])
    COMPUTE_CAPABILITY_MINOR = property(lambda self: current.claim.capability[1])
    MULTIPROCESSOR_COUNT = property(lambda self: current.claim.multiprocessors)
    MAX_THREADS_PER_MULTI_PROCESSOR = property(lambda self: current.claim.has.threads)
    MAX_BLOCKS_PER_MULTIPROCESSOR = property(lambda self: current.claim.has.blocks)
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = property(lambda self: current.claim.has.shared_of_block)
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = property(lambda self: current.claim.has.shared)
    RESERVED_SHARED_MEMORY_PER_BLOCK = property(lambda self: current.claim.has.reserved)
    L2_CACHE_SIZE = property(lambda self: current.claim.l2)

    @property
    def name(self) -> bytes:
        """The executor's name, with that of the claimed device unless it is the default."""
        return b"refopt.simt" if current.claim == DEFAULT else f"refopt.simt as {current.claim.name}".encode()

    def __repr__(self) -> str:
        return f"<CUDA device 0 '{self.name.decode()}'>"

    def reset(self) -> None:
        """Nothing to do: device arrays live as long as the objects that hold them."""


class MemoryInfo(NamedTuple):
    """Bytes of device memory."""

    free: int
    total: int


class _Deallocations:
    """Deferred deallocations: always empty, since arrays are freed with their last reference."""

    def clear(self) -> None:
        """Nothing to do."""

    def __len__(self) -> int:
        return 0

    disable = staticmethod(nullcontext)


class Context:
    """The context of the device; in with statements and in `cuda.gpus`, it also represents the device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.deallocations = _Deallocations()

    _device = property(lambda self: self.device)  # packages read the name from `cuda.gpus[0]._device`
    id = property(lambda self: self.device.id)
    name = property(lambda self: self.device.name)
    compute_capability = property(lambda self: self.device.compute_capability)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __repr__(self) -> str:
        return "<Managed Device 0>"

    def get_memory_info(self) -> MemoryInfo:
        """The free and the total bytes of the claimed device."""
        total = current.claim.memory
        return MemoryInfo(max(total - memory.live_bytes(), 0), total)

    def synchronize(self) -> None:
        """Make the host wait for all work."""
        synchronize()

    def reset(self) -> None:
        """Nothing to do, as in `Device.reset`."""

    def push(self) -> None:
        """Make it the current context, which it always is."""

    def pop(self) -> None:
        """Nothing to do: it stays current."""


_context = Context(Device())


class _Devices(tuple):
    """`cuda.gpus`: the list of devices."""

    current = _context
    lst = property(tuple)

    def __repr__(self) -> str:
        return "<Managed Device 0>"


gpus = _Devices((_context,))


def list_devices() -> _Devices:
    """All devices: one."""
    return gpus


def select_device(device_id: int) -> Device:
    """The device with a number; a LaunchError unless it is 0."""
    if whole("device_id", device_id) != 0:
        raise LaunchError(f"device_id: the executor has only device 0, got {device_id}")
    return _context.device


def get_current_device() -> Device:
    """The device."""
    return _context.device


def current_context(devnum: int | None = None) -> Context:
    """The context of the device."""
    select_device(devnum or 0)
    return _context


def require_context(function: Callable) -> Callable:
    """The function itself, since there always is a context."""
    return function


def close() -> None:
    """Nothing to do, as in `Device.reset`."""


def is_available() -> bool:
    """Whether kernels can run; also whether the CUDA runtime and float16 are supported: always true."""
    return True


is_supported_version = is_float16_supported = is_available


def is_bfloat16_supported() -> bool:
    """Whether kernels can use Numba's bfloat16, which they cannot."""
    return False


def detect() -> bool:
    """Print the devices; return whether there are any."""
    name, capability = _context.name.decode(), "{}.{}".format(*_context.compute_capability)
    print(f"Found 1 CUDA devices\nid 0    {name}    [SUPPORTED]\n        Compute capability: {capability}, simulated")
    return True


@contextmanager
def defer_cleanup() -> Iterator[None]:
    """Does nothing: arrays are freed with their last reference."""
    yield


# There is no profiler either.
profiling = defer_cleanup
profile_start = profile_stop = close
