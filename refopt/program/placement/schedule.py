"""A step of one device on several streams, which wait for each other by events where their memory overlaps."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from refopt.checks.arguments import chosen, collected, mapped, names, shown, whole
from refopt.program.model import Op
from refopt.program.ops.messages import BARRIERS, MESSAGES
from refopt.program.ops.offload import COPIES
from refopt.program.program import Program, expect_program

STREAMS = "compute", "copy_out", "communication", "copy_in"
KINDS = "begin", "run", "copy_out", "exchange", "copy_in", "end"


@dataclass(frozen=True)
class Task:
    """A unit of work that is enqueued on a stream.

    Attributes:
        number: its index in the order of the program.
        kind: ``"run"``, an op; ``"copy_out"``, of what is sent, to staging memory; ``"exchange"``, of messages from and
            to staging memory; ``"copy_in"``, of what was received; ``"begin"`` and ``"end"`` of a step, which do
            nothing, and between which everything runs.
        stream: one of `STREAMS`.
        op: the index of its op in ``main``; -1 for none.
        names: the variables that it handles.
        reads, writes: memory, as the names of tensors that do not overlap; staging memory has separate names.
        waits: numbers of tasks on other streams, for whose events the stream waits first.
    """

    number: int
    kind: str
    stream: str
    op: int
    names: tuple[str, ...]
    reads: frozenset[str]
    writes: frozenset[str]
    waits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        whole("Task: number", self.number, 0)
        where = f"Task: {self.number}"
        chosen(f"{where}: kind", self.kind, KINDS)
        chosen(f"{where}: stream", self.stream, STREAMS)
        whole(f"{where}: op", self.op, -1)
        for key in ("names", "reads", "writes"):
            checked = names(f"{where}: {key}", getattr(self, key))
            object.__setattr__(self, key, checked if key == "names" else frozenset(checked))
        waits = collected(f"{where}: waits", self.waits, "numbers of tasks")
        numbers = tuple(whole(f"{where}: waits[{k}]", number, 0) for k, number in enumerate(waits))
        object.__setattr__(self, "waits", numbers)

    def conflicts(self, other: Task) -> bool:
        """Whether the order of two tasks matters: one writes what the other reads or writes."""
        if not isinstance(other, Task):
            raise TypeError(f"conflicts: other: expected a Task, got {shown(other)}")
        ends = {"begin", "end"} & {self.kind, other.kind}
        return bool(ends or self.writes & (other.reads | other.writes) or self.reads & other.writes)


@dataclass(frozen=True)
class Schedule:
    """The tasks of a step, in the order of the program.

    Attributes:
        program: of one device.
        tasks: each at its number.
    """

    program: Program
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        expect_program("Schedule", self.program)
        tasks = collected("Schedule: tasks", self.tasks, "tasks")
        for k, task in enumerate(tasks):
            where = f"Schedule: tasks[{k}]"
            if not isinstance(task, Task):
                raise TypeError(f"{where}: expected a Task, got {shown(task)}")
            if task.number != k:
                raise ValueError(f"{where}: expected the task of number {k}, got {task.number}")
            if task.op >= len(self.program.main):
                raise ValueError(f"{where}: op: expected one of {len(self.program.main)} ops, got {task.op}")
            if any(number >= k for number in task.waits):
                raise ValueError(f"{where}: waits: expected earlier tasks, got {task.waits}")
        object.__setattr__(self, "tasks", tasks)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a schedule be copied, and sent to other processes."""
        return type(self), (self.program, self.tasks)

    @cached_property
    def streams(self) -> Mapping[str, tuple[Task, ...]]:
        """By stream, its tasks in order."""
        by_stream: dict[str, list[Task]] = {}
        for task in self.tasks:
            by_stream.setdefault(task.stream, []).append(task)
        return MappingProxyType({name: tuple(tasks) for name, tasks in by_stream.items()})

    @cached_property
    def events(self) -> frozenset[int]:
        """Numbers of the tasks after which an event is recorded."""
        return frozenset(number for task in self.tasks for number in task.waits)

    def label(self, task: Task) -> str:
        """A task as text."""
        if not isinstance(task, Task) or task.op >= len(self.program.main):
            raise TypeError(f"label: task: expected a Task of the schedule, got {shown(task)}")
        if task.op < 0:
            return task.kind
        kind = self.program.main[task.op].type if task.kind in ("run", "exchange") else task.kind
        return f"{kind} {task.names[0]}" if task.names else kind

    def before(self) -> list[set[int]]:
        """For each task, the tasks that are complete before it starts, because of its stream or of events."""
        known: list[set[int]] = []
        last: dict[str, int] = {}
        for task in self.tasks:
            ancestors: set[int] = set()
            for number in (*task.waits, *([last[task.stream]] if task.stream in last else [])):
                ancestors |= known[number] | {number}
            known.append(ancestors)
            last[task.stream] = task.number
        return known

    def races(self) -> list[tuple[Task, Task]]:
        """Pairs of tasks whose order matters but is not enforced. Empty unless waits have been removed."""
        known = self.before()
        return [
            (first, second)
            for second in self.tasks
            for first in self.tasks[: second.number]
            if first.conflicts(second) and first.number not in known[second.number]
        ]

    def order(self, seed: int) -> list[Task]:
        """The tasks in a random order that streams and events allow, as a device might run them."""
        chance = random.Random(whole("order: seed", seed))
        left = {name: deque(tasks) for name, tasks in self.streams.items()}
        done: set[int] = set()
        ordered: list[Task] = []
        while any(left.values()):
            ready = [tasks for tasks in left.values() if tasks and done.issuperset(tasks[0].waits)]
            task = chance.choice(ready).popleft()
            done.add(task.number)
            ordered.append(task)
        return ordered

    def __str__(self) -> str:
        """A line for each task: number, stream, what it is, and which tasks it waits for."""
        lines = []
        for task in self.tasks:
            waits = f"  waits for {', '.join(map(str, task.waits))}" if task.waits else ""
            lines.append(f"{task.number:>5}  {task.stream:<14} {self.label(task)}{waits}")
        return "\n".join(line if len(line) <= 100 else line[:97] + "..." for line in lines)


def on_streams(program: Program, streams: Mapping[str, str] | None = None) -> Schedule:
    """Put the ops of one device on streams.

    Ops whose role is to communicate run on ``communication``, averages included, so that the next gradient need not
    wait for a sum; ``copy_in`` and ``copy_out`` run on the streams of these names; everything else on ``compute``.
    ``split_by_ref`` needs no task. A message takes three: its data is
    copied to staging memory on ``copy_out``, exchanged on ``communication`` where its barrier is, and copied to the
    variable on ``copy_in``. So copies run beside compute, as PR 11221 of Paddle did for those of RPC ops.

    A task is ordered after each earlier one that writes what it reads or writes, or reads what it writes, views and
    blocks included. It waits for events of other streams only, and for none that would be redundant: if any wait is
    removed, two tasks whose order matters can overlap.

    Args:
        program: of one device, such as `refopt.program.passes.on_device` returns; it is not changed.
        streams: by name of a stream, the one to use instead: all ``"compute"`` for one stream.

    Raises:
        ValueError: if the ops are of several devices; if gradients are sparse, since the host waits for their number of
            rows; if an op uses a variable that is being sent before its barrier; or if a stream is unknown.
    """
    expect_program("on_streams", program)
    instead = {} if streams is None else mapped("on_streams: streams", streams)
    for name in (*instead, *instead.values()):
        chosen("on_streams: streams", name, STREAMS)
    devices = {op.device for op in program.main} - {None}
    if len(devices) > 1:
        raise ValueError(f"on_streams: program: expected ops of one device, got devices {sorted(map(str, devices))}")
    for i, op in enumerate(program.main) if program.sparse else ():
        for name in (*op.reads, *op.writes):
            if name in program.sparse:
                raise ValueError(f"on_streams: main[{i}] {op.type}: expected dense variables, got {name!r}")
    _check_messages(program)
    builder = _Builder(program, instead)
    builder.add("begin", "compute", -1, (), (), ())
    for i, op in enumerate(program.main):
        _add(builder, i, op)
    builder.add("end", "compute", -1, (), (), ())
    return Schedule(program, tuple(builder.tasks))


def _check_messages(program: Program) -> None:
    """Raise if, before its barrier, a variable that is sent is changed, or one that is received is used."""
    coming: set[str] = set()
    going: set[str] = set()
    for i, op in enumerate(program.main):
        if op.type in BARRIERS:
            coming, going = set(), set()
            continue
        reads, writes = (program.cells(names) for names in (op.reads, op.writes))
        for name in sorted((coming & (reads | writes)) | (going & writes)):
            raise ValueError(f"on_streams: main[{i}] {op.type}: expected {name!r} to be left alone until its barrier")
        if op.type in MESSAGES:
            going |= reads
            coming |= writes


def _add(builder: _Builder, i: int, op: Op) -> None:
    """The tasks of an op."""
    if op.type == "send":
        builder.add("copy_out", "copy_out", i, op.reads, op.reads, [sent(name) for name in op.reads])
    elif op.type in BARRIERS:
        x, out = op.inputs["x"], op.outputs["out"]
        builder.add("exchange", "communication", i, (), map(sent, x), map(received, out))
        for name in out:
            builder.add("copy_in", "copy_in", i, (name,), [received(name)], [name])
    elif op.type not in ("recv", "split_by_ref"):
        about = op.outputs.get("params", op.writes)
        stream = op.type if op.type in COPIES else "communication" if op.role == "communicate" else "compute"
        builder.add("run", stream, i, about, op.reads, op.writes)


def sent(name: str) -> str:
    """The staging memory from which a variable is sent."""
    return f"{name}@SENT"


def received(name: str) -> str:
    """The staging memory in which a variable is received."""
    return f"{name}@RECEIVED"


class _Builder:
    """Adds tasks, each with the waits that it needs."""

    def __init__(self, program: Program, instead: Mapping[str, str]) -> None:
        self.program, self.instead = program, instead
        self.tasks: list[Task] = []
        self._known: list[dict[str, int]] = []  # by task, the last task of each stream that is complete before its end
        self._last: dict[str, int] = {}
        self._writer: dict[str, int] = {}
        self._readers: dict[str, set[int]] = {}

    def add(
        self, kind: str, stream: str, op: int, names: Iterable[str], reads: Iterable[str], writes: Iterable[str]
    ) -> None:
        """Add a task at the end."""
        stream, number = self.instead.get(stream, stream), len(self.tasks)
        read, written = self.program.cells(reads), self.program.cells(writes)
        known = dict(self._known[self._last[stream]]) if stream in self._last else {}
        waits = []
        # The latest first, since it may have waited for earlier ones; none of them can have waited for a later one.
        for other in sorted(self._before(kind, read, written), reverse=True):
            where = self.tasks[other].stream
            if known.get(where, -1) >= other:
                continue
            waits.append(other)
            for name, last in self._known[other].items():
                known[name] = max(known.get(name, -1), last)
        known[stream] = number
        self._known.append(known)
        self._last[stream] = number
        self.tasks.append(
            Task(number, kind, stream, op, tuple(names), frozenset(read), frozenset(written), tuple(sorted(waits)))
        )
        for cell in written:
            self._writer[cell], self._readers[cell] = number, set()
        for cell in read - written:
            self._readers.setdefault(cell, set()).add(number)

    def _before(self, kind: str, reads: set[str], writes: set[str]) -> set[int]:
        """Tasks that must precede this one: the last that wrote its memory, and those that have read it since."""
        if kind == "end":
            return set(self._last.values())
        needed = {self._writer[cell] for cell in reads | writes if cell in self._writer}
        needed |= {reader for cell in writes for reader in self._readers.get(cell, ())}
        return needed | {0} if self.tasks else needed
