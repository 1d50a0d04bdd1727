"""Times on a CUDA GPU."""

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from refopt import gpu


def step_time(step: Callable[[], Any]) -> float:
    """Median GPU time of a step, in milliseconds."""
    return _median_time(step, warm_up=5, times=30)


def copy_bandwidth(nbytes: int = 2_000_000_000) -> float:
    """Bytes read and written a second by a device-to-device copy of that many bytes."""
    machine: Any = gpu.device("gpu")
    copy = machine.copier(*(machine.empty((nbytes,), np.uint8) for _ in range(2)))
    return 2 * nbytes / _median_time(lambda: copy(0), 3, 20) * 1000


def _median_time(run: Callable[[], Any], warm_up: int, times: int) -> float:
    machine: Any = gpu.device("gpu")
    for _ in range(warm_up):
        run()
    events = [machine.new_event(timing=True) for _ in range(times + 1)]
    events[0].record(0)
    for event in events[1:]:
        run()
        event.record(0)
    machine.synchronize()
    return median(a.elapsed_time(b) for a, b in pairwise(events))
