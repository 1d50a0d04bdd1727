"""A whole ``step()`` of `refopt.torch` beside PyTorch's own, with new gradients in every step.

    python -m benchmarks.torch_step [--compile SECONDS] [--workloads NAME ...] [--out FILE]

Needs a CUDA GPU with PyTorch and numba-cuda. Gradients lie where they did, or elsewhere; or a backward pass has made
them, and ``grad_objects_us`` is what it takes to ask for each, which has PyTorch make objects of Python's; or there are
others of them than in the step before; or the learning rate is another. A row has the time on the host, before which
the GPU is idle; on the GPU, which is kept busy until the step is enqueued; and of both. The exit status is 1 if a
section failed or a row is wrong.
"""

import argparse
import contextlib
import gc
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from benchmarks.floor import judged
from benchmarks.measure import SLEEP, captured, copy_gb_s, free, l2_bytes
from benchmarks.peers import compiled
from benchmarks.record import RESULTS, ROOT, begin, by_sections, ended, short_name
from benchmarks.torch_trace import traced
from benchmarks.torch_work import OPTIMIZERS, OURS, SMALL, WORKLOADS, Step, Subject, Work, states_of, subjects, work_of

COMPILE_S = 60.0  # in which all of it is compiled
MANY = 1000  # tensors; a program for more takes minutes to compile, and steps of them are timed less often
ROUNDS, FEWER, WARMUP = 21, 9, 5
CYCLES_PER_US = 2000.0  # at least as many as a multiprocessor has
TOLERANCE = 1e-5  # relative to each tensor's largest value, after one step
TIMING = f"median of {ROUNDS}, {FEWER} of more than {MANY} tensors; host by the clock, device by CUDA events"
DRAWN = (OURS, "eager"), ("fused", "eager"), ("foreach", "eager")  # of which a timeline is recorded


def conditions(work: Work, optimizer: Optimizer, how: str) -> dict[str, Callable[[], Any]]:
    """What is done before each step, by what it is called.

    A graph has the addresses in it, and a step is compiled for a learning rate.
    """
    count = 0

    def other_rate() -> None:
        nonlocal count
        count += 1
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 + count * 1e-8

    found: dict[str, Callable[[], Any]] = {"same addresses": lambda: None}
    found |= {} if how.endswith("graph") else {"new addresses": work.turn, "after backward": work.backward}
    return found | ({"other mask": work.other_mask, "new lr": other_rate} if how == "eager" else {})


def times(step: Step, before: Callable[[], Any], on_gpu: bool = True, rounds: int = ROUNDS) -> dict[str, float]:
    """Medians of a step's times: ``host_us``, ``whole_us``, and on a GPU ``ms``.

    Args:
        step, before: the call, and what is done before each, which is not timed.
        on_gpu, rounds: whether there is a GPU to wait for, and how often each is timed.
    """
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    host, whole = [], []
    for k in range(WARMUP + rounds):
        before()
        wait()
        start = time.perf_counter()
        step()
        called = time.perf_counter()
        wait()
        if k >= WARMUP:
            host.append((called - start) * 1e6)
            whole.append((time.perf_counter() - start) * 1e6)
    found = {"host_us": statistics.median(host), "whole_us": statistics.median(whole)}
    if on_gpu:
        cycles = max(SLEEP, int(1.5 * found["host_us"] * CYCLES_PER_US))
        found["ms"] = statistics.median(device_ms(step, before, cycles, rounds))
    return found


def device_ms(step: Step, before: Callable[[], Any], cycles: int, rounds: int) -> Iterator[float]:
    """Milliseconds between two events around each call, which is enqueued while the GPU is kept busy for cycles."""
    for _ in range(rounds):
        before()
        torch.cuda.synchronize()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(cycles)
        start.record()
        step()
        stop.record()
        stop.synchronize()
        yield start.elapsed_time(stop)


def rows_of(work: Work, routine: str, subject: Subject, copy: float = 0.0) -> Iterator[dict[str, Any]]:
    """A row for each condition; one that says why, if PyTorch does not have this.

    Args:
        work, routine, subject: the parameters, the optimizer's routine, and the optimizer.
        copy: GB/s of a copy on the device; 0 on the CPU.
    """
    about = {
        "workload": work.name, "routine": routine, "implementation": subject.name, "how": subject.how,
        "tensors": len(work.params), "elements": work.elements,
    }
    on_gpu, start = work.device == "cuda", time.perf_counter()
    try:
        optimizer = subject.make(work.params)
        step: Step = optimizer.step
        step = compiled(step) if subject.how.startswith("compiled") else step
        step = captured(step) if subject.how.endswith("graph") else step
        for condition, before in conditions(work, optimizer, subject.how).items():
            rounds = ROUNDS if len(work.params) <= MANY else FEWER
            found = times(step, before, on_gpu, rounds)
            if condition == "after backward":
                found["grad_objects_us"] = times(work.grads, before, False, rounds)["host_us"]
            if on_gpu:
                bytes_ = work.bytes(routine)
                found |= judged(found["ms"], bytes_, copy, held=bytes_, l2=l2_bytes())
            yield about | {"condition": condition} | found | {"seconds": time.perf_counter() - start}
    except Exception as error:  # what PyTorch does not have, or not in time, ends nothing
        if on_gpu:
            torch.cuda.synchronize()
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        yield about | {"skipped": reason, "ok": (subject.name, subject.how) != (OURS, "eager")}


def steps(copy: float, works: list[Work]) -> Iterator[dict]:
    """All that need not be compiled."""
    for work in works:
        for routine in OPTIMIZERS:
            for subject in subjects(routine):
                if not subject.how.startswith("compiled"):
                    yield from rows_of(work, routine, subject, copy)
                    release()


def compiled_steps(copy: float, works: list[Work], seconds: float) -> Iterator[dict]:
    """What has to be compiled, the smaller model first, while there is time; a compilation is ended with it."""
    end = time.perf_counter() + seconds
    listed = [(work, routine, subject) for work in works for routine in OPTIMIZERS for subject in subjects(routine)
              if subject.how.startswith("compiled")]
    for work, routine, subject in sorted(listed, key=lambda each: each[0].elements):
        about = {"workload": work.name, "routine": routine, "implementation": subject.name, "how": subject.how}
        left = end - time.perf_counter()
        if len(work.params) > MANY:
            yield about | {"skipped": f"more than {MANY} tensors"}
        elif left < 1:
            yield about | {"skipped": f"no time left of {seconds:.0f} s"}
        else:
            with _limited(left):
                rows = list(rows_of(work, routine, subject, copy))
            yield from rows
            release()


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError within, after so many seconds."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"not compiled within the {seconds:.0f} s that were left")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def agreement(works: list[Work]) -> Iterator[dict]:
    """The largest difference from PyTorch's fused after a first step."""
    for work in works:
        for routine in OPTIMIZERS:
            each = {x.name: x for x in subjects(routine) if x.how == "eager" and x.name in (OURS, "fused")}
            after = {}
            for name, subject in each.items():
                after[name] = work.clone()
                subject.make(after[name]).step()
            pairs = zip(after[OURS], after["fused"], strict=True)
            differences = [((x - y).abs().max() / y.abs().max()).item() for x, y in pairs]
            changed = any(not torch.equal(x, y) for x, y in zip(after[OURS], work.params, strict=True))
            worst = max(float("inf") if x != x else x for x in differences)
            yield {
                "workload": work.name, "routine": routine, "largest_difference": worst, "tolerance": TOLERANCE,
                "ok": worst <= TOLERANCE and changed,
            }
            del after, pairs
            release()


def memory(works: list[Work]) -> Iterator[dict]:
    """Bytes that an optimizer holds after its second step: its states, and all that it took of the device."""
    for work in works:
        on_gpu = work.device == "cuda"
        for routine in OPTIMIZERS:
            for subject in (x for x in subjects(routine) if x.how == "eager" and (on_gpu or x.name != "capturable")):
                release()
                before = _taken() if on_gpu else (0, 0)
                optimizer = subject.make(work.params)
                for _ in range(2):
                    optimizer.step()
                release()
                after = _taken() if on_gpu else (0, 0)
                yield {
                    "workload": work.name, "routine": routine, "implementation": subject.name,
                    "allocated_bytes": after[0] - before[0], "device_bytes": after[1] - before[1],
                } | states_of(optimizer)
                del optimizer


def _taken() -> tuple[int, int]:
    """Bytes that PyTorch's allocator has given out, and that the device has given to anyone."""
    torch.cuda.synchronize()
    left, total = torch.cuda.mem_get_info()
    return torch.cuda.memory_allocated(), total - left


def timelines(works: list[Work]) -> Iterator[dict]:
    """What host and GPU do in one step with new gradients, as PyTorch's profiler sees it."""
    for work in works:
        for subject in subjects("adamw"):
            if work.name != SMALL and (subject.name, subject.how) in DRAWN:
                optimizer = subject.make(work.params)
                for _ in range(WARMUP):
                    work.turn()
                    optimizer.step()
                spans = traced(optimizer.step, work.turn)
                about = {"workload": work.name, "routine": "adamw", "implementation": subject.name}
                yield about | {"unit": "microseconds", "spans": spans, "ok": len(spans) > 1}
                del optimizer
                release()


def release() -> None:
    """Give the memory of dropped tensors back."""
    free() if torch.cuda.is_available() else gc.collect()


def measured(names: list[str], seconds: float, out: Path, device: str = "cuda") -> dict[str, Any]:
    """The whole report, saved after every row."""
    report: dict[str, Any] = begin("benchmarks.torch_step", also=sorted((ROOT / "refopt" / "torch").glob("*.py")))
    report |= {"what": "torch-step", "timing": TIMING}
    works = [work_of(name, device) for name in names]

    def sections() -> Iterator[tuple[str, Callable[[], Any]]]:
        yield "copy_gb_s", copy_gb_s
        copy = report["copy_gb_s"]
        yield "agreement", partial(agreement, works)
        yield "steps", partial(steps, copy, works)
        yield "memory", partial(memory, works)
        yield "timelines", partial(timelines, works)
        yield "compiled", partial(compiled_steps, copy, works, seconds)

    by_sections(report, sections(), out)
    return report


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS, metavar="NAME")
    parser.add_argument("--compile", type=float, default=COMPILE_S, metavar="SECONDS", help="0 to compile nothing")
    parser.add_argument("--out", "--to", type=Path, help="default: benchmarks/results/torch-step-DEVICE.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device")
    out = options.out or RESULTS / f"torch-step-{short_name(torch.cuda.get_device_properties(0).name)}.json"
    report = measured(options.workloads, options.compile, out)
    for row in report["steps"] + report["compiled"]:
        what = " ".join(str(row.get(key, "")) for key in ("workload", "routine", "implementation", "how", "condition"))
        figures = [f"{key} {row[key]:.3f}" for key in ("host_us", "whole_us", "ms", "floor_ms") if key in row]
        print(f"{what:70} {row.get('skipped', '  '.join(figures))}")
    print(f"written to {out}")
    return ended(report)


if __name__ == "__main__":
    sys.exit(main())
