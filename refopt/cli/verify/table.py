"""The output of ``refopt verify`` in 80 columns: a line for each row, explanations of failures, a summary.

`report` has the same as JSON.
"""

import textwrap
from collections.abc import Sequence

from refopt.cli.verify.compare import Row
from refopt.oracle import ulp

SHOWN = 4  # problems shown of a row

# 80 columns with the spaces between them and the verdict.
_COLUMNS = "{:<8}  {:<12}  {:>6} {:>5}  {:>6} {:>5}  {:>14}  {:>6}  {}"
HEADER = """\
                           ops         launches
dtype     form          before after  before after  bytes per step    ULPs"""

_SPEED_COLUMNS = "{:<8}  {:<12}  {:>9}  {:>7}  {:>7}  {:>8}"
SPEED_HEADER = _SPEED_COLUMNS.format("dtype", "form", "ms/step", "GB/s", "of copy", "speed-up")


def wrap(title: str, text: str) -> str:
    """A titled paragraph."""
    return textwrap.fill(text, 80, initial_indent=f"{title:<9}", subsequent_indent=" " * 9)


def line(row: Row) -> str:
    """A row of the table."""
    counts = row.ops_before, row.ops_after, row.launches_before, row.launches_after, f"{row.bytes:,}"
    return _COLUMNS.format(row.dtype, row.form, *counts, _ulps(row.max_ulps), "ok" if row.ok else "FAIL")


def speed_line(row: Row, copy: float) -> str:
    """A row of the table of times."""
    assert row.milliseconds
    rate = row.bytes / row.milliseconds * 1000
    speeds = f"{row.milliseconds:,.3f}", f"{rate / 1e9:,.0f}", f"{rate / copy:.0%}"
    return _SPEED_COLUMNS.format(row.dtype, row.form, *speeds, f"{row.speedup:.2f} x" if row.speedup else "")


def _ulps(n: int) -> str:
    if n == ulp.MAXIMUM:
        return "NaN"
    return f"{n}" if n < 1_000_000 else f"{n:.0e}"


def explain(row: Row) -> str:
    """An explanation of a failed row."""
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


def span(seconds: float) -> str:
    """A rough duration."""
    if seconds < 6000:
        return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def summary(rows: Sequence[Row], seconds: float) -> str:
    """The last line."""
    failed = sum(not row.ok for row in rows)
    took = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if failed:
        return f"{failed} of {len(rows)} FAILED; {took}"
    counts = "as in the catalogue" if all(row.counted for row in rows) else "computed, not counted"
    return f"{len(rows)} of {len(rows)} equal in every bit; launches and bytes {counts}; {took}"
