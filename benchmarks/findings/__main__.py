"""What the oracle says of every optimizer of the libraries that are installed, as a record.

    python -m benchmarks.findings [--only TEXT ...] [--jobs N] [--in-place] [--device D] [--out FILE]

Each is identified, held to the laws that need no formula, and, where it is PyTorch's, timm's or optax's and a routine
of the catalogue, to its formula's. What differs is looked up in `benchmarks.findings.known`; what has changed since the
record that was there is said and recorded. The exit status is 1 if a difference is not explained.
"""

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.findings.judge import judged
from benchmarks.findings.known import changes, unexplained
from benchmarks.findings.subjects import subjects
from benchmarks.findings.sweep import LIMIT, sweep
from benchmarks.record import RESULTS, begin, closure, digests, save, short_name, version_of


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "optimizers with one of these in their names; of others, the record's rows stay"
    parser.add_argument("--only", nargs="+", metavar="TEXT", help=text)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1), metavar="N")
    parser.add_argument("--seconds", type=float, default=LIMIT, help="that one optimizer may take; default %(default)g")
    text = "no process for the steps beside the one that each optimizer has: for a busy machine"
    parser.add_argument("--in-place", action="store_true", help=text)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/findings-DEVICE-torch-VERSION.json")
    options = parser.parse_args()
    started = time.perf_counter()
    wanted = [x for x in subjects(options.device) if not options.only or any(text in str(x) for text in options.only)]
    report: dict[str, Any] = begin("benchmarks.findings") | {"what": "findings", "on": options.device, "rows": []}
    report["sources"] = digests(closure("benchmarks.findings.__main__"))
    report["versions"] |= {name: version_of(name) for name in sorted({subject.library for subject in wanted})}
    device = "cpu" if options.device == "cpu" else short_name(report["device"])
    version = report["versions"].get("torch", "none").partition("+")[0]
    out = options.out or RESULTS / f"findings-{device}-torch-{version}.json"
    before = json.loads(out.read_text()) if out.is_file() else None
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    modules = sorted({x.module for x in wanted if x.library not in ("optax", "keras", "timm")})  # these start threads
    if options.only and before:
        names = {str(x) for x in wanted}
        report["rows"] = [row for row in before["rows"] if row["subject"] not in names]
        report["versions"] = {**before["versions"], **report["versions"]}
    judge = partial(judged, process=False if options.in_place else None)
    for row in sweep(wanted, options.jobs, options.seconds, judge, modules):
        report["rows"].append(row)
        report["seconds"] = round(time.perf_counter() - started, 1)
        print(line(row), flush=True)
        save(report, out)
    report["rows"].sort(key=lambda row: (row["library"], row["subject"]))
    report["changes"] = changes(before, report) if before else []
    save(report, out)
    for change in report["changes"]:
        print(f"changed: {change}")
    left = list(unexplained(report))
    for subject, routine, law, text in left:
        print(f"not explained: {subject} as {routine}, {law}: {text}")
    print(f"{len(report['rows'])} optimizers, {len(left)} differences not explained, written to {out}")
    return int(bool(left))


def line(row: dict[str, Any]) -> str:
    """A row in one line."""
    if why := row.get("error") or row.get("not_taken"):
        return f"{row['subject']}: {'ERROR' if 'error' in row else 'not taken'}: {why[:120]}"
    failed = [f"{check['as']}: {', '.join(check['failed'])}" for check in row["checks"] if check["failed"]]
    return f"{row['seconds']:6.1f} s  {row['subject']} ({row['identity']}): {'; '.join(failed) or 'right'}"


if __name__ == "__main__":
    sys.exit(main())
