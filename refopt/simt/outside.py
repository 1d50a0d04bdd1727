"""For code around kernels, such as collectives: the order of turns, and a way to report its own copies."""

from __future__ import annotations

from collections.abc import Iterable

from .base.state import current
from .base.streams import Stream, default_stream
from .base.threads import Schedule
from .memory import initialized
from .memory.arrays import Copy, DeviceArray

__all__ = ["Ends", "Schedule", "Stream", "in_kernel", "note_copies"]

Ends = tuple[DeviceArray | None, DeviceArray | None]  # source and target of a copy, None for anything but an array


def in_kernel() -> bool:
    """Whether the caller is part of a running kernel."""
    return current.inside


def note_copies(name: str, copies: Iterable[Ends], nbytes: int | None = None, stream: Stream | None = None) -> None:
    """Record copies that other code makes as work of a stream, by default the default stream, and report them.

    ``nbytes`` is the size of each copy, by default that of its array.
    """
    stream = stream or default_stream()
    operation = stream.enqueue(name)
    for source, target in copies:
        if target is not None:
            initialized.assume(target.buffer)
        if current.observer is None:
            continue
        array = source if source is not None else target
        assert array is not None
        names = [end.name if end is not None else None for end in (source, target)]
        copy = Copy(name, array.nbytes if nbytes is None else nbytes, names[0], names[1], stream)
        current.observer.copy(copy, operation, source, target)
