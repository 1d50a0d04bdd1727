"""Times of launches, by events on a GPU and by the clock on the executor; and of a copy, to compare with."""

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from refopt.gpu.cuda import Launch
from refopt.gpu.runtime import device


def milliseconds(call: Callable[[], Any], repeats: int = 20, warmup: int = 3) -> float:
    """Time a call on the current machine: `refopt.gpu.use`.

    Args:
        call: launches on the default stream. On a GPU calls follow each other without a pause, and the time is from one
            end to the next: a call of many small launches takes as long as the host needs to enqueue them.
        repeats: how many calls are timed on a GPU. On the executor a single call is timed.
        warmup: how many untimed calls precede them on a GPU.

    Returns:
        The median, in milliseconds.
    """
    machine: Any = device()
    if machine.name != "gpu":
        began = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - began)
    for _ in range(warmup):
        call()
    ends = [machine.new_event(timing=True) for _ in range(repeats + 1)]
    ends[0].record(0)
    for end in ends[1:]:
        call()
        end.record(0)
    machine.synchronize()
    return statistics.median(one.elapsed_time(other) for one, other in pairwise(ends))


def milliseconds_of(launches: Sequence[Launch]) -> float:
    """Time consecutive launches, as `milliseconds`: on a GPU as one graph, so that the host does not delay them."""
    machine = device()
    if machine.name != "gpu":
        return milliseconds(lambda: [launch() for launch in launches])
    graph = machine.sequence([launch.prepared() for launch in launches])
    return milliseconds(lambda: graph(0))


def copy_milliseconds(nbytes: int) -> float:
    """Time a copy on the current machine that reads and writes ``nbytes`` in total: the least time of a step."""
    machine: Any = device()
    copy = machine.copier(*(machine.empty((max(nbytes // 2, 1),), np.uint8) for _ in range(2)))
    return milliseconds(lambda: copy(machine.stream(0)))
