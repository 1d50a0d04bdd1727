"""For code around kernels, such as collectives: the order of turns, and word of copies that it makes itself."""

from __future__ import annotations

from collections.abc import Iterable

from .base.state import current
from .base.streams import Stream, default_stream
from .base.threads import Schedule
from .memory import initialized
from .memory.arrays import Copy, DeviceArray

__all__ = ["Ends", "Schedule", "Stream", "in_kernel", "note_copies"]

Ends = tuple[DeviceArray | None, DeviceArray | None]  # where a copy comes from and goes to, None for what is no array


def in_kernel() -> bool:
    """Whether the caller is part of a kernel that runs."""
    return current.inside


def note_copies(name: str, copies: Iterable[Ends], nbytes: int | None = None, stream: Stream | None = None) -> None:
    """Let copies that somebody else makes be work of a stream, the default one if not given, and be observed.

    ``nbytes`` is what each of them copies: all of its array if not given.
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
