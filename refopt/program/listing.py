"""Programs as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from refopt.program.graph import Graph
from refopt.program.model import Op
from refopt.program.ops.updates import routine_of

KEEP = 2  # rounds shown at the start of a folded run
LONG = 6  # the fewest ops of a run that is folded
PERIOD = 4  # the most ops in a round


def text(graph: Graph, width: int, fold: bool) -> str:
    """Both parts, a line for each op."""
    lines = [line for part in ("startup", "main") for line in _part(graph, part, width, fold)]
    return "\n".join(lines)


def side_by_side(before: Graph, after: Graph, width: int) -> str:
    """Two programs in two columns, part by part."""
    column = (width - 3) // 2
    lines = []
    for part in ("startup", "main"):
        both = (_part(graph, part, column, fold=True) for graph in (before, after))
        lines += [f"{left:<{column}} | {right}".rstrip() for left, right in zip_longest(*both, fillvalue="")]
    return "\n".join(lines)


def _part(graph: Graph, part: str, width: int, fold: bool) -> list[str]:
    ops = getattr(graph, part)
    counts = ", ".join(f"{count} {kind}" for kind, count in graph.counts(part=part).items())
    lines = [_cut(f"{part}: {counts or 'nothing'}", width)]
    for item in _folded(ops) if fold else range(len(ops)):
        lines.append(_cut(item if isinstance(item, str) else _line(item, ops[item]), width))
    return lines


def _folded(ops: Sequence[Op]) -> list[int | str]:
    """The indices of ops to show, and texts for the ops left out."""
    pairs = [(op.type, op.role) for op in ops]
    items: list[int | str] = []
    i = 0
    while i < len(ops):
        period, rounds = _run(pairs, i)
        if rounds <= KEEP + 1 or rounds * period < LONG:
            items.append(i)
            i += 1
            continue
        items += range(i, i + KEEP * period)
        names = " ".join(kind for kind, _ in pairs[i : i + period])
        items.append(f"     ... {rounds - KEEP} more {names if period == 1 else f'of {names}'}")
        i += rounds * period
    return items


def _run(pairs: Sequence[Any], start: int) -> tuple[int, int]:
    """The length of the shortest round that repeats from a start on, and its number of repetitions."""
    best = 1, 1
    for period in range(1, PERIOD + 1):
        first = pairs[start : start + period]
        rounds = 1
        while pairs[start + rounds * period : start + (rounds + 1) * period] == first:
            rounds += 1
        if rounds * period > best[0] * best[1] and rounds > 1:
            best = period, rounds
        if best[1] > KEEP + 1:
            break
    return best


def _line(number: int, op: Op) -> str:
    written, used = _ends(op)
    attrs = [f"{name}={_value(value)}" for name, value in op.attrs.items() if not _default(op, name, value)]
    parts = [f"{number:>5}  {op.type:<15}", _some(written), f"<- {_some(used)}" if used else "", " ".join(attrs)]
    where = f"@{op.device}" if op.device is not None else ""
    return "  ".join(part for part in (*parts, where) if part)


def _ends(op: Op) -> tuple[Sequence[str], Sequence[str]]:
    """The outputs and inputs that a line shows for an op."""
    if routine_of(op) is not None:
        return op.outputs["params"], op.inputs["grads"]
    if op.type == "coalesce_tensor":
        return op.outputs["fused_output"], op.inputs["input"]
    used = [name for name in op.reads if name not in op.writes]
    if not used:
        return op.writes, used
    return [name for name in op.writes if name not in op.reads] or op.writes[:1], used


def _default(op: Op, name: str, value: Any) -> bool:
    """Whether an attribute has its default value, which a line omits."""
    routine = routine_of(op)
    if routine is None:
        is_off = value is (name == "use_align")  # the one flag that is on
        return name == "groups" or is_off or (type(value) is int and value == -1)
    return value == routine.defaults.get(name)


def _value(value: Any) -> str:
    if type(value) in (tuple, list):
        return f"[{_some([_value(x) for x in value])}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _some(names: Sequence[str]) -> str:
    """All names if there are at most two, else the first, the last and the count."""
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} ... {names[-1]} ({len(names)})"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."
