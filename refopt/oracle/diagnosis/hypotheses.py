"""Hypotheses about mistakes: each changes the situation in which the rule is evaluated."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from refopt import catalog
from refopt.checks.rows import Routine
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle import variants
from refopt.oracle.bound.bounded import Bounded
from refopt.oracle.bound.double_double import size
from refopt.oracle.bound.iterations import BITS
from refopt.oracle.cases import DECAYS
from refopt.oracle.diagnosis.arrays import has_master, of_arrays, of_precision
from refopt.oracle.diagnosis.numbers import of_numbers, of_steps
from refopt.oracle.diagnosis.situation import Hypothesis, Rule, Situation, base_rule
from refopt.oracle.exact.cases import Case, memory
from refopt.oracle.wrong import MORE, OF, Wrong, limits


@functools.cache
def named(row: Routine) -> tuple[Hypothesis, ...]:
    """All hypotheses about a routine that have names."""
    of_rule = *_choices(row), *_rules(row), *_gradients(row), *_exchanges(row), *_tails(row)
    return (*of_rule, *of_numbers(row), *of_steps(row), *of_arrays(row), *of_precision(), *_approximate(row))


def _choices(row: Routine) -> Iterator[Hypothesis]:
    """The choices of the catalogue and of its variants; `gradient with the opposite sign` stands for ``maximize``."""
    every, of, matters = variants.ROUTINES[row.name], variants.about(row.name), variants.matters(row.name)
    for name, values in every.choices.items():
        for value in values if name not in ("rounding", "maximize") else ():
            text, number = f"{name}={value}", matters.get(name)

            def change(s: Situation, name: str = name, value: Any = value, number: Any = number) -> Situation | None:
                wide = with_variants(s) if name not in s.row.choices else s
                if wide is None or wide.choices.get(name) == value or (number and not wide.numbers[number]):
                    return None
                return wide._replace(choices=wide.choices | {name: value})

            about = f": {of[text]}" if text in of else ""
            yield Hypothesis(text + about, change, "choice", name, needs=(number,) if number else ())


def with_variants(s: Situation) -> Situation | None:
    """The same situation in the row with variants, unless its rule has been changed."""
    if s.rule is not base_rule(s.row):
        return None
    row, (numbers, choices) = variants.ROUTINES[s.row.name], variants.defaults(s.row.name, variants.added(s.row.name))
    real, case = np.dtype(s.real), s.case
    added = {*row.scalars} - {*s.row.scalars}
    more: dict[str, Any] = {name: [np.full(1, case.count, real)] * len(case) for name in added}
    steps = [step | numbers for step in case.steps]
    wide = Case(row, case.slots | more, steps, {**case.choices, **choices}, case.count)
    arrays = s.arrays | {name: arrays[s.tensor] for name, arrays in more.items()}
    return s._replace(
        case=wide, rule=base_rule(row), arrays=arrays, numbers=s.numbers | numbers, choices=s.choices | choices
    )


def _rules(row: Routine) -> Iterator[Hypothesis]:
    yield from _written(OF[row.name].values())
    if not (row.elementwise or row.matrix_arguments):  # the rule itself takes norms, of vectors
        for text, elements in limits.summands():
            named = f"norms of {text.format('the elements')}", {"sum_of_squares(": "squares("}
            yield from _written([Wrong(*named, {"squares": partial(_summed, elements=elements)})], paired=False)
        yield Hypothesis("one norm over all tensors, not one for each", _of_all_tensors, "rule", "", False)
    yield from _written(MORE[row.name].values())


def _summed(x: Any, elements: Callable[[Any], Any]) -> Any:
    return sum_of_squares(elements(x))  # a function by name, as bounded numbers need


def _written(rules: Iterable[Wrong], paired: bool = True) -> Iterator[Hypothesis]:
    """Wrong rules that have names."""
    for wrong in rules:
        kind = "rough" if wrong.rough else "rule"
        yield Hypothesis(wrong.name, partial(_with_rule, wrong=wrong), kind, "", paired, wrong.needs)


def _exchanges(row: Routine) -> Iterator[Hypothesis]:
    """Two states, each in the other's place."""
    for one, two in itertools.combinations([name for name in row.states if name not in row.scalars], 2):
        places = row.carried.index(one), row.carried.index(two)
        change = _around(_exchanged, places=places)
        yield Hypothesis(f"{one} and {two} exchanged", change, "array", one, False)


def _around(function: Callable[..., tuple], **named: Any) -> Callable[[Situation], Situation]:
    """The rule with a function around it."""
    return lambda s: s._replace(rule=partial(function, rule=s.rule, **named))


def _exchanged(p: Any, g: Any, *states: Any, rule: Rule, places: tuple[int, int], **numbers: Any) -> tuple:
    def turned(values: Any) -> list[Any]:
        turned, (i, j) = list(values), places
        turned[i], turned[j] = values[j], values[i]
        return turned

    new, *after = rule(p, g, *turned(states), **numbers)
    return new, *turned(after)


def _of_all_tensors(s: Situation) -> Situation | None:
    """All tensors joined into one; the results of this one are a part."""
    present = [i for i, g in enumerate(s.case.grads) if g is not None]
    if len(present) < 2 or s.among or np.dtype(s.real).itemsize > 4 or not isinstance(s.elements, slice):
        return None
    arrays = s.arrays | {name: np.concatenate([memory(s.case.lists()[name][i]) for i in present])
                         for name, x in s.arrays.items() if x is not None and name not in s.row.scalars}
    start = sum(s.case.params[i].size for i in present if i < s.tensor)
    return s._replace(arrays=arrays, among=slice(start, start + s.arrays["params"].size))


def _approximate(row: Routine) -> Iterator[Hypothesis]:
    """Updates by a reciprocal or a root that is less exact than the arithmetic."""
    for bits in (20, 11, 9) if any(hyper.name == "epsilon" for hyper in row.hypers) else ():
        text = f"a fast reciprocal or root: the update is off by up to 2**-{bits} of its size"
        yield Hypothesis(text, partial(_loosened, off=2.0**-bits), "rough", "", False)
    text = "products with a narrower gradient computed in its dtype: it is not widened before"
    yield Hypothesis(text, partial(_loosened, off=None), "rough", "", False)


def _loosened(s: Situation, off: float | None) -> Situation | None:
    """An update that is off by ``off``, or if this is ``None`` by a factor and a product in a narrower dtype."""
    dtype = s.arrays["grads"].dtype
    if (off is None) != (dtype.itemsize < s.arrays["params"].dtype.itemsize):
        return None
    return _around(_nearly, off=2.0 ** (1 - BITS[dtype.name][0]) if off is None else off)(s)._replace(loose=True)


def _nearly(p: Any, *arrays: Any, rule: Rule, off: float, lr: Any, **numbers: Any) -> tuple:
    """A rule whose update, apart from decay, has a relative error of up to ``off``."""
    new, *rest = rule(p, *arrays, lr=lr, **numbers)
    if isinstance(new, Bounded):
        decay = sum(lr * x * abs(p) for name, x in numbers.items() if name in DECAYS)
        change = abs(new - p) + decay
        new = Bounded(new.value, new.error + off * (size(change.value) + change.error), new.arithmetic)
    return new, *rest


def _tails(row: Routine) -> Iterator[Hypothesis]:
    """Tails that are updated together with the elements before them, which are updated twice."""
    for block in (4, 8, 16, 32) if row.elementwise else ():
        text = f"the last {block} elements updated at once as a tail, some of which are updated twice"
        yield Hypothesis(text, partial(_overlapping, block=block), "rule", "", False)


def _overlapping(s: Situation, block: int) -> Situation | None:
    size = s.case.params[s.tensor].size
    k = np.arange(size)[s.elements]
    twice = (size - block <= k) & (k < size - size % block)
    single = [name in s.row.scalars for name in s.row.carried]
    return _around(_repeated, twice=twice, single=single)(s) if size > block and size % block else None


def _repeated(p: Any, g: Any, *states: Any, rule: Rule, twice: Any, single: list[bool], **numbers: Any) -> tuple:
    once = rule(p, g, *states, **numbers)
    kept = [before if one else after for before, after, one in zip(states, once[1:], single, strict=True)]
    again = rule(once[0], g, *kept, **numbers)
    whole = zip(once, again, [False, *single], strict=True)
    return tuple(x if one or x is None else np.where(twice, y, x) for x, y, one in whole)


def scaled(factors: Mapping[int, float], apart: bool) -> Hypothesis:
    """The update times a factor found in the evidence, by step; ``apart`` leaves out decoupled decay."""
    first, *others = factors.values()
    alike = all(abs(x - first) <= 1e-4 * abs(first - 1) for x in others)
    steps = ", ".join(f"{x:.3g} in step {count}" for count, x in sorted(factors.items())[:3])

    def change(s: Situation) -> Situation | None:
        factor = first if alike else factors.get(s.case.count)
        return None if factor is None else _around(_times, factor=factor, apart=apart)(s)

    what = f"the update{' apart from decay' if apart else ''} times"
    text = f"{what} {first:.9g}" if alike else f"{what} a factor that depends on the step: {steps}"
    return Hypothesis(text, change, "rule", "", False)


def _times(p: Any, *arrays: Any, rule: Rule, factor: float, apart: bool, lr: Any, **numbers: Any) -> tuple:
    new, *rest = rule(p, *arrays, lr=lr, **numbers)
    before = without_update(p, lr, numbers) if apart else p
    return before + factor * (new - before), *rest


def without_update(p: Any, lr: Any, numbers: Mapping[str, Any]) -> Any:
    """A parameter that has only decayed."""
    return p * (1 - sum(lr * x for name, x in numbers.items() if name in DECAYS))


def _gradients(row: Routine) -> Iterator[Hypothesis]:
    """Changes to the gradient before the rule."""
    changes: dict[str, Callable[[Any], Any]] = {
        "divided by its norm": limits.normalized, "replaced by its sign": np.sign,
        "replaced by its absolute value": abs,
    }
    for limit in limits.USUAL:
        for off, more in ((0.0, ""), (1e-6, ", with 1e-6 added to the norm")):
            changes[f"clipped to a norm of {limit:g}{more}"] = partial(limits.norm_at_most, limit=limit, epsilon=off)
        changes[f"clipped elementwise to {limit:g}"] = partial(limits.within, limit=limit)
    for text, to in changes.items():
        yield Hypothesis(f"gradient {text}", _around(_of_gradient, to=to), "gradient", "", text.startswith("clip"))
    for name in DECAYS & {hyper.name for hyper in row.hypers}:
        yield Hypothesis(f"{name} * p added to the gradient as well", _around(_of_decayed, name=name), "gradient")


        for by in ("gradient", "parameter"):
            decay = partial(_decayed_by_rounded, name=name, by=by)
            yield Hypothesis(f"decay of the rounded parameter, not of its master ({name})", decay, "array")


def _decayed_by_rounded(s: Situation, name: str, by: str) -> Situation | None:
    rounded = memory(s.arrays["params"]).astype(s.real)
    return _around(_of_rounded, rounded=rounded, name=name, by=by)(s) if has_master(s) and s.numbers[name] else None


def _of_rounded(p: Any, g: Any, *others: Any, rule: Rule, rounded: Any, name: str, by: str, **numbers: Any) -> tuple:
    """A rule in which decay is added to the gradient, or taken from the parameter."""
    off = (p.lift(rounded) if isinstance(p, Bounded) else rounded) - p
    if by == "gradient":
        return rule(p, g + numbers[name] * off, *others, **numbers)
    new, *rest = rule(p, g, *others, **numbers)
    return new - numbers["lr"] * numbers.get("lr_ratio", 1) * numbers[name] * off, *rest


def _of_decayed(p: Any, g: Any, *others: Any, rule: Rule, name: str, **numbers: Any) -> tuple:
    return rule(p, g + numbers[name] * p, *others, **numbers)


def _of_gradient(p: Any, g: Any, *others: Any, rule: Rule, to: Callable[[Any], Any], **numbers: Any) -> tuple:
    return rule(p, to(g), *others, **numbers)


def _with_rule(s: Situation, wrong: Wrong) -> Situation | None:
    """A rule that is wrong in one place, or in two."""
    before = {} if s.rule is base_rule(s.row) else getattr(s.rule, "changes", None)
    if before is None or (before and not isinstance(wrong.how, Mapping)):
        return None
    both = wrong._replace(how={**before, **wrong.how}) if before else wrong  # type: ignore[dict-item]
    if before and len(both.how) < len(before) + len(wrong.how):  # type: ignore[arg-type]
        return None
    return s._replace(rule=both.of(s.row.rule, catalog.KNOWN[s.row.name].rule), loose=s.loose or wrong.rough)
