"""A subject whose steps run in another process: choosing and making the process, sending requests, replacing it.

The laws, and all that they compare, stay in this process.
"""

import builtins
import contextlib
import functools
import importlib
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from refopt.catalog import Routine
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.memory import Placed
from refopt.oracle.observing import Seen
from refopt.oracle.process.child import ANSWERS, Held, Raised, Task
from refopt.oracle.process.memory import Packed, Sender
from refopt.oracle.process.worker import ALONE, FORK, SPAWN, START, THREADS, Worker, ways
from refopt.oracle.subject import Ended

FASTER, SHORTEST = 10.0, 10.0  # after a hang, others may take this many times the longest so far
ONE = "PyTorch has one thread: it has used others in this process, and only fork can make a new one"
IN_PLACE = "in this process, without deadlines, since no separate one can be made: "
lost: list[bool] = []  # whether a fork has hung; then it is not tried again


class NotThere(Exception):
    """A process has not started."""


class Remote:
    """A `Subject` in another process, which is replaced when it has ended.

    Attributes:
        described: the properties of the subject there; also attributes of this.
        replaced: whether the last run put other arrays into the lists.
    """

    def __init__(self, task: Task, way: str, deadline: float) -> None:
        self.task, self.way, self.deadline = task, way, deadline
        self.worker: Worker | None = None
        self.over = False
        self.longest = 0.0
        self.described: Mapping[str, Any] = {}
        self.replaced = False
        self.known = functools.cache(self.request)  # for answers that never change
        self.last = 0  # number of a run
        self.dropped: list[int] = []

    def make(self) -> None:
        """Make the process.

        Raises:
            NotThere: it ends, or cannot find the step.
            TypeError, ValueError: the step is invalid.
        """
        try:
            described = self._make()
        except Ended as ended:
            raise TypeError(f"{self.task.where}: subject: expected a step, got {ended}") from None
        if isinstance(described, Raised):
            if self.way == SPAWN and described.name not in ("TypeError", "ValueError"):
                raise NotThere(f"{described.name}: {described.text}")
            if described.kind is KeyboardInterrupt:
                raise _interruption(described)
            kind = getattr(builtins, described.name, RuntimeError)
            if not issubclass(kind, Exception):  # such as SystemExit, which would end this process
                got = f"{described.name}: {described.text}"
                raise TypeError(f"{self.task.where}: subject: expected a step, got {got}")
            raise kind(described.text)
        self.described = described

    def _make(self) -> Any:
        """Make a new process; returns the description of what it has made, or `Raised`."""
        quiet = self.way == FORK and "torch" in sys.modules
        self.worker = Worker(self.task, self.way, quiet)
        self.sender = Sender()
        try:
            kind, value = pickle.loads(self.asked(None, THREADS if quiet else START))
        except Ended as ended:
            if quiet:
                lost.append(True)
            raise NotThere(f"by {self.way}: {ended}") from None
        if kind == "ready":
            kind, value = pickle.loads(self.asked(None, max(START, self.deadline)))
        if kind == "raised":
            self.close()
        return value

    def end(self) -> None:
        """End the process for good."""
        self.over = True
        self.close()

    def close(self) -> None:
        """End the current process."""
        if self.worker is not None:
            worker, self.worker = self.worker, None
            worker.close()

    def __getattr__(self, name: str) -> Any:
        described = self.__dict__.get("described", {})
        if name == "stores" and described.get("has_stores"):
            return functools.partial(self.known, "stores")
        if name in described:
            return described[name]
        raise AttributeError(name)

    def anew(self) -> None:
        """Make a process if there is none; raises `Ended` if that fails."""
        if self.worker is not None:
            return
        if self.over:
            raise Ended("no process, since the check is over")
        try:
            described = self._make()
        except NotThere as error:
            raise Ended(f"no new process {error}") from None
        if isinstance(described, Raised):
            raise Ended(f"none in a new process: {described.name}: {described.text}")

    def asked(self, message: Any, seconds: float = 0.0) -> bytes:
        """Send a request and return its answer; raises `Ended`."""
        assert self.worker is not None
        try:
            return self.worker.ask(message, seconds or self.deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, Ended) and error.late:
                self.deadline = min(self.deadline, max(SHORTEST, FASTER * self.longest))
            raise

    def value(self, answer: bytes) -> Any:
        """The answer's value; raises here what was raised there."""
        kind, value = pickle.loads(answer)
        if kind == "value":
            return self.sender.received(value) if isinstance(value, Packed) else value
        assert isinstance(value, Raised)
        if value.kind is KeyboardInterrupt:
            raise _interruption(value)
        if value.spoiled:
            self.close()
            text = f"{value.name}: {' '.join(value.text.split())}"
            raise Ended(f"{text}; its process is spoiled, since a call now fails that succeeded before")
        if value.kind in ANSWERS:
            raise value.kind(value.text)
        raise type(value.name, (value.kind,), {})(value.text)

    def request(
        self, what: str, *arguments: Any, case: Case | None = None, number: int = 0, kept: bool = False
    ) -> Any:
        """What a method of the subject, or of a run by its number, gives there; a case is written here, too.

        If it is ``kept`` there, this is a `RemoteRun`.
        """
        self.anew()
        packed = None if case is None else self.sender.pack(case)
        self.last += kept
        dropped, self.dropped = self.dropped, []
        started = time.monotonic()
        answer = self.asked((what, number, self.last if kept else 0, packed, arguments, dropped))
        self.longest = max(self.longest, time.monotonic() - started)
        value = self.value(answer)
        return RemoteRun(self, self.last) if kept else value

    def takes(self, what: str) -> bool:
        return bool(self.known("takes", what))

    def run(self, case: Case) -> Outcome:
        """Take the steps of a case there, and write their results here."""
        got, self.replaced = self.request("run", case=case)
        return got

    def observe(self, case: Case, rest: bool) -> Seen:
        """The same, with side effects."""
        return self.request("observe", rest, case=case)

    def long_step(self, case: Case) -> Outcome:
        """The results of a long tensor."""
        return self.request("long_step", case=case)

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> Any:
        return self.request("start", list(params), saved, apart, kept=True)

    def soil(self, shapes: Sequence[tuple[int, ...]], dtype: str, k: int) -> None:
        """Leave numbers in freed memory there."""
        self.request("soil", list(shapes), dtype, k)


class RemoteRun:
    """A `Run` in another process, or its state dictionary, which is kept there until this object is deleted.

    Methods are forwarded.
    """

    def __init__(self, of: Remote, number: int) -> None:
        self.of, self.number, self.worker = of, number, of.worker

    def __del__(self) -> None:
        self.of.dropped.append(self.number)

    def __reduce__(self) -> tuple[type[Held], tuple[int]]:
        return Held, (self.number,)

    def _ask(self, what: str, *arguments: Any) -> Any:
        if self.of.worker is not self.worker:
            raise Ended("the end of its process in an earlier call")
        return self.of.request(what, *arguments, number=self.number, kept=what == "state_dict")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(self._ask, name)


def _interruption(raised: Raised) -> BaseException:
    """An error of the same class, if that can be found by name."""
    of = getattr(sys.modules.get(raised.module), raised.name, KeyboardInterrupt)
    return of(raised.text) if isinstance(of, type) and issubclass(of, KeyboardInterrupt) else KeyboardInterrupt()


def in_process(
    row: Routine | None, subject: Any, *, process: "bool | Kept | None", deadline: float, stack: contextlib.ExitStack,
    **named: Any,
) -> tuple[Any, list[str]]:
    """A subject whose steps run in a separate process, if possible, and notes for the report.

    Args:
        row, subject, named: the arguments of `subject_of`.
        process: ``None`` for a separate process if possible, ``True`` to require one, ``False`` for this process; a
            `Kept` for the process of an earlier call with the same arguments.
        deadline: how many seconds a call of the step may take.
        stack: ends the process on exit.

    Raises:
        ValueError: ``process`` is true, and no process can be made.
        TypeError, ValueError: as `subject_of` does.
    """
    task = Task(row and row.name, subject, named)
    if process is False:
        return task.made(), []
    kept = process if isinstance(process, Kept) else None
    if kept is not None and kept.remote is not None and kept.is_of(task):
        kept.remote.deadline = min(deadline, kept.remote.deadline)
        return kept.remote, [ONE] if kept.remote.way == ALONE else []
    _import_ahead()
    there, against = ways(task)
    of_torch = "torch" in sys.modules
    there = [way for way in there if not (of_torch and lost and way == FORK)] + [ALONE] * (of_torch and FORK in there)
    for way in there:
        remote = Remote(task, way, deadline)
        stack.callback(remote.end)
        try:
            remote.make()
        except NotThere as error:
            against.append(str(error))
            continue
        if kept is not None:
            stack.pop_all()
            kept.keep(task, remote)
        return remote, [ONE] if way == ALONE else []
    if process is True:
        expected = "expected a step that a process can be made for, got none"
        raise ValueError(f"{task.where}: process: {expected}: {'; '.join(against)}")
    return task.made(), [IN_PLACE + "; ".join(against)]


def _import_ahead() -> None:
    """Import here once what PyTorch imports at its first step, instead of in each child."""
    if "torch.optim" in sys.modules and "torch._dynamo" not in sys.modules:
        with contextlib.suppress(Exception):
            importlib.import_module("torch._dynamo")


class Kept:
    """A process shared by successive checks of the same step; it ends when another one is kept."""

    current: "Kept | None" = None

    def __init__(self) -> None:
        self.remote: Remote | None = None
        self.task: Task | None = None

    def is_of(self, task: Task) -> bool:
        """Whether it was made for the same task."""
        of = self.task
        return of is not None and of.subject is task.subject and (of.routine, of.named) == (task.routine, task.named)

    def keep(self, task: Task, remote: Remote) -> None:
        """Keep a process instead of the one before."""
        if Kept.current is not None:
            Kept.current.end()
        Kept.current, self.remote, self.task = self, remote, task

    def end(self) -> None:
        """End it."""
        if self.remote is not None:
            remote, self.remote = self.remote, None
            remote.end()
