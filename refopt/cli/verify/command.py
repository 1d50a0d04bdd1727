"""``refopt verify``: its arguments, and the run, the output and the report."""

import argparse
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from refopt import gpu
from refopt.catalog import KNOWN, Routine, workloads
from refopt.checks.optional import library
from refopt.cli import verify
from refopt.cli.output import DIFFERS, EQUAL, SEVERAL, Unusable, write
from refopt.cli.progress import Progress
from refopt.cli.report_file import Target
from refopt.cli.verify import compare, report, table
from refopt.cli.verify.tasks import SPEED, Task, all_rows, seconds
from refopt.gpu import cache, timing
from refopt.gpu.machine import dotted

COPIED = 4_000_000_000  # bytes read and written by the copy that steps are compared with


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the command and return its status.

    Raises:
        SystemExit: an argument is wrong, which is reported.
        Unusable: output cannot be written.
        ImportError: greenlet is missing, by which the executor counts.
    """
    machine, tasks, scaled, skipped = _chosen(args, parser)
    if any(compare.counts(machine, task.workload) for task in tasks):
        library("greenlet")
    with Target(args.json) as target, gpu.use(machine.name):
        return _verify(args, machine, tasks, scaled, skipped, target)


def add_to(commands: Any) -> argparse.ArgumentParser:
    """Add the command and its arguments to those of ``refopt``."""
    command = commands.add_parser(
        "verify",
        help="compare CPU reference and kernels, bit for bit",
        description="Compare the CPU reference with the kernels, bit for bit, on the tensors of a real model, "
        "and their launches and bytes with the catalogue.",
        epilog="Exit status: 0 if all is equal, 1 if anything differs, 2 for arguments or files that cannot be used, "
        "3 if the command itself fails; 130, 141 and 143 for Ctrl-C, a closed pipe and SIGTERM.",
    )
    add, forms = command.add_argument, list(dict.fromkeys(form for routine in KNOWN.values() for form in routine.forms))
    several = {"routine": [*KNOWN, *verify.AROUND], "dtype": list(verify.DTYPES), "form": forms}
    for name, choices in several.items():
        text = f"{', '.join(choices)}; default all" + (", separate only if there is no other" if name == "form" else "")
        add(f"--{name}", **SEVERAL, choices=choices, metavar=name[0].upper(), help=text)
    names = list(workloads.WORKLOADS)
    add("--workload", choices=names, default=names[0], metavar="W", help=f"{', '.join(names)}; default {names[0]}")
    add("--device", choices=("gpu", "executor"), help="default: the GPU if there is one")
    add("--steps", type=_at_least(2), default=2, metavar="N", help="at least 2; default 2")
    add("--max-elements", type=_at_least(1), metavar="N", help="cap the elements of each tensor")
    add("--full", action="store_true", help="all elements, even on the executor, which then counts nothing")
    add("--json", metavar="FILE", help="write a report in JSON; - for stdout, which then gets nothing else")
    return command


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return int(text)

    return number


def _chosen(args: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[Any, list[Task], str, dict[str, str]]:
    """The device, the tasks, how their tensors were scaled, and what is skipped; exits with status 2 if unavailable."""
    try:
        machine = gpu.device(args.device)
    except (RuntimeError, ValueError) as error:
        raise Unusable(str(error)) from error
    routines = [KNOWN[name] for name in dict.fromkeys(args.routine or KNOWN) if name in KNOWN]
    for routine in routines if args.routine else ():
        if not _forms(routine, args.form):
            parser.error(f"argument --form: {routine.name} has {', '.join(routine.forms)}")
    skipped = _skipped(args, routines, parser)
    dtypes = [name for name in dict.fromkeys(args.dtype or verify.DTYPES) if name not in skipped]
    whole = workloads.load(args.workload)
    if args.full and args.max_elements is not None:
        parser.error("argument --full: cannot be combined with --max-elements")
    most = max(tensor.elements for tensor in whole.tensors) if args.full else args.max_elements
    workload, scaled = verify.extents(whole, machine.name, most)
    small, _ = verify.extents(whole, machine.name, most, norms=False)
    matrices = verify.matrices(whole, machine.name, most)
    tasks = [
        Task(routine.name, dtype, matrices if routine.matrix_arguments else small if routine.elementwise else workload,
             (*forms,))
        for routine in routines
        if (forms := _forms(routine, args.form))
        for dtype in dtypes
        if verify.offered(routine, dtype) and f"{routine.name} in {dtype}" not in skipped
    ]
    tasks += _around(args, workload, dtypes)
    if not tasks:
        parser.error("nothing to verify: none of the requested routines has the requested dtypes")
    return machine, tasks, scaled, skipped


def _skipped(args: argparse.Namespace, routines: list[Routine], parser: argparse.ArgumentParser) -> dict[str, str]:
    """Why dtype configurations, of all routines or of one, are not available; exits with status 2 if requested."""
    skipped: dict[str, str] = {}
    for name in args.dtype or verify.DTYPES:
        for routine in (None, *(each for each in routines if verify.offered(each, name))):
            if name not in skipped and (reason := verify.unavailable(name, routine)):
                what = f"{routine.name} in {name}" if routine else name
                if args.dtype and (args.routine or routine is None):
                    parser.error(f"argument --dtype: {what}: {reason}")
                skipped[what] = reason
    return skipped


def _around(args: argparse.Namespace, workload: workloads.Workload, dtypes: list[str]) -> list[Task]:
    """The tasks for operations around a step, which have their own forms."""
    asked = args.routine or ([] if args.form else verify.AROUND)
    around = [name for name in verify.AROUND if name in asked]
    return [Task(name, dtype, workload) for name in around for dtype in dtypes if dtype in verify.PLAIN]


def _forms(routine: Routine, asked: list[str] | None) -> list[str]:
    """The requested forms of a routine; else all if there are more than two, or the merged one of two."""
    shown = list(routine.forms) if len(routine.forms) > 2 else [routine.merged_form]
    return shown if asked is None else [form for form in routine.forms if form in asked]


def _device(machine: Any, asked: str | None) -> dict[str, Any]:
    """The device that is used, why, and where its kernels come from."""
    found = machine.properties
    about = {"compute_capability": dotted(found.capability), "multiprocessors": found.multiprocessors}
    if machine.name == "gpu":
        where = f"as kept in {kept}, or " if (kept := cache.folder()) else ""
        return {"kind": "gpu", "name": found.name, "reason": "", "kernels": where + _compiled(about), **about}
    about |= {"kind": "executor", "name": "the executor, on the CPU", "kernels": "run as Python; none is compiled"}
    if asked or os.environ.get("REFOPT_DEVICE"):
        return about | {"reason": "as asked"}
    try:
        gpu.device("gpu")
        reason = ""
    except RuntimeError as error:
        reason = str(error).partition("got none: ")[2] or str(error)
    return about | {"reason": reason}


def _compiled(about: dict[str, Any]) -> str:
    """How kernels for a GPU are compiled."""
    return f"compiled for {about['compute_capability']} by numba-cuda {report.versions()['numba-cuda']}"


def _came_from(device: dict[str, Any]) -> str:
    """Where the kernels of a GPU came from."""
    kept = f"{cache.origins['kept']} as kept in {where}, " if (where := cache.folder()) else ""
    return f"{kept}{cache.origins['compiled']} {_compiled(device)}"


def _described(device: dict[str, Any]) -> str:
    """A description of the device."""
    reason = f" ({device['reason']})" if device["reason"] else ""
    as_one = "as a device of " if device["kind"] == "executor" else ""
    size = f"{device['multiprocessors']} multiprocessors"
    return f"{device['name']}{reason}, {as_one}compute capability {device['compute_capability']}, {size}"


def _verify(
    args: argparse.Namespace, machine: Any, tasks: list[Task], scaled: str, skipped: dict[str, str],
    target: Target,
) -> int:
    start = time.monotonic()
    device = _device(machine, args.device)
    whole = workloads.load(args.workload)
    workload = max((task.workload for task in tasks), key=lambda workload: workload.elements)
    copy = COPIED / timing.copy_milliseconds(COPIED) * 1000 if machine.name == "gpu" else None
    with Progress(sys.stderr, sum(task.stages(args.steps) for task in tasks)) as progress:

        def say(text: str = "") -> None:
            progress.clear()
            if args.json != "-":
                write(text + "\n")

        say(table.wrap("device", _described(device)))
        say(table.wrap("kernels", device["kernels"]))
        say(table.wrap("tensors", f"the {len(whole)} of {workload.name}, {whole.elements:,} elements"))
        if scaled and len(workload) == len(whole):
            say(table.wrap("", f"scaled to {workload.elements:,}: {scaled}"))
        for name, reason in skipped.items():
            say(table.wrap("skipped", f"{name}: {reason}"))
        if takes := seconds(tasks, machine, args.steps):
            speed = f"{SPEED / 1e6:.0f} million elements of arrays a second"
            say(table.wrap("time", f"roughly {table.span(takes)}, by processes that each read {speed}"))
        rows = _rows(tasks, whole, machine, args.steps, copy, progress, say)
        for row in rows:
            if not row.ok:
                say(table.explain(row) + "\n")
        if device["kind"] == "gpu":
            device["kernels"] = _came_from(device)
            say(table.wrap("kernels", device["kernels"]))
        took = time.monotonic() - start
        say(table.summary(rows, took))
        say("\nTo report this, paste into an issue:\n" + report.line(rows, device))
    ok = all(row.ok for row in rows)
    if args.json is not None:
        model = {"name": workload.name, "tensors": len(workload), "elements": whole.elements}
        document = {
            "schema": report.SCHEMA, "ok": ok, "versions": report.versions(), "device": device,
            "workload": model | {"elements_used": workload.elements, "scaled": scaled}, "steps": args.steps,
            "skipped": skipped, "seconds": round(took, 3), "copy_bytes_per_second": copy,
            "rows": [report.record(row, copy) for row in rows],
        }
        target.write(json.dumps(document, indent=2) + "\n")
    return EQUAL if ok else DIFFERS


def _matrices(taken: workloads.Workload, whole: workloads.Workload) -> str:
    """The tensors for a routine that takes only matrices."""
    every = whole.matrices()
    cut = sum(len(tensor.shape) > 2 for tensor in every.tensors)
    kernels = f", {cut} of them kernels of convolutions with a row for each output channel" if cut else ""
    few = f"; {len(taken)} of them are taken" if len(taken) < len(every) else ""
    text = f"{len(every)} of the {len(whole)} are matrices{kernels}{few}: {taken.elements:,} elements"
    return table.wrap("tensors", f"{text}. Gram: three iterations with restarts=(2,), of fp32 with compute=float16")


def _rows(
    tasks: list[Task], whole: workloads.Workload, machine: Any, steps: int, copy: float | None, progress: Progress,
    say: Callable[..., None],
) -> list[verify.Row]:
    """All rows, each printed as it is computed."""
    rows: list[verify.Row] = []
    with contextlib.closing(all_rows(tasks, machine, steps, progress.begin)) as stream:
        for name, of_name in itertools.groupby(stream, key=lambda pair: pair[0].name):
            first, routine = len(rows), KNOWN.get(name)
            compared = f", compared after each of {steps} steps" if routine else ""
            say(f"\n{name}: CPU reference and kernels{compared}\n")
            if routine and routine.matrix_arguments:
                say(_matrices(next(task.workload for task in tasks if task.name == name), whole) + "\n")
            say(table.HEADER)
            for _, row in of_name:
                rows.append(row)
                say(table.line(row))
            if copy:
                say(f"\n{table.SPEED_HEADER}")
                for row in rows[first:]:
                    say(table.speed_line(row, copy))
                if routine and rows[first].speedup:
                    say(table.wrap("of copy", f"of 2 GB on the device, read and written at {copy / 1e9:,.0f} GB/s"))
                    say(table.wrap("speed-up", f"over {verify.unmerged(routine)}, which launches for each tensor"))
    say()
    return rows
