"""What reports which defect: the executor, Numba's simulator, and on a GPU compute-sanitizer.

    python -m benchmarks.detectors [--on cpu|gpu] [--out FILE] [--jobs N] [--only NAME ...]

Runs each kernel of `benchmarks.defects` in a process of its own, with a deadline: without a GPU under ``refopt simt
--watch`` and under Numba's simulator, on a GPU alone and under memcheck, racecheck, initcheck and synccheck. Records
what each said, whether with the line of Python and the threads, what it left where it said nothing, and the time. The
exit status is 1 if a kernel could not be run, if a right kernel's result is wrong on the GPU or refused by the
executor, or if a tool of compute-sanitizer says nothing of any.
"""

import argparse
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import children
from benchmarks.children import run
from benchmarks.defects import CASES, Case
from benchmarks.record import RESULTS, ROOT, begin, closure, ended, machine, save, short_name

DEADLINE, HANGING = 90.0, 40.0  # seconds of a process, and of one whose kernel does not end
TOOLS = {"memcheck": (), "racecheck": ("--racecheck-report", "all"), "initcheck": (), "synccheck": ()}
EXITED = 9  # how compute-sanitizer says that it has reported something
CPU, GPU = ("executor", "executor, on request", "simulator"), ("alone", *TOOLS)
QUIET = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_CUDA_WARN_ON_IMPLICIT_COPY": "0"}
VERDICTS = (REPORTED, RIGHT, WRONG, HANGS, CRASHES, LACKS) = (
    "reported", "nothing, the result is right", "nothing, the result is wrong", "nothing, it hangs", "it crashes",
    "it cannot run it",
)


class Way(NamedTuple):
    """How a kernel is run: what stands before the module that runs it, what is set, and what tells of a report."""

    before: tuple[str, ...]
    environment: dict[str, str]
    report: str
    threads: str


REPORT = r"(?m)^refopt\.simt\.(?P<words>(?P<says>\w+).*)"
SANITIZER = r"""(?mx)^=+\ (?P<words>(?:(?:Error|Warning|Info):\ )?(?:\([\w\ ]+\)\ )?(?P<says>
    Invalid\ __\w+__\ (?:read|write|atomic)|Misaligned|Race\ reported|Potential\ \w+\ hazard
    |Uninitialized\ __\w+__|Barrier\ error|Illegal\ \w+|Out-of-range|Stack\ overflow).*)"""


def way(name: str, case: Case) -> Way:
    """One of `CPU` and `GPU`."""
    if name.startswith("executor"):
        options = case.options if name != "executor" else ()
        command = (sys.executable, "-m", "refopt.simt", "--watch", *options, "-m")
        return Way(command, {"REFOPT_SIMT": "0"}, REPORT, r"thread \(|the host")
    if name == "simulator":
        report = r"(?m)^(?P<words>(?P<says>IndexError).*)"
        return Way((sys.executable, "-m"), {"NUMBA_ENABLE_CUDASIM": "1"}, report, "tid=")
    before: tuple[str, ...] = ()
    if name in TOOLS:
        before = ("compute-sanitizer", "--tool", name, *TOOLS[name], "--error-exitcode", str(EXITED))
        before += ("--print-limit", "20")
    return Way((*before, sys.executable, "-m"), {"NUMBA_ENABLE_CUDASIM": "0"}, SANITIZER, r"[Tt]hread \(")


def tried(name: str, case: Case) -> dict[str, Any]:
    """What comes of a kernel that is run in one way."""
    how = way(name, case)
    start = time.perf_counter()
    status, output = run(
        [*how.before, "benchmarks.defects", case.name], HANGING if case.hangs else DEADLINE,
        {**os.environ, **QUIET, **how.environment}, ROOT,
    )
    seconds = time.perf_counter() - start
    row = judged(how, case, status, output)
    print(f"{case.name}, {name}: {row['verdict']} {row.get('says', '')} ({seconds:.1f} s)", flush=True)
    return {"how": name, "verdict": row.pop("verdict"), **row, "status": status, "seconds": round(seconds, 2)}


def judged(how: Way, case: Case, status: int | str, output: str) -> dict[str, Any]:
    """The verdict; of a report also what it is, its words, and whether they name the line and the threads."""
    says = re.search(how.report, output)
    if says:
        # Where the host launched is no line of the kernel.
        told = [line for line in output.splitlines() if "Host Frame" not in line]
        file, lines = case.lines()
        named = re.findall(rf'{re.escape(file)}(?::|", line )(\d+)', "\n".join(told))
        return {
            "verdict": REPORTED, "says": says["says"], "words": says["words"][:200],
            "line": any(int(number) in lines for number in named), "threads": bool(re.search(how.threads, output)),
        }
    if status == 0:
        for verdict, words in ((RIGHT, "the result is right"), (WRONG, "the result is wrong")):
            if words in output:
                return {"verdict": verdict}
    if status == "timed out":
        return {"verdict": HANGS}
    last = (output.strip().splitlines() or [""])[-1]
    lacks = "FakeCUDAModule" in last or "NotImplementedError" in last
    error = re.search(r"CUDA_ERROR_\w+", output)
    return {"verdict": LACKS if lacks else CRASHES, "says": error[0] if error else "", "words": last[:200]}


def rows(names: Iterable[str], cases: list[Case], jobs: int, keep: Callable[[list], None]) -> list[dict[str, Any]]:
    """A row for each case. Kernels that may not end come last, so that others need not share the device with them."""
    by_name: dict[str, list] = {case.name: [] for case in cases}

    def table() -> list[dict[str, Any]]:
        return [
            {"name": case.name, "what": case.what, "right": case.right, "options": " ".join(case.options), "ways": ways}
            for case in cases if (ways := by_name[case.name])
        ]

    for hangs in (False, True):
        with ThreadPoolExecutor(jobs) as pool:
            waiting = {
                pool.submit(tried, name, case): case
                for case in cases if case.hangs == hangs
                for name in names if name != "executor, on request" or case.options
            }
            try:
                for done in as_completed(waiting):
                    by_name[waiting[done].name].append(done.result())
                    keep(table())
            except BaseException:  # ended from outside, or a fault: what has not begun does not begin
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    for ways in by_name.values():
        ways.sort(key=lambda way: [*CPU, *GPU].index(way["how"]))
    return table()


def wrong(report: dict[str, Any]) -> dict[str, str]:
    """What makes a report worthless, by case or tool."""
    failures = {}
    for row in report["rows"]:
        for one in row["ways"]:
            if row["right"] and one["how"] in ("alone", "executor") and one["verdict"] != RIGHT:
                failures[f"{row['name']}, {one['how']}"] = one["verdict"]
            elif one["verdict"] == CRASHES and not one["says"] and one["how"] != "simulator":
                failures[f"{row['name']}, {one['how']}"] = one["words"]
    said = {one["how"] for row in report["rows"] for one in row["ways"] if one["verdict"] == REPORTED}
    for tool in TOOLS if report["on"] == "gpu" else ():
        if tool not in said:
            failures[tool] = "it has reported nothing at all"
    return failures


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=("cpu", "gpu"), help="default: gpu where there is one")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/detectors[-DEVICE].json")
    parser.add_argument("--jobs", type=int, help="processes at a time; default: 1, on a GPU 16")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=CASES, help="these kernels alone")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, children._end_all)  # which `run` sees to in the main thread alone
    device = machine()["device"]
    on = options.on or ("cpu" if device == "none" else "gpu")
    if on == "gpu" and shutil.which("compute-sanitizer") is None:
        parser.error("expected compute-sanitizer on the path, got none")
    also = closure("refopt.simt") if on == "cpu" else ()
    report = begin("benchmarks.detectors", also=also) | {"what": "detectors", "on": on, "rows": []}
    jobs = options.jobs or (1 if on == "cpu" else min(16, os.cpu_count() or 1))
    out = options.out or RESULTS / ("detectors.json" if on == "cpu" else f"detectors-{short_name(device)}.json")
    cases = [case for case in CASES.values() if not options.only or case.name in options.only]
    if on == "gpu":
        report["sanitizer"] = run(["compute-sanitizer", "--version"], 60.0)[1].strip().splitlines()[-1:]

    def keep(listed: list) -> None:
        report["rows"] = listed
        save(report, out)

    keep(rows(CPU if on == "cpu" else GPU, cases, jobs, keep))
    report["failures"] = {} if options.only else wrong(report)
    save(report, out)
    return ended(report)


if __name__ == "__main__":
    sys.exit(main())
