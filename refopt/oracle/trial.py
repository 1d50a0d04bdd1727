"""The basis of laws of a routine: the cases that a subject takes, and the bounds of their results."""

import collections
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks.dtypes import arithmetic
from refopt.oracle import cases
from refopt.oracle.bound import storage, sums
from refopt.oracle.bound.evaluate import rounded_off
from refopt.oracle.bound.expected import Expected, unchanged
from refopt.oracle.broken import Broken, Skipped, Where
from refopt.oracle.cases import Dtypes, alike
from refopt.oracle.exact.cases import Case, Outcome, memory
from refopt.oracle.observing import Seen, observe
from refopt.oracle.requiring import require_alike, require_rounded
from refopt.oracle.running import Running
from refopt.oracle.subject import Subject

FLUSHES = "flush_to_zero"  # a property that a step may declare
CACHED = 2**14  # the most bytes of a tensor's arrays whose expected results are cached, for other trials as well
_expectations: collections.OrderedDict[Any, dict[str, Expected]] = collections.OrderedDict()
MOST = 1024  # the most cached results
LARGEST = 5000  # the most elements of a matrix that replaces a vector
LARGE, EMPTY = (130, 136), (0, 3)  # replace larger matrices, and empty ones: rows / columns must be a number


class Trial(Running):
    """A subject, as a routine, in one dtype of its parameters.

    Attributes:
        fixed: numbers and choices that all cases have, by name.
        dtypes: those of parameters that may be in a list with its own.
        largest: by slot, the largest error over its bound so far, among arrays in the arithmetic type.
        rounded: numbers that the arithmetic rounds, as given.
        apart: by slot, the largest error over the bound without an allowance for that rounding.
        unbounded: how many elements have no bound.
        silent: written slots that the subject does not return.
        secret: the seed of data that no step can foresee.
        paths: functions of a library that have run.
    """

    def __init__(
        self, row: Routine, subject: Subject, dtype: str, seed: int, fixed: Mapping[str, Any],
        dtypes: Collection[str] = (), secret: int = 0, tolerance: float | None = None,
    ) -> None:
        super().__init__(subject, dtype, seed, tolerance=tolerance)
        self.row, self.fixed, self.dtypes = row, dict(fixed), tuple(dtypes)
        self.axes = 2 if row.matrix_arguments else 1
        self.real: Any = arithmetic(dtype)
        self.apart: dict[str, float] = {}
        self.rounded: dict[str, float] = {}
        self.silent: set[str] = set()
        self.secret = secret
        self.paths: dict[str, None] = {}
        self._flushes = bool(self.fixed.get(FLUSHES))

    def takes(self, *names: str) -> bool:
        return all(self.subject.takes(name) for name in names)

    def need(self, *names: str) -> None:
        """Skip the case if the subject has no argument for one of these."""
        for name in names:
            if not self.subject.takes(name):
                raise Skipped(f"takes no {name}", lacks=True)

    def numbers(self) -> dict[str, Any]:
        """The numbers of a step; those that the subject does not take have no effect, or the routine's default."""
        numbers = cases.numbers_of(self.row, self.subject.takes)
        return numbers | {name: x for name, x in self.fixed.items() if name in numbers}

    def choices(self) -> dict[str, Any]:
        first = cases.choices_of(self.row)
        return first | {name: x for name, x in self.fixed.items() if name in first}

    def kinds(self, dtype: str) -> Dtypes:
        """The default dtypes of a tensor's slots: the same for all, or what the subject declares."""
        return getattr(self.subject, "stores", alike)(dtype)

    def case(
        self, shapes: Sequence[Any], dtypes: Dtypes | Sequence[Dtypes] | None = None, *, count: int = 1,
        optional: Sequence[str] = (), seed: int = 0, choices: Mapping[str, Any] | None = None, **numbers: Any,
    ) -> Case:
        """A case of tensors of some shapes or sizes at step ``count``; skipped if the subject does not take it."""
        shapes = [self.case_shape(shape) for shape in shapes]
        types = dtypes or self.kinds(self.dtype)
        rows = [types] * len(shapes) if isinstance(types, Dtypes) else list(types)
        others = {name: x for name, x in (choices or {}).items() if x != self.choices()[name]}
        optional = list(dict.fromkeys([*optional, *getattr(self.subject, "always", ())]))
        self.need(*optional, *others, *numbers, *(["master_params"] if any(x.master for x in rows) else []))
        return cases.draw(
            self.row, shapes, rows, seed=self.seed + 1000 * seed, numbers=self.numbers() | numbers,
            choices=self.choices() | others, optional=optional, count=count,
        )

    def case_shape(self, shape: Any) -> tuple[int, ...]:
        """A shape with a number of elements; if it must be a matrix, one small enough to iterate."""
        if not self.row.matrix_arguments or (not isinstance(shape, int) and len(shape) == 2):
            return self.shape(shape)
        size = shape if isinstance(shape, int) else math.prod(shape)
        return LARGE if size > LARGEST else self.shape(size) if size else EMPTY

    def run(self, case: Case) -> Outcome:
        """Let the subject take a copy of a case. Whatever it raises breaks the law."""
        return self.run_in_place(case.copy())

    def run_in_place(self, case: Case) -> Outcome:
        """Let it take a case, whose arrays it may write."""
        shapes = {name: [None if x is None else (x.shape, x.dtype) for x in xs] for name, xs in case.lists().items()}
        got = self.tried(self.subject.run, case)
        self.silent = (self.silent | self._kept(case)) - got.keys()
        for name, values in got.items():
            for i, (x, known) in enumerate(zip(values, shapes[name], strict=True)):
                require_alike(f"{name}[{i}]", x, known)
        return got

    def observe(self, case: Case, rest: bool = False) -> Seen:
        """Observe its side effects on a copy of a case; with ``rest``, later ones as well."""
        there = getattr(self.subject, "observe", None)
        if there is not None:
            return self.tried(there, case.copy(), rest)
        return self.tried(observe, self.subject, case.copy(), None, rest)

    def _kept(self, case: Case) -> set[str]:
        """The slots of a case that a subject must return."""
        kept = [slot.name for slot in self.row.slots if slot.written and not (slot.scalar and slot.optional)]
        return {name for name in kept if case.slots[name] is not None}

    def expected(self, case: Case, i: int, depth: sums.Depth, leasts: int = 1) -> dict[str, Expected]:
        """The expected results for one tensor of a case of one step."""
        arrays, numbers, choices = case.tensor(i), case.numbers_of(i), case.choices
        flag = case.steps[0].get("found_inf")
        if arrays["grads"] is None or (flag is not None and flag[0] != 0):
            return unchanged(self.row, arrays)
        key = None
        if sum(x.nbytes for x in arrays.values() if x is not None) <= CACHED:
            bits = ((n, x.dtype.name, x.shape, x.strides, x.tobytes()) for n, x in arrays.items() if x is not None)
            exact = ((name, repr(x)) for name, x in numbers.items())  # repr distinguishes 0.0 and -0.0
            key = (self.row, *bits, *exact, *choices.items(), case.count, depth, leasts, self._flushes)
            if key in _expectations:
                self._note_rounded(numbers, arrays)
                _expectations.move_to_end(key)
                return _expectations[key]
        expected = self.expected_of_arrays(case, i, arrays, depth, leasts)
        if key:
            _expectations[key] = expected
            if len(_expectations) > MOST:
                _expectations.popitem(last=False)
        return expected

    def _note_rounded(self, numbers: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Note the numbers that the arithmetic of a tensor's arrays rounds."""
        real = arithmetic(arrays["params"].dtype.name)
        self.rounded |= {name: float(numbers[name]) for name in rounded_off(numbers, real)}

    def expected_of_arrays(
        self, case: Case, i: int, arrays: Mapping[str, Any], depth: sums.Depth, leasts: int = 1
    ) -> dict[str, Expected]:
        """The same with other arrays instead of the tensor's, such as some of its elements."""
        numbers = case.numbers_of(i)
        self._note_rounded(numbers, arrays)
        return cases.expected_at(
            self.row, arrays, numbers, case.choices, case.count, depth=depth, flushes=self._flushes, leasts=leasts
        )

    def hold(
        self, case: Case, got: Outcome | None = None, *, depth: sums.Depth = sums.random_data,
        measured: bool = True, leasts: int = 1,
    ) -> Outcome:
        """Check the subject's results of a case of one step; raises `Broken` with the element worst over its bound.

        Args:
            case: of one step.
            got: the results, if known.
            depth: by how much a sum may be off.
            leasts: by how many smallest subnormal numbers an operation may be off.
            measured: whether the largest error over its bound enters the report.
        """
        got = self.run(case) if got is None else got
        worst: Broken | None = None
        # Compared arrays, since long lists repeat tensors; keeping references keeps their ids unique.
        right: dict[tuple[int, str, bytes], dict[str, Expected]] = {}
        for i in range(len(case)):
            of_tensor = self.expected(case, i, depth, leasts)
            for name, expected in of_tensor.items():
                if (actual := self._of(got, name, i)) is None:
                    continue
                same = (id(of_tensor), name, actual.tobytes()) if actual.nbytes <= CACHED else None
                if same in right:
                    self.compared += actual.size
                    continue
                broken = self._compare(name, i, expected, actual, measured)
                if broken and (worst is None or (broken.ratio or 0) > (worst.ratio or 0)):
                    worst = broken
                if same and not broken:
                    right[same] = of_tensor
        if worst is not None and getattr(self.subject, "replaced", False):
            worst.args = (f"{worst}; the arrays in the lists were replaced, expected them to be written",)
        if worst is not None:
            raise worst
        for i in range(len(case)):
            require_rounded(case, got, i)
        return got

    def _of(self, got: Outcome, name: str, i: int) -> Any:
        if name == "exact_params":
            both = got.get("params"), got.get("master_params")
            return storage.joined(both[0][i], both[1][i]) if both[0] and both[1] else None
        return got[name][i] if name in got else None

    def _compare(self, name: str, i: int, expected: Expected, got: np.ndarray, measured: bool) -> Broken | None:
        ratios = np.ravel(memory(expected.ratio(got))) if got.size else np.zeros(0)
        bounded = ~np.isnan(ratios)
        self.compared += int(bounded.sum())
        self.unbounded += int(ratios.size - bounded.sum())
        if not bounded.any():
            return None
        largest = float(np.nanmax(ratios))
        if measured and got.dtype == self.real and name not in self.row.scalars:
            self.largest[name] = max(self.largest.get(name, 0.0), largest)
            if expected.inputs.any() and largest <= 1:
                self._without_inputs(name, expected, got)
        if largest <= 1:
            return None
        k = int(np.nanargmax(ratios))
        value, error, number = (float(np.ravel(memory(x))[k]) for x in (expected.value, expected.error, got))
        text = f"{name}[{i}], element {k} of {got.size}: expected {value!r} within {error:.2g}, got {number!r}"
        return Broken(text, largest, Where(name, i, k, value, error, number, ratios > 1))

    def _without_inputs(self, name: str, expected: Expected, got: np.ndarray) -> None:
        """Record the error over the bound for code that rounds its numbers."""
        off = abs((got.astype(np.float64) - expected.value) - expected.rest)
        with np.errstate(all="ignore"):
            ratio = np.nanmax(np.where(off == 0, 0.0, off / (expected.error - expected.inputs)))
        self.apart[name] = max(self.apart.get(name, 0.0), float(ratio))
