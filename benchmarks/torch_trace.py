"""What host and GPU do in a call, as PyTorch's profiler sees it: launches and copies, and when they run."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.timeline import short

Span = tuple[str, str, float, float]  # "host" or "gpu", name, start and duration in microseconds
LANES = {"kernel": "gpu", "gpu_memcpy": "gpu", "gpu_memset": "gpu", "cuda_runtime": "host", "cuda_driver": "host"}
STEP = "benchmarks: a step"  # what the whole call is marked as


def traced(call: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> list[Span]:
    """What host and GPU do in a call, in order of time, the first at 0; of two calls, the second: the first is slower.

    Args:
        call: what is traced.
        before: what is done before each call, and not shown.

    Returns:
        The spans, and a last one in the lane ``step``: from the call to its return, on the host.
    """
    before()
    with profile(activities=[ProfilerActivity.CUDA]):  # whose first use takes long
        call()
        torch.cuda.synchronize()
    before()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with torch.profiler.record_function(STEP):
            call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return spans_of(json.loads(path.read_text())["traceEvents"])


def spans_of(events: list[dict[str, Any]]) -> list[Span]:
    """The spans of a trace; what the host does after the call, which waits for the device, is left out."""
    (whole,) = (e for e in events if e.get("name") == STEP and e.get("cat") == "user_annotation")
    begin, end = whole["ts"], whole["ts"] + whole["dur"]
    own = sorted((e for e in events if e.get("cat") in LANES and begin <= e["ts"]), key=lambda e: e["ts"])
    spans = [(LANES[e["cat"]], short(e["name"]), e["ts"], e["dur"]) for e in own]
    spans = [(lane, name, at, length) for lane, name, at, length in spans if lane == "gpu" or at < end]
    spans.append(("step", "step", begin, whole["dur"]))
    return [(lane, name, round(at - begin, 3), round(length, 3)) for lane, name, at, length in spans]
