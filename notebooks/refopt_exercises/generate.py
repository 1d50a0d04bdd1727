"""Stub notebooks, and the page that lists them, from the solutions.

A solution is a Python file. Its docstring has the title, what it teaches, and the page that explains it; cells begin
with ``# %%``. One of ``# %% [markdown]`` is text, one of ``# %% [notebook]`` is code for the notebook alone; both stand
in comments. Of what is between two markers, one half is the solution's, and the other, in comments, the stub's::

    # [solution]
    out[i] = k * x[i]
    # [stub]
    # # FILL ME IN, about 1 line
    # [end]
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from . import solution
from .exercise import SCORES

FOLDER = Path(__file__).parents[1] / "exercises"
INDEX = FOLDER / "README.md"
HALVES = re.compile(r"(?ms)^( *)# \[solution\]\n(.*?)^ *# \[stub\]\n(.*?)^ *# \[end\]\n")
_HEADER = re.compile(r"(?s)(?P<title>.+?)\.\n\nTeaches: (?P<teaches>.+?)\n\nExplained in: (?P<link>\S+)\s*$")


class Header(NamedTuple):
    """What the docstring of a solution says."""

    number: int
    title: str
    teaches: str
    link: str


def header(name: str) -> Header:
    """Of a solution."""
    docstring = ast.get_docstring(ast.parse(solution.text(name))) or ""
    match = _HEADER.fullmatch(docstring)
    if match is None:
        expected = "expected a title, 'Teaches: ...' and 'Explained in: ...'"
        raise ValueError(f"{name}: docstring: {expected}, got {docstring!r}")
    return Header(int(name[:2]), *(" ".join(match[key].split()) for key in ("title", "teaches", "link")))


def half(code: str, solved: bool = False) -> str:
    """Code with the stub's half, or the solution's, in the places that have both."""
    return HALVES.sub(lambda match: match[2] if solved else bare(match[3]), code)


def bare(comments: str) -> str:
    """Lines without the comment sign in front of them."""
    return re.sub(r"(?m)^( *)# ?", r"\1", comments)


def shown(link: str) -> str:
    """The text of a link: a notebook's number and title, or the name of another page."""
    page = link.rpartition("/")[2]
    if not page.endswith(".ipynb"):
        return page.removesuffix(".md")
    first = json.loads((FOLDER / link).read_text())["cells"][0]["source"]
    return f"notebook {page.partition('-')[0]}, {''.join(first).splitlines()[0].removeprefix('# ')}"


def cells(name: str, solved: bool = False) -> list[tuple[str, str]]:
    """The cells of an exercise, or of its solution: kind and text."""
    number, title, teaches, link = header(name)
    head = (f"# {number}. {title}\n\n**What you learn**: {teaches}\n\n**Explained in**: [{shown(link)}]({link})\n\n"
            f"**To do it**: `jupyter lab {path(name).name}` in its folder")
    result = [("markdown", head)]
    for part in re.split(r"(?m)^# %%", solution.text(name))[1:]:
        kind, _, body = part.partition("\n")
        if kind.strip() in ("[markdown]", "[notebook]"):
            body = bare(body)
        cell = "markdown" if kind.strip() == "[markdown]" else "code"
        result.append((cell, textwrap.dedent(half(body, solved)).strip()))
    return result


def code(name: str, solved: bool = False) -> list[str]:
    """The code cells of an exercise, or of its solution."""
    return [text for kind, text in cells(name, solved) if kind == "code"]


def path(name: str) -> Path:
    """Of the stub notebook."""
    return FOLDER / f"{name.replace('_', '-')}.ipynb"


def notebook(name: str, solved: bool = False) -> str:
    """The stub notebook of an exercise, or its solution, as text."""
    entries = []
    for k, (kind, body) in enumerate(cells(name, solved)):
        entry: dict[str, Any] = {"cell_type": kind, "id": f"cell-{k:02}", "metadata": {}}
        entry |= {"execution_count": None, "outputs": []} if kind == "code" else {}
        entries.append(entry | {"source": body.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": entries, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def index() -> str:
    """The page that lists the exercises."""
    before, sign, _ = INDEX.read_text().partition("| | Exercise")
    assert sign, "the page has a table"
    rows = ["| | Exercise | What it teaches | Explained in |", "|---|---|---|---|"]
    for name in solution.names():
        number, title, teaches, link = header(name)
        rows.append(f"| {number} | [{title}]({path(name).name}) | {teaches} | [{shown(link)}]({link}) |")
    return before + "\n".join(rows) + "\n"


def scores() -> str:
    """What the solutions cost, as text: they are compared with this where there are no solutions."""
    costs = {name: list(solution.load(name).exercise.cost(solution.load(name).answer)) for name in solution.names()}
    return "{\n" + ",\n".join(f'"{name}": {cost}' for name, cost in costs.items()) + "\n}\n"


def write() -> None:
    """Write the notebooks, the page and the scores again."""
    SCORES.write_text(scores())
    for name in solution.names():
        path(name).write_text(notebook(name))
    INDEX.write_text(index())
