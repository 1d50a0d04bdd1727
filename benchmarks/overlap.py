"""Adam with its states in the memory of the host: how much of the step is hidden behind the copies, or they behind it.

    python -m benchmarks.overlap [--workloads resnet50 bert-large] [--out FILE]

Needs a CUDA GPU with PyTorch and numba-cuda. The step is `passes.offload`'s: before each of some updates its
states are copied in, after it out, through a ring of buffers. It is measured on one stream and on three, beside its
updates alone and its copies alone. The report also has the times of single copies, and the tasks of a step on one
stream and on three, as events saw them. The exit status is 1 if a section failed or a row
is wrong: too little hidden, or other bits than those of NumPy.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import attempt, copy_gb_s, device_ms, free
from benchmarks.record import RESULTS, begin, save, short_name
from benchmarks.sharded_programs import hidden as beside
from refopt import cpu, gpu
from refopt.catalog import workloads
from refopt.gpu.runtime import Device
from refopt.program import Program, passes, placement, step_program
from refopt.program.ops.offload import COPIES
from refopt.program.placement import BoundSchedule, Schedule, Span
from refopt.program.placement.schedule import STREAMS

MIB = 1 << 20
NUMBERS = {"lr": 1e-3}
RING = 3
ENOUGH = 0.85  # of the shorter of copies and updates, hidden
PIECES = (16, 64)  # MiB of states that are copied at a time, at most, unless by a single tensor
ORDERS = "model", "gradients"  # of the updates: as in the list of parameters, or the other way round
MESSAGES = tuple(1 << exponent for exponent in range(16, 29, 2))
REPEATS, WARMUP = 15, 3
ONE_STREAM = dict.fromkeys(STREAMS, "compute")

Shapes = list[tuple[str, tuple[int, ...]]]
Arrays = dict[str, Any]
Time = Callable[[Callable[[], Any]], float]


def milliseconds(call: Callable[[], Any]) -> float:
    return device_ms(call, REPEATS, WARMUP)


def offloaded(params: Shapes, order: str, mib: float) -> Program:
    """The step: updates of so many MiB of states, with their copies."""
    listed = params[::-1] if order == "model" else params  # gradients, and so updates, come from the last to the first
    fused = passes.fuse_optimizer(step_program(listed, "adam", **NUMBERS), form="merged").program
    return passes.offload(fused, nbytes=int(mib * MIB), ring=RING).program


def updates_alone(program: Program) -> Program:
    """The same updates, of states that stay on the device."""

    def near(sides: Any) -> dict[str, tuple[str, ...]]:
        return {slot: tuple(name.removesuffix("@DEVICE") for name in names) for slot, names in sides.items()}

    ops = [op.replace(inputs=near(op.inputs), outputs=near(op.outputs)) for op in program.main if op.type not in COPIES]
    own = {name: var for name, var in program.vars.items() if "@RING@" not in name and not name.endswith("@DEVICE")}
    return program.replace(vars=own, main=ops)


def copies_alone(program: Program) -> Program:
    return program.replace(main=[op for op in program.main if op.type in COPIES])


def arrays_of(params: Shapes, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters and gradients, normally distributed, in the host's memory."""
    rng = np.random.default_rng(seed)
    names = [name + suffix for name, _ in params for suffix in ("", "@GRAD")]
    shapes = [shape for _, shape in params for _ in range(2)]
    return {name: rng.standard_normal(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}


def bus(machine: Device, time: Time) -> list[dict]:
    """Copies of one block between page-locked memory and the device: in, out, and both at once."""
    stream, rows = machine.stream(0), []
    other = machine.new_stream()
    start, stop = machine.new_event(), machine.new_event()
    for size in MESSAGES:
        far = [machine.pinned(np.zeros(size, np.uint8)) for _ in range(2)]
        near = [machine.empty((size,), np.uint8) for _ in range(2)]
        copy_in, copy_out = machine.copier(far[0], near[0]), machine.copier(near[1], far[1])

        def both(copy_in: Any = copy_in, copy_out: Any = copy_out) -> None:
            start.record(stream)
            start.wait(machine.stream(other))
            copy_in(stream)
            copy_out(machine.stream(other))
            stop.record(machine.stream(other))
            stop.wait(stream)

        rows.append({
            "bytes": size, "in_ms": time(lambda: copy_in(stream)), "out_ms": time(lambda: copy_out(stream)),  # noqa: B023
            "both_ms": time(both),
        })
    return rows


def steps(
    name: str, params: Shapes, arrays: Arrays, time: Time, pieces: tuple = PIECES
) -> Iterator[tuple[dict, list[dict]]]:
    """A row for each order and size of pieces, and the spans of a step on one stream and on three.

    Args:
        name, params, arrays: the workload, and its parameters and gradients on the device.
        time: milliseconds of a call.
        pieces: MiB of states at a time.
    """
    for order in ORDERS:
        for mib in pieces:
            program = offloaded(params, order, mib)
            plans = {
                "compute": placement.on_streams(updates_alone(program)),
                "copies": placement.on_streams(copies_alone(program)),
                "one_stream": placement.on_streams(program, ONE_STREAM),
                "streams": placement.on_streams(program),
            }
            row: dict[str, Any] = {"workload": name, "order": order, "piece_mib": mib, "ring": RING}
            row |= sizes(program)
            spans: dict[str, list[Span]] = {}
            same = True
            for way, plan in plans.items():
                run = placement.bind_schedule(plan, arrays, timing=way in ("one_stream", "streams"))
                row[f"{way}_ms"] = time(run.step)
                if way in ("one_stream", "streams"):
                    row[f"hidden_by_spans_{way}"], spans[way] = hidden(run)
                    again = differing_after(run, params)
                    same = same and again["ok"]
                    row |= {key: value for key, value in again.items() if key != "ok"}
                del run
                free()
            row |= judged(row)
            row["ok"] = row["ok"] and same
            yield row, [
                {"workload": name, "order": order, "piece_mib": mib, "streams": 1 + 2 * (way == "streams"),
                 "unit": "microseconds", "spans": drawn(plans[way], own)}
                for way, own in spans.items()
            ]


def sizes(program: Program) -> dict[str, int]:
    """Bytes of states in the host's memory, and of the ring that the device has instead."""
    states = [name for op in program.main if op.type == "copy_in" for name in op.inputs["x"]]
    rings = [var for var in program.vars.values() if var.name.startswith("@RING@")]
    return {
        "pieces": program.counts()["copy_in"],
        "state_bytes": sum(4 * math.prod(program.vars[name].shape) for name in states),
        "device_bytes": sum(var.shape[0] for var in rings),
    }


def hidden(run: BoundSchedule, repeats: int = REPEATS) -> tuple[float, list[Span]]:
    """By events, the share of the shorter of updates and copies that is beside the other; and a step's spans."""
    shares, spans = [], []
    for _ in range(repeats):
        run.step()
        spans = run.spans()
        of = {kind: 0.0 for kind in ("copy_in", "copy_out", "update")}
        for task, start, stop in spans:
            kind = run.plan.program.main[task.op].type if task.op >= 0 else ""
            of[kind if kind in COPIES else "update"] += stop - start
        shorter = min(of["update"], max(of["copy_in"], of["copy_out"]))
        shares.append(beside(spans) / shorter)
    return statistics.median(shares), spans


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """What is hidden by the times of whole steps, and whether it is enough by spans.

    Where copies take much longer than updates, the difference of times is that of two long ones, and uncertain.
    """
    shorter = min(row["compute_ms"], row["copies_ms"])
    return {
        "hidden_by_times": (row["copies_ms"] + row["compute_ms"] - row["streams_ms"]) / shorter,
        "gain_over_one_stream_ms": row["one_stream_ms"] - row["streams_ms"],
        "gain_over_shorter": (row["one_stream_ms"] - row["streams_ms"]) / shorter,
        "ok": row["hidden_by_spans_streams"] >= ENOUGH,
    }


def drawn(plan: Schedule, spans: list[Span]) -> list[list]:
    """Tasks that take time: name, stream, start and stop."""
    runs = [span for span in spans if span.stop > span.start and span.task.kind == "run"]
    return [[plan.label(task), task.stream, 1e6 * start, 1e6 * stop] for task, start, stop in runs]


def bits(name: str, params: Shapes, mib: float = PIECES[0], count: int = 2) -> list[dict]:
    """Some steps, on streams, against `refopt.cpu`: all bytes of parameters and states."""
    program = offloaded(params, "model", mib)
    host = arrays_of(params)
    run = placement.bind_schedule(placement.on_streams(program), {n: gpu.to_device(x) for n, x in host.items()})
    slots: dict[str, list[np.ndarray]] = {"params": [], "grads": []}
    names: dict[str, list[str]] = {}
    for op in program.main:
        for slot, names_of in op.inputs.items() if op.type == "merged_adam" else ():
            names.setdefault(slot, []).extend(name.removesuffix("@DEVICE") for name in names_of)
    for slot, names_of in names.items():
        initial = [program.vars[n].initial for n in names_of]
        slots[slot] = [
            host[n] if n in host else np.full(program.vars[n].shape, value, np.float32)
            for n, value in zip(names_of, initial, strict=True)
        ]
    for _ in range(count):
        run.step()
        cpu.merged_adam(**slots, **NUMBERS)
    differing = 0
    for slot, names_of in names.items():
        for n, expected in zip(names_of, slots[slot], strict=True):
            actual = run.bound.read(n).reshape(-1).view(np.uint8)
            differing += int(np.count_nonzero(actual != expected.reshape(-1).view(np.uint8)))
    return [{"workload": name, "steps": count, "differing_bytes": differing, "ok": differing == 0}]


def differing_after(run: BoundSchedule, params: Shapes, most: int = 1 << 20) -> dict[str, Any]:
    """Take one step more, and compare a sample of the tensors with `refopt.cpu`'s from the same state, bit for bit.

    The sample: the smallest tensor of so many elements at most, the largest, and two between.
    """
    sizes = {name: math.prod(shape) for name, shape in params if math.prod(shape) <= most}
    small = sorted(sizes, key=sizes.__getitem__)
    chosen = list(dict.fromkeys(small[round(part * (len(small) - 1) / 3)] for part in range(4)))
    names: dict[str, list[str]] = {}
    for op in (op for op in run.plan.program.main if op.type == "merged_adam"):
        columns = {slot: [name.removesuffix("@DEVICE") for name in own] for slot, own in op.inputs.items()}
        for k in (k for k, name in enumerate(columns["params"]) if name in chosen):
            for slot, column in columns.items():
                names.setdefault(slot, []).append(column[k])
    run.synchronize()
    slots = {slot: [run.bound.read(name).copy() for name in column] for slot, column in names.items()}
    before = [x.tobytes() for x in slots["params"]]
    run.step()
    run.synchronize()
    cpu.merged_adam(**slots, **NUMBERS)
    differing = 0
    for slot, column in names.items():
        for name, expected in zip(column, slots[slot], strict=True):
            actual = run.bound.read(name).reshape(-1).view(np.uint8)
            differing += int(np.count_nonzero(actual != expected.reshape(-1).view(np.uint8)))
    moves = any(x.tobytes() != y for x, y in zip(slots["params"], before, strict=True))
    return {"tensors_compared": len(chosen), "differing_bytes": differing, "ok": differing == 0 and moves}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["resnet50", "bert-large"], metavar="NAME")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/overlap-DEVICE.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device")
    failures: dict[str, str] = {}
    report: dict[str, Any] = begin(
        "benchmarks.overlap", f"python -m benchmarks.overlap --workloads {' '.join(options.workloads)}"
    ) | {
        "what": "overlap",
        "timing": f"median of {REPEATS} after {WARMUP} to warm up, by CUDA events", "failures": failures,
    }
    out = options.out or RESULTS / f"overlap-{short_name(report['device'])}.json"
    listed = {name: [(str(p.name), p.shape) for p in workloads.load(name).tensors] for name in options.workloads}
    report["copy_gb_s"] = copy_gb_s()
    report["bits"] = (
        attempt("bits", lambda: bits("resnet50", listed["resnet50"]), failures) if "resnet50" in listed else []
    )
    report["bus"] = attempt("bus", lambda: bus(gpu.device("gpu"), milliseconds), failures)
    report["steps"], report["spans"] = [], []
    save(report, out)
    for name, params in listed.items():

        def measure(name: str = name, params: Shapes = params) -> list[dict]:
            arrays = {key: gpu.to_device(value) for key, value in arrays_of(params).items()}
            pairs = []
            for row, spans in steps(name, params, arrays, milliseconds):
                pairs.append((row, spans))
                report["steps"].append(row)
                save(report, out)
                print(*(f"{key}={value}" for key, value in row.items()), flush=True)
            report["spans"] += min(pairs, key=lambda pair: pair[0]["streams_ms"])[1]  # of the fastest
            return [row for row, _ in pairs]

        attempt(name, measure, failures)
    save(report, out)
    failed = (f"{name}: {reason}" for name, reason in failures.items())
    print(*report["bits"] or [], *failed, f"written to {out}", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
