"""How many casts, collectives and bytes a step has, and what each rank keeps: the formulae.

For P parameters of N elements, of which C of M elements are eligible (`refopt.program.passes.eligible`) and rank r owns
c_r of M_r, N_r elements being all that it owns; A micro-steps; R = 1 if casts are made again for the backward pass,
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
state of S per element, bytes      4SN                   4SN                    4SN_r
=================================  ====================  =====================  ======================

With updates that cast there is no cast of a parameter on any rank. In buckets there are fewer ops; see
`refopt.program.counts.bucketed`.

Sharding without the cast keeps 4N of parameters, and broadcasts P of 4N bytes. So the cast in a sharded program saves
2M - 4M_r bytes, 2M - 4M / W if shares are even: nothing for two ranks, and something only above two.

Source: PR 35878, which says that memory is saved above two ranks, and that casts become one for each parameter, from
two, and 1 / A of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from refopt.checks.arguments import listed, number, whole
from refopt.checks.dtypes import ITEM_SIZES
from refopt.comm import Counted
from refopt.program.counts.arguments import check, there
from refopt.program.model import BYTES, UNKNOWN, mapping
from refopt.program.program import Program, expect_program
from refopt.program.step import find_routine

HALF, SINGLE = ITEM_SIZES["float16"], ITEM_SIZES["float32"]


def casts(eligible: int, *, accumulate: int = 1, recompute: bool = False, owned: int | None = None) -> dict[str, int]:
    """Casts of parameters on a rank in a step, by form.

    Args:
        eligible: how many parameters are.
        accumulate: the number of micro-steps.
        recompute: whether the backward pass casts again.
        owned: of the eligible, how many this rank owns; all, if not given.

    Returns:
        ``"before"``, ``"cast"`` in the optimizer's stage, that ``"sharded"``, and ``"folded"`` into the updates.
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
        params: how many parameters there are.
        eligible: how many of them are eligible.
        world_size: the number of ranks.
        accumulate, recompute: as in `casts`.
        clip: whether the norm of all gradients is formed.
        optimize_cast: whether parameters are cast in the optimizer's stage.
        owned: in shards, how many parameters the rank owns, and how many of these are eligible.
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
        merged: int(owned is not None and ours == 0),  # of no tensors
        "broadcast": params if owned is not None else 0,
    }
    return there(counts)


def collectives(
    sizes: Sequence[int], eligible: Sequence[bool], *, sharded: bool, optimize_cast: bool = False, clip: bool = False
) -> dict[str, Counted]:
    """Calls of a rank in a step, and bytes of the arrays handed in, as `refopt.comm.Communicator.counts` has them.

    They are those of several ranks and of one parameter at least; with one rank, or with none to share, there are none.

    Args:
        sizes: elements of each parameter.
        eligible: of each, whether it is.
        sharded: whether each gradient is reduced to its owner, and each parameter broadcast.
        optimize_cast: whether eligible ones are broadcast in fp16.
        clip: whether the norm of all gradients is formed.
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
    """Ops at startup by type with several ranks: broadcasts in fp32, and then casts, on all ranks alike."""
    check("startup", sizes=sizes, eligible=eligible, optimize_cast=optimize_cast)
    return there({"broadcast": len(sizes), "cast": sum(eligible) if optimize_cast else 0})


def memory(
    sizes: Sequence[int], eligible: Sequence[bool], routine: str, *, owners: Sequence[int] | None = None, rank: int = 0,
    optimize_cast: bool = False, optional: int = 0,
) -> dict[str, int]:
    """Bytes that a rank keeps from step to step.

    Args:
        sizes: elements of each parameter.
        eligible: of each, whether it is.
        routine: the optimizer, a name of `refopt.catalog.KNOWN`.
        owners: who owns each; ``None`` if all ranks have all.
        rank: this one.
        optimize_cast: whether fp16 copies are kept.
        optional: how many of the routine's optional states are there.

    Returns:
        ``"fp16"``, ``"fp32"``: parameters; ``"state"``: tensors and scalars.
    """
    others = {} if owners is None else {"owners": owners}
    check("memory", sizes=sizes, eligible=eligible, **others, rank=rank, optional=optional, optimize_cast=optimize_cast)
    row = find_routine("memory: routine", routine)
    required = {slot.name for slot in row.slots if not slot.optional}
    tensors = sum(name in required for name in row.states) + optional
    kept = {"fp16": 0, "fp32": 0, "state": 0}
    ranks = [rank] * len(sizes) if owners is None else owners
    for size, good, owner in zip(sizes, eligible, ranks, strict=True):
        copied, own = good and optimize_cast, owner == rank
        kept["fp16"] += HALF * size * copied
        kept["fp32"] += SINGLE * size * (own or not copied)
        kept["state"] += SINGLE * (tensors * size + len(row.scalars)) * own
    return kept


def saved(elements: int, degree: float) -> float:
    """Bytes of parameters that a rank saves by fp16 copies, if shares are even: 4N - (2N + 4N / W).

    Below 0 for one rank, nothing for two, and more the more ranks there are.

    Args:
        elements: N, at least 0.
        degree: W, at least 1; for a curve, also between whole numbers.
    """
    elements = whole("saved: elements", elements, 0, BYTES)
    degree = number("saved: degree", degree, 1)
    return (SINGLE - HALF) * elements - SINGLE * elements / degree


def param_casts(program: Program) -> int:
    """Casts of parameters, from fp32 to fp16, among the ops of a step. Casts of gradients go the other way."""
    expect_program("param_casts", program)
    vars = program.vars
    return sum(
        (vars[x].dtype, vars[y].dtype) == ("float32", "float16")
        for op in program.main
        if op.type == "cast"
        for x, y in zip(op.inputs["x"], op.outputs["out"], strict=True)
    )


def kept(program: Program) -> int:
    """Bytes of the variables of a program that live from step to step, the loss scale and its counts left out."""
    expect_program("kept", program)
    scaling = {name for op in program.main if op.type == "update_loss_scaling" for name in op.writes}
    return sum(
        math.prod(var.shape) * ITEM_SIZES[var.dtype]
        for var in program.vars.values()
        if var.persistable and var.shape != UNKNOWN and var.name not in scaling
    )


def total(parts: Mapping[str, int]) -> int:
    """The sum of what `memory` gives back."""
    return sum(whole(f"total: parts[{name!r}]", part, 0) for name, part in mapping("total: parts", parts).items())
