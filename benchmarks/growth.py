"""How long programs of thousands of parameters take: to be written down, through every pass, and to be bound.

    python -m benchmarks.growth [--counts 1250 2500 5000 10000] [--out FILE] [--plot FILE]

Seconds of the processor, without the collector of garbage. Each row is one thing that is done with a program that
stands already; ``all`` is their sum. Shapes come again and again; the tensors of a layer are far apart. Needs no GPU.
"""

import argparse
import gc
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import RESULTS, ROOT, begin, save
from refopt.program import Program, amp_program, bind, passes, placement, step_program

RANKS = 8
COUNTS = 1250, 2500, 5000, 10_000


def params_of(count: int) -> list[tuple[str, tuple[int, int]]]:
    return [(f"l{k % (count // 2)}.w{k}", (2, k % 97 + 1)) for k in range(count)]


class Clock:
    """Notes how long things take, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        gc.collect()
        gc.disable()
        try:
            start = time.process_time()
            outcome = work()
            self.seconds[name] = time.process_time() - start
        finally:
            gc.enable()
        return outcome

    def passed(self, name: str, apply: Callable[..., passes.Result], program: Program, **options: Any) -> Program:
        """What a pass makes of a program of which nothing is known yet; it has to find something to do."""
        result = self(name, partial(apply, program.replace(), **options))
        assert result.applied, f"{name}: {result.reasons}"
        return result.program


def measure(count: int) -> dict[str, float]:
    """Seconds by name of what is done with so many parameters."""
    clock = Clock()
    params = params_of(count)
    plain = clock("step_program", lambda: step_program(params, "adam", lr=0.5, world_size=RANKS))
    clock("check", plain.replace().check)
    coalesced = clock.passed("coalesce_gradients", passes.coalesce_gradients, plain)
    reduced = clock.passed("fuse_all_reduce", passes.fuse_all_reduce, coalesced)
    clock.passed("fuse_optimizer, flat", passes.fuse_optimizer, reduced, form="flat")
    merged = clock.passed("fuse_optimizer, merged", passes.fuse_optimizer, reduced, form="merged")
    clock.passed("fold_averages", passes.fold_averages, merged)
    mixed = clock("amp_program", lambda: amp_program(params, "adam", lr=0.5, world_size=RANKS, max_norm=1.0))
    cast = clock.passed("optimize_cast", passes.optimize_cast, mixed)
    shards = clock(
        f"shard, {RANKS} ranks", lambda: [passes.shard(cast.replace(), rank, RANKS).program for rank in range(RANKS)]
    )
    folded = clock.passed("fold_casts", passes.fold_casts, shards[0])
    buckets = clock.passed("fuse_reduces", passes.fuse_reduces, folded, limit=0.01)
    updated = clock.passed("fuse_optimizer, in buckets", passes.fuse_optimizer, buckets, form="merged", per_buffer=True)
    sent = clock.passed("fuse_broadcasts", passes.fuse_broadcasts, updated, limit=0.01)
    clock.passed("batch_owners", passes.batch_owners, sent)
    alone = step_program(params, "adam", lr=0.5)
    owners = clock.passed("reduce_to_owners", passes.reduce_to_owners, alone, devices=RANKS)
    mine = clock("on_device", lambda: passes.on_device(owners, 0))
    clock("on_streams", lambda: placement.on_streams(mine))
    clock.passed("send_to_owners", passes.send_to_owners, alone, devices=RANKS, min_block_size=2)
    one = passes.fuse_optimizer(alone, form="merged").program
    clock.passed("offload", passes.offload, one, nbytes=10**6)
    arrays = {name: np.ones(shape, np.float32) for name, shape in params}
    clock("bind and startup", lambda: bind(alone, arrays).startup())
    clock.seconds["all"] = sum(clock.seconds.values())
    return clock.seconds


def exponent(row: dict[str, Any], counts: list[int]) -> float:
    """Of the power of the number of parameters that a time grows as, by the last two."""
    first, last = (max(row[str(count)], 1e-3) for count in (counts[-2], counts[-1]))
    return float(np.log(last / first) / np.log(counts[-1] / counts[-2]))


def plot(report: dict[str, Any], path: Path) -> None:
    """The sum and the three that take longest, by the number of parameters."""
    import matplotlib.pyplot as plt

    counts = report["counts"]
    rows = sorted(report["rows"], key=lambda row: -row[str(counts[-1])])[:4]
    with plt.style.context(ROOT / "notebooks" / "refopt_lecture" / "figures.mplstyle"):
        figure, axes = plt.subplots(figsize=(6, 3.6))
        for row, style in zip(rows, ("o-", "s--", "^-.", "d:"), strict=False):
            label = "all of it" if row["what"] == "all" else row["what"]
            axes.loglog(counts, [row[str(count)] for count in counts], style, label=label)
        scale = rows[0][str(counts[0])] / counts[0]
        axes.loglog(counts, [scale * count for count in counts], color="0.85", zorder=0, label="proportional")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
        axes.minorticks_off()
        axes.set(title="A program through every pass", xlabel="parameters", ylabel="processor time (seconds)")
        axes.legend(fontsize=9)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Measure, write the record, and draw it."""
    parser = argparse.ArgumentParser(description="time programs of thousands of parameters")
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "growth.svg")
    options = parser.parse_args()
    report = begin("benchmarks.growth", also=sorted((ROOT / "refopt" / "program").rglob("*.py")))
    measure(min(options.counts))  # what is imported and made once
    seconds = {count: measure(count) for count in options.counts}
    report |= {"cpus": os.cpu_count(), "counts": options.counts, "ranks": RANKS, "unit": "seconds of the processor"}
    report["rows"] = [
        {"what": what} | {str(count): seconds[count][what] for count in options.counts}
        for what in seconds[options.counts[0]]
    ]
    save(report, options.out)
    plot(report, options.plot)
    for row in report["rows"]:
        times = "".join(f"{row[str(count)]:9.3f}" for count in options.counts)
        print(f"{row['what']:28}{times}   n^{exponent(row, options.counts):.2f}")


if __name__ == "__main__":
    main()
