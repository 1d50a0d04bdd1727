"""The command ``refopt``."""

import argparse
import json
import os
import platform
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

# Widths of the columns: with the spaces between them and the verdict, 80.
_COLUMNS = "{:<8}  {:<12}  {:>6} {:>5}  {:>6} {:>5}  {:>14}  {:>6}  {}"
_SPEED = "{:<8}  {:<12}  {:>9}  {:>7}  {:>7}  {:>12}"
HEADER = (
    _COLUMNS.format("", "", "ops", "", "launch", "es", "", "", "").rstrip()
    + "\n"
    + _COLUMNS.format("dtype", "form", "before", "after", "before", "after", "bytes a step", "ULPs", "").rstrip()
)
SPEED_HEADER = _SPEED.format("dtype", "form", "ms a step", "GB/s", "of copy", "to unmerged")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 1 for a mismatch, 2 for wrong usage, 130 for Ctrl-C."""
    parser = _parser()
    try:
        return _verify(parser.parse_args(argv), parser)
    except KeyboardInterrupt:
        print("\nrefopt: interrupted", file=sys.stderr)
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
    for name, choices in (("routine", list(ROUTINES)), ("dtype", list(verify.DTYPES)), ("form", forms)):
        command.add_argument(
            f"--{name}", nargs="+", choices=choices, metavar=name[0].upper(), help=f"{', '.join(choices)}; default all"
        )
    names = list(workloads.WORKLOADS)
    command.add_argument(
        "--workload", choices=names, default=names[0], metavar="W", help=f"{', '.join(names)}; default {names[0]}"
    )
    command.add_argument("--device", choices=("gpu", "executor"), help="default: the GPU if there is one")
    command.add_argument("--steps", type=_at_least(2), default=2, metavar="N", help="at least 2; default 2")
    command.add_argument("--max-elements", type=_at_least(1), metavar="N", help="cap on the elements of a tensor")
    command.add_argument("--json", metavar="FILE", help="also write everything as JSON; -: to stdout, and only that")
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
    whole = workloads.load(args.workload)
    workload, scaled = verify.extents(whole, machine.name, args.max_elements)
    forms = {routine.name: _forms(routine, args.form) for routine in routines}
    missing = {name: verify.unavailable(name) for name in verify.DTYPES if verify.unavailable(name)}

    quiet = args.json == "-"
    progress = Progress(sys.stderr, len(dtypes) * sum(map(len, forms.values())))

    def say(text: str = "") -> None:
        progress.clear()
        if not quiet:
            print(text, flush=True)

    device = _device(machine, args.device)
    say(_wrap("device", device["name"] + (f" ({device['reason']})" if device["reason"] else "")))
    say(_wrap("tensors", f"the {len(whole)} of {workload.name}, {whole.elements:,} elements"))
    if scaled:
        say(_wrap("", f"scaled down to {workload.elements:,} elements: {scaled}"))
    for name, reason in missing.items():
        if not args.dtype:
            say(_wrap("skipped", f"{name}: {reason}"))
    copy = verify.copy_bandwidth() if machine.name == "gpu" else None
    rows: list[verify.Row] = []
    for routine in routines:
        say(f"\n{routine.name}, CPU reference against kernels after each of {args.steps} steps\n\n{HEADER}")
        first = len(rows)
        for dtype in dtypes:
            for row in verify.rows(
                routine, workload, dtype, forms[routine.name], machine, args.steps, progress.show
            ):
                rows.append(row)
                progress.done += 1
                say(line(row))
        if copy:
            say(f"\n{SPEED_HEADER}")
            for row in rows[first:]:
                say(speed_line(row, copy))
            say(f"copy: {copy / 1e9:,.0f} GB/s, 2 GB device to device, bytes read and written")
    failed = [row for row in rows if not row.ok]
    say()
    for row in failed:
        say(explain(row))
    seconds = time.monotonic() - start
    say(_summary(rows, failed, seconds))
    if args.json:
        report = {
            "schema": SCHEMA,
            "ok": not failed,
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
            "skipped": {} if args.dtype else missing,
            "seconds": round(seconds, 3),
            "copy_bytes_per_second": copy,
            "rows": [_record(row, copy) for row in rows],
        }
        text = json.dumps(report, indent=2) + "\n"
        if quiet:
            sys.stdout.write(text)
        else:
            Path(args.json).write_text(text, encoding="utf-8")
    return 1 if failed else 0


def _chosen(args: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[Any, list[Routine], list[str]]:
    """The device, routines and dtypes that the arguments ask for; exits with status 2 if they cannot be had."""
    try:
        machine = gpu.device(args.device)
        if args.json not in (None, "-"):
            Path(args.json).open("a").close()
    except (RuntimeError, ValueError, OSError) as error:
        parser.error(str(error))
    routines = [ROUTINES[name] for name in dict.fromkeys(args.routine or ROUTINES)]
    for routine in routines:
        if not _forms(routine, args.form):
            parser.error(f"argument --form: expected one of {', '.join(routine.forms)}, which {routine.name} has")
    for name in args.dtype or ():
        if reason := verify.unavailable(name):
            parser.error(f"argument --dtype: {name}: {reason}")
    dtypes = dict.fromkeys(args.dtype or (name for name in verify.DTYPES if not verify.unavailable(name)))
    return machine, routines, list(dtypes)


def _forms(routine: Routine, asked: list[str] | None) -> list[str]:
    return [form for form in routine.forms if asked is None or form in asked]


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
    return _SPEED.format(
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
        lines.append(f"  and {len(row.problems) - SHOWN} more of the kind")
    for m in row.mismatches:
        lines.append(f"  step {m.step}, {m.slot}[{m.tensor}] {m.name}, element {m.element}: {_ulps(m.ulps)} ULPs")
        lines.append(f"    expected {m.expected[0]} = {m.expected[1]}")
        lines.append(f"    got      {m.got[0]} = {m.got[1]}")
    if more := row.differing - len(row.mismatches):
        lines.append(f"  and {more:,} more elements that differ")
    return "\n".join(lines) + "\n"


def _summary(rows: Sequence[verify.Row], failed: Sequence[verify.Row], seconds: float) -> str:
    took = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if failed:
        return f"{len(failed)} of {len(rows)} FAILED, {took}"
    counts = "launches and bytes as counted and as in the catalogue"
    if not all(row.counted for row in rows):
        counts = "launches and bytes as in the catalogue"
    return f"all {len(rows)} equal in every bit, {counts}, {took}"


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
    """One line, rewritten; only on a terminal."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self.stream, self.total, self.done = stream, total, 0
        self._on = stream.isatty()

    def show(self, stage: str) -> None:
        """Say what is being done now."""
        if self._on:
            bar = "#" * (30 * self.done // self.total)
            self.stream.write(f"\r\033[K[{bar:<30}] {self.done}/{self.total}  {stage}"[:80])
            self.stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._on:
            self.stream.write("\r\033[K")
            self.stream.flush()
