"""The jobs of examples/ci, which docs/maintainers.md is about: their commands, and what they expect to fail."""

import re
import shlex
from pathlib import Path

from benchmarks.record import ROOT

FOLDER = ROOT / "examples" / "ci"
COMMAND = re.compile(r"(?m)^ +(?:- run: )?(refopt check .*)$")
LINE = re.compile(r"(?m)^([LR]\d+)(?:-\w+)? # ")
MATRIX = "${{ matrix.how }}", ("fused", "foreach")
SEED = "${{ github.run_number }}"


def commands(name: str) -> list[str]:
    """What the jobs of a workflow run of refopt, one line for each value of a matrix."""
    lines = COMMAND.findall((FOLDER / name).read_text())
    expanded = [line.replace(MATRIX[0], how) for line in lines for how in (MATRIX[1] if MATRIX[0] in line else ("",))]
    return [line.replace(SEED, "7") for line in expanded]


def option(command: str, name: str) -> str | None:
    """The value of an option of a command; ``None`` without it."""
    words = shlex.split(command)
    return words[words.index(name) + 1] if name in words else None


def expected(command: str) -> list[str]:
    """The laws that a command expects to fail, by its file."""
    file = option(command, "--expected-failures")
    return LINE.findall((FOLDER / Path(file).name).read_text()) if file else []
