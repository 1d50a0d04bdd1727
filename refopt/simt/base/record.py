"""The types that Numba infers for expressions, and what it refuses, as its compiler gave them.

`numba.json`, which `benchmarks.numba_types` writes, has a table for each expression, such as ``a + b``, with A for an
array of elements of a's type. A table is a list of signatures and a grid: a letter, the number of the signature, for
each combination of the operands' types, the last of which changes fastest; a space where Numba refuses the operands.
A number before a letter repeats it. In a signature, = is a type that is not converted.
"""

from __future__ import annotations

import builtins
import cmath
import functools
import json
import math
import operator
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_name("numba.json")
NAMES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NAMES += ["float16", "float32", "float64", "complex64", "complex128"]
_REAL = NAMES[:12]  # the types of the operands of expressions with three
Signature = tuple[str, ...]
# Where the names of calls are found; `cuda` adds itself.
spaces: dict[str, Any] = {"cmath": cmath, "math": math, "np": np, "operator": operator}


@cache
def read() -> dict[str, Any]:
    """The record: the versions of the compiler, and a table for each expression."""
    return json.loads(PATH.read_text())


@cache
def signature(text: str, *names: str) -> Signature | None:
    """The types that the operands of an expression are converted to, and that of the result, commas between several.

    None if Numba refuses the operands.
    """
    table = _table(text)
    if table is None:
        return None
    signatures, grid = table
    known = NAMES if len(names) < 3 else _REAL
    place = 0
    for name in names:
        if name not in known:
            return None
        place = place * len(known) + known.index(name)
    if grid[place] == " ":
        return None
    *taken, result = signatures[_number(grid[place])].split()
    return (*(name if to == "=" else to for name, to in zip(names, taken, strict=True)), result)


@cache
def calls() -> dict[tuple[int, int], tuple[str, tuple[int, ...]]]:
    """The expressions that are calls, by the function's identity and the number of arguments.

    Each has the positions of the operands' arguments; the others are a mask or an index.
    """
    found = {}
    for text in read()["expressions"]:
        if (call := re.fullmatch(r"([a-z][\w.]*)\(([^()]*)\)", text)) and not text.startswith(("a.", "A.")):
            home, *names = call[1].split(".")
            function = spaces[home] if names else getattr(builtins, home)
            arguments = call[2].split(", ") if call[2] else []
            function = functools.reduce(lambda owner, name: getattr(owner, name, None), names, function)
            places = tuple(arguments.index(name) for name in "aAbc" if name in arguments)
            found[id(function), len(arguments)] = text, places
    return found


@cache
def counts() -> dict[int, list[int]]:
    """The numbers of arguments that functions take, by their identities."""
    found: dict[int, list[int]] = {}
    for function, count in calls():
        found.setdefault(function, []).append(count)
    return found


def accepted(text: str, *names: str) -> str:
    """The types that Numba accepts instead of one of an expression's operands."""
    for n in reversed(range(len(names))):
        if fit := [name for name in NAMES if signature(text, *names[:n], name, *names[n + 1 :])]:
            which = f"operand {n + 1}" if len(names) > 1 else "it"
            return f"convert {which}: {', '.join(fit)} {'is' if len(fit) == 1 else 'are'} compiled here"
    return "convert the operands to one type"


def result(text: str, *names: str) -> str | None:
    """The type of an expression's result."""
    found = signature(text, *names)
    return found[-1] if found else None


@cache
def _table(text: str) -> tuple[list[str], str] | None:
    if (table := read()["expressions"].get(text)) is None:
        return None
    signatures, grid = table
    return signatures, re.sub(r"(\d+)(\D)", lambda run: run[2] * int(run[1]), grid)


def has(text: str) -> bool:
    """Whether Numba has an expression for any operands."""
    return text in read()["expressions"]


def _number(letter: str) -> int:
    code = ord(letter)
    return code - (65 if code < 91 else 71 if code < 123 else 256 - 52)
