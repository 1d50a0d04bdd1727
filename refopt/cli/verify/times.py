"""Times on a CUDA GPU."""

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np


def step_time(step: Callable[[], Any]) -> float:
    """Median GPU time of a step, in milliseconds."""
    return _median_time(step, warm_up=5, times=30)


def copy_bandwidth(nbytes: int = 2_000_000_000) -> float:
    """Bytes read and written a second by a device-to-device copy of that many bytes."""
    from cuda.bindings import driver
    from numba import cuda

    source, target = (cuda.device_array(nbytes, np.uint8) for _ in range(2))
    a, b = (array.__cuda_array_interface__["data"][0] for array in (source, target))
    return 2 * nbytes / _median_time(lambda: driver.cuMemcpyDtoDAsync(b, a, nbytes, 0), 3, 20) * 1000


def _median_time(run: Callable[[], Any], warm_up: int, times: int) -> float:
    from numba import cuda

    for _ in range(warm_up):
        run()
    events = [cuda.event() for _ in range(times + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    events[-1].synchronize()
    return median(cuda.event_elapsed_time(a, b) for a, b in pairwise(events))
