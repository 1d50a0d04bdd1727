"""What a step of a given program casts, sends and keeps.

For P parameters with N elements, all of which have fp16 copies; rank r owns N_r elements of c_r parameters; A
micro-steps; S fp32 states for each element; W ranks:

=================================  ====================  =====================  ======================
per rank and step                  before                cast in the            sharded, too
                                                         optimizer's stage
=================================  ====================  =====================  ======================
casts of parameters                P * A                 P                      c_r
bytes summed over ranks            4N                    4N                     4N
bytes of broadcasts                                                             2N
parameters, bytes kept             4N                    6N                     2N + 4N_r
fp32 states, bytes kept            4SN                   4SN                    4SN_r
=================================  ====================  =====================  ======================

If updates cast, no rank has a cast of a parameter. Sharding without copies keeps 4N bytes of parameters. So with even
shares copies save 2N - 4N / W bytes: something only with more than two ranks, as PR 35878 says.
"""

from __future__ import annotations

import math

from refopt.checks.arguments import whole
from refopt.checks.dtypes import ITEM_SIZES
from refopt.comm import Counted
from refopt.program.model import UNKNOWN, Op
from refopt.program.ops import of_way
from refopt.program.ops.coalescing import padded, part_size
from refopt.program.ops.collectives import calls
from refopt.program.program import Program, expect_program

__all__ = ["communicated", "kept", "param_casts"]


def communicated(program: Program, chunk: int | None = None, steps: int = 1) -> dict[str, Counted]:
    """Collectives of a rank in some steps, by operation: calls and bytes, as `refopt.comm.Communicator.counts`.

    These are the bytes of the arrays passed in: an ``all_gather`` counts the rank's own part. By a ring over W ranks, a
    rank sends (W - 1) / W of them, twice that in an ``all_reduce``, and W - 1 times them in an ``all_gather``. Those of
    sparse gradients, whose rows only the caller knows, are left out.

    Args:
        chunk: tensors in buffers are padded to a multiple of this many bytes: 4096 in NumPy, 256 on a GPU and the
            executor. By default padding does not count.
        steps: how many, from the first: `passes.local_steps` averages in some of them.
    """
    expect_program("communicated", program)
    if chunk is not None and whole("communicated: chunk", chunk, 8) % 8:
        raise ValueError(f"communicated: chunk: expected a multiple of 8, got {chunk}")
    steps = whole("communicated: steps", steps, 1)
    found: dict[str, Counted] = {}
    for op in program.main:
        for each in calls(op) if op.type in of_way("network") and program.sparse.isdisjoint(op.writes) else ():
            (made, nbytes), times = found.get(each.type, Counted(0, 0)), steps // op.attrs.get("every", 1)
            if times:
                found[each.type] = Counted(made + times, nbytes + times * _passed(program, each, chunk))
    return found


def _passed(program: Program, op: Op, chunk: int | None) -> int:
    """Bytes of the array that is passed to a collective."""
    names = op.writes if op.type == "all_gather" else op.reads
    dtype, whole_buffer = program.vars[names[0]].dtype, names[0] in program.views
    sizes = [math.prod(program.vars[name].shape) for name in program.views.get(names[0], names)]
    if chunk is not None and (whole_buffer or len(names) > 1):
        attrs = program.makers[names[0]].attrs if whole_buffer else op.attrs
        sizes = [padded(attrs, size, dtype, chunk) for size in sizes]
    total = sum(sizes)
    if whole_buffer and (parts := program.makers[names[0]].attrs.get("parts")):
        total = part_size(total, parts) * (1 if op.type == "all_gather" else parts)
    return total * ITEM_SIZES[dtype]


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
