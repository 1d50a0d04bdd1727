"""When kernels ran: what PyTorch's profiler sees of a call, ours and anybody else's kernels alike."""

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Event = tuple[str, float, float]  # name, start and duration in microseconds


def record(function: Callable[[], Any]) -> tuple[list[Event], list[Event]]:
    """The kernels of a call, and the launch calls of the host, in order of time; the first begins at 0."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        function()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    calls = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver") and "aunch" in e["name"]]
    origin = min((e["ts"] for e in kernels + calls), default=0.0)
    return _events(kernels, origin), _events(calls, origin)


def warm_up() -> None:
    """Use the profiler once: its first use takes long."""
    record(lambda: torch.zeros(1, device="cuda"))


def _events(events: list[dict], origin: float) -> list[Event]:
    rows = [(short(e["name"]), round(e["ts"] - origin, 3), round(e.get("dur", 0), 3)) for e in events]
    return sorted(rows, key=lambda row: row[1])


def short(name: str) -> str:
    """The part of a mangled or templated name that says what it is."""
    ours = re.findall(r"(?:merged_)?lars_[a-z_]*[a-z]", name)
    if ours:
        return ours[-1]  # of nested functions the innermost, which is the kernel
    plain = re.sub(r"<.*|\(.*", "", name.replace("(anonymous namespace)::", "").removeprefix("void "))
    functor = re.search(r"\w*[Ff]unctor\w*", name)
    return plain.rpartition("::")[2][:40] + (f" {functor.group()}" if functor else "")
