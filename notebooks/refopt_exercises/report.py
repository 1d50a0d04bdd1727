"""Grades of a class as a table for the terminal, as CSV and as JSON."""

from __future__ import annotations

import csv
import itertools
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path

from .grade import Grade

MARKS = {"right": "+", "wrong": "x", "broken": "!", "twice": "2", "none": "."}
WIDTH = 80


def table(learners: Iterable[str], grades: list[Grade]) -> str:
    """A row for each learner, a column for each exercise that anyone has handed in; below, the reasons."""
    of = {grade[:2]: grade for grade in grades}
    names = sorted({grade.exercise for grade in grades})
    widest = max(len(x) for x in learners)
    most = max(1, (WIDTH - len(" right") - widest) // len(" 01"))  # columns; others follow below
    lines = []
    for start in range(0, len(names), most):
        columns = names[start : start + most]
        lines += ["", " ".join([" " * widest, *(name[:2] for name in columns), "right"])]
        for who in learners:
            marks = [_mark(of[who, name]) for name in columns]
            right = sum(of[who, name].mark == "right" for name in names)
            lines.append(" ".join([who.ljust(widest), *marks, f"{right:5}"]))
    legend = ", ".join(f"{sign} {mark}" for mark, sign in MARKS.items())
    return "\n".join([*lines[1:], "", f"{legend}, = as somebody else's", *reasons(grades)])


def _mark(grade: Grade) -> str:
    return f"{MARKS[grade.mark]}{'=' * bool(grade.same_as)}".rjust(2)


def reasons(grades: list[Grade]) -> list[str]:
    """A paragraph for each exercise that is not right, and one for those who have the same answer to it."""
    words = []
    for grade in grades:
        if grade.mark not in ("right", "none"):
            first, *others = grade.reason.splitlines() or [""]
            whole = [first, *others[: first.startswith(("Case: ", "An answer")) or first.endswith(":")]]
            words.append(f"{grade.learner}, {grade.exercise[:2]}, {grade.mark}: {' '.join(whole)}")
    same = {(grade.exercise, *sorted([grade.learner, *grade.same_as])) for grade in grades if grade.same_as}
    words += [f"{name[:2]}, the same answer: {'; '.join(who)}." for name, *who in sorted(same)]
    lines = [textwrap.wrap(x, WIDTH, subsequent_indent="    ", break_on_hyphens=False) for x in words]
    return ["", *itertools.chain(*lines)] if lines else []


def write_csv(path: Path, grades: list[Grade]) -> None:
    """Write a line for each learner and exercise."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Grade._fields)
        writer.writerows([*grade[:-1], "; ".join(grade.same_as)] for grade in grades)


def write_json(path: Path, grades: list[Grade]) -> None:
    """Write a list of grades, with the names of their fields."""
    path.write_text(json.dumps([grade._asdict() for grade in grades], indent=1, ensure_ascii=False) + "\n")
