"""Plant changes in the package and report which ones the tests see: ``python -m mutation``, with tests/ on the path."""

import argparse
import json
import multiprocessing
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutation import covered as coverage
from mutation import trial
from mutation.report import by_part, record, table
from mutation.sample import PARTS, again, all_edits, changed, equivalents, sample

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).parent / "equivalent.json"

def main() -> int:
    """Measure what the tests run if that is not known yet, draw changes, try them, report."""
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the draw; drawn itself if not given")
    parser.add_argument("--count", type=int, default=420, help="how many changes, about (420)")
    parser.add_argument("--part", action="append", default=[], choices=PARTS, help="only in this part")
    parser.add_argument("--changed", metavar="REV", help="plant in lines that have changed since a commit alone")
    parser.add_argument("--again", type=Path, metavar="REPORT", help="try again what this report says was not killed")
    parser.add_argument("--on", nargs="+", default=[], metavar="TESTS", help="run all of these instead")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for each change (60)")
    parser.add_argument("--more", type=float, default=trial.MORE, help="seconds of cases that were not measured (30)")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds until a trial is ended (240)")
    parser.add_argument("--coverage", type=Path, default=ROOT / "build" / "coverage", help="where coverage is kept")
    parser.add_argument("--measure", nargs="+", default=[], metavar="TESTS", help="these tests, beside what is there")
    parser.add_argument("--cases", type=int, default=0, help="measure at most so many cases of each test function")
    parser.add_argument("--peers", default="", metavar="PYTHON", help="the interpreter of tests beside other code, ...")
    parser.add_argument("of_peers", nargs="*", metavar="TESTS", help="... and these tests")
    parser.add_argument("--report", type=Path, help="write the record here; benchmarks/results/mutants-SEED.json")
    chosen = parser.parse_args()
    try:
        every = coverage.collected(ROOT, chosen.on) if chosen.on else []
    except ValueError as error:
        parser.error(f"--on: {error}")
    seed = chosen.seed if chosen.seed is not None else int.from_bytes(os.urandom(3), "big")
    if chosen.measure or not coverage.measurements(chosen.coverage):
        coverage.measure(ROOT, chosen.coverage, chosen.workers, chosen.measure, chosen.cases)
        if chosen.peers and not chosen.measure:
            python = str(Path(chosen.peers).absolute())
            coverage.measure(ROOT, chosen.coverage, chosen.workers, chosen.of_peers, chosen.cases, python)
    covered = coverage.Covered(ROOT, chosen.coverage)
    edits = all_edits(ROOT)
    if chosen.changed:
        edits = changed(ROOT, edits, chosen.changed)
    parts = chosen.part
    drawn = again(edits, chosen.again, parts) if chosen.again else sample(ROOT, edits, seed, chosen.count, parts)
    print(f"{len(drawn)} of {len(edits)} changes, seed {seed}, {len(covered.seconds)} tests", flush=True)
    chosen_tests = [every or covered.tests(edit, chosen.budget) for edit in drawn]
    tasks = [(edit, tests, {test: covered.python.get(test, sys.executable) for test in tests})
             for edit, tests in zip(drawn, chosen_tests, strict=True)]
    known = equivalents(EQUIVALENT)
    begin = time.monotonic()
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        start = (ROOT, scratch, chosen.limit, chosen.more)
        with multiprocessing.get_context("spawn").Pool(chosen.workers, trial.start, start) as pool:
            for outcome in pool.imap_unordered(trial.outcome, tasks):
                outcomes.append(outcome)
                if outcome.verdict != "killed":
                    print(outcome, flush=True)
    order = {edit: k for k, edit in enumerate(drawn)}
    outcomes.sort(key=lambda outcome: order[outcome.edit])
    print(table(by_part(outcomes, known)))
    path = chosen.report or ROOT / "benchmarks" / "results" / f"mutants-{seed}.json"
    given = [*sys.argv[1:], *(["--seed", str(seed)] if chosen.seed is None else [])]
    head = {"command": f"PYTHONPATH=tests python -m mutation {shlex.join(given)}",
            "commit": subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True,
                                     text=True).stdout.strip(), "python": platform.python_version(),
            "processes": chosen.workers, "seed": seed, "offered": len(edits), "tried": len(drawn),
            "tests": len(covered.seconds), "seconds": round(time.monotonic() - begin)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**head, **record(outcomes, known)}, indent=1, ensure_ascii=False) + "\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
