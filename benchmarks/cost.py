"""The cost model of a sharded step, against what `benchmarks.sharding` has measured, and for more ranks.

    python -m benchmarks.cost [REPORT] [--model COST] [--out FILE]

Needs no GPU. Five numbers are fitted: alpha, beta and gamma to single broadcasts and reductions of at least 16 MiB,
the size of buckets, since a line through shorter ones, too, is up to a fifth too low there; and the rate at which
streams proceed beside each other, to the steps of one model, once for updates on some multiprocessors and once for
those on all. Steps of other models are predicted. With the report of an earlier fit, such as one on two ranks, nothing
is fitted, and all steps are predicted.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.record import RESULTS, closure, data_digest, digests, write
from benchmarks.sharded_programs import HALF, in_buckets, params_of, plan_of, share, whole
from refopt.program import Program, placement
from refopt.program.placement import Overlap, cost
from refopt.program.placement.timeline import fit_beside

Ways = Sequence[tuple[float, bool]]  # limits in MiB, and whether in batches

FITTED = "bert-large"
LEAST = 1 << 24  # bytes of the messages that count
WITHIN = 0.15  # of what is measured
HOWS = {"confined": ("ms", 2), "on all": ("on_all_ms", 2), "one stream": ("one_stream_ms", 1)}  # key, and streams
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
    """What the step takes if they do, by the formula of `refopt.program.placement.simulate`."""
    return (gain.elapsed + (1 / beside - 1) * gain.hidden) * 1e3


def programs_of(workload: str, form: str, world: int, ways: Ways) -> Iterator[Program]:
    """The step of rank 0 for each limit, one by one or in batches."""
    own = share(whole(params_of(workload), form, world), 0, world)
    return (in_buckets(own, limit, batched) for limit, batched in ways)


def rates_of(report: dict[str, Any]) -> dict[str, float]:
    """GB/s of updates, by how they are done."""
    return {how: report["confined_gb_s" if how == "confined" else "copy_gb_s"] for how in HOWS}


class Step(NamedTuple):
    """A measured step, simulated.

    Attributes:
        about: workload, form, limit of a bucket, and whether in batches.
        how: one of `HOWS`.
        gain: what it takes if streams do not disturb each other.
        measured_ms: what it has taken.
    """

    about: dict[str, Any]
    how: str
    gain: Overlap
    measured_ms: float

    @property
    def can_be_fitted(self) -> bool:
        return self.gain.hidden > 0 and self.about["workload"] == FITTED


def steps_of(report: dict[str, Any], link: cost.Link, rates: Mapping[str, float]) -> list[Step]:
    """All steps of a report of `benchmarks.sharding`, by how they are done.

    Args:
        report: the report.
        link, rates: the network, and GB/s of updates, by how.
    """
    measured = [  # older records call the form with a gradient check a scan
        row | {"form": row["form"].replace("scan of", "checked")} for row in report["steps"] if "form" in row
    ]
    steps = []
    for workload, form in dict.fromkeys((row["workload"], row["form"]) for row in measured):
        own = [row for row in measured if (row["workload"], row["form"]) == (workload, form)]
        ways = [(float(row["limit_mib"]), row["batched"]) for row in own]
        for row, program in zip(own, programs_of(workload, form, report["world"], ways), strict=True):
            about = {key: row[key] for key in ("workload", "form", "limit_mib", "batched")}
            for how, (key, streams) in HOWS.items():
                steps.append(Step(about, how, simulated(program, link, rates[how], streams), row[key]))
    return steps


def besides(steps: Sequence[Step]) -> dict[str, float]:
    """The rates beside something else that take these steps best, by how."""
    rates = {"one stream": 1.0}
    for how in ("confined", "on all"):
        own = [step for step in steps if step.how == how and step.can_be_fitted]
        rates[how] = fit_beside([step.gain for step in own], [step.measured_ms * 1e-3 for step in own])
    return rates


def compared(steps: Sequence[Step], beside: Mapping[str, float], fitted: bool = True) -> list[dict]:
    """Predicted and measured times.

    Args:
        steps, beside: the steps, and the rates beside something else, by how.
        fitted: whether it is these steps that the rates have been fitted to.
    """
    rows = []
    for step in steps:
        ms = milliseconds(step.gain, beside[step.how])
        ratio = ms / step.measured_ms
        rows.append(step.about | {
            "how": step.how, "predicted_ms": ms, "measured_ms": step.measured_ms, "ratio": ratio,
            "fitted": fitted and step.can_be_fitted, "ok": abs(ratio - 1) <= WITHIN,
        })
    return rows


def more_ranks(
    workloads: list[str],
    link: cost.Link,
    rates: Mapping[str, float],
    beside: float,
    worlds: Sequence[int] = WORLDS,
    ways: Ways = WAYS,
) -> list[dict]:
    """What steps on fp16 gradients would take, with updates on some multiprocessors; the same link between any two
    ranks, and buckets of the same sizes.

    Args:
        workloads, link: models, and the network.
        rates, beside: GB/s of updates, by how, and the rate of `simulate`.
        worlds: numbers of ranks.
        ways: limits in MiB, and whether in batches.
    """
    rows = []
    for workload in workloads:
        for world in worlds:
            for (limit, batched), program in zip(ways, programs_of(workload, HALF, world, ways), strict=True):
                gain, one = (simulated(program, link, rates[how], HOWS[how][1]) for how in ("confined", "one stream"))
                rate = rates["confined"] * 1e9
                own = sum(cost.of_op(program, op, link, rate) for op in program.main if op.role == "optimize")
                rows.append({
                    "workload": workload, "form": HALF, "limit_mib": limit, "batched": batched, "world": world,
                    "predicted_ms": milliseconds(gain, beside), "one_stream_ms": one.elapsed * 1e3,
                    "updates_ms": own * 1e3,
                })
    return rows


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, nargs="?", default=RESULTS / "sharding-h200-x2.json", metavar="REPORT")
    parser.add_argument("--model", type=Path, metavar="COST", help="take the numbers of this report of this command")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/cost-..., for a REPORT sharding-...")
    options = parser.parse_args()
    source = json.loads(options.report.read_text())
    report = {"command": "python -m benchmarks.cost", "what": "cost", "report": options.report.name}
    report |= {"sources": digests(closure("benchmarks.cost")), "kernels": []}
    report["reports"] = {path.name: data_digest(path) for path in (options.report, options.model) if path}
    report |= {key: source[key] for key in SOURCE} | {"confined": source["confined"]}
    if options.model:
        earlier = json.loads(options.model.read_text())
        report["model"] = options.model.name
        link, rates, beside = cost.Link(**earlier["link"]), earlier["gb_s"], earlier["beside"]
        steps = steps_of(source, link, rates)
    else:
        link, rates = link_of(source["curve"]), rates_of(source)
        steps = steps_of(source, link, rates)
        beside = besides(steps)
    rows = compared(steps, beside, fitted=options.model is None)
    report |= {"gb_s": rates, "link": link._asdict(), "beside": beside, "rows": rows}
    if not options.model:
        workloads = list(dict.fromkeys(row["workload"] for row in rows))
        report["more_ranks"] = more_ranks(workloads, link, rates, beside["confined"])
    out = options.out or RESULTS / options.report.name.replace("sharding", "cost")
    write(report, out)
    for row in rows:
        print(*(f"{key}={value}" for key, value in row.items()))
    print(f"{link}, beside {beside}; {sum(row['ok'] for row in rows)} of {len(rows)} rows within {WITHIN:.0%}")


if __name__ == "__main__":
    main()
