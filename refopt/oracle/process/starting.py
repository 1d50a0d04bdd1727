"""Choosing where steps run: in a separate process, which may be kept for several checks, or in this one."""

import contextlib
import importlib
import sys
from typing import Any

from refopt.catalog import Routine
from refopt.oracle.process.child import Task
from refopt.oracle.process.remote import NotThere, Remote, lost
from refopt.oracle.process.worker import ALONE, FORK, ways

ONE = "PyTorch has one thread: it has used others in this process, and only fork can make a new one"
IN_PLACE = "in this process, without deadlines, since no separate one can be made: "


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
