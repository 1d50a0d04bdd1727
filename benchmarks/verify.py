"""``refopt verify`` of every routine on a GPU, as a record.

    python -m benchmarks.verify [--device gpu] [--processes N] [--seconds LIMIT] [--out FILE] [-- ARGUMENTS]

Routines are verified beside one another, since NumPy's side takes the time; so no times are kept. Arguments after
``--`` are the command's own. The exit status is 1 if a row is wrong, or a routine has none.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.children import run
from benchmarks.record import RESULTS, ROOT, begin, save, short_name
from refopt.catalog import ROUTINES
from refopt.cli.verify import AROUND

TIMES = "milliseconds", "speedup", "copy_share"


def verified(routine: str, device: str, seconds: float, more: list[str]) -> dict[str, Any]:
    """The command's report of a routine, without times; or ``error``, why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "refopt", "verify", "--routine", routine, "--device", device]
        status, output = run([*command, "--json", str(out), *more], seconds, cwd=ROOT)
        if status not in (0, 1) or not out.is_file():
            return {"error": f"exit status {status}: {output[-2000:]}"}
        report = json.loads(out.read_text())
    report["rows"] = [{key: value for key, value in row.items() if key not in TIMES} for row in report["rows"]]
    return report


def wrong(report: dict[str, Any]) -> str:
    """What is wrong with a routine's report, if anything."""
    if "error" in report:
        return report["error"]
    if not report["rows"]:
        return "no rows"
    bad = [row for row in report["rows"] if not row["ok"]]
    return f"{len(bad)} of {len(report['rows'])} rows are wrong, the first: {bad[0]}" if bad else ""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", choices=("gpu", "executor"))
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2), metavar="N")
    parser.add_argument("--seconds", type=float, default=300.0, metavar="LIMIT", help="for a routine")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/verify-DEVICE.json")
    parser.add_argument("arguments", nargs="*", help="of refopt verify, after --")
    options = parser.parse_args()
    start = time.perf_counter()
    report = begin("benchmarks.verify", " ".join(["refopt verify", *options.arguments])) | {"what": "verify"}
    report |= {"failures": {}, "seconds": 0.0, "workload": {}, "steps": 0, "skipped": {}, "rows": []}
    out = options.out or RESULTS / f"verify-{short_name(report['device'])}.json"
    with ThreadPoolExecutor(options.processes) as pool:
        waiting = {
            pool.submit(verified, name, options.device, options.seconds, options.arguments): name
            for name in (*ROUTINES, *AROUND)
        }
        for done in as_completed(waiting):
            name, outcome = waiting[done], done.result()
            if reason := wrong(outcome):
                report["failures"][name] = reason
            report["rows"] += outcome.get("rows", [])
            report |= {key: outcome[key] for key in ("workload", "steps", "skipped") if key in outcome}
            report["seconds"] = round(time.perf_counter() - start, 1)
            save(report, out)
            print(f"{report['seconds']:6.1f} s  {name}: {reason or 'equal in every bit'}", flush=True)
    order = [*ROUTINES, *AROUND]
    report["rows"].sort(key=lambda row: order.index(row["routine"]))
    save(report, out)
    print(f"{len(report['rows'])} rows, {len(report['failures'])} failures, written to {out}")
    return int(bool(report["failures"]))


if __name__ == "__main__":
    sys.exit(main())
