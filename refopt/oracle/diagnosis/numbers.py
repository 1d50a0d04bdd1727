"""Hypotheses about numbers: replaced, lost or captured ones, and powers of another step."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.checks.dtypes import numpy_dtype
from refopt.checks.rows import Routine
from refopt.oracle import cases
from refopt.oracle.diagnosis.arrays import kept
from refopt.oracle.diagnosis.situation import NONE, Hypothesis, Situation
from refopt.oracle.exact.cases import has

CORRECTS = {
    "beta1_pow": "no bias correction of the first moment", "beta2_pow": "no bias correction of the second moment",
}


def of_numbers(row: Routine) -> Iterator[Hypothesis]:
    betas = {hyper.name: cases.number(hyper) for hyper in row.hypers if hyper.name in ("beta1", "beta2")}
    for name, usual in betas.items() if cases.by_count(row) else ():
        text = f"1 - {name}**step of the first call with that step, whatever {name} is: kept by step alone"
        yield Hypothesis(text, partial(_kept_by_step, powers={name: usual}), "number", "", False)
    for hyper in row.hypers:
        if hyper.name != "seed":
            for text, to, paired in _other_numbers(hyper.name, hyper.default):
                yield from _changed(row, text, lambda s, x, to=to: to(x), (hyper.name,), paired)  # type: ignore[misc]
            usual = cases.number(hyper)
            text = f"{hyper.name} of the first call, {usual:.6g}, in every later one: captured once"
            yield from _changed(row, text, lambda s, x, usual=usual: usual, (hyper.name,), False)  # type: ignore[misc]
    if len(betas) == 2:
        both_usual = " and ".join(f"{x:.6g}" for x in betas.values())
        text = f"beta1 and beta2 of the first call, {both_usual}, in every later one: captured once"
        captured = lambda s, x: next(usual for name, usual in betas.items() if s.numbers[name] == x)  # noqa: E731
        yield from _changed(row, text, captured, ("beta1", "beta2"), False)
    for dtype, real in _narrow_numbers():
        yield Hypothesis(f"all numbers rounded to {dtype}", partial(_all_rounded, real=real), "number", "", False)
    for text, to, paired in _other_numbers("grad_factor", None):
        yield from _changed(row, text, lambda s, x, to=to: to(x), ("grad_factor",), paired)  # type: ignore[misc]
    names = [hyper.name for hyper in row.hypers if hyper.name != "seed"]
    for one, two in itertools.combinations(names, 2):
        both = one, two
        other = partial(_exchanged, one, two)
        for first, second in (both, both[::-1]):
            product = lambda s, x, by=second: x * float(s.numbers[by])  # noqa: E731
            yield from _changed(row, f"{first} * {second} instead of {first}", product, (first,), False, both)
        yield from _changed(row, f"{one} and {two} swapped", other, both, False, both)
        yield from _changed(row, f"{two} instead of {one}", other, (one,), False, both)
        yield from _changed(row, f"{one} instead of {two}", other, (two,), False, both)
    for name, (what, tensor) in itertools.product(names, {"first": 0, "last": -1}.items()):
        of_tensor = lambda s, x, name=name, k=tensor: s.case.numbers_of(k % len(s.case))[name]  # noqa: E731
        yield from _changed(row, f"{name} of the {what} tensor (or group) used for all", of_tensor, (name,), False)
    yield Hypothesis("numbers of the first tensor (or group) used for all", _of_first, "number", "", False)


def _other_numbers(name: str, default: float | None) -> Iterator[tuple[str, Callable[[float], float], bool]]:
    """Values that may have been used instead of a number, and whether they are combined in pairs."""
    yield f"{name} ignored: taken as 0", lambda x: 0.0, True
    yield f"{name} ignored: taken as 1", lambda x: 1.0, True
    if default not in (None, 0.0, 1.0):
        yield f"{name} always {default:g}, the default", lambda x: float(default), True
    yield f"{name} squared, or applied twice", lambda x: x * x, False
    yield f"the root of {name} instead of {name}", lambda x: float(np.sqrt(x)), False
    yield f"1 / {name} instead of {name}", lambda x: float(np.divide(1, x)), False
    yield f"twice {name}", lambda x: 2 * x, False
    yield f"half of {name}", lambda x: x / 2, False
    yield f"1 - {name} instead of {name}", lambda x: 1 - x, False
    yield f"-{name} instead of {name}", lambda x: -x, False
    for dtype, real in _narrow_numbers():
        yield f"{name} rounded to {dtype}", lambda x, real=real: float(real(x)), False  # type: ignore[misc]


def _kept_by_step(s: Situation, powers: dict[str, float]) -> Situation | None:
    """Powers of the usual numbers, at the first steps, which cases with these have taken before."""
    return s._replace(of_powers={**s.of_powers, **powers}) if s.case.count <= 7 else None


def _exchanged(one: str, two: str, s: Situation, x: float) -> float:
    return float(s.numbers[two if x == s.numbers[one] else one])


def _of_first(s: Situation) -> Situation | None:
    numbers = s.case.numbers_of(0)
    return s._replace(numbers=numbers, of_powers=numbers) if numbers != s.numbers else None


def _all_rounded(s: Situation, real: Any) -> Situation | None:
    changed = {name: x if name == "seed" else float(real(x)) for name, x in s.numbers.items()}
    return s._replace(numbers=changed, of_powers=changed) if changed != s.numbers else None


def _narrow_numbers() -> list[tuple[str, Any]]:
    return [(dtype, numpy_dtype(dtype).type) for dtype in ("float16", "bfloat16") if has(dtype)]


def _changed(
    row: Routine, text: str, to: Callable[[Situation, float], float], names: tuple[str, ...], paired: bool,
    needs: tuple[str, ...] = (),
) -> Iterator[Hypothesis]:
    """Hypotheses with other numbers in the rule; if powers are made from them, in these, in the rule, or in both."""

    def change(s: Situation, powers: bool, rule: bool = True) -> Situation | None:
        if any(name not in s.numbers for name in names):
            return None
        with np.errstate(all="ignore"):
            changed = {name: float(to(s, float(s.numbers[name]))) for name in names}
        if any(x == s.numbers[name] or not np.isfinite(x) for name, x in changed.items()):
            return None
        numbers = s.numbers | (changed if rule else {})
        return s._replace(numbers=numbers, of_powers={**s.of_powers} | (changed if powers else {}))

    carried = [slot for slot in row.slots if slot.scalar and isinstance(slot.initial, str)]
    if any(slot.initial in names for slot in carried):
        yield Hypothesis(text, partial(change, powers=True), "number", names[0], paired, needs or names)
        alone = partial(change, powers=True, rule=False)
        of_powers = f"{text}, in its powers only (bias correction)"
        yield Hypothesis(of_powers, alone, "number", names[0], False, needs or names)
        text += ", but not in its powers"
    yield Hypothesis(text, partial(change, powers=False), "number", names[0], paired, needs or names)


def of_steps(row: Routine) -> Iterator[Hypothesis]:
    carried = [slot for slot in row.slots if slot.scalar]
    by_count = cases.by_count(row)
    if len(by_count) > 1:
        yield from _other_steps("bias correction", by_count)
    for name in by_count:
        if name in CORRECTS:
            yield Hypothesis(CORRECTS[name], partial(_powers, names=(name,), to=lambda t, i: NONE), "power", name)
        yield from _other_steps(name, (name,))
    for slot in carried:
        yield Hypothesis(f"{slot.name} not advanced", partial(kept, name=slot.name), "kept", slot.name)


STICKS = {256: "bfloat16", 2048: "float16", 2**24: "float32"}
WRAPS = 8, 16


def _other_steps(what: str, names: tuple[str, ...]) -> Iterator[Hypothesis]:
    steps: dict[str, Callable[[int, int], int]] = {
        "one step late: of t - 1": lambda t, i: t - 1, "one step early: of t + 1": lambda t, i: t + 1,
        "always of the first step": lambda t, i: 1, "advanced by each tensor: of t + i": lambda t, i: t + i,
    }
    for n, dtype in STICKS.items():
        steps[f"sticks at step {n}, as a counter in {dtype} does"] = lambda t, i, n=n: min(t, n)  # type: ignore[misc]
    for dtype, real in _narrow_numbers():
        steps[f"of the step rounded to {dtype}"] = lambda t, i, real=real: int(real(min(t, 65504)))  # type: ignore[misc]
    for bits in WRAPS:
        text = f"of the step modulo {2**bits}, as with a counter of {bits} bits"
        steps[text] = lambda t, i, n=2**bits: t % n or NONE  # type: ignore[misc]
    for text, to in steps.items():
        yield Hypothesis(f"{what} {text}", partial(_powers, names=names, to=to), "power", names[0])


def _powers(s: Situation, names: tuple[str, ...], to: Callable[[int, int], int]) -> Situation | None:
    count = to(s.case.count, s.tensor)
    return s._replace(powers=s.powers | dict.fromkeys(names, count)) if count != s.case.count else None
