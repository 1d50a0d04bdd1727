"""The tests that need a GPU, as a record: counts, every skip with its reason, what failed, and the kernels that ran.

    python -m benchmarks.laws [-n WORKERS] [--two | --long] [--seconds LIMIT] [--out FILE]

Those marked slow are among them, such as tensors of more than 2**31 elements. With ``--two``, those alone that need two
GPUs. With ``--long``, what `make test-long` runs, on the executor: all that need no GPU, with many fresh random
examples of each property. If the time is up, the report is made of what is known by then; the exit status is 1 if
anything failed or nothing ran.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.children import run
from benchmarks.record import RESULTS, ROOT, begin, closure, digests, save, short_name, version_of

TWO = ["-m", "gpu", "tests/comm/test_comm_nccl.py"]
# Whose tests are listed one by one: other libraries' gradients, several GPUs; and by name, what 32 bits do not count.
LISTED = ("tests/gpu/test_frameworks.py", "tests/comm/test_comm_nccl.py")
LARGE = re.compile(r"int32|two_to_the")
ALL = ["-m", "gpu", "tests"]
LONG = ["-m", "not gpu", "--hypothesis-profile=long", "tests"]
LINES = 40  # of a failure
Outcome = dict[str, Any]


class Written:
    """A plugin of pytest's that writes a line for each outcome as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test's outcome: that of its call, or of what went wrong or was skipped before or after."""
        if report.when == "call" or report.outcome != "passed":
            self._write(report, report.duration)

    def pytest_collectreport(self, report: Any) -> None:
        """A module that cannot be collected, or says itself that it is to be skipped."""
        if report.outcome != "passed":
            self._write(report, 0.0)

    def _write(self, report: Any, seconds: float) -> None:
        line: Outcome = {"test": report.nodeid, "outcome": report.outcome, "seconds": seconds}
        if report.outcome == "skipped":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
            line["reason"] = str(reason).removeprefix("Skipped: ")
        elif report.outcome == "failed":
            line["text"] = "\n".join(str(report.longrepr).splitlines()[-LINES:])
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: Any) -> None:
    """As a plugin of pytest's, write outcomes to the file that the environment names; of workers, their head does."""
    if (path := os.environ.get("REFOPT_OUTCOMES")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Written(Path(path)))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Begin with the slow ones, which one worker each is busy with for long."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def summary(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """What the report says of outcomes."""
    distinct = list({(row["test"], row["outcome"]): row for row in outcomes}.values())
    skips: dict[str, list[str]] = {}
    for row in distinct:
        if row["outcome"] == "skipped":
            skips.setdefault(row["reason"], []).append(row["test"])
    passed = [row["test"] for row in distinct if row["outcome"] == "passed"]
    slowest = sorted(distinct, key=lambda row: -row["seconds"])[:10]
    return {
        "counts": dict(Counter(row["outcome"] for row in distinct)),
        "skips": skips,
        "failures": {row["test"]: row["text"] for row in distinct if row["outcome"] == "failed"},
        "passed_by_file": dict(sorted(Counter(test.partition("::")[0] for test in passed).items())),
        "listed": {
            row["test"]: row["outcome"] for row in distinct
            if row["test"].startswith(LISTED) or LARGE.search(row["test"].partition("::")[2].partition("[")[0])
        },
        "slowest": [[row["test"], row["seconds"]] for row in slowest],
    }


def read(path: Path) -> list[Outcome]:
    """The lines so far; the last may be half of one."""
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def run_tests(arguments: list[str], seconds: float, device: str) -> tuple[int | str, list[Outcome]]:
    """Exit status of pytest, or "timed out", and the outcomes that were written."""
    path = Path(tempfile.mkdtemp(prefix="refopt-laws-")) / "outcomes.jsonl"
    here = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"REFOPT_DEVICE": device, "REFOPT_OUTCOMES": str(path), "PYTHONPATH": here}
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.laws", "-q", *arguments]
    status, _ = run(command, seconds, environment, ROOT, quiet=False)
    return status, read(path)


def sources(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Digests of the files of the tests that ran, and of the laws that they share."""
    files = {ROOT / row["test"].partition("::")[0] for row in outcomes if row["outcome"] != "skipped"}
    laws = [path for path in closure("refopt.oracle.exact.laws") if path.parent.name == "exact"]
    return digests(sorted(path for path in {*files, *laws} if path.is_file()))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=max(1, (os.cpu_count() or 2) - 1), metavar="WORKERS")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--two", action="store_true", help="only what needs two GPUs")
    which.add_argument("--long", action="store_true", help="what make test-long runs, on the executor")
    parser.add_argument("--seconds", type=float, default=560.0, metavar="LIMIT")
    parser.add_argument("--select", nargs="+", metavar="ARG", help="other arguments for pytest than all GPU tests")
    names = "laws-DEVICE.json, laws-DEVICE-x2.json or long.json"
    parser.add_argument("--out", type=Path, help=f"default: {names} in benchmarks/results")
    options = parser.parse_args()
    device = "executor" if options.long else "gpu"
    chosen = options.select or (TWO if options.two else LONG if options.long else ALL)[:]
    if options.n > 1 and not options.two and version_of("pytest-xdist"):
        chosen += ["-n", str(options.n)]
    report = begin("benchmarks.laws", f"REFOPT_DEVICE={device} python -m pytest {' '.join(chosen)}") | {"what": "laws"}
    name = "long.json" if options.long else f"laws-{short_name(report['device'])}{'-x2' if options.two else ''}.json"
    start = time.perf_counter()
    status, outcomes = run_tests(chosen, options.seconds, device)
    report |= summary(outcomes) | {"exit_status": status, "seconds": round(time.perf_counter() - start, 1)}
    if status == "timed out":
        report["failures"]["the run"] = f"not over after {options.seconds:.0f} s"
    elif status and not report["failures"]:
        report["failures"]["the run"] = f"pytest ended with status {status}"
    if not report["counts"].get("passed"):
        report["failures"]["all"] = "nothing passed"
    report["sources"] |= sources(outcomes)
    out = options.out or RESULTS / name
    save(report, out)
    print(f"{report['counts']}, {report['seconds']} s, written to {out}")
    for reason, tests in report["skips"].items():
        print(f"skipped {len(tests)}: {reason}")
    for test, text in report["failures"].items():
        print(f"FAILED {test}: {text.splitlines()[-1] if text else ''}")
    return int(bool(report["failures"]))


if __name__ == "__main__":
    sys.exit(main())
