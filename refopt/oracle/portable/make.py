"""`vectors`: cases of one step of one tensor, each with values and bounds; and as JSON, with hexadecimal numbers."""

import importlib.resources
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import refopt
from refopt.catalog import Routine
from refopt.checks.arguments import chosen, kind_of, mapped, whole
from refopt.checks.dtypes import SIZES
from refopt.oracle import cases
from refopt.oracle.bound import sums
from refopt.oracle.bound.expected import Expected
from refopt.oracle.diagnosis.growth import require_schedule
from refopt.oracle.exact.cases import Case
from refopt.oracle.settings import all_chosen, settings_of
from refopt.oracle.variants import ROUTINES, added, row_for

NAME = "refopt.vectors/1"
SCHEMA: dict[str, Any] = json.loads((importlib.resources.files(__package__) / "schema.json").read_text("utf-8"))
SIZE, EXAMPLE = 17, 33  # elements
COUNTS = 1, 2, 3, 7, 60, 1000
HELD = "rounding", "norm_of"  # choices kept at their defaults: vectors have no stochastic rounding or masters


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


def vectors(
    routine: str, *, dtypes: Iterable[str] = ("float32", "float64"), set: Mapping[str, Any] | None = None,
    examples: int = 5, seed: int = 0,
) -> Vectors:
    """Test vectors of a routine: cases of one step of one tensor, for code in any language.

    Args:
        routine: a name of `refopt.catalog.KNOWN`.
        dtypes: of the parameter, the gradient and the states.
        set: numbers and choices of every case, by name, including those of variants.
        examples: how many further cases, with other data, each dtype has.
        seed: of the data.

    Raises:
        TypeError, ValueError: naming the argument.
        ModuleNotFoundError: ml_dtypes is not installed, for bfloat16.

    >>> made = vectors("sgd", dtypes=["float32"], examples=0)
    >>> case = made.cases[0]
    >>> case.name, case.numbers["lr"], case.expected["params"][0].shape
    ('step 1', 0.094024658203125, (17,))
    """
    settings = mapped("vectors: set", {} if set is None else set)
    row = row_for(chosen("vectors: routine", routine, ROUTINES), settings)
    fixed = settings_of("vectors", row, settings, apart=("seed", *HELD))
    require_schedule("vectors", row, fixed)
    tried = all_chosen("vectors: dtypes", dtypes, SIZES)
    more = whole("vectors: examples", examples, least=0)
    seed = whole("vectors: seed", seed, least=0)
    made = [_vector(*one) for dtype in tried for one in _cases(row, dtype, fixed, more, seed)]
    return Vectors(row.name, made, dtypes=tried, seed=seed)


def _cases(row: Routine, dtype: str, fixed: Mapping[str, Any], more: int, seed: int) -> Iterator[tuple[str, Case]]:
    """Cases with their names."""
    numbers = cases.numbers_of(row, lambda name: name not in added(row.name))
    numbers |= {name: x for name, x in fixed.items() if name in numbers}
    usual = cases.choices_of(row)
    usual |= {name: x for name, x in fixed.items() if name in usual or name in row.own}
    steps = tuple(slot.name for slot in row.slots if slot.optional and slot.scalar)
    states = cases.optional_states(row)

    def drawn(
        name: str, count: int, changed: Mapping[str, Any] = MappingProxyType({}), *, size: int = SIZE, k: int = 0,
        optional: tuple[str, ...] = (),
    ) -> tuple[str, Case]:
        choices = {x: changed.get(x, value) for x, value in usual.items()}
        own = {x: changed.get(x, value) for x, value in numbers.items()}
        case = cases.draw(
            row, [(3, size // 3) if row.matrix_arguments else (size,)], [cases.alike(dtype)], seed=seed + 1000 * k,
            numbers=own, choices=choices, optional=(*optional, *steps), count=count,
        )
        return name, case

    for count in COUNTS:
        yield drawn(f"step {count}", count)
    name, case = drawn("step 2, a gradient of zeros", 2)
    yield name, case.replace(grads=[np.zeros_like(x) for x in case.grads])
    for state in states:
        for count in (1, 2, 7):
            yield drawn(f"step {count} with {state}", count, optional=(state,))
    for choice, values in row.choices.items():
        for value in values if choice not in (*HELD, *fixed) else ():
            if value != usual[choice]:
                for count in (1, 7):
                    yield drawn(f"step {count}, {choice}={value}", count, {choice: value})
    for hyper in row.hypers:
        off = cases.NEUTRAL.get(hyper.name)
        if off not in (None, numbers[hyper.name]) and hyper.name not in fixed:
            yield drawn(f"step 3, {hyper.name}={off:g}", 3, {hyper.name: off})
    for k in range(1, more + 1):
        yield drawn(f"example {k}", 1 + 3 * k, size=EXAMPLE, k=k)


def _vector(name: str, case: Case) -> Vector:
    """A case with its expected results. The code under test may compute powers and the like itself."""
    arrays, numbers = case.tensor(0), case.numbers_of(0)
    expected = cases.expected_at(case.routine, arrays, numbers, case.choices, case.count, depth=sums.random_data)
    written = {slot: _bounded(x) for slot, x in expected.items()}
    kept = {slot: x for slot, x in arrays.items() if x is not None}
    shown_numbers = {x: float(value) for x, value in numbers.items() if x != "seed"}
    choices = {x: value for x, value in case.choices.items() if x not in HELD}
    return Vector(name, arrays["params"].dtype.name, case.count, shown_numbers, choices, kept, written)


def _bounded(expected: Expected) -> tuple[np.ndarray, np.ndarray]:
    """Values, and the largest error of right code, in fp64; infinity where there is no bound."""
    with np.errstate(all="ignore"):
        low, high = (np.asarray(x).astype(np.float64) for x in (expected.low, expected.high))
        ends = np.fmax(high - expected.value, expected.value - low)
        bound = np.fmax(expected.error, np.nan_to_num(ends, nan=0.0, posinf=np.inf)) + abs(expected.rest)
    finite = np.isfinite(expected.error) & np.isfinite(bound)
    return np.asarray(expected.value), np.where(finite, np.nextafter(bound, np.inf), np.inf)


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
