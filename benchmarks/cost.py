"""The cost model of a sharded step, against what `benchmarks.sharding` has measured, and for more ranks.

    python -m benchmarks.cost [REPORT] [--out FILE]

Needs no GPU. Four numbers are fitted: alpha, beta and gamma to single broadcasts and reductions of at least 16 MiB,
the size of buckets, since a line through shorter ones, too, is up to a fifth too low there; and the rate at which
streams proceed beside each other, to the steps of one model. Those of other models are predicted.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sharded_programs import HALF, in_buckets, params_of, plan_of, share, whole
from refopt import placement
from refopt.placement import Overlap, cost
from refopt.placement.timeline import fit_beside
from refopt.program import Program

Ways = Sequence[tuple[float, bool]]  # limits in MiB, and whether in batches

RESULTS = Path(__file__).parent / "results"
FITTED = "bert-large"
LEAST = 1 << 24  # bytes of the messages that count
WITHIN = 0.15  # of what is measured
STREAMS = {2: "ms", 1: "one_stream_ms"}  # and the measured time
WORLDS = 2, 4, 8, 16, 32, 64
WAYS = (128.0, False), (128.0, True), (math.inf, True)
SOURCE = "date", "device", "memory_gib", "multiprocessors", "driver", "versions", "system", "timing", "world"


def link_of(rows: list[dict]) -> cost.Link:
    """The line through the broadcasts that count; what reductions take more per byte is their addition."""
    lines = {}
    for kind in ("broadcast", "reduce"):
        own = [row for row in rows if row["kind"] == kind and row["bytes"] >= LEAST]
        lines[kind] = cost.fit([row["bytes"] for row in own], [row["ms"] * 1e-3 for row in own])
    sent = lines["broadcast"]
    return sent._replace(alpha=max(sent.alpha, 0.0), gamma=max(lines["reduce"].beta - sent.beta, 0.0))


def simulated(program: Program, link: cost.Link, gb_s: float, streams: int) -> Overlap:
    """What a step takes if streams do not disturb each other, in seconds.

    Args:
        program: of a rank, from the gradients on.
        link: the network.
        gb_s: GB/s of a device's memory.
        streams: 2, or 1.
    """
    plan = plan_of(program, streams)
    return placement.overlap(placement.simulate(plan, placement.task_cost(plan, link, link, gb_s * 1e9)))


def milliseconds(gain: Overlap, beside: float) -> float:
    """What the step takes if they do, by the formula of `refopt.placement.simulate`."""
    return (gain.elapsed + (1 / beside - 1) * gain.hidden) * 1e3


def programs_of(workload: str, form: str, world: int, ways: Ways) -> Iterator[Program]:
    """The step of rank 0 for each limit, one by one or in batches."""
    own = share(whole(params_of(workload), form, world), 0, world)
    return (in_buckets(own, limit, batched) for limit, batched in ways)


def compared(report: dict[str, Any], link: cost.Link) -> tuple[float, list[dict]]:
    """The rate that is fitted, and predicted and measured times of all steps, on both streams and on one.

    Args:
        report: of `benchmarks.sharding`.
        link: the network.
    """
    steps = [row for row in report["steps"] if "form" in row]
    found = []  # workload, form and size of a bucket; streams; undisturbed; as measured
    for workload, form in dict.fromkeys((row["workload"], row["form"]) for row in steps):
        own = [row for row in steps if (row["workload"], row["form"]) == (workload, form)]
        ways = [(float(row["limit_mib"]), row["batched"]) for row in own]
        for row, program in zip(own, programs_of(workload, form, report["world"], ways), strict=True):
            about = {key: row[key] for key in ("workload", "form", "limit_mib", "batched")}
            for streams, key in STREAMS.items():
                found.append((about, streams, simulated(program, link, report["copy_gb_s"], streams), row[key]))
    fitted = [(gain, ms * 1e-3) for about, _, gain, ms in found if gain.hidden and about["workload"] == FITTED]
    beside = fit_beside(*zip(*fitted, strict=True))
    rows = []
    for about, streams, gain, measured in found:
        ms = milliseconds(gain, beside)
        rows.append(about | {
            "streams": streams, "predicted_ms": ms, "measured_ms": measured, "ratio": ms / measured,
            "fitted": gain.hidden > 0 and about["workload"] == FITTED, "ok": abs(ms / measured - 1) <= WITHIN,
        })  # fmt: skip
    return beside, rows


def more_ranks(
    workloads: list[str],
    link: cost.Link,
    gb_s: float,
    beside: float,
    worlds: Sequence[int] = WORLDS,
    ways: Ways = WAYS,
) -> list[dict]:
    """What steps on fp16 gradients would take: the same link between any two ranks, and buckets of the same sizes.

    Args:
        workloads, link, gb_s, beside: models, the network, GB/s of a device's memory, and the rate of `simulate`.
        worlds: numbers of ranks.
        ways: limits in MiB, and whether in batches.
    """
    rows = []
    for workload in workloads:
        for world in worlds:
            for (limit, batched), program in zip(ways, programs_of(workload, HALF, world, ways), strict=True):
                gain, one = (simulated(program, link, gb_s, streams) for streams in (2, 1))
                own = sum(cost.of_op(program, op, link, gb_s * 1e9) for op in program.main if op.role == "optimize")
                rows.append({
                    "workload": workload, "form": HALF, "limit_mib": limit, "batched": batched, "world": world,
                    "predicted_ms": milliseconds(gain, beside), "one_stream_ms": one.elapsed * 1e3,
                    "averages_and_updates_ms": own * 1e3,
                })  # fmt: skip
    return rows


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, nargs="?", default=RESULTS / "sharding-h200-x2.json", metavar="REPORT")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/cost-..., for a REPORT sharding-...")
    options = parser.parse_args()
    source = json.loads(options.report.read_text())
    link = link_of(source["curve"])
    beside, rows = compared(source, link)
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    report = {"command": "python -m benchmarks.cost", "what": "cost", "report": options.report.name}
    report |= {key: source[key] for key in SOURCE} | {
        "copy_gb_s": source["copy_gb_s"], "link": link._asdict(), "beside": beside, "rows": rows,
        "more_ranks": more_ranks(workloads, link, source["copy_gb_s"], beside),
    }  # fmt: skip
    from benchmarks.run import save  # here, so that the work goes without PyTorch

    out = options.out or RESULTS / options.report.name.replace("sharding", "cost")
    save(report, out)
    for row in rows:
        print(*(f"{key}={value}" for key, value in row.items()))
    print(f"{link}, beside {beside:.3f}; {sum(row['ok'] for row in rows)} of {len(rows)} rows within {WITHIN:.0%}")


if __name__ == "__main__":
    main()
