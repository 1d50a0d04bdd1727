"""How things are timed: on the device by events, on the host by the clock, bandwidth by a copy."""

import contextlib
import gc
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.floor import judged

SLEEP = 300_000  # cycles that the device is kept busy, so that a step is enqueued before it may start


def device_ms(function: Callable[[], Any], repeats: int = 30, warmup: int = 5) -> float:
    """Median time between two events around a call.

    Where enqueueing takes longer than the work itself, as in a loop over tensors, this is the time of the
    enqueueing, which is what a training step would wait for.
    """
    return statistics.median(event_times(function, repeats, warmup))


def event_times(
    function: Callable[[], Any], repeats: int, warmup: int, before: Callable[[], Any] = lambda: None
) -> list[float]:
    """Milliseconds between two events around each call, with something done before each."""
    for _ in range(warmup):
        function()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        before()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(SLEEP)
        start.record()
        function()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return times


def host_us(function: Callable[[], Any], calls: int = 100, rounds: int = 21, warmup: int = 10) -> float:
    """Median over rounds of the time one call takes on the host; the device is idle when a round begins."""
    for _ in range(warmup):
        function()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def row_of(
    step: Callable[[], Any], moved: int, copy_gb_s: float, repeats: int = 30, held: int | None = None
) -> dict[str, Any]:
    """Time of a step against the bytes that it has to move at the bandwidth of a copy.

    Args:
        step: the call.
        moved: bytes that it reads and writes.
        copy_gb_s: what `copy_gb_s` has measured.
        repeats: how often it is timed.
        held: declares that the L2 cache may hold so many of them from one call to the next; a time below the floor
            is refused otherwise.
    """
    return judged(device_ms(step, repeats), moved, copy_gb_s, held, l2_bytes() if held is not None else 0)


def l2_bytes() -> int:
    """Of the device's second-level cache."""
    return torch.cuda.get_device_properties(0).L2_cache_size


def copy_gb_s(gib: int = 4) -> float:
    """Bandwidth of a device-to-device copy, bytes read and bytes written added up, in 1e9 bytes per second."""
    source = torch.ones(gib << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / device_ms(lambda: target.copy_(source)) / 1e6


def captured(function: Callable[[], Any]) -> Callable[[], None]:
    """The call as a CUDA graph: what it returns replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    free()  # nothing may be freed on the device during the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def attempt(name: str, measure: Callable[[], Any], failures: dict[str, str]) -> Any:
    """What a section returns, None if it raises; an error or a wrong row is noted and ends nothing."""
    answer = None
    try:
        answer = measure()
        wrong = [row for row in answer if not row.get("ok", True)] if isinstance(answer, list) else []
        if wrong:
            first = {key: value for key, value in wrong[0].items() if not isinstance(value, list)}
            failures[name] = f"{len(wrong)} of {len(answer)} rows are wrong, the first: {first}"
    except Exception as error:
        traceback.print_exc()
        failures[name] = f"{type(error).__name__}: {error}"
    with contextlib.suppress(Exception):  # after an error of the device this one would fail too
        free()
    return answer


def free() -> None:
    """Give the memory of dropped tensors back."""
    gc.collect()
    torch.cuda.empty_cache()
