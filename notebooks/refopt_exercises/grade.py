"""Grades the notebooks of a class: ``python -m refopt_exercises grade FOLDER``.

Each folder in FOLDER is a learner, and its notebooks are the answers; notebooks in FOLDER itself are those of one
learner. They may have any name: a notebook says itself which `Exercise` it is of. Only the answer counts: it is judged
by the specification and the cases of the solution, whatever the notebook says.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from . import cells, solution

SECONDS = 300  # that one answer may take
SAID = re.compile(r"""\bExercise\(\\?["'](\w+)""")  # in a notebook's text, where JSON escapes quotes
MARKS = {True: "right", False: "wrong", None: "-"}


class Grade(NamedTuple):
    """Whether an answer is right, and the first line of the verdict, the second too if the first names the case."""

    ok: bool
    words: str


def is_judging(tree: ast.Module) -> bool:
    """Whether a cell only calls methods of its exercise: what it shows is of no interest here."""
    calls = [x.value.func for x in tree.body if isinstance(x, ast.Expr) and isinstance(x.value, ast.Call)]
    return bool(tree.body) and len(calls) == len(tree.body) and all(
        isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name) and x.value.id == "exercise" for x in calls
    )


def judge(name: str, path: Path) -> Grade:
    """The grade of a notebook, run in this process.

    Args:
        name: of the exercise's solution.
        path: of the notebook.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            found, _ = cells.run(cells.of(path), Path(folder), lambda tree: not is_judging(tree))
            answer = found[solution.answer_name(name)]
        except KeyError as error:
            return Grade(False, f"The notebook does not define {error}.")
        except Exception as error:
            return Grade(False, f"{type(error).__name__}: {error}".splitlines()[0])
        verdict = solution.load(name).exercise.check(answer)
    first, *others = verdict.text.removeprefix("Not yet. ").splitlines()
    return Grade(verdict.ok, " ".join([first, *others[: first.startswith("Case: ")]]))


def apart(name: str, path: Path, seconds: float = SECONDS) -> Grade:
    """The grade of a notebook, run in a process of its own: what it prints is left out, and it may not take forever."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "grade.json"
        command = [sys.executable, "-m", "refopt_exercises", "judge", name, str(path.resolve()), str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return Grade(False, f"It took more than {seconds:g} seconds.")
        if not out.exists():
            return Grade(False, ([*done.stderr.splitlines(), f"exit code {done.returncode}"])[-1])
        return Grade(*json.loads(out.read_text()))


def exercise_of(path: Path) -> str | None:
    """The exercise that a notebook is of, by its solution's name; None if it is of none."""
    said = SAID.search(path.read_text())
    return said[1] if said and said[1] in solution.names() else None


def notebooks(folder: Path) -> dict[str, Path]:
    """The notebooks of a learner, by the solutions' names."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.ipynb")):
        if (name := exercise_of(path)) in found:
            both = f"{found[name].name} and {path.name}"
            raise ValueError(f"{folder}: expected one notebook of exercise {name[:2]}, got {both}")
        if name is not None:
            found[name] = path
    return found


def folders(folder: Path) -> list[Path]:
    """The folders of the learners, and the folder itself."""
    return [*sorted(x for x in folder.iterdir() if x.is_dir() and not x.name.startswith(".")), folder]


def others(folder: Path) -> list[Path]:
    """The notebooks of no exercise."""
    return [path for each in folders(folder) for path in sorted(each.glob("*.ipynb")) if exercise_of(path) is None]


def grade(folder: Path) -> dict[str, dict[str, Grade]]:
    """The grades of each learner, by the exercises' names.

    Raises:
        FileNotFoundError: there is no notebook of an exercise in the folder, or in a folder of it.
        ValueError: a learner has two notebooks of one exercise.
    """
    learners = {x.name: notebooks(x) for x in folders(folder)}
    if not any(learners.values()):
        raise FileNotFoundError(f"{folder}: expected notebooks such as 01-guard-the-tail.ipynb, got none")
    learners = {name: found for name, found in learners.items() if found or name != folder.name}
    return {who: {name: apart(name, path) for name, path in found.items()} for who, found in learners.items()}


def table(grades: dict[str, dict[str, Grade]]) -> str:
    """A line for each learner, a column for each exercise that anyone has; below, what is wrong."""
    names = [name for name in solution.names() if any(name in own for own in grades.values())]
    rows = [["", *(name[:2] for name in names), "right"]]
    for who, own in grades.items():
        marks = [MARKS[own[name].ok if name in own else None] for name in names]
        rows.append([who, *marks, f"{marks.count(MARKS[True])} of {len(names)}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    wrong = [f"{who}, {name[:2]}: {x.words}" for who, own in grades.items() for name, x in own.items() if not x.ok]
    return "\n".join([*lines, *([""] * bool(wrong)), *wrong])
