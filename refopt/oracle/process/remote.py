"""A subject whose step runs in another process."""

import atexit
import builtins
import contextlib
import importlib
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from refopt.catalog import Routine
from refopt.oracle.cases import Case
from refopt.oracle.exact.cases import Outcome
from refopt.oracle.literals import library_named
from refopt.oracle.observing import Seen
from refopt.oracle.process.child import Raised, Task
from refopt.oracle.process.memory import Sender, outcome_back
from refopt.oracle.process.ways import FORK, SPAWN, ways
from refopt.oracle.process.worker import START, THREADS, Worker
from refopt.oracle.script import Call
from refopt.oracle.subject import Ended, Subject, Wrong

IN_PLACE = "in this process, without deadlines, since none of its own can be made: "
ONE = "PyTorch has one thread: it had used others in this process, of which none can be made but by fork"
_lost: list[bool] = []  # whether it has; a fork that hangs is not tried twice
FASTER, SHORTEST = 10.0, 10.0  # after a step has hung once, others may take so many times as long as any that has not


def in_process(
    make: Callable[..., Subject], row: Routine, subject: Any, *, process: "bool | Kept | None", deadline: float,
    stack: contextlib.ExitStack, **named: Any,
) -> tuple[Any, list[str]]:  # fmt: skip
    """A subject whose step runs in a process of its own, where that can be, and notes for the report.

    Args:
        make: ``make(row, subject, **named)`` returns the `Subject`.
        process: ``None`` for where it can be, ``True`` for nowhere else, ``False`` for this process; a `Kept` for the
            process that an earlier call has made, if it was given the same.
        deadline: seconds that a call of the step may take.
        stack: what ends the process.

    Raises:
        ValueError: ``process`` is true, and there is no way.
        TypeError, ValueError: as ``make`` does.
    """
    if process is False:
        return make(row, subject, **named), []
    kept = process if isinstance(process, Kept) else None
    task = Task(make, row.name, subject, named)
    if kept is not None and kept.remote is not None and kept.is_of(task):
        kept.remote.deadline = min(deadline, kept.remote.deadline)
        return kept.remote, kept.remarks
    _import_ahead()
    there, against = ways(task)
    for way, threads in _tried(there):
        remote = Remote(task, way, threads, deadline)
        stack.callback(remote.end)
        try:
            remote.start()
        except NotThere as error:
            against.append(str(error))
            continue
        remarks = [] if threads else [ONE]
        if kept is not None:
            stack.pop_all()
            kept.keep(task, remote, remarks)
        return remote, remarks
    if process is True:
        expected = "expected a step that a process can be made for, got none"
        raise ValueError(f"check: process: {expected}: {'; '.join(against)}")
    return make(row, subject, **named), [IN_PLACE + "; ".join(against)]


def _tried(there: list[str]) -> Iterator[tuple[str, bool]]:
    """Each way, and whether PyTorch has its threads there, which a fork lacks of a process that has used them."""
    if FORK in there and not (_lost and "torch" in sys.modules):
        yield FORK, True
    if SPAWN in there:
        yield SPAWN, True
    if FORK in there and "torch" in sys.modules:
        yield FORK, False


def _import_ahead() -> None:
    """What PyTorch imports at its first step is imported here once, not in each child."""
    if "torch.optim" in sys.modules and "torch._dynamo" not in sys.modules:
        with contextlib.suppress(Exception):
            importlib.import_module("torch._dynamo")


class NotThere(Exception):
    """A process that has not started."""


class Kept:
    """A process that several checks of the same step have, one after the other; it ends when another one is kept."""

    current: "Kept | None" = None

    def __init__(self) -> None:
        self.remote: Remote | None = None
        self.task: Task | None = None
        self.remarks: list[str] = []

    def is_of(self, task: Task) -> bool:
        """Whether it was made for the same."""
        of = self.task
        return of is not None and of.subject is task.subject and (of[:2], of.named) == (task[:2], task.named)

    def keep(self, task: Task, remote: "Remote", remarks: list[str]) -> None:
        """Have a process, in the place of whichever was kept before."""
        if Kept.current is not None:
            Kept.current.end()
        elif not _at_exit:
            _at_exit.append(atexit.register(_end_current))
        Kept.current, self.remote, self.task, self.remarks = self, remote, task, remarks

    def end(self) -> None:
        """End it."""
        if self.remote is not None:
            remote, self.remote = self.remote, None
            remote.end()


_at_exit: list[Any] = []


def _end_current() -> None:
    if Kept.current is not None:
        Kept.current.end()


class Remote:
    """A `Subject` whose step runs in another process, which is made anew where it has ended.

    Attributes:
        replaced: whether the last run put other arrays into the lists.
    """

    def __init__(self, task: Task, way: str, threads: bool, deadline: float) -> None:
        self.task, self.way, self.threads, self.deadline = task, way, threads, deadline
        self.worker: Worker | None = None
        self.sender = Sender()
        self.replaced, self.over = False, False
        self.longest = 0.0
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
            raise TypeError(f"check: subject: expected a step, got {ended}") from None
        if isinstance(described, Raised):
            if self.way != FORK and described.name not in ("TypeError", "ValueError"):
                raise NotThere(f"{described.name}: {described.text}")
            kind = getattr(builtins, described.name, RuntimeError)
            raise kind(described.text)
        self.described = described

    def _make(self) -> Any:
        """A new process; returns what its subject is, or `Raised`."""
        quiet = self.way == FORK and self.threads and "torch" in sys.modules
        self.worker, self.sender = Worker(self.task, self.way, self.threads, quiet), Sender()
        try:
            (answer,) = self.worker.ask(None, None, THREADS if quiet else START)
            kind, value = pickle.loads(answer)
        except Ended as ended:
            self.worker = None
            if quiet:
                _lost.append(True)
            raise NotThere(f"by {self.way}: {ended}") from None
        except BaseException:
            self.close()
            raise
        if kind == "ready":
            kind, value = pickle.loads(self._asked(None, None, max(START, self.deadline))[0])
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
        """Take the steps of a case there, and write what they write here."""
        sent, self.replaced = self._run("run", case)
        return outcome_back(case, sent)

    def observe(self, case: Case, rest: bool) -> Seen:
        """The same, and what they do beside."""
        seen = self._run("rest" if rest else "observe", case)
        later = seen.later and outcome_back(case, seen.later)
        return seen._replace(got=outcome_back(case, seen.got), later=later)

    def _run(self, what: str, case: Case) -> Any:
        if self.worker is None:
            self._anew()
        packed, memories = self.sender.pack(case)
        started = time.monotonic()
        answer, after = self._asked((what, packed), memories, answers=2)
        self.longest = max(self.longest, time.monotonic() - started)
        self.sender.take_back(memories, after)
        return self._value(answer)

    def _anew(self) -> None:
        if self.over:
            raise Ended("no process, since the check is over", [])
        try:
            described = self._make()
        except NotThere as error:
            raise Ended(f"no new process {error}", []) from None
        if isinstance(described, Raised):
            raise Ended(f"none in a new process: {described.name}: {described.text}", [])

    def _asked(
        self, message: Any, memories: list[Any] | None, seconds: float = 0.0, answers: int = 1
    ) -> list[bytes]:  # fmt: skip
        if self.worker is None:
            self._anew()
        assert self.worker is not None
        try:
            return self.worker.ask(message, memories, seconds or self.deadline, answers)
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
