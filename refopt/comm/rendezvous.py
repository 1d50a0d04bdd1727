"""A directory in which processes find each other: small files, each written once and atomically."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from refopt.comm.interface import CommError, listed

VARIABLE = "REFOPT_RENDEZVOUS"
_NAP = 2e-3


class Rendezvous:
    """A directory that all ranks can access, new for each run: files of an earlier run would be mistaken for new ones.

    Args:
        path: the directory; created if it does not exist.
        rank: this process's number.
        size: the number of processes.
        timeout: seconds to wait for the others.
    """

    def __init__(self, path: str | os.PathLike, rank: int, size: int, timeout: float = 60.0) -> None:
        self.path, self.rank, self.size, self.timeout = Path(path), rank, size, timeout
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self.path / f"here.{rank}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            reason = f"rank {rank} is already registered: expected a fresh directory, and each rank once"
            raise CommError(f"rendezvous {self.path}: {reason}") from None

    def put(self, key: str, data: bytes) -> None:
        """Write a value atomically: readers find all of it or nothing."""
        unfinished = self.path / f".{key}.{self.rank}"
        unfinished.write_bytes(data)
        unfinished.replace(self.path / key)

    def peek(self, key: str) -> bytes | None:
        """A value, or ``None`` if it has not been written."""
        try:
            return (self.path / key).read_bytes()
        except FileNotFoundError:
            return None

    def get(self, key: str, source: int) -> bytes:
        """Wait for a value that a rank writes."""
        return self._gather(key, [source], lambda rank: key)[0]

    def exchange(self, key: str, data: bytes) -> list[bytes]:
        """Write a value and wait for the others' under the same key; returns all, in rank order."""
        self.put(f"{key}.{self.rank}", data)
        return self._gather(key, list(range(self.size)), lambda rank: f"{key}.{rank}")

    def _gather(self, key: str, ranks: list[int], name: Callable[[int], str]) -> list[bytes]:
        deadline = time.monotonic() + self.timeout
        received: dict[int, bytes] = {}
        while True:
            for rank in ranks:
                if rank not in received and (data := self.peek(name(rank))) is not None:
                    received[rank] = data
            missing = [rank for rank in ranks if rank not in received]
            if not missing:
                return [received[rank] for rank in ranks]
            if time.monotonic() > deadline:
                reason = f"{key}: heard nothing from {listed(missing)} in {self.timeout:g} s"
                raise CommError(f"rank {self.rank}: rendezvous {self.path}: {reason}")
            time.sleep(_NAP)
