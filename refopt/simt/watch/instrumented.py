"""The log of `observe` when more is asked for than counts and defects: profiles, and floats that are none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np

from ..base.streams import Operation, Stream
from ..base.threads import Thread
from ..machine.launch import Launch as Execution
from ..memory.buffers import Buffer
from ..memory.observed import ObservedArray
from ..profile.profile import Profile
from .floats import Floats
from .log import Log


class InstrumentedLog(Log):
    """A log that hands on what the executor reports to a profile, to a record of floats, or to both."""

    def __init__(self, *args: Any, profile: bool, floats: bool) -> None:
        super().__init__(*args)
        self.profile = Profile() if profile else None
        self.floats = Floats() if floats else None
        self._fresh = False  # no block of the launch has started
        self._local: WeakSet[Buffer] = WeakSet()

    def concerns(self, buffer: Buffer) -> bool:
        """Every buffer."""
        return True

    def shared(self, buffer: Buffer, view: np.ndarray) -> Any:
        """A block made a shared array; what its threads see of it."""
        seen = super().shared(buffer, view)
        return seen if isinstance(seen, ObservedArray) else ObservedArray(buffer, view, self)

    def local(self, buffer: Buffer, view: np.ndarray) -> Any:
        """A thread made a local array. It costs nothing here: a compiler keeps it in registers, if it can."""
        self._local.add(buffer)
        return super().shared(buffer, view)

    @contextmanager
    def launch(self, run: Execution, operation: Operation, stream: Stream) -> Iterator[None]:
        """A launch, from start to end."""
        self._fresh = not self._again
        with super().launch(run, operation, stream):
            if self._again:
                yield
                return
            if self.profile is not None:
                self.profile.begin(run)
            try:
                yield
            finally:
                if self.profile is not None:
                    self.profile.end()
                if self.floats is not None:
                    self.floats.end()

    def start(self, threads: list[Thread]) -> None:
        """A block becomes resident."""
        super().start(threads)
        if self._fresh and self.floats is not None:
            self.floats.begin()
        self._fresh = False

    def reader(self, buffer: Buffer) -> Any:
        """What is to be told of loads from a buffer."""
        return self.read

    def read(self, buffer: Buffer, offset: int, nbytes: int, *rest: Any, **named: Any) -> None:
        """The running thread loads."""
        super().read(buffer, offset, nbytes, *rest, **named)
        self._report("load", buffer, offset, nbytes)

    def write(self, buffer: Buffer, offset: int, nbytes: int, *rest: Any, **named: Any) -> None:
        """The running thread stores."""
        super().write(buffer, offset, nbytes, *rest, **named)
        self._report("store", buffer, offset, nbytes)

    def atomic(self, buffer: Buffer, offset: int, nbytes: int, *rest: Any, **named: Any) -> None:
        """The running thread does an atomic operation."""
        super().atomic(buffer, offset, nbytes, *rest, **named)
        self._report("atomic", buffer, offset, nbytes)

    def _report(self, kind: str, buffer: Buffer, offset: int, nbytes: int) -> None:
        if self._again:
            return
        if self.profile is not None and buffer not in self._local:
            self.profile.access(kind, buffer, offset, nbytes, sys._getframe(2))
        if self.floats is not None:
            if kind == "load":
                self.floats.load(buffer, offset, nbytes)
            else:
                self.floats.store(buffer, offset, nbytes)
