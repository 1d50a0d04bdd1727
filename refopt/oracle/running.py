"""The basis of laws without a formula: data, runs, and comparisons of the results of two runs."""

import contextlib
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.broken import Broken, Crashed, Misconduct, Skipped
from refopt.oracle.cases import noise
from refopt.oracle.differing import equal, largest, told, wide
from refopt.oracle.memory import Placed, dense, soiled
from refopt.oracle.subject import Ended, Lacks, Run, Wrong
from refopt.oracle.ulp import distance

STEPS = 3
SMALL = 2.0**-16  # a relative change of the data, whose effect shows that of rounding
ROOM = 16  # the tolerance is this multiple of that effect
MOST = 0.25  # the largest tolerance, whatever is measured
NO_ERROR, LONGEST = "expected no error", 300  # the most characters of an error that a step raises


class Outcome(NamedTuple):
    """The parameters and states after a run."""

    params: list[np.ndarray]
    states: list[dict[str, np.ndarray]]


class Running:
    """An optimizer in one dtype.

    Attributes:
        row: the routine that it is checked against; ``None`` for none.
        subject: the subject of the check.
        optimizer: makes its runs.
        why_not: why it cannot be run; empty if it can.
        dtype: of the parameters and gradients.
        seed: of all data.
        exact: whether results must agree bit for bit wherever they are compared.
        given: the declared tolerance, relative to a tensor's largest change; ``None`` to measure it.
        compared: how many elements were compared.
        off: by law, the largest distance in ULPs of results that are within the tolerance but differ in their bits.
        axes: how many axes tensors have at least.
        largest, unbounded: as in `trial.Trial`; empty without a routine.
    """

    row: Any = None

    def __init__(
        self, subject: Any, dtype: str, seed: int, *, exact: bool = False, tolerance: float | None = None
    ) -> None:
        self.subject, self.dtype, self.seed, self.exact, self.given = subject, dtype, seed, exact, tolerance
        self.optimizer, self.why_not = optimizer_in(subject)
        self.stored: Any = numpy_dtype(dtype)
        self.eps = 2.0 ** -{"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[dtype]
        self.compared = self.unbounded = 0
        self.largest: dict[str, float] = {}
        self.off: dict[str, int] = {}
        self.law = ""
        self.axes = 1
        self.settled = False
        self._tolerance: dict[str, float] | None = None
        self._data: dict[tuple, np.ndarray] = {}

    def shape(self, size: Any) -> tuple[int, ...]:
        """A shape with a number of elements, with as many axes as the optimizer needs."""
        if not isinstance(size, int):
            return tuple(size)
        if self.axes == 1:
            return (size,)
        rows = next((k for k in range(math.isqrt(max(size, 1)), 0, -1) if size % k == 0), 1)
        return rows, size // rows

    def shapes(self, sizes: Sequence[Any]) -> list[tuple[int, ...]]:
        """The shapes for some sizes, as far as the optimizer takes them."""
        shapes = [self.shape(size) for size in sizes]
        return [shape for shape in shapes if self.axes == 1 or len(shape) == self.axes]

    def params(self, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        return [self.data(0, k, shape) for k, shape in enumerate(shapes)]

    def grads(self, shapes: Sequence[tuple[int, ...]], step: int) -> list[np.ndarray]:
        return [self.data(step, k, shape) for k, shape in enumerate(shapes)]

    def data(self, step: int, k: int, shape: tuple[int, ...]) -> np.ndarray:
        """Tensor ``k`` of the parameters (step 0) or of the gradients of a step; callers must not write it."""
        key = step, k, shape
        if key not in self._data:
            self._data[key] = noise([self.seed, step, k], shape).astype(self.stored)
        return self._data[key]

    def start(self, params: Sequence[Any], saved: Any = None, apart: bool = False) -> Run:
        """Start a run; any error except NotImplementedError breaks the law."""
        placed = [self.placed(x) for x in params]
        return self.tried(self.optimizer.start, placed, saved, apart)

    def placed(self, x: Any) -> Placed:
        return x if isinstance(x, Placed) else dense(x)

    def step(self, run: Run, grads: Sequence[Any], found_inf: float | None = None, refill: bool = False) -> None:
        same = {id(x): self.placed(x) for x in grads if x is not None}
        self.tried(run.step, [None if x is None else same[id(x)] for x in grads], found_inf, refill)

    def save(self, run: Run) -> Any:
        return self.tried(run.save)

    def slow(self, run: Run, group: int | None = None) -> None:
        self.tried(run.slow, group)

    def soil(self, shapes: Sequence[tuple[int, ...]], k: int) -> None:
        """Leave numbers in freed memory of the process that runs the steps."""
        there = getattr(self.optimizer, "soil", None)
        if there is None:
            soiled(shapes, self.stored, k)
        else:
            self.tried(there, shapes, self.dtype, k)

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

    def settle(self) -> None:
        """Find how many axes tensors need, or why no step can be taken."""
        if self.settled or self.why_not:
            return
        self.settled, told = True, []
        usual = self.axes
        for axes in (1, 2)[usual - 1 :]:
            self.axes = axes
            shapes = self.shapes([45, 300])
            params = self.params(shapes)
            try:
                came = self.after(params, self.steps(shapes, 2))
            except Crashed as error:  # trying other shapes would only hide it
                self.why_not = str(error)
                return
            except (Skipped, Broken) as error:
                told.append(str(error))
                continue
            if all(x.tobytes() == y.tobytes() for x, y in zip(params, came.params, strict=True)):
                told.append("two steps change no parameter")
            elif not all(np.isfinite(x.astype(np.float64)).all() for x in came.params):
                told.append("two steps of finite gradients leave parameters that are not finite")
            else:
                return
        self.axes, self.why_not = usual, told[0]

    def outcome(self, run: Run) -> Outcome:
        return self.tried(lambda: Outcome(run.params(), run.states()))

    def after(self, params: Sequence[Any], grads: Sequence[Sequence[Any]], apart: bool = False) -> Outcome:
        """The results of steps with some gradients."""
        run = self.start(params, apart=apart)
        for of_step in grads:
            self.step(run, of_step)
        return self.outcome(run)

    def steps(self, shapes: Sequence[tuple[int, ...]], count: int = STEPS) -> list[list[np.ndarray]]:
        """The gradients of some steps."""
        return [self.grads(shapes, t) for t in range(1, count + 1)]

    def made(self, sizes: Sequence[Any], count: int = STEPS) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
        """Parameters in shapes that the optimizer takes, and the gradients of some steps."""
        shapes = self.shapes(sizes)
        return self.params(shapes), self.steps(shapes, count)

    def same(
        self, expected: Outcome, got: Outcome, what: str, first: Sequence[np.ndarray], bits: bool = False, at: int = 0
    ) -> None:
        """Raise `Broken` unless two runs have equal results: the same bits, or within the tolerance.

        Args:
            expected, got: results for the same tensors.
            what: describes ``expected`` in the message.
            first: the parameters before the steps.
            bits: whether the results must agree bit for bit.
            at: the index of their first tensor.
        """
        for i, (x, y) in enumerate(zip(expected.params, got.params, strict=True)):
            with np.errstate(invalid="ignore"):
                change = largest(wide(x) - wide(np.asarray(first[i])))
            self.alike(f"params[{at + i}]", "params", x, y, change, what, bits)
        for i, (of, other) in enumerate(zip(expected.states, got.states, strict=True)):
            for name in [x for x in of if x in other]:
                self.alike(f"{name}[{at + i}]", name, of[name], other[name], largest(wide(of[name])), what, bits)

    def alike(self, where: str, slot: str, x: Any, y: Any, scale: float, what: str, bits: bool) -> None:
        """The same for two arrays; the tolerance is relative to ``scale``."""
        x, y = np.asarray(x), np.asarray(y)
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            expected = f"expected an array of {x.dtype} of shape {x.shape}, {what}"
            raise Misconduct(f"{where}: {expected}, got one of {y.dtype} of shape {y.shape}")
        self.compared += x.size
        differ = ~equal(x, y)
        if not differ.any():
            return
        if not (bits or self.exact):
            if x.dtype.kind in "iub":  # codes, such as 8-bit states: only their effect is compared
                return
            room = self.tolerance(slot) * scale + 2 * self.eps * largest(wide(x))
            with np.errstate(all="ignore"):
                off = abs(wide(x) - wide(y))
                # NaN for infinity may come from another order of a sum; NaN for a number may not.
                lost = (np.isnan(wide(x)) & ~np.isfinite(wide(y))) | (np.isnan(wide(y)) & ~np.isfinite(wide(x)))
            far = differ & ~(off <= room) & ~lost
            if not far.any():
                if x.dtype == self.stored:
                    self.off[self.law] = max(self.off.get(self.law, 0), int(distance(x[differ], y[differ]).max()))
                return
            differ = far
        raise Broken(f"{where}, {told(x, y, differ, what)}")

    def tolerance(self, slot: str) -> float:
        """How much parameters or a state may differ if sums may be taken in another order.

        It is relative to a tensor's largest change: 16 times the effect of changing the data by 2^-16 or a unit in the
        last place. So an optimizer that computes in fewer bits than it stores, such as Muon in bf16, gets more room.
        """
        if self.given is not None:
            return self.given
        if self._tolerance is None:
            self._tolerance = self._measured()
        return self._tolerance.get(slot, 0.0)

    def _measured(self) -> dict[str, float]:
        most: dict[str, float] = {}
        for shape in self.shapes([45, 300, (15, 20)]):  # one at a time, as lists may be handled wrongly
            params, grads = self.params([shape]), self.steps([shape])
            plain = self.after(params, grads)
            for k in range(3):
                rng = np.random.default_rng([self.seed, 77, k])
                changed = [_perturbed(x, rng) for x in params], [[_perturbed(x, rng) for x in of] for of in grads]
                other = self.after(*changed)
                _note(most, "params", wide(plain.params[0]) - wide(params[0]),
                      wide(other.params[0]) - wide(changed[0][0]))
                for name in plain.states[0].keys() & other.states[0].keys():
                    if plain.states[0][name].dtype.kind not in "iub":
                        _note(most, name, wide(plain.states[0][name]), wide(other.states[0][name]))
        return {name: min(ROOM * (x + self.eps), MOST) for name, x in most.items()}


def optimizer_in(subject: Any) -> tuple[Any, str]:
    """The optimizer that makes a subject's runs, or why it cannot be run; the other is empty."""
    if hasattr(subject, "start"):
        return subject, getattr(subject, "why_not", "")
    try:
        return subject.optimizer, ""
    except (AttributeError, TypeError, ValueError) as error:
        return None, f"it cannot be run: {error}"


def state_dict_of(run: Any) -> Any:
    """What a run lets others load without a file; raises `Lacks` if that is nothing."""
    if not hasattr(run, "state_dict"):
        raise Lacks("loads no states in its own process")
    return run.state_dict()


@contextlib.contextmanager
def skipping(what: str) -> Iterator[None]:
    """Skip the case if the optimizer raises an error; the end of its process does not count as one."""
    try:
        yield
    except Crashed:
        raise
    except Broken as broken:
        error = f" (raises {kind_of(broken.__cause__)})" if broken.__cause__ else ""
        raise Skipped(what + error, lacks=True) from broken


def _note(most: dict[str, float], name: str, x: np.ndarray, y: np.ndarray) -> None:
    scale = largest(x)
    if scale and x.shape == y.shape:
        most[name] = max(most.get(name, 0.0), largest(x - y) / scale)


def _perturbed(x: np.ndarray, rng: Any) -> np.ndarray:
    """Numbers changed by ``SMALL``, or by a unit in the last place if that is more."""
    sign = rng.choice([-1.0, 1.0], x.shape)
    near = (wide(x) * (1 + SMALL * sign)).astype(x.dtype)
    if x.dtype.itemsize > 2:
        return near
    bits = x.view(np.int16)
    return np.asarray(bits + rng.integers(-1, 2, x.shape).astype(np.int16)).view(x.dtype)
