"""An optimizer under trial in one dtype: its cases, if there is a formula, its runs, and comparisons of results."""

import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.catalog import Hyper, Routine
from refopt.checks.arguments import kind_of
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.oracle import cases
from refopt.oracle.bound import storage, sums
from refopt.oracle.bound.expected import Expected
from refopt.oracle.broken import Broken, Crashed, Misconduct, Skipped, Where, require_alike, require_rounded
from refopt.oracle.cases import Dtypes
from refopt.oracle.differing import equal, largest, told, wide
from refopt.oracle.exact.cases import Case, Outcome, memory
from refopt.oracle.formula import CACHED, Formula
from refopt.oracle.long import long_step
from refopt.oracle.memory import Placed, dense, soiled
from refopt.oracle.observing import Seen, observe
from refopt.oracle.running import MOST, Data, by_slot, in_few_bits, measured, why_not
from refopt.oracle.subject import Ended, Lacks, Run, Wrong
from refopt.oracle.ulp import distance

FLUSHES = "flush_to_zero"  # a property that a step may declare
STEPS = 3
LARGEST = 5000  # the most elements of a matrix that replaces a vector
LARGE, EMPTY = (130, 136), (0, 3)  # replace larger matrices, and empty ones: rows / columns must be a number
WITH_GROUPS = 64, 128  # a tensor that is large enough to have its states in few bits
ZEROS = "cannot be given states in few bits: it starts from its own"
NONE_FOUND = "no state was found in 8 bits"
NO_ERROR, LONGEST = "expected no error", 300  # the most characters of an error that a step raises


class Trial:
    """A subject in one dtype of its parameters.

    Attributes:
        row: the routine that it is checked against; ``None`` for none.
        subject: the `Subject`.
        why_not: why it cannot be run; empty if it can.
        recompiled: whether it may compute another list of tensors in another order.
        dtype: of the parameters, and of the gradients of runs.
        seed: of all data.
        fixed: numbers and choices that all cases have, by name.
        dtypes: those of parameters that may be in a list with its own.
        secret: the seed of data that no step can foresee.
        examples: how many cases of the step are drawn at random.
        given: the declared tolerance of runs, relative to a tensor's largest change; ``None`` to measure it.
        exact: whether results of runs must agree bit for bit wherever they are compared.
        coded: whether states are in few bits, so that cases cannot set them.
        found: whether some are, of an optimizer that is to have them in 8; known after `settle`.
        axes: how many axes tensors have at least.
        compared: how many elements were compared.
        off: by law, the largest distance in ULPs of results that are within the tolerance but differ in their bits.
        largest: by slot, the largest error over its bound so far, among arrays in the arithmetic type.
        unbounded: how many elements have no bound.
        groups: how many elements a large gradient of one affects.
        silent: written slots that the subject does not return.
        paths: functions of a library that have run.
    """

    def __init__(
        self, row: Routine | None, subject: Any, dtype: str, seed: int, fixed: Mapping[str, Any] | None = None,
        dtypes: Collection[str] = (), secret: int = 0, tolerance: float | None = None, exact: bool = False,
        coded: bool = False, examples: int = 0,
    ) -> None:
        self.row: Any = row
        self.subject, self.dtype, self.seed, self.exact, self.given = subject, dtype, seed, exact, tolerance
        self.fixed, self.dtypes, self.secret = dict(fixed or {}), tuple(dtypes), secret
        self.coded, self.found, self.examples = coded, True, examples
        self.why_not = why_not(subject)
        self.recompiled = bool(getattr(subject, "recompiled", False))
        self.stored, self.real = numpy_dtype(dtype), arithmetic(dtype)
        self.eps = 2.0 ** -{"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[dtype]
        self.compared = self.unbounded = self.groups = 0
        self.largest: dict[str, float] = {}
        self.off: dict[str, int] = {}
        self.silent: set[str] = set()
        self.paths: dict[str, None] = {}
        self.law, self.settled = "", False
        self.axes = 2 if row is not None and row.matrix_arguments else 1
        self._tolerance: dict[str, float] | None = None
        if row is not None:
            formula = Formula(row, bool(self.fixed.get(FLUSHES)))
            self.expected, self.expected_of_arrays = formula.expected, formula.of_arrays
            self.rounded = formula.rounded

    def takes(self, *names: str) -> bool:
        return all(self.subject.takes(name) for name in names)

    def need(self, *names: str) -> None:
        """Skip the case if the subject has no argument for one of these."""
        for name in names:
            if not self.subject.takes(name):
                raise Skipped(f"takes no {name}", lacks=True)

    def numbers(self, number: Callable[[Hyper], Any] = cases.number) -> dict[str, Any]:
        """The numbers of a step; those that the subject does not take have no effect, or the routine's default."""
        numbers = cases.numbers_of(self.row, self.subject.takes, number)
        return numbers | {name: x for name, x in self.fixed.items() if name in numbers}

    def choices(self) -> dict[str, Any]:
        first = cases.choices_of(self.row)
        return first | {name: x for name, x in self.fixed.items() if name in first or name in self.row.own}

    def kinds(self, dtype: str) -> Dtypes:
        """The default dtypes of a tensor's slots: the same for all, or what the subject declares."""
        return getattr(self.subject, "stores", cases.alike)(dtype)

    def shape(self, size: Any) -> tuple[int, ...]:
        """A shape with a number of elements; if it must be a matrix, one small enough to iterate."""
        if not isinstance(size, int):
            return tuple(size)
        if self.axes == 1:
            return (size,)
        rows = next((k for k in range(math.isqrt(size), 0, -1) if size % k == 0), 1)
        return LARGE if size > LARGEST else (rows, size // rows) if size else EMPTY

    def shapes(self, sizes: Sequence[Any]) -> list[tuple[int, ...]]:
        """The shapes for some sizes, as far as the optimizer takes them in runs."""
        shapes = [self.shape(size) for size in sizes]
        return [shape for shape in shapes if self.axes == 1 or len(shape) == self.axes]

    def case(
        self, shapes: Sequence[Any], dtypes: Dtypes | Sequence[Dtypes] | None = None, *, count: int = 1,
        optional: Sequence[str] = (), seed: int = 0, choices: Mapping[str, Any] | None = None, **numbers: Any,
    ) -> Case:
        """A case of tensors of some shapes or sizes at step ``count``; skipped if the subject does not take it."""
        if self.coded and count > 1:
            raise Skipped(ZEROS, lacks=True)
        flat = [x for x in shapes if self.row.matrix_arguments and not isinstance(x, int) and len(x) != 2]
        shapes = [self.shape(math.prod(x) if x in flat else x) for x in shapes]
        types = dtypes or self.kinds(self.dtype)
        rows = [types] * len(shapes) if isinstance(types, Dtypes) else list(types)
        others = {name: x for name, x in (choices or {}).items() if x != self.choices()[name]}
        optional = list(dict.fromkeys([*optional, *getattr(self.subject, "always", ())]))
        self.need(*optional, *others, *numbers, *(["master_params"] if any(x.master for x in rows) else []))
        return cases.draw(
            self.row, shapes, rows, seed=self.seed + 1000 * seed, numbers=self.numbers() | numbers,
            choices=self.choices() | others, optional=optional, count=count,
        )

    def data(self, sizes: Sequence[Any], steps: int = STEPS) -> Data:
        """The data of runs, of tensors in shapes that the optimizer takes; like a case's, they repeat in long lists."""
        shapes = self.shapes(sizes)

        def drawn(step: int) -> list[np.ndarray]:
            seeds = [[self.seed, step, k % cases.PATTERNS] for k in range(len(shapes))]
            return [cases.noise(*of).astype(self.stored) for of in zip(seeds, shapes, strict=True)]

        params, *grads = map(drawn, range(steps + 1))
        return Data(params, grads)

    def tried(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that runs the step. Whatever it raises breaks the law."""
        try:
            with np.errstate(all="ignore"):
                return function(*arguments)
        except Lacks as error:
            raise Skipped(str(error), lacks=True) from None
        except NotImplementedError as error:
            raise Skipped(str(error) or "raised NotImplementedError") from None
        except KeyboardInterrupt:
            raise
        except Ended as error:
            raise Crashed(f"{self.subject.name}: expected a step that returns, got {error}") from None
        except Wrong as error:
            raise Misconduct(f"{self.subject.name}: {error}") from None
        except BaseException as error:  # a step may call sys.exit, or raise an error of another language
            text = textwrap.shorten(f"{kind_of(error)}: {error}", LONGEST, placeholder=" ...")
            raise Misconduct(f"{self.subject.name}: {NO_ERROR}, got {text}") from error

    def run(self, of: Case | Data, apart: bool = False) -> Outcome:
        """The results of a copy of a case, or of a run; with ``apart``, each tensor has a group."""
        if isinstance(of, Case):
            return self.run_in_place(of.copy())
        return self.outcome(self.begun(of, apart=apart))

    def run_in_place(self, case: Case) -> Outcome:
        """Let it take a case, whose arrays it may write."""
        if self.coded and (case.count > 1 or len(case.steps) > 1):
            raise Skipped(ZEROS, lacks=True)
        shapes = {name: [None if x is None else (x.shape, x.dtype) for x in xs] for name, xs in case.lists().items()}
        got = self.tried(self.subject.run, case)
        kept = [slot.name for slot in self.row.slots if slot.written and not (slot.scalar and slot.optional)]
        self.silent = (self.silent | {name for name in kept if case.slots[name] is not None}) - got.keys()
        for name, values in got.items():
            for i, (x, known) in enumerate(zip(values, shapes[name], strict=True)):
                require_alike(f"{name}[{i}]", x, known)
        return got

    def observe(self, case: Case, rest: bool = False) -> Seen:
        """Observe its side effects on a copy of a case; with ``rest``, later ones as well."""
        there = getattr(self.subject, "observe", partial(observe, self.subject))
        return self.tried(partial(there, case.copy(), rest=rest))

    def long_step(self, case: Case) -> Outcome:
        """The results of some elements of a long tensor."""
        there = getattr(self.subject, "long_step", partial(long_step, self.subject))
        return self.tried(there, case.copy())

    def start(self, params: Sequence[Any], saved: Any = None, apart: bool = False) -> Run:
        """Start a run; skipped if none can be made."""
        if self.why_not:
            raise Skipped(self.why_not)
        return self.tried(self.subject.start, [self.placed(x) for x in params], saved, apart)

    def begun(self, data: Data, steps: int | None = None, apart: bool = False, **how: Any) -> Run:
        """A run after all steps of its data, or some, each taken as `step` takes it."""
        run = self.start(data.params, apart=apart)
        for grads in data.grads[:steps]:
            self.step(run, grads, **how)
        return run

    def placed(self, x: Any) -> Placed:
        return x if isinstance(x, Placed) else dense(x)

    def step(self, run: Run, grads: Sequence[Any], found_inf: float | None = None, refill: bool = False) -> None:
        same = {id(x): self.placed(x) for x in grads if x is not None}
        self.tried(run.step, [None if x is None else same[id(x)] for x in grads], found_inf, refill)

    def soil(self, shapes: Sequence[tuple[int, ...]], k: int) -> None:
        """Leave numbers in freed memory of the process that runs the steps."""
        there = getattr(self.subject, "soil", None)
        if there is None:
            soiled(shapes, self.stored, k)
        else:
            self.tried(there, shapes, self.dtype, k)

    def outcome(self, run: Run) -> Outcome:
        """The parameters and states of a run."""
        return self.tried(lambda: by_slot(run.params(), run.states()))

    def settle(self) -> None:
        """Find how many axes tensors need, or why no step can be taken."""
        if self.settled or self.why_not:
            return
        self.settled, told = True, []
        usual = self.axes
        for axes in (1, 2)[usual - 1 :]:
            self.axes = axes
            data = self.data([45, 300], 2)
            try:
                came = self.run(data)["params"]
                self.found = not self.coded or in_few_bits(self.subject, self.run(self.data([WITH_GROUPS], 1)))
            except Crashed as error:  # trying other shapes would only hide it
                self.why_not = str(error)
                return
            except (Skipped, Broken) as error:
                told.append(str(error))
                continue
            if all(x.tobytes() == y.tobytes() for x, y in zip(data.params, came, strict=True)):
                told.append("two steps change no parameter")
            elif not all(np.isfinite(x.astype(np.float64)).all() for x in came):
                told.append("two steps of finite gradients leave parameters that are not finite")
            else:
                return
        self.axes, self.why_not = usual, told[0]

    def came(self, of: Case | Data) -> Outcome:
        """The results, within the bound if the list of a case may be compiled in another way."""
        return self.hold(of) if self.recompiled else self.run(of)

    def hold(
        self, of: Case | Data, got: Outcome | None = None, *, depth: sums.Depth = sums.random_data,
        measured: bool = True, leasts: int = 1,
    ) -> Outcome:
        """Check the results of a case of one step; raises `Broken` with the element worst over its bound.

        Args:
            of: a case; or the data of a run, which has no formula, so that its results are only returned.
            got: the results, if known.
            depth: by how much a sum may be off.
            leasts: by how many smallest subnormal numbers an operation may be off.
            measured: whether the largest error over its bound enters the report.
        """
        if isinstance(of, Data):
            return self.run(of)
        got = self.run(of) if got is None else got
        worst: Broken | None = None
        # Compared arrays, since long lists repeat tensors; keeping references keeps their ids unique.
        right: dict[tuple[int, str, bytes], dict[str, Expected]] = {}
        for i in range(len(of)):
            of_tensor = self.expected(of, i, depth, leasts)
            for name, expected in of_tensor.items():
                if (actual := _of(got, name, i)) is None:
                    continue
                same = (id(of_tensor), name, actual.tobytes()) if actual.nbytes <= CACHED else None
                if same in right:
                    self.compared += actual.size
                    continue
                room = largest(wide(expected.value) - wide(of.params[i])) * (self.given or 0) if self.coded else 0.0
                broken = self._compare(name, i, expected, actual, measured, room)
                if broken and (worst is None or (broken.ratio or 0) > (worst.ratio or 0)):
                    worst = broken
                if same and not broken:
                    right[same] = of_tensor
        if worst is not None:
            if getattr(self.subject, "replaced", False):
                worst.args = (f"{worst}; the arrays in the lists were replaced, expected them to be written",)
            raise worst
        for i in range(len(of)):
            require_rounded(of, got, i)
        return got

    def _compare(
        self, name: str, i: int, expected: Expected, got: np.ndarray, measured: bool, room: float
    ) -> Broken | None:
        ratios = np.ravel(memory(expected.ratio(got))) if got.size else np.zeros(0)
        if room:  # declared, such as that of codes that the step starts from
            ratios = np.where(abs(memory(wide(got) - wide(expected.value))) <= room, np.minimum(ratios, 1), ratios)
        bounded = ~np.isnan(ratios)
        self.compared += int(bounded.sum())
        self.unbounded += int(ratios.size - bounded.sum())
        if not bounded.any():
            return None
        largest = float(np.nanmax(ratios))
        if measured and got.dtype == self.real and name not in self.row.scalars:
            self.largest[name] = max(self.largest.get(name, 0.0), largest)
        if largest <= 1:
            return None
        k = int(np.nanargmax(ratios))
        value, error, number = (float(np.ravel(memory(x))[k]) for x in (expected.value, expected.error, got))
        text = f"{name}[{i}], element {k} of {got.size}: expected {value!r} within {error:.2g}, got {number!r}"
        return Broken(text, largest, Where(name, i, k, value, error, number, ratios > 1))

    def same(self, expected: Outcome, got: Outcome, what: str, of: Case | Data | None = None, at: int = 0) -> None:
        """Raise `Broken` unless the results of the same tensors have equal bits.

        If they may be computed in another order, of the data of runs, they must be within the tolerance; those of a
        case whose list is compiled are within the bound.

        Args:
            expected, got: the results; where one lacks a slot or an array, nothing is compared.
            what: describes ``expected`` in the message.
            of: the case or the data, with the parameters before the steps, if another order is allowed.
            at: the index of their first tensor in ``of``.
        """
        of_case = isinstance(of, Case)
        if of_case and self.recompiled:
            return
        apart = self.coded and of is not None  # then codes may be of other groups
        for name in [x for x in expected if x in got and (x == "params" or not apart)]:
            for i, (x, y) in enumerate(zip(expected[name], got[name], strict=True), at):
                if x is None or y is None:
                    continue
                if of_case or of is None:
                    self.alike(name, i, x, y, what)
                    continue
                first = wide(np.asarray(of.params[i])) if name == "params" else 0.0
                with np.errstate(invalid="ignore"):
                    self.alike(name, i, x, y, what, largest(wide(x) - first))

    def alike(self, slot: str, i: int, x: Any, y: Any, what: str, scale: float | None = None) -> None:
        """The same for two arrays: with equal bits, or within the tolerance relative to ``scale``."""
        x, y = np.asarray(x), np.asarray(y)
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            expected = f"expected an array of {x.dtype} of shape {x.shape}, {what}"
            raise Misconduct(f"{slot}[{i}]: {expected}, got one of {y.dtype} of shape {y.shape}")
        self.compared += x.size
        x, y = memory(x), memory(y)
        differ = ~equal(x, y)
        if differ.any() and scale is not None and not self.exact:
            differ = self._far(slot, x, y, differ, scale)
        if differ.any():
            k = int(np.argmax(differ))
            where = Where(slot, i, k, float(x[k]), 0.0, float(y[k]), differ)
            raise Broken(f"{slot}[{i}], {told(x, y, differ, what)}", None, where)

    def _far(self, slot: str, x: np.ndarray, y: np.ndarray, differ: np.ndarray, scale: float) -> np.ndarray:
        """Which of the elements that differ are not within the tolerance."""
        if x.dtype.kind in "iub":  # codes, such as 8-bit states: only their effect is compared
            return np.zeros_like(differ)
        room = self.tolerance(slot) * scale + 2 * self.eps * largest(wide(x))
        with np.errstate(all="ignore"):
            off = abs(wide(x) - wide(y))
            # NaN for infinity may come from another order of a sum; NaN for a number may not.
            lost = (np.isnan(wide(x)) & ~np.isfinite(wide(y))) | (np.isnan(wide(y)) & ~np.isfinite(wide(x)))
        far = differ & ~(off <= room) & ~lost
        if not far.any() and x.dtype == self.stored:
            self.off[self.law] = max(self.off.get(self.law, 0), int(distance(x[differ], y[differ]).max()))
        return far

    def tolerance(self, slot: str) -> float:
        """How much parameters or a state may differ in runs, relative to a tensor's largest change."""
        if self.given is not None:
            return self.given
        if self.coded and self.law == "L4":  # groups may follow the order in memory
            return MOST
        if self._tolerance is None:
            self._tolerance = measured(self)
        return self._tolerance.get(slot, 0.0)


def _of(got: Outcome, name: str, i: int) -> Any:
    """An array of an outcome; what a remainder and its parameter are together."""
    if name == "exact_params":
        both = got.get("params"), got.get("master_params")
        return storage.joined(both[0][i], both[1][i]) if both[0] and both[1] else None
    return got[name][i] if name in got else None
