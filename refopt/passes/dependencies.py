"""What may be moved where: reads and writes of ops, by memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from refopt.program import Op, Program


def cells(program: Program, names: Iterable[str]) -> set[str]:
    """The memory behind some variables, as the names of tensors that do not overlap."""
    return {cell for name in names for cell in program.memory(name)}


def among(program: Program, ops: Sequence[Op]) -> str:
    """Why ops cannot be done at once: one depends on another. Empty if they can."""
    readers: dict[str, Op] = {}
    writers: dict[str, Op] = {}
    for op in ops:
        reads, writes = cells(program, op.reads), cells(program, op.writes)
        for cell in sorted(reads | writes):
            if cell in writers:
                what = "changes" if cell in writes else "reads"
                return f"{title(op)} {what} {cell!r}, which {title(writers[cell])} changes"
        for cell in sorted(writes):
            if cell in readers:
                return f"{title(op)} changes {cell!r}, which {title(readers[cell])} reads"
        writers.update(dict.fromkeys(writes, op))
        readers.update(dict.fromkeys(reads, op))
    return ""


def between(program: Program, members: Collection[int]) -> str:
    """Why ops cannot be put off until the last of them: one in between depends on them. Empty if they can.

    Args:
        program: the program.
        members: places in ``main``.
    """
    reads: dict[str, Op] = {}
    writes: dict[str, Op] = {}
    inside = frozenset(members)
    for i in range(min(members), max(members)):
        op = program.main[i]
        if i in inside:
            reads.update(dict.fromkeys(cells(program, op.reads), op))
            writes.update(dict.fromkeys(cells(program, op.writes), op))
            continue
        for cell in sorted(cells(program, op.reads) | cells(program, op.writes)):
            if cell in writes:
                return f"{title(op)} in between needs {cell!r}, which {title(writes[cell])} changes"
        for cell in sorted(cells(program, op.writes)):
            if cell in reads:
                return f"{title(op)} in between changes {cell!r}, which {title(reads[cell])} reads"
    return ""


def title(op: Op) -> str:
    """An op in words, by what it is about."""
    slot = next((slot for slot in ("params", "grads", "x", "out") if slot in op.outputs), None)
    names = op.outputs[slot] if slot else op.writes or op.reads
    return f"{op.type} of {names[0]!r}" if names else op.type


def rewritten(program: Program, moves: Iterable[tuple[Collection[int], Sequence[Op]]]) -> tuple[Op, ...]:
    """The ops of ``main`` with some replaced.

    Args:
        program: the program.
        moves: places and the ops that come instead, where the last of them was.
    """
    gone: set[int] = set()
    come: dict[int, list[Op]] = {}
    for members, ops in moves:
        gone |= set(members)
        come.setdefault(max(members), []).extend(ops)
    main: list[Op] = []
    for i, op in enumerate(program.main):
        main += [] if i in gone else [op]
        main += come.get(i, [])
    return tuple(main)


def common(values: Iterable[object]) -> object:
    """What all values are, or ``None``."""
    found = set(values)
    return found.pop() if len(found) == 1 else None
