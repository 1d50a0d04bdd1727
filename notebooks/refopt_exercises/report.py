"""Grades of a class as a table for the terminal, as CSV and as JSON."""

from __future__ import annotations

import csv
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path

from .grade import Grade

MARKS = {"right": "+", "wrong": "x", "broken": "!", "twice": "2", "none": "."}
WIDTH = 80


def table(learners: Iterable[str], grades: list[Grade]) -> str:
    """A row for each learner, a column for each exercise that anyone has handed in; below, the reasons."""
    of = {(grade.learner, grade.exercise): grade for grade in grades}
    names = sorted({grade.exercise for grade in grades})
    widest = max(len(x) for x in learners)
    most = max(1, (WIDTH - len(" right") - widest) // len(" 01"))  # columns; others follow below
    lines = []
    for start in range(0, len(names), most):
        columns = names[start : start + most]
        lines += ["", " ".join([" " * widest, *(name[:2] for name in columns), "right"])]
        for who in learners:
            own = [of[who, name] for name in names if (who, name) in of]
            marks = [_mark(of.get((who, name))) for name in columns]
            lines.append(" ".join([who.ljust(widest), *marks, f"{sum(x.mark == 'right' for x in own):5}"]))
    legend = ", ".join(f"{sign} {mark}" for mark, sign in MARKS.items())
    return "\n".join([*lines[1:], "", f"{legend}, = as somebody else's", *reasons(grades)])


def _mark(grade: Grade | None) -> str:
    return f"{MARKS[grade.mark]}{'=' * bool(grade.same_as)}".rjust(2) if grade else f" {MARKS['none']}"


def reasons(grades: list[Grade]) -> list[str]:
    """A paragraph for each exercise that is not right, and for each answer that others have as well."""
    lines = [""]
    for grade in grades:
        words = [f"the same answer as {', '.join(grade.same_as)}."] if grade.same_as else []
        if grade.mark != "right":
            first, *others = grade.reason.splitlines() or [""]
            words.append(" ".join([first, *others[: first.startswith(("Case: ", "An answer"))]]))
        if words:
            whole = f"{grade.learner}, {grade.exercise[:2]}, {grade.mark}: {' '.join(words)}"
            lines += textwrap.wrap(whole, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return lines if lines[1:] else []


def write_csv(path: Path, grades: list[Grade]) -> None:
    """Write a line for each learner and exercise."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Grade._fields)
        writer.writerows([*grade[:-1], " ".join(grade.same_as)] for grade in grades)


def write_json(path: Path, grades: list[Grade]) -> None:
    """Write a list of grades, with the names of their fields."""
    path.write_text(json.dumps([grade._asdict() for grade in grades], indent=1, ensure_ascii=False) + "\n")
