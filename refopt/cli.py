"""The command ``refopt``."""

import argparse
import json
import os
import platform
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import refopt
from refopt import gpu, ulp, verify, workloads
from refopt.catalog import ROUTINES, Routine

SCHEMA = "refopt.verify/1"
SHOWN = 4  # problems shown of a row

# With the spaces between the columns and the verdict, 80 wide.
_COLUMNS = "{:<8}  {:<12}  {:>6} {:>5}  {:>6} {:>5}  {:>14}  {:>6}  {}"
HEADER = """\
                           ops         launches
dtype     form          before after  before after    bytes a step    ULPs"""

_SPEED_COLUMNS = "{:<8}  {:<12}  {:>9}  {:>7}  {:>7}  {:>8}"
SPEED_HEADER = _SPEED_COLUMNS.format("dtype", "form", "ms a step", "GB/s", "of copy", "speed-up")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 1 for a mismatch, 2 for wrong usage, 130 for Ctrl-C."""
    parser = _parser()
    try:
        return _verify(parser.parse_args(argv), parser)
    except KeyboardInterrupt:
        print("refopt: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refopt", description="Merged optimizer steps, in NumPy and as CUDA kernels, bit for bit equal."
    )
    parser.add_argument("--version", action="version", version=f"refopt {refopt.__version__}")
    command = parser.add_subparsers(dest="command", required=True, metavar="command").add_parser(
        "verify",
        help="compare CPU reference and kernels, bit for bit",
        description="Compare the CPU reference with the kernels, bit for bit, on the tensors of a real model, "
        "and launches and bytes with the catalogue. Exit status 1 if anything differs.",
    )
    forms = list(dict.fromkeys(form for routine in ROUTINES.values() for form in routine.forms))
    several = {"routine": [*ROUTINES, *verify.AROUND], "dtype": list(verify.DTYPES), "form": forms}
    for name, choices in several.items():
        text = f"{', '.join(choices)}; default all" + (" but separate, where there are two" if name == "form" else "")
        command.add_argument(f"--{name}", nargs="+", choices=choices, metavar=name[0].upper(), help=text)
    names = list(workloads.WORKLOADS)
    text = f"{', '.join(names)}; default {names[0]}"
    command.add_argument("--workload", choices=names, default=names[0], metavar="W", help=text)
    command.add_argument("--device", choices=("gpu", "executor"), help="default: the GPU if there is one")
    command.add_argument("--steps", type=_at_least(2), default=2, metavar="N", help="at least 2; default 2")
    command.add_argument("--max-elements", type=_at_least(1), metavar="N", help="cap the elements of each tensor")
    command.add_argument(
        "--json", metavar="FILE", help="write a report in JSON; - for stdout, which then gets nothing else"
    )
    return parser


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        if not (text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return int(text)

    return number


def _verify(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    start = time.monotonic()
    machine, routines, dtypes = _chosen(args, parser)
    device = _device(machine, args.device)
    whole = workloads.load(args.workload)
    workload, scaled = verify.extents(whole, machine.name, args.max_elements)
    skipped = {} if args.dtype else {name: why for name in verify.DTYPES if (why := verify.unavailable(name))}
    copy = verify.copy_bandwidth() if machine.name == "gpu" else None
    rows: list[verify.Row] = []
    quiet = args.json == "-"

    with Progress(sys.stderr, sum(len(_forms(r, args.form)) for r in routines for d in _dtypes(r, dtypes))) as progress:

        def say(text: str = "") -> None:
            progress.clear()
            if not quiet:
                print(text, flush=True)

        def speeds(rows: Sequence[verify.Row], copy: float) -> None:
            say(f"\n{SPEED_HEADER}")
            for row in rows:
                say(speed_line(row, copy))

        say(_wrap("device", device["name"] + (f" ({device['reason']})" if device["reason"] else "")))
        say(_wrap("tensors", f"the {len(whole)} of {workload.name}, {whole.elements:,} elements"))
        if scaled:
            say(_wrap("", f"scaled to {workload.elements:,}: {scaled}"))
        for name, why in skipped.items():
            say(_wrap("skipped", f"{name}: {why}"))
        for routine in routines:
            say(f"\n{routine.name}: CPU reference and kernels, compared after each of {args.steps} steps")
            say(f"\n{HEADER}")
            first = len(rows)
            forms = _forms(routine, args.form)
            found = _dtypes(routine, dtypes)
            for row in verify.all_rows(routine, workload, found, forms, machine, args.steps, progress.show):
                rows.append(row)
                progress.done += 1
                say(line(row))
            if copy:
                speeds(rows[first:], copy)
                say(_wrap("of copy", f"of 2 GB on the device, read and written at {copy / 1e9:,.0f} GB/s"))
                say(_wrap("speed-up", f"over {verify.unmerged(routine)}, which launches for each tensor"))
        for name in _around(args):
            say(f"\n{name}: CPU reference and kernels\n\n{HEADER}")
            first = len(rows)
            for dtype in (dtype for dtype in dtypes if dtype in verify.PLAIN):
                for row in verify.AROUND[name](workload, dtype, machine):
                    rows.append(row)
                    say(line(row))
            if copy:
                speeds(rows[first:], copy)
        say()
        for row in rows:
            if not row.ok:
                say(explain(row) + "\n")
        seconds = time.monotonic() - start
        say(_summary(rows, seconds))

    if args.json:
        report = {
            "schema": SCHEMA,
            "ok": all(row.ok for row in rows),
            "versions": _versions(),
            "device": device,
            "workload": {
                "name": workload.name,
                "tensors": len(workload),
                "elements": whole.elements,
                "elements_used": workload.elements,
                "scaled": scaled,
            },
            "steps": args.steps,
            "skipped": skipped,
            "seconds": round(seconds, 3),
            "copy_bytes_per_second": copy,
            "rows": [_record(row, copy) for row in rows],
        }
        text = json.dumps(report, indent=2) + "\n"
        if quiet:
            sys.stdout.write(text)
        else:
            Path(args.json).write_text(text, encoding="utf-8")
    return 0 if all(row.ok for row in rows) else 1


def _chosen(args: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[Any, list[Routine], list[str]]:
    """The device, routines and dtypes asked for; exits with status 2 if they cannot be had."""
    try:
        machine = gpu.device(args.device)
    except (RuntimeError, ValueError) as error:
        parser.error(str(error))
    if args.json not in (None, "-") and not os.access(Path(args.json).parent, os.W_OK):
        parser.error(f"argument --json: cannot write to {args.json}")
    routines = [ROUTINES[name] for name in dict.fromkeys(args.routine or ROUTINES) if name in ROUTINES]
    for routine in routines if args.routine else ():
        if not _forms(routine, args.form):
            parser.error(f"argument --form: {routine.name} has {', '.join(routine.forms)}")
    routines = [routine for routine in routines if _forms(routine, args.form)]
    for name in args.dtype or ():
        if reason := verify.unavailable(name):
            parser.error(f"argument --dtype: {name}: {reason}")
    dtypes = dict.fromkeys(args.dtype or (name for name in verify.DTYPES if not verify.unavailable(name)))
    return machine, routines, list(dtypes)


def _around(args: argparse.Namespace) -> list[str]:
    """What is asked for of what goes on around a step; its forms are not those of routines."""
    asked = args.routine or ([] if args.form else verify.AROUND)
    return [name for name in verify.AROUND if name in asked]


def _dtypes(routine: Routine, asked: list[str]) -> list[str]:
    """The dtype configurations that a routine has."""
    return [dtype for dtype in asked if verify.offered(routine, dtype)]


def _forms(routine: Routine, asked: list[str] | None) -> list[str]:
    """The forms of a routine that were asked for; else all of a ladder, and the merged one of two."""
    shown = list(routine.forms) if len(routine.forms) > 2 else [routine.merged_form]
    return shown if asked is None else [form for form in routine.forms if form in asked]


def _device(machine: Any, asked: str | None) -> dict[str, str]:
    """Which device is used, and why."""
    if machine.name == "gpu":
        from numba import cuda

        name = cuda.get_current_device().name
        return {"kind": "gpu", "name": name.decode() if isinstance(name, bytes) else str(name), "reason": ""}
    name = "the executor, on the CPU"
    if asked or os.environ.get("REFOPT_DEVICE"):
        return {"kind": "executor", "name": name, "reason": "as asked"}
    try:
        gpu.device("gpu")
        reason = ""
    except RuntimeError as error:
        reason = str(error).partition("got none: ")[2] or str(error)
    return {"kind": "executor", "name": name, "reason": reason}


def _wrap(title: str, text: str) -> str:
    return textwrap.fill(text, 80, initial_indent=f"{title:<9}", subsequent_indent=" " * 9)


def line(row: verify.Row) -> str:
    """A row of the table."""
    return _COLUMNS.format(
        row.dtype,
        row.form,
        row.ops_before,
        row.ops_after,
        row.launches_before,
        row.launches_after,
        f"{row.bytes:,}",
        _ulps(row.max_ulps),
        "ok" if row.ok else "FAIL",
    )


def speed_line(row: verify.Row, copy: float) -> str:
    """A row of the table of times."""
    assert row.milliseconds
    rate = row.bytes / row.milliseconds * 1000
    return _SPEED_COLUMNS.format(
        row.dtype,
        row.form,
        f"{row.milliseconds:,.3f}",
        f"{rate / 1e9:,.0f}",
        f"{rate / copy:.0%}",
        f"{row.speedup:.2f} x" if row.speedup else "",
    )


def _ulps(n: int) -> str:
    if n == ulp.MAXIMUM:
        return "NaN"
    return f"{n}" if n < 1_000_000 else f"{n:.0e}"


def explain(row: verify.Row) -> str:
    """What is wrong with a row that failed."""
    lines = [f"{row.routine} {row.dtype} {row.form}:"]
    lines += [f"  {problem}" for problem in row.problems[:SHOWN]]
    if len(row.problems) > SHOWN:
        lines.append(f"  and {len(row.problems) - SHOWN} more")
    for m in row.mismatches:
        where = f"{m.slot}[{m.tensor}] {m.name}, element {m.element}"
        text = f"  step {m.step}, {where}: off by {_ulps(m.ulps)} ULP"
        lines += textwrap.wrap(text, 80, subsequent_indent="    ")
        lines.append(f"    expected {m.expected[0]} = {m.expected[1]}")
        lines.append(f"    got      {m.got[0]} = {m.got[1]}")
    if more := row.differing - len(row.mismatches):
        lines.append(f"  and {more:,} more differences")
    return "\n".join(lines)


def _summary(rows: Sequence[verify.Row], seconds: float) -> str:
    failed = sum(not row.ok for row in rows)
    took = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if failed:
        return f"{failed} of {len(rows)} FAILED; {took}"
    counts = "as in the catalogue" if all(row.counted for row in rows) else "computed, not counted"
    return f"{len(rows)} of {len(rows)} equal in every bit; launches and bytes {counts}; {took}"


def _record(row: verify.Row, copy: float | None) -> dict[str, Any]:
    record = row._asdict() | {"ok": row.ok, "mismatches": [m._asdict() for m in row.mismatches]}
    if copy and row.milliseconds:
        record["copy_share"] = row.bytes / row.milliseconds * 1000 / copy
    return record


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"refopt": refopt.__version__, "python": platform.python_version()}
    for package in ("numpy", "numba", "numba-cuda", "ml_dtypes"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


class Progress:
    """One line, rewritten, and gone in the end; on a terminal only."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self.stream, self.total, self.done = stream, total, 0
        self._on = stream.isatty()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, stage: str) -> None:
        """Say what is being done now."""
        if self._on:
            bar = "#" * (30 * self.done // self.total)
            text = f"[{bar:<30}] {self.done}/{self.total}  {stage}"
            self.stream.write("\r\033[K" + text[: shutil.get_terminal_size().columns - 1])
            self.stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._on:
            self.stream.write("\r\033[K")
            self.stream.flush()
