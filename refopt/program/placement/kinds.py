"""The ops of placed programs, beside those of `refopt.program.kinds`: what each must look like, and how it is run.

====================  ==================================================================================================
``split_by_ref``      ``out`` become views of ``x``, rows in a row; nothing is copied
``split``             at startup: ``out`` are copies of blocks of ``x``, the attribute ``blocks`` saying of which; ``x``
                      is then let go unless the attribute ``keep`` says otherwise
``concat``            ``out`` is overwritten by the blocks ``x``, which make it up
``send``, ``recv``    a message of what ``x`` is to the rank ``to``, or that ``out`` will be from the rank ``source``
``send_barrier``      all messages that are under way are exchanged, and all ranks meet; until then a ``send`` has not
``fetch_barrier``     read its variable, and a ``recv`` has not written its own
``copy_in``           ``out``, on the device, become copies of ``x``, in the host's memory; both lie in ``ring``, an
``copy_out``          output of the one and an input of the other, which is what orders them; see `hosted`
====================  ==================================================================================================

A barrier has in ``x`` and ``out`` what is sent and received since the last one. ``send_barrier`` is for gradients on
their way to those that update, ``fetch_barrier`` for parameters on their way back.

Source: Paddle's ``split_byref``, ``send``, ``recv``, ``send_barrier``, ``fetch_barrier`` and ``concat`` as of PR 11221.
There, too, ``send`` enqueues a message and the barrier waits for it. Barriers are on device 0 there, which stands for
all devices of a process; here each device is a rank, and all ranks take part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from refopt.checks.arguments import whole
from refopt.program import Op, Program
from refopt.program.kinds import check_dense, check_ranks
from refopt.program.placement.blocks import Block, block_shape, rows_of, split_by_ref

if TYPE_CHECKING:
    from refopt.program import Bound

BARRIERS = "send_barrier", "fetch_barrier"
MESSAGES = "send", "recv"
COPIES = "copy_in", "copy_out"

Message = tuple[str, Any, int]  # send or recv, the array, the other rank


def check_slots(op: Op, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise if an op has other slots than these."""
    for slots, expected in ((op.inputs, inputs), (op.outputs, outputs)):
        for slot in slots:
            if slot not in expected:
                raise TypeError(f"{slot}: expected {', '.join(expected) or 'no variables'}, got an unknown slot")
        for slot in expected:
            if slot not in slots:
                raise TypeError(f"{slot}: expected variables, got none")


def _check_blocks(program: Program, op: Op, whole: str, parts: tuple[str, ...], slot: str) -> None:
    """Parts are rows of the whole, all of them, in order."""
    var, rows = program.vars[whole], 0
    for k, name in enumerate(parts):
        part = program.vars[name]
        if part.dtype != var.dtype:
            raise TypeError(f"{slot}[{k}] {name!r}: expected {var.dtype}, as {whole!r} has, got {part.dtype}")
        if not part.shape or part.shape[1:] != var.shape[1:] or len(part.shape) != len(var.shape):
            raise ValueError(f"{slot}[{k}] {name!r}: expected rows of {whole!r}, {var.shape}, got {part.shape}")
        rows += part.shape[0]
    if rows != var.shape[0]:
        raise ValueError(f"{slot}: expected {var.shape[0]} rows in all, as {whole!r} has, got {rows}")


def _check_split_by_ref(program: Program, op: Op) -> None:
    check_slots(op, ["x"], ["out"])
    check_dense(program, op)
    _check_one(op.inputs["x"], "x")
    _check_blocks(program, op, op.inputs["x"][0], op.outputs["out"], "out")


def _check_concat(program: Program, op: Op) -> None:
    check_slots(op, ["x"], ["out"])
    check_dense(program, op)
    _check_one(op.outputs["out"], "out")
    _check_blocks(program, op, op.outputs["out"][0], op.inputs["x"], "x")


def _check_split(program: Program, op: Op) -> None:
    check_slots(op, ["x"], ["out"])
    check_dense(program, op)
    _check_one(op.inputs["x"], "x")
    blocks, names = op.attrs.get("blocks", ()), op.outputs["out"]
    if op.role != "startup":
        raise ValueError(f"role: expected startup, got {op.role}")
    if len(blocks) != len(names):
        raise ValueError(f"blocks: expected {len(names)}, as out has, got {len(blocks)}")
    shape = program.vars[op.inputs["x"][0]].shape
    for k, (block, name) in enumerate(zip(blocks, names, strict=True)):
        expected, got = block_shape(shape, Block(*block)), program.vars[name].shape
        if got != expected:
            raise ValueError(f"out[{k}] {name!r}: expected shape {expected}, that of its block, got {got}")


def _check_message(program: Program, op: Op) -> None:
    check_slots(op, *((["x"], []) if op.type == "send" else ([], ["out"])))
    check_dense(program, op)
    _check_one(op.reads + op.writes, "x" if op.type == "send" else "out")
    check_ranks(op)
    key = "to" if op.type == "send" else "source"
    peer = whole(key, op.attrs.get(key), 0, op.attrs["ranks"] - 1)
    if peer == op.device:
        raise ValueError(f"{key}: expected another rank, got {peer}, which is the op's own")


def _check_barrier(program: Program, op: Op) -> None:
    check_slots(op, ["x"], ["out"])
    check_dense(program, op)


def _check_one(names: tuple[str, ...], slot: str) -> None:
    if len(names) != 1:
        raise ValueError(f"{slot}: expected one variable, got {len(names)}")


def blocks_of(program: Program, whole: str, parts: Sequence[str]) -> list[Block]:
    """The blocks that parts of a variable are, by their sizes."""
    blocks, first = [], 0
    for number, name in enumerate(parts):
        size = math.prod(program.vars[name].shape)
        blocks.append(Block(number, first, size))
        first += size
    return blocks


def _nothing() -> None:
    pass


def _run_split_by_ref(bound: Bound, op: Op) -> Callable[[], Any]:
    (whole,), parts = op.inputs["x"], op.outputs["out"]
    views = split_by_ref(bound.arrays[whole], blocks_of(bound.program, whole, parts))
    for name, view in zip(parts, views, strict=True):
        bound.put(name, view)
    return _nothing


def _run_split(bound: Bound, op: Op) -> Callable[[], Any]:
    (whole,), vars = op.inputs["x"], bound.program.vars

    def run() -> None:
        array = bound.arrays[whole]
        for name, block in zip(op.outputs["out"], op.attrs["blocks"], strict=True):
            copy = bound.backend.full(vars[name].shape, vars[name].dtype, 0.0)
            start, stop = rows_of("split", vars[whole].shape, Block(*block))
            bound.backend.cast([array[start:stop]], [copy])()
            bound.put(name, copy)
        if not op.attrs.get("keep", True):
            bound.drop([whole])

    return run


def _run_concat(bound: Bound, op: Op) -> Callable[[], Any]:
    (whole,) = op.outputs["out"]
    target, parts = bound.arrays[whole], [bound.arrays[name] for name in op.inputs["x"]]
    places = split_by_ref(target, blocks_of(bound.program, whole, op.inputs["x"]))
    return bound.backend.cast(parts, places)


def _run_message(bound: Bound, op: Op) -> Callable[[], Any]:
    ((name,),) = (*op.inputs.values(), *op.outputs.values())
    message = op.type, bound.arrays[name], op.attrs["to" if op.type == "send" else "source"]
    return lambda: bound.messages.append(message)


def _run_barrier(bound: Bound, op: Op) -> Callable[[], Any]:
    def run() -> None:
        messages = list(bound.messages)
        bound.messages.clear()
        exchange(bound.comm, messages)

    return run


def exchange(comm: Any, messages: Sequence[Message]) -> None:
    """Send and receive all messages at once, then wait for all ranks."""
    with comm.batch():
        for kind, array, peer in messages:
            getattr(comm, kind)(array, peer)
    comm.barrier()


CHECKS: dict[str, Callable[[Program, Op], None]] = {
    "split_by_ref": _check_split_by_ref,
    "split": _check_split,
    "concat": _check_concat,
    "send": _check_message,
    "recv": _check_message,
    "send_barrier": _check_barrier,
    "fetch_barrier": _check_barrier,
}
RUNNERS: dict[str, Callable[[Bound, Op], Callable[[], Any]]] = {
    "split_by_ref": _run_split_by_ref,
    "split": _run_split,
    "concat": _run_concat,
    "send": _run_message,
    "recv": _run_message,
    "send_barrier": _run_barrier,
    "fetch_barrier": _run_barrier,
}
