"""Objects bound to arrays, ranks and streams: one call at a time, and no copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class Exclusive:
    """Calls are atomic: concurrent threads are serialized, and nested calls are refused.

    With a communicator, calls must come from its thread, since all ranks make their calls in the same order.
    """

    def __init__(self, comm: Any) -> None:
        self._lock, self._holder, self._comm = threading.Lock(), 0, comm

    @contextmanager
    def _turn(self, what: str) -> Iterator[None]:
        where = f"{type(self).__name__}.{what}"
        if self._comm is not None and hasattr(self._comm, "require_thread"):
            self._comm.require_thread(where)
        if self._holder == threading.get_ident():
            raise RuntimeError(f"{where}: expected one call at a time, got one within another")
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = 0

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse ``copy``, ``deepcopy`` and ``pickle``."""
        name = type(self).__name__
        raise TypeError(f"{name}: cannot be copied, since it is bound to its arrays; copy or send its program")
