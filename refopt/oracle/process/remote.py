"""A subject whose step runs in another process."""

import builtins
import contextlib
import importlib
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from refopt.catalog import Routine
from refopt.oracle.cases import Case
from refopt.oracle.exact.cases import Outcome
from refopt.oracle.literals import library_named
from refopt.oracle.process.child import Raised, Task
from refopt.oracle.process.memory import Sender, outcome_back
from refopt.oracle.process.ways import FORK, ways
from refopt.oracle.process.worker import START, THREADS, Worker
from refopt.oracle.script import Call
from refopt.oracle.subject import Ended, Subject, Wrong

IN_PLACE = "in this process, without deadlines, since none of its own can be made: "
FASTER, SHORTEST = 10.0, 10.0  # after a step has hung once, others may take so many times as long as any that has not


def in_process(
    make: Callable[..., Subject], row: Routine, subject: Any, *, process: bool | None, deadline: float,
    stack: contextlib.ExitStack, **named: Any,
) -> tuple[Any, list[str]]:  # fmt: skip
    """A subject whose step runs in a process of its own, where that can be, and notes for the report.

    Args:
        make: ``make(row, subject, **named)`` returns the `Subject`.
        process: ``None`` for where it can be, ``True`` for nowhere else, ``False`` for this process.
        deadline: seconds that a call of the step may take.
        stack: what ends the process.

    Raises:
        ValueError: ``process`` is true, and there is no way.
        TypeError, ValueError: as ``make`` does.
    """
    if process is False:
        return make(row, subject, **named), []
    task = Task(make, row.name, subject, named)
    _import_ahead()
    there, against = ways(task)
    for way in there:
        remote = Remote(task, way, deadline)
        stack.callback(remote.end)
        try:
            remote.start()
        except NotThere as error:
            against.append(str(error))
            continue
        return remote, remote.remarks
    if process:
        expected = "expected a step that a process can be made for, got none"
        raise ValueError(f"check: process: {expected}: {'; '.join(against)}")
    return make(row, subject, **named), [IN_PLACE + "; ".join(against)]


def _import_ahead() -> None:
    """What PyTorch imports at its first step is imported here once, not in each child."""
    if "torch.optim" in sys.modules and "torch._dynamo" not in sys.modules:
        with contextlib.suppress(Exception):
            importlib.import_module("torch._dynamo")


class NotThere(Exception):
    """A process that has not started."""


class Remote:
    """A `Subject` whose step runs in another process, which is made anew where it has ended.

    Attributes:
        remarks: what a reader of the report should know of the process.
        replaced: whether the last run put other arrays into the lists.
    """

    def __init__(self, task: Task, way: str, deadline: float) -> None:
        self.task, self.way, self.deadline = task, way, deadline
        self.worker: Worker | None = None
        self.sender = Sender()
        self.threads, self.replaced, self.over = True, False, False
        self.longest = 0.0
        self.remarks: list[str] = []
        self.known: dict[Any, Any] = {}
        self.described: Mapping[str, Any] = {}

    def start(self) -> None:
        """Make the process.

        Raises:
            NotThere: it ends, or what the step is cannot be found there.
            TypeError, ValueError: the step is none.
        """
        try:
            described = self._make()
        except Ended as ended:
            if self.way != FORK or "torch" not in sys.modules:
                raise NotThere(str(ended)) from None
            self.threads = False
            self.remarks.append("PyTorch's threads were in use: the step has one thread")
            try:
                described = self._make()
            except Ended as again:
                raise NotThere(str(again)) from None
        if isinstance(described, Raised):
            if self.way != FORK and described.name not in ("TypeError", "ValueError"):
                raise NotThere(f"{described.name}: {described.text}")
            kind = getattr(builtins, described.name, RuntimeError)
            raise kind(described.text)
        self.described = described

    def _make(self) -> Any:
        """A new process; returns what its subject is, or `Raised`."""
        self.worker, self.sender = Worker(self.task, self.way, self.threads), Sender()
        try:
            limited = self.way == FORK and self.threads and "torch" in sys.modules
            (answer,) = self.worker.ask(None, None, THREADS if limited else max(START, self.deadline))
        except Ended:
            self.worker = None
            raise
        except BaseException:
            self.close()
            raise
        kind, value = pickle.loads(answer)
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
        if name == "stores" and described.get("has_stores"):
            return self._stores
        raise AttributeError(name)

    def takes(self, what: str) -> bool:
        return bool(self._ask("takes", what))

    def _stores(self, dtype: str) -> Any:
        return self._ask("stores", dtype)

    def call(self, case: Case) -> Call:
        """How a script calls it."""
        packed, memories = Sender().pack(case)
        fields, of = self._value(self._asked(("call", packed), memories)[0])
        return Call(**fields, of=library_named(*of))

    def _ask(self, what: str, argument: str) -> Any:
        """An answer that stays the same."""
        if (what, argument) not in self.known:
            self.known[what, argument] = self._value(self._asked((what, (argument,)), None)[0])
        return self.known[what, argument]

    def run(self, case: Case) -> Outcome:
        if self.worker is None:
            self._anew()
        packed, memories = self.sender.pack(case)
        started = time.monotonic()
        answer, after = self._asked(("run", packed), memories, 2)
        self.longest = max(self.longest, time.monotonic() - started)
        self.sender.take_back(memories, after)
        sent, self.replaced = self._value(answer)
        return outcome_back(case, sent)

    def _anew(self) -> None:
        if self.over:
            raise Ended("no process, since the check is over", [])
        described = self._make()
        if isinstance(described, Raised):
            raise Ended(f"none in a new process: {described.name}: {described.text}", [])

    def _asked(self, message: Any, memories: list[Any] | None, answers: int = 1) -> list[bytes]:
        if self.worker is None:
            self._anew()
        assert self.worker is not None
        try:
            return self.worker.ask(message, memories, self.deadline, answers)
        except BaseException as error:
            worker, self.worker = self.worker, None
            worker.close()
            if isinstance(error, Ended) and error.late:
                self.deadline = min(self.deadline, max(SHORTEST, FASTER * self.longest))
            raise

    def _value(self, answer: bytes) -> Any:
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
        kinds = {"refused": NotImplementedError, "wrong": Wrong}
        raise kinds.get(value.kind, type(value.name, (Exception,), {}))(value.text)


def _interruption(raised: Raised) -> BaseException:
    """An error of the same class, if that is found by its name."""
    of = getattr(sys.modules.get(raised.module), raised.name, KeyboardInterrupt)
    return of(raised.text) if isinstance(of, type) and issubclass(of, KeyboardInterrupt) else KeyboardInterrupt()
