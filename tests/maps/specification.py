"""docs/specification.md: the laws of each clause of docs/numerics.md, in words, and of which routines they are."""

import re
from collections.abc import Iterable, Iterator

from maps.collect import ROOT, Item, head

from refopt.catalog import ROUTINES

PAGE, CONTRACT = ROOT / "docs" / "specification.md", ROOT / "docs" / "numerics.md"
LAWS = "tests/laws/"
GROUPS = {"all": set(ROUTINES), "elementwise": {name for name, routine in ROUTINES.items() if routine.elementwise},
          "with norms": {name for name, routine in ROUTINES.items() if not routine.elementwise}}


class Unknown(Exception):
    """A marker names what is no clause."""


def clauses() -> dict[str, str]:
    """What each clause is about, by its id."""
    return {name: title.rstrip(".") for name, title in re.findall(r"(?m)^\*\*(N\d+) (.+?)\*\*", CONTRACT.read_text())}


def tests(items: Iterable[Item]) -> dict[str, dict[str, list[Item]]]:
    """For each clause, the functions that test it, each with its items."""
    known: dict[str, dict[str, list[Item]]] = {name: {} for name in clauses()}
    for item in items:
        for name in {name: None for args, _ in item.of("clause") for name in args}:
            if name not in known:
                raise Unknown(f"{item.id}: {name} is no clause of docs/numerics.md")
            known[name].setdefault(item.function, []).append(item)
    return known


def missing(known: dict[str, dict[str, list[Item]]]) -> list[str]:
    """The clauses without a law."""
    return [name for name, functions in known.items() if not any(map(is_law, functions))]


def is_law(function: str) -> bool:
    return function.startswith(LAWS)


def page(items: Iterable[Item]) -> str:
    """The page."""
    items = list(items)
    says, known = clauses(), tests(items)
    lines: list[str] = []
    for name, functions in known.items():
        laws = {function: rows for function, rows in functions.items() if is_law(function)}
        at_home = {function: rows for function, rows in laws.items() if home(function, known) in (name, "")}
        count = f"{len(laws)} law{'s' * (len(laws) > 1)}, {sum(map(len, laws.values()))} tests"
        lines += [f"## {name}", "", f"{says[name]}: {count}.", "", *listed(at_home)]
        if others := [f"[{title(x)}](#{home(x, known).lower()})" for x in laws if x not in at_home]:
            lines.append(f"- also, from other clauses: {', '.join(others)}")
        lines.append("")
    return "\n".join([head(PAGE), *lines, "## Outside the clauses", "", *listed(beside(items)), ""])


def home(function: str, known: dict[str, dict[str, list[Item]]]) -> str:
    """The clause that a law's file is named after, if it is a law of it."""
    number = re.search(r"/test_n(\d+)_", function)
    name = f"N{int(number[1])}" if number else ""
    return name if function in known.get(name, ()) else ""


def beside(items: Iterable[Item]) -> dict[str, list[Item]]:
    """The laws that no clause has words for."""
    rows: dict[str, list[Item]] = {}
    for item in items:
        if is_law(item.function) and not item.of("clause"):
            rows.setdefault(item.function, []).append(item)
    return rows


def listed(laws: dict[str, list[Item]]) -> Iterator[str]:
    """A line for each law, in the order of the files."""
    for function, items in laws.items():
        says = f": {items[0].says.rstrip('.')}" if items[0].says else ""
        which = ", ".join(filter(None, (of_routines(items), str(len(items)))))
        yield f"- [{title(function)}](../{function.partition('::')[0]}){says} ({which})"


def title(function: str) -> str:
    return function.partition("::")[2].removeprefix("test_").replace("_", " ")


def of_routines(items: Iterable[Item]) -> str:
    """The routines that a law is of, by a group's name if they are one, or one without a few."""
    names = {item.routine for item in items} & GROUPS["all"]
    known = [(len(members - names), group, members) for group, members in GROUPS.items() if names <= members]
    count, group, members = min(known)
    if count < min(len(names), 4):
        return group + f" except {', '.join(name for name in ROUTINES if name in members - names)}" * bool(count)
    return ", ".join(name for name in ROUTINES if name in names)
