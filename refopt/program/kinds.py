"""The ops that can be run, beside the routines of the catalogue, and what each must look like.

::

    backward         makes `grads`, one for each of `params`; what is in them comes from outside
    all_reduce       `x` becomes its sum over the ranks; of several, one sum of the range that they lie in
    reduce           the same on the rank `root` alone
    broadcast        `x` becomes that of the rank `root`; of several, the range that they lie in
    batch            calls of one `kind`, ``"reduce"`` or ``"broadcast"``, made at once: one for each of `roots`, of as
                     many of `x` as `counts` says, in order
    all_gather       `out` is `x` of all ranks, in rank order; of sparse gradients
    scatter_add      `out`, dense, is the sum of the rows of `x`, sparse: rank after rank, row after row
    scale            each of `x` is multiplied by the number `scale`, in place
    cast             each of `x` is copied to its place in `out`, rounded to its dtype
    coalesce_tensor  `output`, which `input` names as well, become views into one new buffer, `fused_output`; at startup

An op of a routine has the routine's slots, a name in each, and ``merged_`` before its type if it may have any number.
What it changes is in both inputs and outputs; scalars that it leaves to other ops to advance are in its inputs alone.
The buffers of coalesced tensors may stand in the place of the tensors: the op is then flat, and takes each buffer for
one tensor. Of a buffer of scalars it reads the first, and leaves in all what that one becomes. ``grad_factor`` and
``found_inf`` are further inputs, of one element. Attributes are the routine's numbers and choices.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Hashable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from refopt import checks
from refopt.catalog import ROUTINES, Routine
from refopt.checks import Array
from refopt.checks.arguments import collected, flag, number, whole
from refopt.checks.dtypes import ITEM_SIZES, SIZES
from refopt.program import batches
from refopt.program.ops import UNKNOWN, Op, Var

if TYPE_CHECKING:
    from refopt.program.program import Program

PACKAGES = tuple(f"refopt.program.{name}" for name in ("amp", "placement.kinds", "placement.hosted"))  # with more ops
SHARED = "grad_factor", "found_inf"
MERGED = "merged_"
LAYOUT = "use_align", "align_size", "size_of_dtype"  # attributes by which tensors lie in a buffer
_PLAIN = int, float, str, np.floating, np.integer  # attributes that can be compared at once
COLLECTIVES = "all_reduce", "reduce", "broadcast", "all_gather", batches.BATCH


@cache
def of_packages(table: str, kind: str) -> Callable[..., Any] | None:
    """What checks or runs the ops of a type, if a package has it that has ops of its own.

    These import this one, and are imported here, so that it does not matter which a caller has imported before.

    Args:
        table: ``"CHECKS"`` or ``"RUNNERS"``.
        kind: the type.
    """
    tables = (getattr(importlib.import_module(name), table) for name in PACKAGES)
    return next((known[kind] for known in tables if kind in known), None)


def routine_of(op: Op) -> Routine | None:
    """The routine that an op is of, if any."""
    return ROUTINES.get(op.type.removeprefix(MERGED))


def is_flat(program: Program, op: Op) -> bool:
    """Whether an op of a routine takes a buffer for one tensor."""
    return any(name in program.views for name in op.inputs.get("params", ()))


def advances(op: Op, routine: Routine) -> bool:
    """Whether an op of a routine advances its scalars itself."""
    return all(name in op.outputs for name in routine.scalars)


def check(program: Program, op: Op, fit: set[Hashable] | None = None) -> None:
    """Raise if an op of a known type is not as it must be; the error names slot and index.

    Args:
        program: the program.
        op: one of its ops.
        fit: what is known of updates that have been found to be as they must be, to which this one is added, so that
            of thousands that differ in their names and shapes alone, the first is looked at closely.
    """
    routine = routine_of(op)
    if routine is None:
        check_op = CHECKS.get(op.type) or of_packages("CHECKS", op.type)
        if check_op is not None:
            check_op(program, op)
        return
    alike = None if fit is None else _alike(program, op, routine)
    if fit is None or alike not in fit:
        _check_routine(program, op, routine)
    if fit is not None and alike is not None:
        fit.add(alike)


def _alike(program: Program, op: Op, routine: Routine) -> Hashable:
    """What updates of one tensor have in common that are as they must be, or are not, together; ``None`` for others."""
    params = op.inputs.get("params", ())
    plain = all(isinstance(x, _PLAIN) for x in op.attrs.values())
    if len(params) != 1 or len({*op.reads}) != len(op.reads) or not plain:
        return None
    vars, shape = program.vars, program.vars[params[0]].shape
    own = {slot.name for slot in routine.slots if not slot.scalar}
    slots = []
    for slot, names in op.inputs.items():
        for name in names:
            var = vars[name]
            extents = var.shape if slot not in own else var.shape == shape
            slots.append((slot, extents, var.dtype, var.sparse, name in program.views))
    outputs = [(slot, names == op.inputs.get(slot)) for slot, names in op.outputs.items()]
    attrs = [(key, type(value), value) for key, value in op.attrs.items()]
    return op.type, shape == UNKNOWN, tuple(slots), tuple(outputs), tuple(attrs)


def _check_routine(program: Program, op: Op, routine: Routine) -> None:
    required = [slot.name for slot in routine.slots if not slot.optional]
    _check_slots(op, required, [*routine.slot_names, *SHARED], [])
    count = len(op.inputs["params"])
    if count != 1 and not op.type.startswith(MERGED):
        raise ValueError(f"params: expected one variable, got {count}; {routine.merged_name} takes any number")
    flat = is_flat(program, op)
    for slot, names in op.inputs.items():
        for k, name in enumerate(names):
            if program.vars[name].sparse:
                raise TypeError(f"{slot}[{k}]: expected a dense variable, got {name!r}, which is sparse")
            if (name in program.views) != flat and slot not in SHARED:
                expected, got = ("a buffer", "a tensor") if flat else ("a tensor", "a buffer")
                raise ValueError(f"{slot}[{k}]: expected {expected}, as params has, got {got}, {name!r}")
    written = {slot.name for slot in routine.slots if slot.written and slot.name in op.inputs}
    if not advances(op, routine):
        written -= set(routine.scalars)
    if dict(op.outputs) != {slot: names for slot, names in op.inputs.items() if slot in written}:
        expected = ", ".join(sorted(written))
        raise ValueError(f"outputs: expected {expected}, as in the inputs, got {', '.join(op.outputs) or 'none'}")
    describe = _Describer()
    slots = {slot: [program.vars[name] for name in names] for slot, names in op.inputs.items() if slot not in SHARED}
    shared = {slot: program.vars[op.inputs[slot][0]] for slot in SHARED if slot in op.inputs}
    checks.check(routine, {name: None for name in routine.slot_names} | slots, dict(op.attrs), describe, shared)


class _Describer:
    """Stands in for arrays that are not there yet: variables, each in memory of its own."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # of those asked for so far: all of a program's would take each op too long

    def __call__(self, var: Any, where: str) -> Array:
        shape = (1,) if var.shape == UNKNOWN else var.shape
        strides = checks.c_strides(shape, ITEM_SIZES[var.dtype])
        return Array(self._numbers.setdefault(var.name, len(self._numbers)) << 60, shape, var.dtype, strides, True)


def _check_slots(op: Op, required: list[str], inputs: list[str], outputs: list[str]) -> None:
    for slot in required:
        if slot not in op.inputs and slot not in op.outputs:
            raise TypeError(f"{slot}: expected variables, got none")
    for slot in op.inputs:
        if slot not in inputs:
            raise TypeError(f"{slot}: expected one of {', '.join(inputs)}, got an unknown input")
    for slot in op.outputs:
        if outputs and slot not in outputs:
            raise TypeError(f"{slot}: expected one of {', '.join(outputs)}, got an unknown output")


def _vars(program: Program, names: tuple[str, ...]) -> list[Var]:
    return [program.vars[name] for name in names]


def _check_alike(program: Program, op: Op, first: str, second: str, dtype: bool = True, in_place: bool = False) -> None:
    """Two slots of variables of the same shapes."""
    inputs, outputs = op.inputs.get(first, ()), op.outputs[second]
    if len(inputs) != len(outputs) or not outputs:
        raise ValueError(f"{second}: expected {len(inputs) or 'some'} variables, as {first} has, got {len(outputs)}")
    if in_place and inputs != outputs:
        raise ValueError(f"{second}: expected the variables of {first}, got {', '.join(outputs)}")
    for k, (x, y) in enumerate(zip(_vars(program, inputs), _vars(program, outputs), strict=True)):
        if x.shape != y.shape:
            raise ValueError(f"{second}[{k}] {y.name!r}: expected shape {x.shape}, as {x.name!r} has, got {y.shape}")
        if dtype and x.dtype != y.dtype:
            raise TypeError(f"{second}[{k}] {y.name!r}: expected {x.dtype}, as {x.name!r} has, got {y.dtype}")


def check_dense(program: Program, op: Op) -> None:
    """Raise if a variable of an op is sparse; the error names slot and index."""
    for slot, names in {**op.inputs, **op.outputs}.items():
        for k, var in enumerate(_vars(program, names)):
            if var.sparse:
                raise TypeError(f"{slot}[{k}]: expected a dense variable, got {var.name!r}, which is sparse")


def _check_backward(program: Program, op: Op) -> None:
    _check_slots(op, ["params", "grads"], list(op.inputs), ["grads"])
    _check_alike(program, op, "params", "grads", dtype=False)


def _check_collective(program: Program, op: Op) -> None:
    _check_slots(op, ["x", "out"], ["x"], ["out"])
    _check_alike(program, op, "x", "out", in_place=True)
    check_dense(program, op)
    check_ranks(op)
    dtypes = {var.dtype for var in _vars(program, op.inputs["x"])}
    if len(dtypes) > 1:
        raise TypeError(f"x: expected one dtype, got {', '.join(sorted(dtypes))}")
    if op.type != "all_reduce":
        whole("root", op.attrs.get("root"), 0, op.attrs["ranks"] - 1)


def _check_batch(program: Program, op: Op) -> None:
    _check_slots(op, ["x", "out"], ["x"], ["out"])
    _check_alike(program, op, "x", "out", in_place=True)
    check_ranks(op)
    batches.check(op)
    seen: set[str] = set()
    for k, name in enumerate(op.inputs["x"]):
        if not seen.isdisjoint(program.memory(name)):
            raise ValueError(f"x[{k}]: expected variables that do not overlap, got {name!r}, which is there already")
        seen.update(program.memory(name))
    for each in batches.calls(op):
        _check_collective(program, each)


def check_ranks(op: Op) -> None:
    """Raise if an op does not say how many ranks it is for."""
    whole("ranks", op.attrs.get("ranks"), 1)


def _check_all_gather(program: Program, op: Op) -> None:
    _check_slots(op, ["x", "out"], ["x"], ["out"])
    _check_alike(program, op, "x", "out")
    check_ranks(op)
    for slot, (name, *others) in (("x", op.inputs["x"]), ("out", op.outputs["out"])):
        if others or not program.vars[name].sparse:
            raise TypeError(f"{slot}: expected one sparse variable, got {', '.join((name, *others))}")


def _check_scatter_add(program: Program, op: Op) -> None:
    _check_slots(op, ["x", "out"], ["x"], ["out"])
    _check_alike(program, op, "x", "out", dtype=False)
    for x, y in zip(_vars(program, op.inputs["x"]), _vars(program, op.outputs["out"]), strict=True):
        if not x.sparse or y.sparse:
            raise TypeError(f"x, out: expected a sparse variable and a dense one, got {x.name!r} and {y.name!r}")
        if y.dtype not in ("float32", "float64") or SIZES.get(x.dtype, 9) > SIZES[y.dtype]:
            raise TypeError(f"out: expected float32 or float64 that {x.dtype} widens to, got {y.dtype}")


def _check_scale(program: Program, op: Op) -> None:
    _check_slots(op, ["x", "out"], ["x"], ["out"])
    _check_alike(program, op, "x", "out", in_place=True)
    check_dense(program, op)
    number("scale", op.attrs.get("scale"), finite=True)


def _check_cast(program: Program, op: Op) -> None:
    _check_slots(op, ["x", "out"], ["x"], ["out"])
    _check_alike(program, op, "x", "out", dtype=False)
    check_dense(program, op)


def _check_coalesce(program: Program, op: Op) -> None:
    _check_slots(op, ["input", "output", "fused_output"], ["input"], ["output", "fused_output"])
    _check_alike(program, op, "input", "output")
    check_dense(program, op)
    for key in ("copy_data", "use_align"):
        if key in op.attrs:
            flag(key, op.attrs[key])
    for key in ("align_size", "size_of_dtype"):
        if key in op.attrs and whole(key, op.attrs[key], -1) == 0:
            raise ValueError(f"{key}: expected -1 or an integer of at least 1, got 0")
    if "groups" in op.attrs:
        groups = collected("groups", op.attrs["groups"], "counts")
        total = sum(whole(f"groups[{k}]", count, 1) for k, count in enumerate(groups))
        if total != len(op.outputs["output"]):
            raise ValueError(f"groups: expected counts that add up to {len(op.outputs['output'])}, got {total}")
    names = op.outputs["fused_output"]
    if len(names) != 1 or program.vars[names[0]].shape != UNKNOWN:
        raise ValueError(f"fused_output: expected one variable of shape {UNKNOWN}, got {', '.join(names)}")
    for k, var in enumerate(_vars(program, op.outputs["output"])):
        expected = program.vars[names[0]].dtype
        if var.dtype != expected:
            raise TypeError(f"output[{k}]: expected {expected}, as {names[0]!r} has, got {var.dtype}")
        if math.prod(var.shape) < 1:
            raise ValueError(f"output[{k}]: expected at least one element, got {var.name!r} of shape {var.shape}")


CHECKS: dict[str, Callable[[Program, Op], None]] = {
    "backward": _check_backward,
    "all_reduce": _check_collective,
    "reduce": _check_collective,
    "broadcast": _check_collective,
    "batch": _check_batch,
    "all_gather": _check_all_gather,
    "scatter_add": _check_scatter_add,
    "scale": _check_scale,
    "cast": _check_cast,
    "coalesce_tensor": _check_coalesce,
}
