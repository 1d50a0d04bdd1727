"""The properties of a machine that runs kernels, and the types of its events and of functions that write its memory."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Uploader = Callable[[int, Any, Any], None]
Filler = Callable[[float, Any], None]


# The oldest compute capability for which kernels are compiled, since CUDA 13 supports none before it. Older GPUs are
# refused.
OLDEST = 7, 5
WARPGROUPS = 9, 0  # which alone multiplies by warpgroups


class Properties(NamedTuple):
    """A machine's properties. Kernels are compiled for its compute capability; ``l2`` is its L2 cache in bytes."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2: int

    @classmethod
    def of(cls, device: Any) -> "Properties":
        """The properties of a device that Numba describes, such as the one that the executor claims to be."""
        capability = tuple(device.compute_capability)
        return cls(device.name.decode(), capability, device.MULTIPROCESSOR_COUNT, device.L2_CACHE_SIZE)

    def __str__(self) -> str:
        return f"{self.name}, compute capability {dotted(self.capability)}"


def dotted(capability: tuple[int, int]) -> str:
    """A compute capability as NVIDIA writes it: 7.5."""
    return "{}.{}".format(*capability)


def require(where: str, machine: Properties, least: tuple[int, int] = OLDEST, alone: bool = False) -> None:
    """Raise a RuntimeError, naming ``where``, for an older compute capability or, if ``alone``, any other one."""
    if machine.capability < least or (alone and machine.capability != least):
        expected = dotted(least) if alone else f"{dotted(least)} or later"
        raise RuntimeError(f"{where}: expected compute capability {expected}, got {machine}")


class Event(Protocol):
    """A point in a stream's work. Streams are as ``stream`` of a `Device` returns them."""

    def record(self, stream: Any) -> None:
        """Record the work enqueued on a stream so far."""

    def wait(self, stream: Any) -> None:
        """Make a stream's later work wait for the work recorded last."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to another; both must have timing and be done."""
