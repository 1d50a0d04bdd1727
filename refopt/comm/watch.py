"""Announcements of collectives between ranks, over MPI, and polling with a deadline."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

_NOTICE = 128  # bytes
_ENDED, _FAILED = "ended", "failed"
_SPIN = 1e-3  # seconds of polling without sleeping between polls
_NAP = 5e-5


def poll(done: Callable[[], bool], deadline: float) -> bool:
    """Call ``done`` until it is true or `time.monotonic` has passed the deadline; returns whether it was true."""
    start = time.monotonic()
    while not done():
        now = time.monotonic()
        if now > deadline:
            return False
        if now - start < _SPIN:
            os.sched_yield()
        else:
            time.sleep(_NAP)
    return True


class Watch:
    """Notices between the ranks of a communicator, in order from each.

    Attributes:
        others: all ranks except this one.
        gone: the ranks that will make no more calls, and why.
        ended: the ranks whose process is ending.
        last: the last call that each rank has announced.
    """

    def __init__(self, notices: Any, rank: int, size: int) -> None:
        self._notices = notices
        self.others = [peer for peer in range(size) if peer != rank]
        self.gone: dict[int, str] = {}
        self.ended: set[int] = set()
        self.last = dict.fromkeys(self.others, "no call")
        self._heard: dict[int, deque[tuple[int, str]]] = {peer: deque() for peer in self.others}
        self._sent: list[tuple[Any, np.ndarray]] = []
        self._status = MPI.Status()

    def call(self, number: int, text: str) -> str:
        """Announce a collective. Returns the text that others will see: long ones are truncated."""
        return self._tell(f"{number} {text}")

    def fail(self, reason: str) -> None:
        """Announce that this rank has given up."""
        self._tell(f"{_FAILED} {reason}")

    def end(self) -> None:
        """Announce that this process is ending."""
        self._tell(_ENDED)

    def listen(self) -> None:
        """Receive the notices that have arrived."""
        while self._notices.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status):
            notice = np.empty(_NOTICE, np.uint8)
            peer = self._status.Get_source()
            self._notices.Recv([notice, MPI.BYTE], peer)
            what, _, text = _decoded(notice).partition(" ")
            if what == _ENDED:
                self.ended.add(peer)
                self.gone.setdefault(peer, "has ended")
            elif what == _FAILED:
                self.gone[peer] = f"has failed: {text}"
            else:
                self._heard[peer].append((int(what), text))
                self.last[peer] = f"{text}, call {what}"

    def said(self, peer: int, number: int) -> str | None:
        """The call that a rank has announced under a number; None if it has not yet."""
        heard = self._heard[peer]
        while heard and heard[0][0] < number:
            heard.popleft()
        return heard[0][1] if heard else None

    def close(self) -> None:
        """Free the communicator. All ranks do so, after a call that all have announced."""
        self._notices.Free()

    def _tell(self, text: str) -> str:
        self._sent = [(request, notice) for request, notice in self._sent if not request.Test()]
        encoded = text.encode()[:_NOTICE]
        notice = np.zeros(_NOTICE, np.uint8)
        notice[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        self._sent += [(self._notices.Isend([notice, MPI.BYTE], peer), notice) for peer in self.others]
        return _decoded(notice).partition(" ")[2]


def _decoded(notice: np.ndarray) -> str:
    return notice.tobytes().rstrip(b"\0").decode(errors="ignore")
