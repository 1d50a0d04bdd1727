"""Whether a program makes sense: each thing is made before it is used, and fits where it is used."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from refopt.program import kinds
from refopt.program.ops import Op, Var

if TYPE_CHECKING:
    from refopt.program.program import Program


def check(program: Program) -> None:
    """See `refopt.program.Program.check`."""
    sound: set[str] = set()
    for key, var in program.vars.items():
        if key != var.name:
            raise ValueError(f"program: vars: expected {var.name!r} under its name, got it under {key!r}")
        if isinstance(var.initial, str) and var.initial not in program.vars:
            raise ValueError(f"program: {key!r}: initial: expected a variable of the program, got {var.initial!r}")
        _starts(program, var, sound)
    ready = {name for name, var in program.vars.items() if var.persistable}
    placed: set[str] = set()
    fit: set[Hashable] = set()
    for i, op in enumerate(program.startup):
        where = f"program: startup[{i}] {op.type}"
        _known(program, where, op)
        if op.type == "coalesce_tensor":
            for name in op.outputs.get("output", ()):
                if name in placed:
                    raise ValueError(f"{where}: {name!r}: expected each variable in one buffer, got it in two")
                placed.add(name)
        if op.type != "coalesce_tensor" or op.attrs.get("copy_data"):  # which otherwise makes room and nothing in it
            _check_ready(program, where, op.reads, ready)
            ready.update(op.writes)
        if op.type == "delete":
            ready.difference_update(op.reads)
        _fits(program, where, op, fit)
    for i, op in enumerate(program.main):
        where = f"program: main[{i}] {op.type}"
        _known(program, where, op)
        if op.type == "coalesce_tensor":
            raise ValueError(f"{where}: expected it in startup, since arrays that move are bound to ops")
        _check_ready(program, where, op.reads, ready)
        for name in op.writes:
            ready.add(name)
            ready.update(program.memory(name))
        _fits(program, where, op, fit)


def _starts(program: Program, var: Var, sound: set[str]) -> None:
    """Raise if a variable cannot start from what it is said to start from; add it to those that can."""
    seen, now = {var.name}, var
    while isinstance(now.initial, str) and now.initial in program.vars:
        now = program.vars[now.initial]
        if now.name in seen:
            raise ValueError(f"program: {var.name!r}: initial: expected a value in the end, got {now.name!r} again")
        if now.sparse or now.shape != var.shape:
            got = "a sparse variable" if now.sparse else f"shape {now.shape}"
            raise ValueError(f"program: {var.name!r}: initial: expected shape {var.shape}, got {got}, {now.name!r}")
        if now.name in sound:
            break
        seen.add(now.name)
    sound |= seen


def _known(program: Program, where: str, op: Op) -> None:
    for side, slots in (("inputs", op.inputs), ("outputs", op.outputs)):
        for slot, names in slots.items():
            seen: set[str] = set()
            for k, name in enumerate(names):
                if name not in program.vars:
                    raise ValueError(f"{where}: {slot}[{k}]: expected a variable of the program, got {name!r}")
                if side == "outputs" and name in seen:
                    raise ValueError(f"{where}: {slot}[{k}]: expected each variable once, got {name!r} again")
                seen.add(name)


def _check_ready(program: Program, where: str, names: tuple[str, ...], ready: set[str]) -> None:
    for name in names:
        for cell in program.memory(name):
            if cell not in ready:
                part = "" if cell == name else f", of which {cell!r} is part,"
                raise ValueError(
                    f"{where}: {name!r}: expected a variable that is persistable or made before{part} got one that "
                    "nothing has made"
                )


def _fits(program: Program, where: str, op: Op, fit: set[Hashable]) -> None:
    try:
        kinds.check(program, op, fit)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None
