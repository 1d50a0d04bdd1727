"""The JSON report of ``refopt verify --json``; `table` has the printed output."""

import platform
import textwrap
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import refopt
from refopt.cli.verify.compare import Row

SCHEMA = "refopt.verify/1"


def record(row: Row, copy: float | None) -> dict[str, Any]:
    """A row; given the bandwidth of a copy in bytes per second, also the share of it that a step achieves."""
    entry = row._asdict() | {"ok": row.ok, "mismatches": [m._asdict() for m in row.mismatches]}
    if copy and row.milliseconds:
        entry["copy_share"] = row.bytes / row.milliseconds * 1000 / copy
    return entry


def line(rows: Sequence[Row], device: dict[str, Any]) -> str:
    """A summary to paste into an issue: one line, unless a device's name is very long."""
    used, equal = versions(), sum(row.ok for row in rows)
    name, compiler = (device["name"], "numba-cuda") if device["kind"] == "gpu" else ("executor", "python")
    found = f"refopt {used['refopt']}: {equal}/{len(rows)} equal"
    return textwrap.fill(f"{found}, {name} {device['compute_capability']}, {compiler} {used[compiler]}", 80)


def versions() -> dict[str, str | None]:
    """The versions of the software; None for packages that are not installed."""
    by_package: dict[str, str | None] = {"refopt": refopt.__version__, "python": platform.python_version()}
    for package in ("numpy", "numba", "numba-cuda", "ml_dtypes"):
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            by_package[package] = None
    return by_package
