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
    parser.add_argument("--seed", type=int, help="seed of the random choice of changes; random by default")
    parser.add_argument("--count", type=int, default=420, help="how many changes to try, about (420)")
    choice = {"metavar": "PART", "choices": PARTS, "help": f"only changes in one of {[*PARTS]}; repeatable"}
    parser.add_argument("--part", action="append", default=[], **choice)
    parser.add_argument("--changed", metavar="REV", help="only changes in lines that differ from this commit")
    parser.add_argument("--again", type=Path, metavar="REPORT", help="only what this report lists as not killed")
    parser.add_argument("--on", nargs="+", default=[], metavar="TESTS", help="run every case of these, not chosen ones")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many changes are tried at a time")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of measured tests for each change (60)")
    parser.add_argument("--more", type=float, default=trial.MORE, help="seconds of more cases of the same tests (30)")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which a trial is ended (240)")
    parser.add_argument("--coverage", type=Path, default=ROOT / "build" / "coverage", help="folder of coverage")
    parser.add_argument("--measure", nargs="+", default=[], metavar="TESTS", help="add these to the coverage")
    parser.add_argument("--cases", type=int, default=0, help="measure so many cases of a test; 0 for all")
    parser.add_argument("--peers", default="", metavar="PYTHON", help="interpreter of .venv-peers, for TESTS")
    parser.add_argument("of_peers", nargs="*", metavar="TESTS", help="tests that --peers runs and measures")
    parser.add_argument("--report", type=Path, help="the record; benchmarks/results/mutants-SEED.json")
    chosen = parser.parse_args()
    if chosen.of_peers and not chosen.peers:
        parser.error("TESTS: expected --peers with the interpreter that runs them; for this one's, --measure or --on")
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
