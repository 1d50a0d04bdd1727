"""Sharded training on several GPUs: `refopt.torch.AdamW` beside PyTorch's, under FSDP2 and ZeroRedundancyOptimizer.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.fully_shard [--device cpu] [--out FILE]

A transformer of the size of BERT-large on random data, with parameters in fp32 and a forward pass in bf16. A row has
the milliseconds of an iteration, of the step on the host, before which the device is idle, and of the step on the
device, which is kept busy until the step is enqueued; of the slowest rank, optimizers in turns. ``timelines`` sums up
what PyTorch's profiler sees of an iteration on each rank. ``agreement`` takes steps of two optimizers from the same
gradients, and ``checkpoint`` is a run that `torch.distributed.checkpoint` has saved and loaded. Rank 0 writes the
report, after every row; the exit status is 1 if a section failed or a row is wrong.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from benchmarks.measure import SLEEP, attempt, free
from benchmarks.record import RESULTS, ROOT, begin, ended, save, short_name
from benchmarks.torch_models import KINDS, Text, differing
from benchmarks.torch_step import device_ms
from benchmarks.torch_trace import Span, traced
from benchmarks.torch_work import OURS
from refopt import torch as merged

WARMUP, TIMED = 3, 20
STEPS = 5  # after which parameters are compared
TOLERANCE = 1e-5  # relative to each tensor's largest value
OPTIONS = {"lr": 1e-4, "weight_decay": 0.01}
FULLY_SHARD, ZERO = "fully_shard", "DDP and ZeroRedundancyOptimizer"
TIMING = (f"median of {TIMED} on the slowest rank, in turns; iterations and host by the clock, the step on the device "
          "by events")


class Size(NamedTuple):
    """The transformer, and a rank's batch."""

    tokens: int
    width: int
    heads: int
    layers: int
    length: int
    samples: int


SIZES = {"cuda": Size(30522, 1024, 16, 24, 128, 16), "cpu": Size(50, 16, 2, 2, 6, 3)}
CLASSES = 8


class Run:
    """A training: the model as it is sharded, its optimizer, and what the next batches are."""

    def __init__(self, way: str, kind: str, device: str, size: Size, seed: int = 0) -> None:
        """Begin from random parameters, the same on all ranks.

        Args:
            way, kind: how it is sharded, and one of `KINDS`.
            device, size: of the model.
            seed: of its parameters.
        """
        torch.manual_seed(seed)
        self.size, self.device = size, device
        with torch.device(device):
            model: Any = Text(*size[:5], CLASSES)
        self._autocast = torch.autocast(device, torch.bfloat16, enabled=way == ZERO)
        if way == FULLY_SHARD:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
            for layer in model.encoder.layers:
                fully_shard(layer, mp_policy=policy)
            self.model: Any = fully_shard(model, mp_policy=policy)
        else:
            self.model = nn.parallel.DistributedDataParallel(model)
        self.params: list[Any] = list(self.model.parameters())
        cls: Any = merged.AdamW if kind == OURS else torch.optim.AdamW
        options = OPTIONS if kind == OURS else OPTIONS | {kind: True}
        if way == ZERO:
            self.optimizer: Optimizer = ZeroRedundancyOptimizer(self.params, cls, **options)
        else:
            self.optimizer = cls(self.params, **options)
        self._random = torch.Generator().manual_seed(dist.get_rank())

    def backward(self) -> None:
        """New gradients, of a batch of this rank's."""
        size = self.size
        tokens = torch.randint(size.tokens, (size.samples, size.length), generator=self._random).to(self.device)
        classes = torch.randint(CLASSES, (size.samples,), generator=self._random).to(self.device)
        self.optimizer.zero_grad()
        with self._autocast:
            logits = self.model(tokens)
        nn.functional.cross_entropy(logits.float(), classes).backward()

    def iterate(self) -> None:
        """A step with new gradients."""
        self.backward()
        self.optimizer.step()

    def take(self, other: "Run") -> None:
        """Have the gradients of another run of this model."""
        for param, theirs in zip(self.params, other.params, strict=True):
            param.grad = None if theirs.grad is None else theirs.grad.clone()


def local(tensor: Any) -> Tensor:
    """This rank's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def slowest(values: list[float], device: str) -> float:
    """The median over repeats of the slowest rank's."""
    found = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return statistics.median(found.tolist())


def times_of(runs: Sequence[Run], device: str) -> list[dict[str, float]]:
    """Milliseconds of an iteration of each and of its step, on the host and, on a GPU, on the device."""
    wait: Callable[[], Any] = torch.cuda.synchronize if device == "cuda" else lambda: None
    found: list[dict[str, list[float]]] = [{"iteration_ms": [], "step_host_ms": []} for _ in runs]

    def time_one(times: list[float], call: Callable[[], Any], until: Callable[[], Any]) -> None:
        wait()
        dist.barrier()
        wait()
        start = time.perf_counter()
        call()
        until()
        times.append((time.perf_counter() - start) * 1e3)

    for _ in range(WARMUP):
        for run in runs:
            run.iterate()
    for _ in range(TIMED):
        for run, times in zip(runs, found, strict=True):
            time_one(times["iteration_ms"], run.iterate, wait)
            run.backward()
            time_one(times["step_host_ms"], run.optimizer.step, lambda: None)
    for run, times in zip(runs, found, strict=True) if device == "cuda" else ():
        cycles = int(max(SLEEP, 3e6 * max(times["step_host_ms"])))
        times["step_device_ms"] = list(device_ms(run.optimizer.step, run.backward, cycles, TIMED))
    return [{name: slowest(each, device) for name, each in times.items()} for times in found]


def speeds(device: str, size: Size) -> Iterator[dict[str, Any]]:
    """The times of each optimizer under each way of sharding, and the memory that training with it alone takes."""
    for way in FULLY_SHARD, ZERO:
        runs = [Run(way, kind, device, size) for kind in KINDS]
        tensors, elements = len(runs[0].params), sum(local(param).numel() for param in runs[0].params)
        times = times_of(runs, device)
        del runs
        for kind, each in zip(KINDS, times, strict=True):
            yield {"way": way, "implementation": kind, "tensors": tensors, "elements_of_rank": elements, **each,
                   **(peak_of(way, kind, size) if device == "cuda" else {})}


def peak_of(way: str, kind: str, size: Size) -> dict[str, int]:
    """The most bytes that PyTorch has allocated at once in two iterations on this rank."""
    free()
    torch.cuda.reset_peak_memory_stats()
    before, run = torch.cuda.memory_allocated(), Run(way, kind, "cuda", size)
    for _ in range(2):
        run.iterate()
    return {"peak_bytes": torch.cuda.max_memory_allocated() - before}


def timelines(device: str, size: Size) -> Iterator[dict[str, Any]]:
    """Milliseconds of an iteration on each rank: of the host, until the device is done, and in which it is busy."""
    for way in FULLY_SHARD, ZERO:
        for kind in KINDS[:2] if device == "cuda" else ():
            run = Run(way, kind, device, size)
            for _ in range(WARMUP):
                run.iterate()
            *spans, (*_, host) = traced(run.iterate)
            on_gpu = [span for span in spans if span[0] == "gpu"]
            parts = {"busy_ms": on_gpu, "collectives_ms": [span for span in on_gpu if "nccl" in span[1]],
                     "others_ms": [span for span in on_gpu if "nccl" not in span[1]]}
            mine = {"host_ms": host / 1e3, "whole_ms": max(at + length for *_, at, length in on_gpu) / 1e3}
            mine |= {name: covered_ms(part) for name, part in parts.items()}
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, mine)
            for rank, row in enumerate(every):
                yield {"way": way, "implementation": kind, "rank": rank, **row}
            del run
            free()


def covered_ms(spans: Sequence[Span]) -> float:
    """Milliseconds in which at least one of some spans runs; they are in order of their starts."""
    covered = end = 0.0
    for *_, at, length in spans:
        covered += max(0.0, at + length - max(at, end))
        end = max(end, at + length)
    return covered / 1e3


def agreement(device: str, size: Size) -> Iterator[dict[str, Any]]:
    """How far parameters are from those of PyTorch's fused optimizer after steps with its gradients."""
    for way in FULLY_SHARD, ZERO:
        for kind in OURS, "foreach":
            peer, mine = (Run(way, each, device, size) for each in ("fused", kind))
            for _ in range(STEPS):
                peer.backward()
                mine.take(peer)
                for run in peer, mine:
                    run.optimizer.step()
            worst = slowest([largest_difference(mine.params, peer.params)], device)
            yield {"way": way, "implementation": kind, "beside": "fused", "steps": STEPS, "difference": worst,
                   "tolerance": TOLERANCE, "ok": worst <= TOLERANCE}
            del mine, peer


def largest_difference(mine: list[Any], theirs: list[Any]) -> float:
    """Of this rank's parts of parameters, relative to the largest value of each."""
    worst = 0.0
    for x, y in zip(map(local, mine), map(local, theirs), strict=True):
        if x.numel():
            worst = max(worst, ((x - y).abs().max() / y.abs().max().clamp(min=1e-12)).item())
    return worst


def resumed(device: str, size: Size) -> Iterator[dict[str, Any]]:
    """How many elements of parameters and states differ in a run that was saved, loaded, and has taken a step more."""
    whole, other = (Run(FULLY_SHARD, OURS, device, size, seed) for seed in (0, 1))
    for _ in range(STEPS):
        whole.iterate()
    folder = [tempfile.mkdtemp(prefix="refopt-checkpoint-")] if dist.get_rank() == 0 else [""]
    dist.broadcast_object_list(folder)
    checkpoint.save(dict(zip(("model", "optimizer"), get_state_dict(whole.model, whole.optimizer), strict=True)),
                    checkpoint_id=folder[0])
    found = dict(zip(("model", "optimizer"), get_state_dict(other.model, other.optimizer), strict=True))
    checkpoint.load(found, checkpoint_id=folder[0])
    set_state_dict(other.model, other.optimizer, model_state_dict=found["model"],
                   optim_state_dict=found["optimizer"])
    whole.backward()
    other.take(whole)
    for run in whole, other:
        run.optimizer.step()
    total = torch.tensor([differing(everything(whole), everything(other))], device=device)
    dist.all_reduce(total)
    yield {"way": FULLY_SHARD, "implementation": OURS, "saved_after": STEPS, "differing_elements": int(total),
           "ok": int(total) == 0}


def everything(run: Run) -> list[Tensor]:
    """This rank's parts of parameters and states."""
    states = [x for param in run.params for x in run.optimizer.state[param].values()]
    return [local(x).detach() for x in (*run.params, *states)]


def measured(device: str, out: Path) -> dict[str, Any]:
    """The whole report, which rank 0 saves after every row."""
    command = f"torchrun --standalone --nproc-per-node {dist.get_world_size()} -m benchmarks.fully_shard"
    own = sorted((ROOT / "refopt" / "torch").glob("*.py"))
    report: dict[str, Any] = begin("benchmarks.fully_shard", command, also=own)
    report |= {"what": "fully-shard", "on": device, "world": dist.get_world_size(), "timing": TIMING,
               "size": SIZES[device]._asdict(), "failures": {}, "seconds": 0.0}
    began, size = time.perf_counter(), SIZES[device]
    small = size._replace(layers=2)  # of which a checkpoint is quick to write
    for name, section in {"steps": lambda: speeds(device, size), "timelines": lambda: timelines(device, size),
                          "agreement": lambda: agreement(device, size),
                          "checkpoint": lambda: resumed(device, small)}.items():
        report[name] = []

        def kept(rows: list = report[name], section: Callable[[], Iterator] = section) -> list[dict]:
            for row in section():
                rows.append(row)
                report["seconds"] = round(time.perf_counter() - began, 1)
                if dist.get_rank() == 0:
                    save(report, out)
                    print(*(f"{key}={value}" for key, value in row.items()), flush=True)
            return rows

        attempt(name, kept, report["failures"])
        if name in report["failures"]:  # what the other ranks wait in is not known
            break
    if dist.get_rank() == 0:
        save(report, out)
    return report


def main(arguments: list[str] | None = None) -> int:
    """The command, on each rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=list(SIZES))
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/fully-shard-DEVICE-xN.json")
    options = parser.parse_args(arguments)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast, which not every host allows
    name = "cpu"
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        name = short_name(torch.cuda.get_device_properties(0).name)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    try:
        out = options.out or RESULTS / f"fully-shard-{name}-x{dist.get_world_size()}.json"
        report = measured(options.device, out)
    finally:
        dist.destroy_process_group()
    return ended(report)


if __name__ == "__main__":
    sys.exit(main())
