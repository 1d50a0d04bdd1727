"""docs/specification.md: the laws of each clause of docs/numerics.md, in words, and of which routines they are."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from maps.collect import ROOT, Item, head, sentence

from refopt.catalog import ROUTINES

PAGE, CONTRACT = ROOT / "docs" / "specification.md", ROOT / "docs" / "numerics.md"
LAWS = "tests/laws/"
GROUPS = {"all": set(ROUTINES), "elementwise": {name for name, routine in ROUTINES.items() if routine.elementwise},
          "with norms": {name for name, routine in ROUTINES.items() if not routine.elementwise}}


class Unknown(Exception):
    """A marker names what is no clause."""


def clauses() -> dict[str, str]:
    """What each clause is about, and its first sentence, by its id."""
    paragraphs = re.findall(r"^\*\*(N\d+) (.+?)\*\*(.+?)(?=\n\n|\Z)", CONTRACT.read_text(), re.DOTALL | re.MULTILINE)
    return {name: f"**{title}** {sentence(text)}." for name, title, text in paragraphs}


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
    lines = ["| clause | what it says | laws | tests |", "| --- | --- | ---: | ---: |"]
    for name, functions in known.items():
        laws = {function: rows for function, rows in functions.items() if is_law(function)}
        lines.append(f"| [{name}](#{name.lower()}) | {says[name]} | {len(laws)} | {sum(map(len, laws.values()))} |")
    for name, functions in known.items():
        lines += ["", f"## {name}", "", says[name], "", *table({f: x for f, x in functions.items() if is_law(f)})]
        lines += elsewhere(function for function in functions if not is_law(function))
    return "\n".join([head(PAGE), *lines, "", "## Beside the clauses", "", *table(beside(items)), ""])


def beside(items: Iterable[Item]) -> dict[str, list[Item]]:
    """The laws that no clause has words for."""
    rows: dict[str, list[Item]] = {}
    for item in items:
        if is_law(item.function) and not item.of("clause"):
            rows.setdefault(item.function, []).append(item)
    return rows


def table(laws: dict[str, list[Item]]) -> Iterator[str]:
    """A row for each law, in the order of the files."""
    yield "| law | which says | routines | tests |"
    yield "| --- | --- | --- | ---: |"
    for function, items in laws.items():
        file, _, test = function.partition("::")
        name = f"[{test.removeprefix('test_').replace('_', ' ')}](../{file})"
        yield f"| {name} | {items[0].says or '-'} | {of_routines(items)} | {len(items)} |"


def of_routines(items: Iterable[Item]) -> str:
    """The routines that a law is of, by a group's name if they are one; those that an id begins with."""
    names = {item.routine for item in items} & GROUPS["all"]
    group = next((group for group, members in GROUPS.items() if names == members), None)
    return group or ", ".join(name for name in ROUTINES if name in names) or "-"


def elsewhere(functions: Iterable[str]) -> Iterator[str]:
    """What shows the clause beside its laws, by file."""
    files: dict[str, list[str]] = defaultdict(list)
    for file, _, name in (function.partition("::") for function in functions):
        files[file].append(f"`{name}`")
    if files:
        yield ""
        yield from (f"- `{file}`: {', '.join(sorted(names))}" for file, names in sorted(files.items()))
