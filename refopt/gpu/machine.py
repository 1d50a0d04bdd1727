"""What a machine that runs kernels hands out: events, and functions that write to its memory."""

from collections.abc import Callable
from typing import Any, Protocol

Writer = Callable[[int, Any, Any], None]
Filler = Callable[[float, Any], None]


class Event(Protocol):
    """A point in a stream's work. Streams are as ``stream`` of a `Device` gives them."""

    def record(self, stream: Any) -> None:
        """Mark what has been enqueued on a stream so far."""

    def wait(self, stream: Any) -> None:
        """Let a stream's later work begin only after what was marked last."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to another, both of which have timing and are over."""
