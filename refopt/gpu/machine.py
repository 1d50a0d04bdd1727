"""What a machine that runs kernels is, and what it hands out: events, and functions that write to its memory."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Writer = Callable[[int, Any, Any], None]
Filler = Callable[[float, Any], None]


# The compute capability from which on kernels are compiled: CUDA 13 has none before it. Older GPUs are refused.
OLDEST = 7, 5
WARPGROUPS = 9, 0  # which alone multiplies by warpgroups


class Properties(NamedTuple):
    """What a machine is. Kernels are compiled for its compute capability; ``l2`` is the bytes of its L2 cache."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2: int

    @classmethod
    def of(cls, device: Any) -> "Properties":
        """Those of a device as Numba describes it, such as the one that the executor claims to be."""
        capability = tuple(device.compute_capability)
        return cls(device.name.decode(), capability, device.MULTIPROCESSOR_COUNT, device.L2_CACHE_SIZE)

    def __str__(self) -> str:
        return f"{self.name}, compute capability {dotted(self.capability)}"


def dotted(capability: tuple[int, int]) -> str:
    """A compute capability as NVIDIA writes it: 7.5."""
    return "{}.{}".format(*capability)


def require(where: str, machine: Properties, least: tuple[int, int] = OLDEST, alone: bool = False) -> None:
    """Refuse a machine of an older compute capability, or of any other one, naming ``where``: a RuntimeError."""
    if machine.capability < least or (alone and machine.capability != least):
        expected = dotted(least) if alone else f"{dotted(least)} or later"
        raise RuntimeError(f"{where}: expected compute capability {expected}, got {machine}")


class Event(Protocol):
    """A point in a stream's work. Streams are as ``stream`` of a `Device` gives them."""

    def record(self, stream: Any) -> None:
        """Mark what has been enqueued on a stream so far."""

    def wait(self, stream: Any) -> None:
        """Let a stream's later work begin only after what was marked last."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to another, both of which have timing and are over."""
