"""The solutions: each a file that the stub notebook is generated from, and that the score is compared with."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "solutions"


class Solution(NamedTuple):
    """A solution file that has been run: its `Exercise`, its answer, and the module with all that it defines."""

    exercise: Any
    answer: Any
    module: Any


def names() -> list[str]:
    """Of all exercises, in order of difficulty."""
    return sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))


def text(name: str) -> str:
    """The source of a solution."""
    return (FOLDER / f"{name}.py").read_text()


def answer_name(name: str) -> str:
    """What the answer is called: it is what the notebook checks."""
    (answer,) = re.findall(r"(?m)^# exercise\.check\((\w+)\)$", text(name))
    return answer


@functools.cache
def load(name: str) -> Solution:
    """Run a solution file."""
    spec = importlib.util.spec_from_file_location(f"solutions.{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Solution(module.exercise, getattr(module, answer_name(name)), module)
