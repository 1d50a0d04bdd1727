"""`compare`: two implementations on the same data."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import chosen, mapped, number, whole
from refopt.checks.dtypes import lacking
from refopt.oracle.broken import Broken, Crashed, Misconduct, Skipped
from refopt.oracle.checking import DEADLINE, DTYPES, where_steps_run
from refopt.oracle.exact.cases import Outcome
from refopt.oracle.exceptions import reasons
from refopt.oracle.laws import Law, Try
from refopt.oracle.memory import LAYOUTS, Placed, dense
from refopt.oracle.report import SKIPPED, Item, Report
from refopt.oracle.running import Data
from refopt.oracle.settings import all_chosen
from refopt.oracle.subject import Subject
from refopt.oracle.trial import Trial
from refopt.oracle.trying import Tried

BITS, MEASURED = "bits", "measured"
# The parts of a comparison, by ids like those of laws.
PARTS = {"C1": "sizes", "C2": "number of tensors", "C3": "shapes", "C4": "layouts", "C5": "not finite", "C6": "steps"}
SIZES = (*range(1, 34), 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 1023, 1025, 4099)
SHAPES: tuple[tuple[int, ...], ...] = ((), (4, 5), (2, 3, 7), (1, 1, 3), (2, 3, 1, 2, 2), (15, 20))
MANY = 36, 111
LONG = 12  # steps


class Part(NamedTuple):
    """A case of a part: its id, a label, and data, whose arrays ``place`` puts into memory."""

    id: str
    label: str
    data: Data
    place: Callable[[np.ndarray], Placed] = dense


class Compared(Report):
    """A `Report` on two implementations: its items are cases, its laws the parts of the comparison."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(None, *given, **named)
        self.right, self.but, self.is_wrong = "no difference", "as expected", "DIFFERENT"

    def _heading(self) -> str:
        return self.subject

    def _why_not(self) -> str:
        return next((f": {item.text}" for item in self.of("skipped")), "")


def compare(
    a: Any, b: Any, *, within: str | float = BITS, dtypes: Iterable[str] | None = None,
    parts: Iterable[str] | None = None, set: Any = None, states: Any = None, arrays: str | None = None,
    device: str | None = None, seed: int = 0, options_a: Any = None, options_b: Any = None,
    expected_failures: Any = None, progress: Callable[[int, int, str], object] | None = None,
    process: bool | None = None, deadline: float = DEADLINE, **options: Any,
) -> Compared:
    """Compare two implementations: eager and compiled, loop and fused, yesterday's and today's.

    Both take the same steps on the same data, from the first step; parameters are compared, and states that both have
    under the same name.

    Args:
        a, b: optimizers or steps, as for `check` without a routine.
        within: "bits"; or the largest difference, relative to a tensor's largest change; or "measured", for 16 times
            the effect of changing the data by 2^-16, as `check` uses without a routine.
        dtypes: by default those that both support.
        parts: ids of `PARTS`; by default all.
        set, states, arrays, device, options: for both, as in `check`; ``options_a`` and ``options_b`` are for one.
        seed: for all data.
        expected_failures: why a part may differ, as for laws in `check`.
        progress: as in `check`.
        process, deadline: as in `check`; each of the two has its own process.

    Returns:
        A `Report` whose laws are the parts.

    Raises:
        TypeError, ValueError: naming the argument.

    >>> def sgd(params, grads, *, lr):
    ...     for p, g in zip(params, grads):
    ...         p -= (lr * g).astype(p.dtype)
    >>> def regrouped(params, grads, *, lr):
    ...     for p, g in zip(params, grads):
    ...         p -= (g * (2 * lr) / 2).astype(p.dtype)
    >>> compare(sgd, regrouped, dtypes=["float32"]).ok
    True
    """
    started = time.perf_counter()
    process, deadline = where_steps_run(process, deadline, "compare")
    common = {"numbers": set, "states": states, "arrays": arrays, "device": device}
    given = (("a", options_a), ("b", options_b))
    of_each = [{**options, **mapped(f"compare: options_{x}", of or {})} for x, of in given]
    wanted = all_chosen("compare: parts", [*PARTS] if parts is None else parts, PARTS)
    allowed = reasons("expected_failures", expected_failures, PARTS)
    exact, tolerance = _within(within)
    items: list[Item] = []
    compared = 0
    with contextlib.ExitStack() as stack:
        ran = {"process": process, "deadline": deadline, "stack": stack}
        notes: dict[str, None] = {}
        first, second = (_optimizer(x, common, own, ran, notes) for x, own in zip((a, b), of_each, strict=True))
        usual = [x for x in first.dtypes if x in second.dtypes]
        tried = all_chosen("compare: dtypes", usual if dtypes is None else dtypes, DTYPES)
        seed = whole("compare: seed", seed, least=0)
        for k, dtype in enumerate(tried):
            if why := lacking(dtype):
                items += [Item(part, dtype, PARTS[part], SKIPPED, why, lacks=True) for part in wanted]
                continue
            trial = Trial(None, second, dtype, seed, tolerance=tolerance, exact=exact)
            other = Trial(None, first, dtype, seed, exact=True)
            if progress is not None:
                progress(k, len(tried), dtype)
            items += _of_dtype(other, trial, wanted)
            compared += trial.compared
            for law, most in trial.off.items():
                notes[f"{dtype}: {law}: within the tolerance, but up to {most} ULPs apart"] = None
    return Compared(
        f"{second.name} compared with {first.name}", items, {x: PARTS[x] for x in wanted}, compared=compared,
        expected_failures={x: why for x, why in allowed.items() if x.partition("-")[0] in wanted}, dtypes=tried,
        notes=list(notes), seconds=time.perf_counter() - started, usual_dtypes=dtypes is None,
    )


def _optimizer(
    subject: Any, common: Mapping[str, Any], options: Mapping[str, Any], ran: Mapping[str, Any], notes: dict[str, None]
) -> Subject:
    """An optimizer that runs as ``ran`` says; adds a note if it cannot."""
    from refopt.oracle.process import in_process  # which imports much of the standard library

    named = {**common, "options": options, "where": "compare"}
    optimizer, remarks = in_process(None, subject, **ran, **named)
    notes |= dict.fromkeys(remarks)
    return optimizer


def _within(within: Any) -> tuple[bool, float | None]:
    if isinstance(within, str):
        return chosen("compare: within", within, (BITS, MEASURED)) == BITS, None
    return False, number("compare: within", within, 0, finite=True)


def _of_dtype(first: Trial, second: Trial, wanted: Iterable[str]) -> list[Item]:
    """Every case of a dtype."""
    second.settle()
    tried, parts = Tried(second), [*every(second)]
    for id_ in wanted:
        tries = [
            Try(x.label, lambda x=x: x, partial(_same, first, second))  # type: ignore[misc]
            for x in parts if x.id == id_
        ]
        tried.law(Law(id_, PARTS[id_], "", lambda trial, tries=tries: tries), "")  # type: ignore[misc]
    return tried.items


def _outcome(trial: Trial, part: Part) -> Outcome | Broken:
    """The results of a case, in new arrays, or how it fails."""
    try:
        return trial.run(part.data.each(part.place))
    except Crashed:
        raise
    except Broken as broken:
        return broken


def _same(first: Trial, second: Trial, part: Part) -> None:
    """Raise `Broken` if the two differ, or one of them fails."""
    came, got = _outcome(first, part), _outcome(second, part)
    if isinstance(came, Broken) and isinstance(got, Broken):
        raise Skipped(f"both fail: {came}")
    if isinstance(came, Broken):
        raise Misconduct(f"the first fails, and the second does not: {came}")
    if isinstance(got, Broken):
        raise got
    second.same(came, got, f"as in {first.subject.name}", part.data)


def every(trial: Trial) -> Iterator[Part]:
    """Every case of a dtype, in shapes that the optimizer takes."""
    for size in SIZES:
        yield Part("C1", f"{size} elements", trial.data([size]))
    for count in MANY:
        yield Part("C2", f"{count} tensors", trial.data([1 + (7 * k) % 33 for k in range(count)]))
    yield Part("C2", "an empty tensor among others", trial.data([5, 0, 7]))
    for shape in trial.shapes(SHAPES):
        yield Part("C3", f"shape {shape}", trial.data([shape]))
    for label, place in LAYOUTS.items():
        yield Part("C4", label, trial.data([45, (4, 5), (15, 20)]), place)
    plain = trial.data([45, 7])
    for value in (np.nan, np.inf, -np.inf):
        yield Part("C5", f"{value} in a gradient", Data(plain.params, plain.each(partial(_with, value)).grads))
        yield Part("C5", f"{value} in a parameter", Data(plain.each(partial(_with, value)).params, plain.grads))
    for size in ("large", "small"):
        scale = 2.0 ** ((100 if trial.stored != np.float16 else 12) * (1 if size == "large" else -1))
        yield Part("C5", f"{size} gradients", Data(plain.params, plain.each(partial(_times, scale)).grads))
    yield Part("C5", "gradients of zeros", Data(plain.params, plain.each(np.zeros_like).grads))
    yield Part("C6", f"{LONG} steps", trial.data([45, 300], LONG))


def _times(scale: float, x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) * scale).astype(x.dtype)


def _with(value: float, x: np.ndarray) -> np.ndarray:
    """A copy of an array with one element replaced."""
    changed = x.copy()
    changed.reshape(-1)[x.size // 3] = value
    return changed
