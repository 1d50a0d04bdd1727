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


def record(step: Callable[[], Any]) -> list[Event]:
    """The kernels of a step in order of time, the first at 0. Of two steps, the second: the first is slower."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(2):
            step()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"])
    kernels = kernels[len(kernels) // 2 :]
    return [(short(e["name"]), round(e["ts"] - kernels[0]["ts"], 3), round(e["dur"], 3)) for e in kernels]


def warm_up() -> None:
    """Use the profiler once: its first use takes long."""
    record(lambda: torch.zeros(1, device="cuda"))


def short(name: str) -> str:
    """The part of a mangled or templated name that says what it is."""
    ours = re.findall(r"(?:merged_)?lars_[a-z_]*[a-z]", name)
    if ours:
        return ours[-1]  # of nested functions the innermost, which is the kernel
    plain = re.sub(r"<.*|\(.*", "", name.replace("(anonymous namespace)::", "").removeprefix("void "))
    functor = re.search(r"\w*[Ff]unctor\w*", name)
    return plain.rpartition("::")[2][:40] + (f" {functor.group()}" if functor else "")
