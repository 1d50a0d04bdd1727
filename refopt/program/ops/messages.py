"""Messages from rank to rank, which are pending until a barrier.

The `x` and `out` of a barrier are what is sent and received since the last one. ``send_barrier`` is for gradients on
their way to the ranks that update, ``fetch_barrier`` for parameters on their way back.

Source: Paddle's ``split_byref``, ``send``, ``recv``, ``send_barrier``, ``fetch_barrier`` and ``concat`` as of PR 11221.
There, too, ``send`` enqueues a message and the barrier waits for it. Barriers are on device 0 there, which stands for
all devices of a process; here each device is a rank, and all ranks take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from refopt.checks.arguments import whole
from refopt.program.graph import Graph
from refopt.program.model import Op
from refopt.program.ops.checks import check_one, check_ranks
from refopt.program.ops.context import Context
from refopt.program.ops.registry import op

MESSAGES = "send", "recv"
BARRIERS = "send_barrier", "fetch_barrier"


def _check_message(graph: Graph, op: Op) -> None:
    check_one(op.reads + op.writes, "x" if op.type == "send" else "out")
    check_ranks(op)
    key = "to" if op.type == "send" else "source"
    peer = whole(key, op.attrs.get(key), 0, op.attrs["ranks"] - 1)
    if peer == op.device:
        raise ValueError(f"{key}: expected another rank, got {peer}, which is the op's own")


@op("send", "x", "", check=_check_message, way="message")
@op("recv", "", "out", check=_check_message, way="message")
def message(context: Context, op: Op) -> Callable[[], Any]:
    """A message of what `x` is to the rank `to`, or that `out` will be from the rank `source`.

    Until a barrier it is under way, and has not read or written its variable.
    """
    (name,), peer = op.reads + op.writes, op.attrs["to" if op.type == "send" else "source"]
    call = context.comm.prepared(op.type, context.arrays[name], peer)
    return lambda: context.messages.append(call)


@op("send_barrier", "x", "out", way="message")
@op("fetch_barrier", "x", "out", way="message")
def barrier(context: Context, op: Op) -> Callable[[], Any]:
    """All pending messages are exchanged, and all ranks synchronize."""

    def run() -> None:
        at_once(context.comm, context.messages)
        context.messages.clear()
        context.comm.barrier()

    return run


def at_once(comm: Any, calls: Iterable[Callable[[], Any]]) -> None:
    """Make prepared calls in a batch."""
    with comm.batch():
        for call in calls:
            call()
