"""Which parameters can live in fp16, with the cast in the optimizer's stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from refopt.program.mixed_precision import CAST, RECOMPUTED, copy_of
from refopt.program.model import Op
from refopt.program.ops.messages import BARRIERS
from refopt.program.ops.registry import of_way
from refopt.program.ops.updates import routine_of
from refopt.program.passes.dependencies import title
from refopt.program.program import Program, expect_program

STAGES = "forward", "backward"


class Eligible(NamedTuple):
    """The eligible parameters of a program.

    Attributes:
        copies: by eligible parameter, its fp16 copy; in program order.
        recomputed: by recomputed copy, the first one.
        casts: places in ``main`` of the casts that make these.
        reasons: why other parameters are not eligible.
    """

    copies: Mapping[str, str]
    recomputed: Mapping[str, str]
    casts: frozenset[int]
    reasons: tuple[str, ...]


def eligible(program: Program) -> Eligible:
    """Find the parameters that the forward and backward passes read only in fp16.

    A parameter is eligible if each op of these passes that reads it casts it alone to fp16, into ``w.cast_fp16``, or
    later ``w.cast_fp16.subprog_0`` or the like; if no op reads a copy that is older than the parameter; and if no
    collective has it in a group.

    Source: ``OffloadHelper`` in Paddle's ``sharding/offload_helper.py``, PR 34965 and PR 35878, which recognizes casts
    by these names. It fails on a parameter that no op reads, and assumes that copies are never old.
    """
    expect_program("eligible", program)
    search = _Search(program)
    for i, op in enumerate(program.main):
        search.examine(i, op)
    return search.answer()


class _Search:
    """Goes through the ops of a step, in order."""

    def __init__(self, program: Program) -> None:
        self._program, self._collectives = program, of_way("network")
        self._params = {param: k for k, param in enumerate(_params(program))}
        self._stays: dict[str, str] = {}  # by parameter, why it is not eligible
        self._copies: dict[str, str] = {}
        self._recomputed: dict[str, str] = {}
        self._casts: dict[int, str] = {}
        self._source: dict[str, str] = {}
        self._old: set[str] = set()  # copies that are older than their parameter
        self._cast_to: dict[str, set[str]] = {}  # by parameter, its copies

    def examine(self, place: int, op: Op) -> None:
        """Examine one op."""
        for name in op.reads:
            if name in self._old:
                self._keep(self._source[name], f"{title(op)} reads {name!r}, which is older than the parameter")
        for param in (name for name in op.reads if name in self._params):
            if op.role in STAGES:
                self._read(place, op, param)
            elif op.type in self._collectives and len(op.reads) > 1:
                self._keep(param, f"{op.type} has it in a group; apply fuse_broadcasts afterwards")
        if op.type in BARRIERS:  # all ranks have them, though only one receives
            for param in self._params:
                self._keep(param, "parameters are received in messages")
        written = self._program.cells(op.writes) & self._params.keys()
        if op.role != "optimize" and op.type != "broadcast":
            for param in sorted(written, key=self._params.__getitem__):
                self._keep(param, f"{title(op)} changes it outside the optimizer's stage")
        self._old.update(
            name for param in written & self._cast_to.keys() for name in self._cast_to[param]
            if self._source[name] == param
        )

    def _read(self, place: int, op: Op, param: str) -> None:
        """Examine an op of the forward or backward pass that reads a parameter."""
        reason = _no_cast(self._program, op, param, self._copies)
        if reason:
            self._keep(param, reason)
            return
        (copy,) = op.outputs["out"]
        self._casts[place] = self._source[copy] = param
        self._cast_to.setdefault(param, set()).add(copy)
        self._old.discard(copy)
        if copy == copy_of(param):
            self._copies[param] = copy
        else:
            self._recomputed[copy] = copy_of(param)

    def _keep(self, param: str, reason: str) -> None:
        """Leave a parameter unchanged, for a reason."""
        self._stays.setdefault(param, reason)

    def answer(self) -> Eligible:
        """The result."""
        for param in self._params:
            if param not in self._copies:
                self._keep(param, "no model pass casts it")
        good = {param: self._copies[param] for param in self._params if param not in self._stays}
        return Eligible(
            good,
            {copy: first for copy, first in self._recomputed.items() if self._source[copy] in good},
            frozenset(i for i, param in self._casts.items() if param in good),
            tuple(f"{param!r} stays fp32: {reason}" for param, reason in self._stays.items()),
        )


def _params(program: Program) -> list[str]:
    """fp32 parameters: those that ops of routines update, on this rank or their root, and those that are cast."""
    touched = {name for op in program.main if routine_of(op) for name in op.outputs["params"]}
    touched |= {name for op in program.main if op.type == "broadcast" or op.role in STAGES for name in op.reads}
    touched = program.cells(touched)
    return [
        name for name, var in program.vars.items() if name in touched and var.persistable and var.dtype == "float32"
    ]


def _no_cast(program: Program, op: Op, param: str, copies: Mapping[str, str]) -> str:
    """Why an op that reads a parameter is not its cast to fp16. Empty if it is."""
    if op.type != "cast":
        return f"{title(op)} reads it"
    if len(op.inputs["x"]) > 1:
        return "one op casts it together with others"
    (copy,) = op.outputs["out"]
    if program.vars[copy].dtype != "float16":
        return f"its cast {copy!r} is {program.vars[copy].dtype}"
    if copy == copy_of(param) or (CAST in copy and RECOMPUTED in copy and param in copies):
        return ""
    return f"its cast is named {copy!r}"
