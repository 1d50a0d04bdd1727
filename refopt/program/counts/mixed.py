"""How many casts, collectives and bytes a step has, and what each rank keeps: the formulae.

For P parameters with N elements, of which C with M elements are eligible (`refopt.program.passes.eligible`); rank r
owns N_r elements, among them c_r eligible parameters with M_r; A micro-steps; R = 1 if the backward pass casts again,
else 0; W ranks:

=================================  ====================  =====================  ======================
per rank and step                  before                cast in the            sharded, too
                                                         optimizer's stage
=================================  ====================  =====================  ======================
casts of parameters                C * (1 + R) * A       C                      c_r
casts of all ranks                 W * C * (1 + R) * A   W * C                  C
casts of gradients                 C * A                 C * A                  C * A
``all_reduce``                     P of 4N bytes         P of 4N bytes          1 of 4, with a clip and 1 of 4P
``reduce``                                                                      P of 4N bytes
``broadcast``                                                                   P of 2M + 4(N - M) bytes
parameters, bytes kept             4N                    6M + 4(N - M)          2M + 4M_r + 4(N - M)
fp32 states, S per element, bytes  4SN                   4SN                    4SN_r
=================================  ====================  =====================  ======================

If updates cast, no rank has a cast of a parameter. Buckets reduce the number of ops; see
`refopt.program.counts.bucketed`.

Sharding without the cast keeps 4N bytes of parameters, and has P broadcasts of 4N bytes. So the cast in a sharded
program saves 2M - 4M_r bytes, or 2M - 4M / W if shares are even: it saves memory only with more than two ranks.

Source: PR 35878, which says that more than two ranks save memory, and that each parameter is cast once instead of
twice, and only once in A micro-steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from refopt.checks.arguments import chosen, listed, mapped, number, shown, whole
from refopt.checks.dtypes import ITEM_SIZES, bytes_of
from refopt.comm import Counted
from refopt.program.counts.arguments import check, nonzero
from refopt.program.model import BYTES, UNKNOWN
from refopt.program.program import Program, expect_program
from refopt.program.step import find_routine

STORED = "float32", "bfloat16", "uint8"  # dtypes of states of fp32 parameters
HALF, SINGLE = ITEM_SIZES["float16"], ITEM_SIZES["float32"]


def casts(eligible: int, *, accumulate: int = 1, recompute: bool = False, owned: int | None = None) -> dict[str, int]:
    """Casts of parameters on a rank in a step, by form.

    Args:
        eligible: how many parameters are eligible.
        accumulate: the number of micro-steps.
        recompute: whether the backward pass casts again.
        owned: how many of the eligible ones this rank owns; all, if not given.

    Returns:
        ``"before"``, ``"cast"`` in the optimizer's stage, the same ``"sharded"``, and ``"folded"`` into the updates.
    """
    whole("casts: eligible", eligible, 0)
    check("casts", recompute=recompute, accumulate=accumulate)
    if owned is not None:
        whole("casts: owned", owned, 0, eligible)
    return {
        "before": eligible * (1 + recompute) * accumulate,
        "cast": eligible,
        "sharded": eligible if owned is None else owned,
        "folded": 0,
    }


def mixed_step(
    routine: str, params: int, eligible: int, *, world_size: int = 1, accumulate: int = 1, recompute: bool = False,
    clip: bool = False, optimize_cast: bool = False, owned: tuple[int, int] | None = None,
) -> dict[str, int]:
    """Ops of a step by type, as `refopt.program.amp_program` makes it and passes leave it.

    Args:
        routine: the optimizer of all parameters.
        params: the number of parameters.
        eligible: how many of them are eligible.
        world_size: the number of ranks.
        accumulate, recompute: as in `casts`.
        clip: whether the norm of all gradients is computed.
        optimize_cast: whether parameters are cast in the optimizer's stage.
        owned: in a sharded program, how many parameters the rank owns, and how many of these are eligible.
    """
    merged = find_routine("mixed_step: routine", routine).merged_name
    check("mixed_step", params=params, world_size=world_size, accumulate=accumulate, recompute=recompute, clip=clip,
          optimize_cast=optimize_cast)
    whole("mixed_step: eligible", eligible, 0, params)
    if owned is not None:
        if len(listed("mixed_step: owned", owned, "two numbers")) != 2:
            raise ValueError(f"mixed_step: owned: expected two numbers, got {len(owned)}")
        whole("mixed_step: owned[0]", owned[0], 0, params)
        whole("mixed_step: owned[1]", owned[1], 0, min(owned[0], eligible))
    owned = owned if params and world_size > 1 else None  # `shard` leaves other steps as they are
    ours, good = (params, eligible) if owned is None else owned
    form = casts(eligible, accumulate=accumulate, recompute=recompute, owned=good)
    counts = {
        "forward": params * accumulate,
        "backward": params * accumulate,
        "cast": form["sharded" if optimize_cast else "before"] + eligible * accumulate,
        "sum": params * (accumulate - 1),
        "reduce": params if owned is not None else 0,
        "all_reduce": 1 + clip if owned is not None else params * (world_size > 1),
        "scale": ours * (world_size * accumulate > 1),
        "check_gradients": 1,
        "finish_check": 1,
        "update_loss_scaling": 1,
        routine: ours,
        merged: int(owned is not None and ours == 0),  # an update without tensors
        "broadcast": params if owned is not None else 0,
    }
    return nonzero(counts)


def collectives(
    sizes: Sequence[int], eligible: Sequence[bool], *, sharded: bool, optimize_cast: bool = False, clip: bool = False
) -> dict[str, Counted]:
    """Calls of a rank in a step, and bytes of the arrays passed to them, as in `refopt.comm.Communicator.counts`.

    This is for several ranks and at least one parameter; with one rank, or without parameters, there are no calls.

    Args:
        sizes: elements of each parameter.
        eligible: whether each is eligible.
        sharded: whether each gradient is reduced to its owner, and each parameter broadcast.
        optimize_cast: whether eligible ones are broadcast in fp16.
        clip: whether the norm of all gradients is computed.
    """
    check("collectives", sizes=sizes, eligible=eligible, sharded=sharded, optimize_cast=optimize_cast, clip=clip)
    count, elements = len(sizes), sum(sizes)
    if not sharded:
        return {"all_reduce": Counted(count, SINGLE * elements)}
    half = sum(size for size, good in zip(sizes, eligible, strict=True) if good and optimize_cast)
    return {
        "reduce": Counted(count, SINGLE * elements),
        "all_reduce": Counted(1 + clip, SINGLE + clip * SINGLE * count),
        "broadcast": Counted(count, HALF * half + SINGLE * (elements - half)),
    }


def startup(sizes: Sequence[int], eligible: Sequence[bool], *, optimize_cast: bool) -> dict[str, int]:
    """Ops at startup by type, the same on each of several ranks: broadcasts in fp32, and then casts."""
    check("startup", sizes=sizes, eligible=eligible, optimize_cast=optimize_cast)
    return nonzero({"broadcast": len(sizes), "cast": sum(eligible) if optimize_cast else 0})


def memory(
    sizes: Sequence[int], eligible: Sequence[bool], routine: str, *, owners: Sequence[int] | None = None, rank: int = 0,
    optimize_cast: bool = False, optional: int = 0, rows: Sequence[int] | None = None, state_dtype: str = "float32",
) -> dict[str, int]:
    """Bytes that a rank keeps from step to step.

    Args:
        sizes: elements of each parameter.
        eligible: whether each is eligible.
        routine: the optimizer, a name of `refopt.catalog.KNOWN`.
        owners: the owner of each; ``None`` if all ranks have all.
        rank: this rank.
        optimize_cast: whether fp16 copies are kept.
        optional: how many of the routine's optional states are in use.
        rows: for NorMuon, elements of each parameter's ``row_moment``; required there, and refused elsewhere.
        state_dtype: of states by element, as `refopt.program.amp_program` takes it.

    Returns:
        ``"fp16"``, ``"fp32"``: parameters; ``"state"``: tensors and scalars.
    """
    others = {name: x for name, x in (("owners", owners), ("rows", rows)) if x is not None}
    check("memory", sizes=sizes, eligible=eligible, **others, rank=rank, optional=optional, optimize_cast=optimize_cast)
    row, state_dtype = find_routine("memory: routine", routine), chosen("memory: state_dtype", state_dtype, STORED)
    by_row = sum(slot.by_row for slot in row.slots)
    if (rows is not None) != (by_row > 0):
        expected = "elements of states by row" if by_row else f"none, as {routine} has no states by row"
        raise TypeError(f"memory: rows: expected {expected}, got {shown(rows)}")
    required = {slot.name for slot in row.slots if not slot.optional and not slot.by_row}
    tensors = sum(name in required for name in row.states) + optional
    kept = {"fp16": 0, "fp32": 0, "state": 0}
    ranks = [rank] * len(sizes) if owners is None else owners
    for size, good, owner, own_rows in zip(sizes, eligible, ranks, rows or [0] * len(sizes), strict=True):
        copied, own = good and optimize_cast, owner == rank
        kept["fp16"] += HALF * size * copied
        kept["fp32"] += SINGLE * size * (own or not copied)
        kept["state"] += (tensors * bytes_of(state_dtype, size) + SINGLE * (by_row * own_rows + len(row.scalars))) * own
    return kept


def saved(elements: int, degree: float) -> float:
    """Bytes of parameters that a rank saves by fp16 copies, if shares are even: 4N - (2N + 4N / W).

    Below 0 for one rank, 0 for two, and growing with the number of ranks.

    Args:
        elements: N, at least 0.
        degree: W, at least 1; for a curve, also between whole numbers.
    """
    elements = whole("saved: elements", elements, 0, BYTES)
    degree = number("saved: degree", degree, 1)
    return (SINGLE - HALF) * elements - SINGLE * elements / degree


def param_casts(program: Program) -> int:
    """Casts of parameters, from fp32 to fp16, among the ops of a step. Casts of gradients are from fp16 to fp32."""
    expect_program("param_casts", program)
    vars = program.vars
    return sum(
        (vars[x].dtype, vars[y].dtype) == ("float32", "float16")
        for op in program.main
        if op.type == "cast"
        for x, y in zip(op.inputs["x"], op.outputs["out"], strict=True)
    )


def kept(program: Program) -> int:
    """Bytes of a program's variables that live from step to step, without the loss scale and its counts."""
    expect_program("kept", program)
    scaling = {name for op in program.main if op.type == "update_loss_scaling" for name in op.writes}
    return sum(
        math.prod(var.shape) * ITEM_SIZES[var.dtype]
        for var in program.vars.values()
        if var.persistable and var.shape != UNKNOWN and var.name not in scaling
    )


def total(parts: Mapping[str, int]) -> int:
    """The sum of the values that `memory` returns."""
    return sum(whole(f"total: parts[{name!r}]", part, 0) for name, part in mapped("total: parts", parts).items())
