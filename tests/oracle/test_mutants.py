"""The oracle's own test: a library that is right passes, and each mutant of it fails in the law that is about it."""

import json
import re
from pathlib import Path

import pytest

from oracle.cheats import CHEATS
from oracle.mutants import built, rival_apex, rival_optax, rival_torch
from oracle.mutants.around import AROUND
from oracle.mutants.historical import MUTANTS as HISTORICAL
from oracle.mutants.kill_table import RIVALS, Verdict, line, rows, totals, verdict, wrong
from oracle.mutants.rivals import Different
from oracle.mutants.table import MUTANTS
from refopt import oracle
from refopt.catalog import ROUTINES
from refopt.oracle.laws import LAWS

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
# One a law, but for L3, of which the smallest example is looked for as well; how many tries each has
# tests/oracle/test_right.py holds.
FAST = [*{mutant.law: mutant for mutant in MUTANTS if mutant.law != "L3"}.values(), *AROUND]
QUICK = dict(examples=0, diagnose=False, process=False)
FIRST = {cheat[0]: cheat for cheat in reversed(CHEATS)}.values()


def test_there_are_many():
    assert len(BY_NAME) == len(MUTANTS) >= 200 and len(HISTORICAL) >= 20 and len(CHEATS) >= 40
    lacking = set(ROUTINES) - set(built())
    assert not lacking, f"tests/oracle/mutants/library/steps.py: expected a step of {', '.join(sorted(lacking))}"
    lacking = set(ROUTINES) - {mutant.routine for mutant in MUTANTS}
    assert not lacking, f"tests/oracle/mutants: expected a mutant of {', '.join(sorted(lacking))}"
    assert {mutant.routine for mutant in MUTANTS} == set(ROUTINES) == set(built())
    conduct = {f"L{k}" for k in range(19, 24)}  # of which there are cheats
    assert {law for law, *_ in CHEATS} >= conduct
    elsewhere = {"L18", *(f"L{k}" for k in range(25, 33))}
    assert {mutant.law for mutant in (*MUTANTS, *AROUND)} == LAWS.keys() - elsewhere - conduct
    assert all("easily written" not in mutant.source for mutant in HISTORICAL[:-1])


@pytest.mark.parametrize("laws", [["L1", "L9", "L16"], pytest.param(None, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("routine", [pytest.param(x, marks=pytest.mark.slow if x not in ("sgd", "lamb") else
                                                  ()) for x in built()])
def test_the_library_is_right(routine, laws):
    given = {"dtypes": laws and ["float32"], "laws": laws, "examples": 1, "process": False}
    report = oracle.check(routine, built()[routine], allow_skips=["L12"], **given)  # it raises for remainders
    assert report.ok, str(report)
    left = {f"takes no {name}" for name in ("epsilon_at", "adapt", "norm_of")}
    assert laws is None or {item.text for item in report.of("skipped") if not item.lacks or item.law == "L1"} <= left


@pytest.mark.parametrize("mutant", FAST, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant):
    """In its own law, which says where, after L1, whose steps some defects need."""
    report = oracle.check(mutant.routine, mutant.step(), dtypes=mutant.dtypes, laws={"L1", mutant.law}, **QUICK)
    assert mutant.law in report.failed_laws, str(report)
    assert f"{mutant.law} {LAWS[mutant.law].name}, " in str(report)


@pytest.mark.parametrize(("law", "words", "dtype", "step"), [
    pytest.param(*x, id=x[3].__name__, marks=[pytest.mark.slow] * (x not in FIRST)) for x in CHEATS])
def test_a_cheat_fails(law, words, dtype, step):
    """Steps that fool a checker fail, with words that say what they did; in processes, since they spoil their own."""
    report = oracle.check("momentum", step, dtypes=[dtype], laws={law}, **QUICK | {"process": None})
    assert not report.ok and report.failed_laws == [law], str(report)
    shown = [f"{x.label}: {x.text}" for x in report.of("failed")]
    assert any(words in text for text in [*shown, str(report)]), "\n".join(shown)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(rows())), ids=[row.name for row in rows()])
def test_every_row_of_the_table(number):
    found = verdict(number, rivals=False)
    assert not wrong(rows()[number], found), found


@pytest.mark.parametrize(("name", "size"), [("tensors beyond the 110th dropped", "111 tensors"),
                                            ("states flattened in another order", "1 tensor of")])
def test_the_smallest_example_is_small(name, size):
    """One tensor for what a tensor shows, as many as it takes for what is in their number."""
    mutant = BY_NAME[name]
    report = oracle.check(mutant.routine, mutant.step(), dtypes=["float32"], laws=[mutant.law], **QUICK)
    assert f"smallest example: {size}" in str(report)


def test_flushing_may_be_declared():
    step, named = BY_NAME["subnormal numbers flushed"].step(), dict(dtypes=["float32"], laws=["L1", "L7"], **QUICK)
    assert oracle.check("momentum", step, **named).failed_laws == ["L7"]
    assert oracle.check("momentum", step, **named, set={"flush_to_zero": True}).ok


def test_rivals_pass_what_is_right():
    steps = built()
    assert rival_torch.killed(steps["sgd"], "sgd") is False
    assert rival_apex.killed(steps["momentum"], "momentum") is False
    assert rival_optax.killed(lambda: steps["adamw"], "adamw", steps["adamw"]) is False
    assert rival_apex.killed(steps["lion"], "lion") is rival_optax.killed(lambda: steps["sgd"], "sgd") is None


def nothing(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon):
    """A step that does nothing."""


def test_rivals_find_what_they_can():
    """PyTorch's a wrong formula, and not a list of 111 tensors; one of Apex's not even a step that does nothing."""
    swapped, dropped = BY_NAME["moments swapped in the table"], BY_NAME["tensors beyond the 110th dropped"]
    assert rival_torch.killed(swapped.step(), "adamw") and rival_torch.killed(dropped.step(), "sgd") is False
    rival_apex.native(nothing, "adam", rival_apex.ADAM | {"lr": 1e-5})
    with pytest.raises(Different):
        rival_apex.compared(nothing, "adam", rival_apex.ADAM, [1000])
    with pytest.raises(Different):
        rival_optax.converges(nothing, "adam", rival_optax.UNDER_TEST["adam"][0], *rival_optax.TARGETS[0])


def test_the_table_fits_a_terminal():
    found = Verdict(["L1", "L16"], (True, False, None), 1.0)
    assert all(len(line(row, found)) <= 80 for row in rows() if not wrong(row, found))
    row = next(row for row in rows() if row.law == "L3")
    assert line(row, found).endswith("L1 L16  killed passed - WRONG") and wrong(row, found)
    assert line(row._replace(law="L16"), found).endswith("L16 L1  killed passed -")
    one = {rows().index(row): found}
    assert totals(one, rows()) == {"the oracle": [0, 1], "PyTorch": [1, 1], "Apex": [0, 1], "optax": [0, 0]}


def test_the_page_says_what_the_record_says():
    """docs/oracle-mutants.md has the totals of benchmarks/results/kill-table.json, of the rows that there are now."""
    root = Path(__file__).parents[2]
    record = json.loads((root / "benchmarks/results/kill-table.json").read_text())
    page = (root / "docs/oracle-mutants.md").read_text()
    names = {row.name for row in rows()}
    recorded = [row for row in record["rows"] if row["name"] in names]
    assert names == {row["name"] for row in recorded} and not record["wrong"]
    mutants = [row for row in recorded if row["law"]]
    assert f"| {len(mutants)} of {len(mutants)} |" in page and all(row["law"] in row["failed"] for row in mutants)
    for name in RIVALS:
        said = [row[name] for row in mutants if row[name] != "-"]
        assert re.search(rf"\| {name} .*\| {said.count('killed')} of {len(said)} \|", page), name
