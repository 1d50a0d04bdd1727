"""What benchmarks of several ranks share: the command, the meeting, the report, and times of the slowest rank."""

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.measure import copy_gb_s, event_times, free
from benchmarks.record import RESULTS, begin, save, short_name
from refopt import comm


def options_of(description: str | None, what: str, workloads: list[str]) -> argparse.Namespace:
    """The command's options: which workloads, and where to."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=workloads, metavar="NAME")
    parser.add_argument("--out", type=Path, help=f"default: benchmarks/results/{what}-DEVICE-xN.json")
    return parser.parse_args()


@contextlib.contextmanager
def meeting(what: str, timing: str, out: Path | None) -> Iterator[tuple[Any, dict[str, Any], Path]]:
    """All ranks, by refopt's engine and PyTorch's: the communicator, the report as it begins, and where it goes."""
    with comm.nccl.connect() as world:
        store = dist.FileStore(str(Path(os.environ["REFOPT_RENDEZVOUS"]) / "torch"), world.size)
        dist.init_process_group("nccl", store=store, rank=world.rank, world_size=world.size)
        command = f"python -m refopt.comm.launch -n {world.size} -m benchmarks.{what}"
        report = begin(f"benchmarks.{what}", command, Path(os.environ["REFOPT_RENDEZVOUS"]) / "kernels") | {
            "timing": timing, "what": what, "world": world.size, "copy_gb_s": copy_gb_s(),
        }
        yield world, report, out or RESULTS / f"{what}-{short_name(report['device'])}-x{world.size}.json"
        dist.destroy_process_group()


def sections(world: Any, report: dict[str, Any], out: Path) -> Callable[[str, list[dict]], None]:
    """What adds rows to a section of the report, which rank 0 then saves, with the seconds so far, and prints."""
    began = time.perf_counter()

    def section(name: str, rows: list[dict]) -> None:
        report.setdefault(name, []).extend(rows)
        report["seconds"] = time.perf_counter() - began
        if world.rank == 0:
            save(report, out)
            for row in rows:
                print(name, *(f"{key}={value}" for key, value in row.items()), flush=True)
        free()

    free()
    return section


def rank_ms(world: Any, call: Callable[[], Any], repeats: int = 20, warmup: int = 5) -> float:
    """Median time between two events around a call, of the slowest rank each time; all ranks begin together."""
    mine = torch.tensor(event_times(call, repeats, warmup, world.barrier), device="cuda")
    everyone = torch.empty(world.size * repeats, device="cuda")
    world.all_gather(mine, everyone)
    world.synchronize()
    return statistics.median(everyone.view(world.size, repeats).amax(0).tolist())
