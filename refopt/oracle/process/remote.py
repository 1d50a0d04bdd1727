"""What runs in another process: how it is made there, asked, and made anew."""

import builtins
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from refopt.oracle.process.child import Raised, Task
from refopt.oracle.process.ways import FORK
from refopt.oracle.process.worker import START, THREADS, Worker
from refopt.oracle.subject import Ended, Lacks, Wrong

FASTER, SHORTEST = 10.0, 10.0  # after a step has hung once, others may take so many times as long as any that has not
KINDS = {"lacks": Lacks, "refused": NotImplementedError, "wrong": Wrong}
lost: list[bool] = []  # whether a fork has hung, which is not tried twice


class NotThere(Exception):
    """A process that has not started."""


class Remote:
    """Something whose steps run in another process, which is made anew where it has ended.

    Attributes:
        described: what that says of itself; attributes of this.
    """

    def __init__(self, task: Task, way: str, threads: bool, deadline: float) -> None:
        self.task, self.way, self.threads, self.deadline = task, way, threads, deadline
        self.worker: Worker | None = None
        self.over = False
        self.longest = 0.0
        self.described: Mapping[str, Any] = {}

    def make(self) -> None:
        """Make the process.

        Raises:
            NotThere: it ends, or what the step is cannot be found there.
            TypeError, ValueError: the step is none.
        """
        try:
            described = self._make()
        except Ended as ended:
            raise TypeError(f"{self.task.where}: subject: expected a step, got {ended}") from None
        if isinstance(described, Raised):
            if self.way != FORK and described.name not in ("TypeError", "ValueError"):
                raise NotThere(f"{described.name}: {described.text}")
            if described.kind == "interrupted":
                raise _interruption(described)
            kind = getattr(builtins, described.name, RuntimeError)
            if not issubclass(kind, Exception):  # such as SystemExit, which would end this process
                got = f"{described.name}: {described.text}"
                raise TypeError(f"{self.task.where}: subject: expected a step, got {got}")
            raise kind(described.text)
        self.described = described

    def begin(self) -> None:
        """What is to be done on this side when there is a new process."""

    def _make(self) -> Any:
        """A new process; returns what is said of what it has made, or `Raised`."""
        quiet = self.way == FORK and self.threads and "torch" in sys.modules
        self.worker = Worker(self.task, self.way, self.threads, quiet)
        self.begin()
        try:
            (answer,) = self.worker.ask(None, None, THREADS if quiet else START)
            kind, value = pickle.loads(answer)
        except Ended as ended:
            self.worker = None
            if quiet:
                lost.append(True)
            raise NotThere(f"by {self.way}: {ended}") from None
        except BaseException:
            self.close()
            raise
        if kind == "ready":
            kind, value = pickle.loads(self.asked(None, None, max(START, self.deadline))[0])
        if kind == "raised":
            self.close()
        return value

    def end(self) -> None:
        """End the process for good."""
        self.over = True
        self.close()

    def close(self) -> None:
        """End the process that there is."""
        if self.worker is not None:
            worker, self.worker = self.worker, None
            worker.close()

    def __getattr__(self, name: str) -> Any:
        described = self.__dict__.get("described", {})
        if name in described:
            return described[name]
        raise AttributeError(name)

    def anew(self) -> None:
        """Make a process where there is none; raises `Ended` if that cannot be."""
        if self.worker is not None:
            return
        if self.over:
            raise Ended("no process, since the check is over", [])
        try:
            described = self._make()
        except NotThere as error:
            raise Ended(f"no new process {error}", []) from None
        if isinstance(described, Raised):
            raise Ended(f"none in a new process: {described.name}: {described.text}", [])

    def asked(
        self, message: Any, memories: list[Any] | None = None, seconds: float = 0.0, answers: int = 1
    ) -> list[bytes]:  # fmt: skip
        """Ask, and return so many answers; raises `Ended`."""
        self.anew()
        assert self.worker is not None
        try:
            return self.worker.ask(message, memories, seconds or self.deadline, answers)
        except BaseException as error:
            worker, self.worker = self.worker, None
            worker.close()
            if isinstance(error, Ended) and error.late:
                self.deadline = min(self.deadline, max(SHORTEST, FASTER * self.longest))
            raise

    def value(self, answer: bytes) -> Any:
        """What was answered, or what was raised there, raised here."""
        kind, value = pickle.loads(answer)
        if kind == "value":
            return value
        assert isinstance(value, Raised)
        if value.kind == "interrupted":
            raise _interruption(value)
        if value.spoiled:
            self.close()
            text = f"{value.name}: {' '.join(value.text.split())}"
            raise Ended(f"{text}; its process is spoiled, for now a call raises something that was right before", [])
        if value.kind in KINDS:
            raise KINDS[value.kind](value.text)
        of = {"type": TypeError, "value": ValueError}.get(value.kind, Exception)
        raise type(value.name, (of,), {})(value.text)


def _interruption(raised: Raised) -> BaseException:
    """An error of the same class, if that is found by its name."""
    of = getattr(sys.modules.get(raised.module), raised.name, KeyboardInterrupt)
    return of(raised.text) if isinstance(of, type) and issubclass(of, KeyboardInterrupt) else KeyboardInterrupt()
