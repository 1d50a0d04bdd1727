"""Test vectors as JSON, whose numbers are text in hexadecimal."""

import importlib.resources
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import refopt
from refopt.checks.arguments import kind_of

NAME = "refopt.vectors/1"
SCHEMA: dict[str, Any] = json.loads((importlib.resources.files(__package__) / "schema.json").read_text("utf-8"))


class Vector(NamedTuple):
    """A case: one step of one tensor.

    Attributes:
        step: its number, from 1.
        numbers, choices: by refopt's names.
        inputs: the arrays before the step, by slot.
        expected: values after it, and the largest error of right code, in fp64; infinity where there is no bound.
    """

    name: str
    dtype: str
    step: int
    numbers: Mapping[str, float]
    choices: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, tuple[np.ndarray, np.ndarray]]


class Vectors:
    """The result of `refopt.oracle.portable.vectors`: ``cases`` is a list of `Vector`."""

    def __init__(self, routine: str, cases: Sequence[Vector], *, dtypes: Sequence[str], seed: int) -> None:
        self.routine, self.cases, self.dtypes, self.seed = routine, list(cases), list(dtypes), seed

    def to_json(self) -> str:
        """As JSON text, a line for each case; every number is hexadecimal text, so that none is rounded."""
        fields = {
            "schema": NAME, "refopt": refopt.__version__, "routine": self.routine, "dtypes": self.dtypes,
            "seed": self.seed,
        }
        head = json.dumps(fields, indent=1).removesuffix("\n}")
        lines = ",\n".join("  " + json.dumps(_fields(case)) for case in self.cases)
        return f'{head},\n "cases": [\n{lines}\n ]\n}}\n'

    def __repr__(self) -> str:
        return f"<Vectors: {self.routine}, {len(self.cases)} cases of {', '.join(self.dtypes) or kind_of(None)}>"


def _fields(case: Vector) -> dict[str, Any]:
    own = {"name": case.name, "dtype": case.dtype, "step": case.step, "size": int(case.inputs["params"].size)}
    expected = {
        slot: {"value": _listed(value), "bound": _listed(bound)} for slot, (value, bound) in case.expected.items()
    }
    return own | {
        "numbers": {name: _hex(x) for name, x in case.numbers.items()},
        "choices": dict(case.choices),
        "inputs": {slot: _listed(x) for slot, x in case.inputs.items()},
        "expected": expected,
    }


def _listed(x: np.ndarray) -> list[str]:
    return [_hex(float(value)) for value in np.ravel(x)]


def _hex(x: float) -> str:
    """A number in the format of C's ``%a`` and ``strtod``."""
    return x.hex() if math.isfinite(x) else str(x)
