"""docs/evidence.md: what each routine is held to beside its own code, in each variant and precision."""

from collections.abc import Iterable
from pathlib import PurePosixPath

import evidence.formulas
from evidence.cells import PRECISIONS, Cell, cells
from maps.collect import ROOT, Item, head

from refopt.catalog import ROUTINES, Routine

PAGE = ROOT / "docs" / "evidence.md"
Proofs = dict[Cell, dict[str, list[Item]]]


class Unknown(Exception):
    """A marker names what is not a cell."""


def proofs(items: Iterable[Item]) -> Proofs:
    """For each cell, the tests that show it, by the name of what shows it."""
    known: Proofs = {cell: {} for cell in cells()}
    for item in items:
        for args, keywords in item.of("evidence"):
            cell = Cell(*args) if len(args) == len(Cell._fields) else None
            if cell not in known:
                raise Unknown(f"{item.id}: evidence{tuple(args)} is no cell of tests/evidence/cells.py")
            known[cell].setdefault(keywords.get("by") or name_of(item), []).append(item)
    return known


def name_of(item: Item) -> str:
    """What a test's file is called, where its marker does not say by what it shows something."""
    return PurePosixPath(item.function.partition("::")[0]).stem.removeprefix("test_")


def missing(known: Proofs) -> list[Cell]:
    """The cells without evidence."""
    return [cell for cell, tests in known.items() if not tests]


def page(items: Iterable[Item]) -> str:
    """The page."""
    known = proofs(items)
    tables = [part for routine in ROUTINES.values() for part in (*section(routine, known), "")]
    return "\n".join([head(PAGE), *legend(known), "", *tables])


def legend(known: Proofs) -> list[str]:
    """What each name stands for: the files' own words, and the functions whose items are the cells."""
    sources: dict[str, dict[str, Item]] = {}
    for tests in known.values():
        for name, items in tests.items():
            for item in items:
                sources.setdefault(name, {}).setdefault(item.function, item)
    lines = ["| evidence | what it is | tests |", "| --- | --- | --- |"]
    for name in sorted(sources):
        says = dict.fromkeys(item.module for item in sources[name].values())
        functions = ", ".join(f"`{function}`" for function in sorted(sources[name]))
        lines.append(f"| {name} | {'. '.join(says)} | {functions} |")
    return lines


def section(routine: Routine, known: Proofs) -> list[str]:
    """Its formula, and for each kind of evidence, the variants that it is of, by precisions."""
    by_name: dict[str, dict[str, list[str]]] = {}  # the precisions of each variant
    for cell in (cell for cell in known if cell.routine == routine.name):
        for name in known[cell]:
            by_name.setdefault(name, {}).setdefault(cell.variant, []).append(cell.precision)
    lines = [f"## {routine.name}\n\n{getattr(evidence.formulas, routine.name).__doc__}\n"]
    for name in sorted(by_name):
        groups: dict[str, list[str]] = {}
        for label, precisions in by_name[name].items():
            where = "all precisions" if precisions == [*PRECISIONS] else ", ".join(precisions)
            groups.setdefault(where, []).append(f"`{label}`")
        lines.append(f"- **{name}** " + "; ".join(f"in {where}: {', '.join(x)}" for where, x in groups.items()))
    return lines
