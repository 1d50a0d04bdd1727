"""The kill table of the oracle: which law finds each mutant, and which of them other projects' own tests find.

    PYTHONPATH=tests python -m oracle.mutants.kill_table [--only TEXT ...] [--laws all] [--no-rivals] [--out FILE]

A mutant is held to the step law and to the law that should fail, or to all. Steps that are right are held to all laws,
and to the rivals' tests. The exit status is 1 if a mutant lives, if the law that should fail holds, or if a law fails
for what is right. With ``--out`` a record is written, as those of `benchmarks`.
"""

import argparse
import functools
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from oracle.mutants import built, rival_apex, rival_optax, rival_torch
from oracle.mutants.around import AROUND
from oracle.mutants.table import KINDS
from refopt import oracle

RIGHT = "right"
RIVALS = ("PyTorch", "Apex", "optax")
WORDS = {True: "killed", False: "passed", None: "-"}


class Row(NamedTuple):
    """A step, and the law that should fail; none for what is right."""

    kind: str
    name: str
    routine: str
    law: str
    dtypes: tuple[str, ...]
    source: str
    make: Callable[[], Callable[..., Any]]
    right: Callable[..., Any]


class Verdict(NamedTuple):
    """The laws that fail, and what the rivals say."""

    failed: list[str]
    rivals: tuple[bool | None, ...]
    seconds: float


@functools.cache
def rows() -> list[Row]:
    right = built(())
    found = [Row(RIGHT, f"right: {routine}", routine, "", ("float32",), "", lambda step=step: step, step)
             for routine, step in right.items()]
    for kind, mutants in KINDS.items():
        found += [Row(kind, m.name, m.routine, m.law, m.dtypes, m.source, m.step, right[m.routine]) for m in mutants]
    found += [Row("around refopt.cpu", m.name, m.routine, m.law, m.dtypes, m.source, m.step, m.right) for m in AROUND]
    return found


def selected(only: list[str]) -> list[int]:
    """The numbers of the rows whose kind or name has one of some texts."""
    return [k for k, row in enumerate(rows()) if not only or any(text in f"{row.kind}: {row.name}" for text in only)]


def verdict(number: int, every: bool = False, rivals: bool = True) -> Verdict:
    """Of one row, of a step that nobody has called before."""
    row = rows()[number]
    start = time.perf_counter()
    laws = None if every or not row.law else {"L1", row.law}
    said: tuple[bool | None, ...] = (None,) * len(RIVALS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = oracle.check(row.routine, row.make(), dtypes=list(row.dtypes), laws=laws, diagnose=False)
        if rivals:
            known = None if row.kind == RIGHT else row.right
            said = (rival_torch.killed(row.make(), row.routine), rival_apex.killed(row.make(), row.routine),
                    rival_optax.killed(row.make, row.routine, known))
    return Verdict(report.failed_laws, said, time.perf_counter() - start)


def wrong(row: Row, found: Verdict) -> bool:
    """Whether the oracle is wrong about a row."""
    return row.law not in found.failed if row.law else bool(found.failed)


def line(row: Row, found: Verdict) -> str:
    name = row.name if len(row.name) <= 50 else row.name[:49] + "…"
    laws = found.failed
    of_laws = " ".join([x for x in (row.law, *laws) if x in laws][: 1 + (laws[:1] != [row.law])]) or "none"
    rivals = " ".join(f"{WORDS[x]:<6}" for x in found.rivals)
    return f"{name:<50} {of_laws:<7} {rivals}".rstrip() + (" WRONG" if wrong(row, found) else "")


def totals(found: dict[int, Verdict], every: list[Row]) -> dict[str, list[int]]:
    """Killed, and how many there were to kill, by who."""
    of_mutants = [(every[k], v) for k, v in found.items() if every[k].law]
    counts = {"the oracle": [sum(not wrong(r, v) for r, v in of_mutants), len(of_mutants)]}
    for k, name in enumerate(RIVALS):
        said = [v.rivals[k] for _, v in of_mutants if v.rivals[k] is not None]
        counts[name] = [sum(map(bool, said)), len(said)]
    return counts


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="kinds or names with one of these")
    parser.add_argument("--laws", choices=("own", "all"), default="own")
    parser.add_argument("--no-rivals", action="store_true", help="the oracle alone")
    parser.add_argument("-n", type=int, default=os.cpu_count(), metavar="PROCESSES")
    parser.add_argument("--out", type=Path, help="write a record")
    options = parser.parse_args()
    from benchmarks.record import ROOT, begin, digests, save

    report = begin("benchmarks.record", f"make oracle ARGS={' '.join(sys.argv[1:])!r}")
    here = Path(__file__).parent
    report["sources"] |= digests(sorted(here.rglob("*.py")))
    every, numbers = rows(), selected(options.only)
    start, kind, found = time.perf_counter(), "", {}
    print(f"{'':50} {'laws':<7} {' '.join(f'{x:<6.6}' for x in RIVALS)}")
    with ProcessPoolExecutor(options.n, get_context("spawn")) as pool:
        jobs = {k: pool.submit(verdict, k, options.laws == "all", not options.no_rivals) for k in numbers}
        for k, job in jobs.items():
            found[k] = job.result()
            if every[k].kind != kind:
                kind = every[k].kind
                print(f"-- {kind}")
            print(line(every[k], found[k]), flush=True)
    counts = totals(found, every)
    for name, (killed, there) in counts.items():
        print(f"{name}: {killed} of {there} killed")
    right = [k for k in found if not every[k].law]
    alarms = [every[k].name for k in right if found[k].failed or any(found[k].rivals)]
    print(f"right: {len(right) - len(alarms)} of {len(right)} pass everywhere; {time.perf_counter() - start:.0f} s")
    bad = [every[k].name for k in found if wrong(every[k], found[k])]
    print(f"wrong: {', '.join(bad) or 'none'}")
    if options.out:
        report |= {"what": "oracle's mutants", "totals": counts, "right": [len(right), alarms], "wrong": bad}
        report["rows"] = [
            {"kind": every[k].kind, "name": every[k].name, "routine": every[k].routine, "law": every[k].law,
             "source": every[k].source, "failed": " ".join(v.failed),
             **{name: WORDS[x] for name, x in zip(RIVALS, v.rivals, strict=True)}}
            for k, v in found.items()]
        out = options.out if options.out.is_absolute() else ROOT / options.out
        save(report, out)
        print(f"written to {re.sub(f'^{ROOT}/', '', str(out))}")
    return int(bool(bad or alarms))


if __name__ == "__main__":
    sys.exit(main())
