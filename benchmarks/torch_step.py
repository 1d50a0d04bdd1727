"""A whole ``step()`` of `refopt.torch` beside PyTorch's own, with new gradients in every step.

    python -m benchmarks.torch_step [--compile SECONDS] [--workloads NAME ...] [--out FILE]

Needs a CUDA GPU with PyTorch and numba-cuda. Gradients lie where they did, or elsewhere; or a backward pass has made
them, and ``grad_objects_us`` is what it takes to ask for each, which has PyTorch make objects of Python's; or there are
others of them than in the step before; or the learning rate is another; or states are read before. A row has the time
on the host, before which the GPU is idle; on the GPU, which is kept busy until the step is enqueued; and of both. The
empty step is an optimizer's that does nothing. The exit status is 1 if a section failed or a row is wrong.
"""

import argparse
import contextlib
import gc
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.optim import Optimizer

from benchmarks.floor import judged
from benchmarks.measure import SLEEP, captured, copy_gb_s, free, l2_bytes
from benchmarks.peers import compiled
from benchmarks.record import RESULTS, ROOT, begin, by_sections, ended, short_name
from benchmarks.torch_trace import traced
from benchmarks.torch_work import (
    ACCELERATED,
    EMPTY,
    OPTIMIZERS,
    OURS,
    SMALL,
    WORKLOADS,
    Step,
    Subject,
    Work,
    states_of,
    subjects,
    work_of,
)

COMPILE_S = 60.0  # in which all of it is compiled
MANY = 1000  # tensors; a program for more takes minutes to compile, and steps of them are timed less often
ROUNDS, FEWER, WARMUP = 21, 5, 5
CYCLES_PER_US = 2000.0  # at least as many as a multiprocessor has
TOLERANCE = 1e-5  # relative to each tensor's largest value, after one step
TIMING = (f"median of {ROUNDS}, {FEWER} of more than {MANY} tensors, optimizers in turns; host by the clock, device by "
          "CUDA events")
SAMPLED, SAMPLES, PERIOD, MOST = "resnet50", 400, 5e-5, 15  # of `shares`: workload, steps, seconds, functions
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
    if how == "eager":
        found |= {"other mask": work.other_mask, "new lr": other_rate, "states read": lambda: optimizer.state}
    return found


def times(step: Step, before: Callable[[], Any], wait: Callable[[], Any]) -> tuple[float, float]:
    """Microseconds of one call on the host, and until the device is done."""
    before()
    wait()
    start = time.perf_counter()
    step()
    called = time.perf_counter()
    wait()
    return (called - start) * 1e6, (time.perf_counter() - start) * 1e6


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


def rows_of(work: Work, routine: str, listed: Sequence[Subject], copy: float = 0.0) -> Iterator[dict[str, Any]]:
    """A row for each condition of each optimizer, timed in turns; one that says why, if PyTorch does not have this.

    Args:
        work, routine, listed: the parameters, the optimizers' routine, and the optimizers.
        copy: GB/s of a copy on the device; 0 on the CPU.
    """
    about = {"workload": work.name, "routine": routine, "tensors": len(work.params), "elements": work.elements}
    on_gpu, many = work.device == "cuda", len(work.params) > MANY
    warmup, rounds = (2, FEWER) if many else (WARMUP, ROUNDS)
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    ways: dict[Subject, tuple[Step, dict[str, Callable[[], Any]]]] = {}
    failed, kept = dict[Subject, Exception](), []  # a graph does not keep its optimizer

    @contextlib.contextmanager
    def trying(subject: Subject) -> Iterator[None]:
        """What PyTorch does not have, or not in time, ends nothing."""
        try:
            yield
        except Exception as error:
            wait()
            failed[subject] = error

    for subject in listed:
        with trying(subject):
            kept.append(optimizer := subject.make(work.params))
            step: Step = optimizer.step
            step = compiled(step) if subject.how.startswith("compiled") else step
            step = captured(step) if subject.how.endswith("graph") else step
            ways[subject] = step, conditions(work, optimizer, subject.how)
    for condition in dict.fromkeys(chain(*(found for _, found in ways.values()))):
        there = {subject: (step, found[condition]) for subject, (step, found) in ways.items() if condition in found}
        each: dict[Subject, list[tuple[float, float]]] = {subject: [] for subject in there}
        for _ in range(warmup + rounds):
            for subject in (x for x in there if x not in failed):
                with trying(subject):
                    each[subject].append(times(*there[subject], wait))
        for subject, (step, before) in there.items():
            if subject in failed:
                continue
            host, whole = zip(*each[subject][warmup:], strict=True)
            row = {"implementation": subject.name, "how": subject.how, "condition": condition,
                   "host_us": statistics.median(host), "host_least_us": min(host), "whole_us": statistics.median(whole)}
            if condition == "after backward":
                row["grad_objects_us"] = statistics.median(times(work.grads, before, wait)[0] for _ in range(rounds))
            if on_gpu and subject.name != EMPTY:
                cycles = max(SLEEP, int(1.5 * row["host_us"] * CYCLES_PER_US))
                row["ms"], bytes_ = statistics.median(device_ms(step, before, cycles, rounds)), work.bytes(routine)
                row |= judged(row["ms"], bytes_, copy, held=bytes_, l2=l2_bytes())
            yield about | row
    for subject, error in failed.items():
        reason, ok = f"{type(error).__name__}: {error}".splitlines()[0][:160], subject[:2] != (OURS, "eager")
        yield about | {"implementation": subject.name, "how": subject.how, "skipped": reason, "ok": ok}


def steps(copy: float, works: list[Work]) -> Iterator[dict]:
    """All that need not be compiled."""
    for work in works:
        for routine in OPTIMIZERS:
            yield from rows_of(work, routine, [x for x in subjects(routine) if not x.how.startswith("compiled")], copy)
            release()


def shares(works: list[Work], samples: int = SAMPLES) -> Iterator[dict]:
    """By function, the share of a step's host time after a backward pass, as samples by a timer find it."""
    for work in (x for x in works if x.name == SAMPLED):
        for subject in (x for x in subjects("adamw") if x.name in (OURS, ACCELERATED) and x.how == "eager"):
            optimizer, codes = subject.make(work.params), list[CodeType]()

            def look(_: int, frame: Any, codes: list[CodeType] = codes) -> None:
                codes.append(frame.f_code)  # named afterwards, since the timer goes on

            for k in range(WARMUP + samples):
                work.backward()
                if work.device == "cuda":
                    torch.cuda.synchronize()
                with _timer(look, PERIOD, PERIOD) if k >= WARMUP else contextlib.nullcontext():
                    optimizer.step()
            seen = Counter(f"{Path(code.co_filename).stem}.{code.co_qualname}" for code in codes)
            found = {name: count / seen.total() for name, count in seen.most_common(MOST)}
            yield {"workload": work.name, "implementation": subject.name, "samples": seen.total(), "shares": found}


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
                rows = list(rows_of(work, routine, [subject], copy))
            yield from rows
            release()


@contextlib.contextmanager
def _timer(call: Callable[..., Any], after: float, every: float = 0.0) -> Iterator[None]:
    """Have a function called within, after so many seconds, and then every so many."""
    before = signal.signal(signal.SIGALRM, call)
    signal.setitimer(signal.ITIMER_REAL, after, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _limited(seconds: float) -> Any:
    """Raise TimeoutError within, after so many seconds."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"not compiled within the {seconds:.0f} s that were left")

    return _timer(end, seconds)


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
            left_out = (EMPTY,) if on_gpu else (EMPTY, "capturable")
            for subject in (x for x in subjects(routine) if x.how == "eager" and x.name not in left_out):
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
        if device == "cuda":
            yield "shares", partial(shares, works)
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
