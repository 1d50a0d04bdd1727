"""The streams of a schedule, each with the context of its ops: arrays, a machine and a network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from refopt.program.bound import Bound
from refopt.program.gpu.backend import Gpu
from refopt.program.ops.context import Context
from refopt.program.placement.network import Network, OnExecutor, OnGpu


class Lane(NamedTuple):
    """A stream of a schedule.

    Attributes:
        owned: the stream, which lasts as long as this reference.
        stream: its handle, for calls.
        network: the communicator, whose calls run on the stream.
        context: the program's arrays with the stream and the network.
    """

    owned: Any
    stream: Any
    network: Network
    context: Context


def lanes_of(names: Iterable[str], bound: Bound, multiprocessors: int | None) -> dict[str, Lane]:
    """New streams by name, ordered after the work that the caller's stream has so far.

    Args:
        names: of the streams.
        bound: the program with its arrays; its startup precedes the work that ops do while they are bound.
        multiprocessors: as for `bind_schedule`.
    """
    backend = cast(Gpu, bound.backend)
    machine, begun = backend.machine, backend.machine.new_event()
    network = OnExecutor if machine.name == "executor" else OnGpu
    begun.record(backend.stream)
    lanes = {}
    for name in names:
        owned = machine.new_stream(multiprocessors if name == "compute" else None)
        stream = machine.stream(owned)
        begun.wait(stream)
        there = network(bound.comm, stream)
        along = {axis: network(group, stream) for axis, group in bound.axes.items()}
        lanes[name] = Lane(owned, stream, there, bound.on(Gpu(bound.arrays.values(), owned), there, along))
    return lanes
