"""Where steps run: in a process of their own, which may be kept for several checks, or in this one."""

import atexit
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from refopt.catalog import Routine
from refopt.oracle.process.answers import SubjectAnswers
from refopt.oracle.process.child import Task
from refopt.oracle.process.remote import NotThere, Remote, lost
from refopt.oracle.process.ways import FORK, SPAWN, ways

IN_PLACE = "in this process, without deadlines, since none of its own can be made: "
ONE = "PyTorch has one thread: it had used others in this process, of which none can be made but by fork"


def in_process(
    make: Callable[..., Any], row: Routine | None, subject: Any, *,
    process: "bool | Kept | None", deadline: float, stack: contextlib.ExitStack, **named: Any,
) -> tuple[Any, list[str]]:
    """What runs its steps in a process of its own, where that can be, and notes for the report.

    Args:
        make: ``make(row, subject, **named)`` returns the `Subject`; without a row, ``make(subject, **named)`` the
            `Optimizer`.
        process: ``None`` for where it can be, ``True`` for nowhere else, ``False`` for this process; a `Kept` for the
            process that an earlier call has made, if it was given the same.
        deadline: seconds that a call of the step may take.
        stack: what ends the process.

    Raises:
        ValueError: ``process`` is true, and there is no way.
        TypeError, ValueError: as ``make`` does.
    """
    task = Task(make, row and row.name, subject, named, SubjectAnswers)
    if process is False:
        return task.made(), []
    kept = process if isinstance(process, Kept) else None
    if kept is not None and kept.remote is not None and kept.is_of(task):
        kept.remote.deadline = min(deadline, kept.remote.deadline)
        return kept.remote, kept.remarks
    _import_ahead()
    there, against = ways(task)
    for way, threads in _tried(there):
        remote = Remote(task, way, threads, deadline)
        stack.callback(remote.end)
        try:
            remote.make()
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
        raise ValueError(f"{task.where}: process: {expected}: {'; '.join(against)}")
    return task.made(), [IN_PLACE + "; ".join(against)]


def _tried(there: list[str]) -> Iterator[tuple[str, bool]]:
    """Each way, and whether PyTorch has its threads there, which a fork lacks of a process that has used them."""
    if FORK in there and not (lost and "torch" in sys.modules):
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

    def keep(self, task: Task, remote: Remote, remarks: list[str]) -> None:
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
