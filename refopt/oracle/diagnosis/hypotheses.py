"""What may be wrong with a step: each hypothesis changes the situation that the rule is evaluated in."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from refopt import catalog
from refopt.checks.rows import Routine
from refopt.oracle import variants
from refopt.oracle.bound.bounded import Bounded
from refopt.oracle.bound.evaluate import rule_of
from refopt.oracle.cases import Case, memory
from refopt.oracle.diagnosis.arrays import of_arrays, of_precision
from refopt.oracle.diagnosis.hypothesis import DECAYS, Hypothesis, base_rule
from refopt.oracle.diagnosis.numbers import of_numbers, of_steps
from refopt.oracle.diagnosis.situation import Rule, Situation
from refopt.oracle.diagnosis.source import substituted
from refopt.oracle.wrong import IN_PAPERS, MORE, OF, WITH_SQUARES, limits, norms
from refopt.oracle.wrong.options import prepares


@functools.cache
def named(row: Routine) -> tuple[Hypothesis, ...]:
    """All hypotheses about a routine that have names."""
    of_rule = *_choices(row), *_rules(row), *_gradients(row), *_exchanges(row)
    return (*of_rule, *of_numbers(row), *of_steps(row), *of_arrays(row), *of_precision(), *_approximate(row))


def _choices(row: Routine) -> Iterator[Hypothesis]:
    """The choices of the catalogue and of its variants; `gradient with the other sign` stands for ``maximize``."""
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
    """The same situation in the row that has variants, unless its rule has been changed."""
    if s.rule is not base_rule(s.row):
        return None
    row, (numbers, choices) = variants.ROUTINES[s.row.name], variants.neutral(s.row.name)
    real, case = np.dtype(s.real), s.case
    more = {name: [np.full(1, case.count, real)] * len(case) for name in {*row.scalars} - {*s.row.scalars}}
    steps = [step | numbers for step in case.steps]
    wide = Case(row, case.slots | more, steps, {**case.choices, **choices}, case.count)
    arrays = s.arrays | {name: arrays[s.tensor] for name, arrays in more.items()}
    return s._replace(
        case=wide, rule=base_rule(row), arrays=arrays, numbers=s.numbers | numbers, choices=s.choices | choices
    )


def _rules(row: Routine) -> Iterator[Hypothesis]:
    yield from _written(row, OF[row.name])
    if row.name in WITH_SQUARES:
        for text, squares in norms.squares():
            rule = _in_place(row, partial(WITH_SQUARES[row.name], squares=squares))
            yield Hypothesis(text, partial(_with_rule, rule=rule), "rule", "", False)
        yield Hypothesis("one norm over all tensors, not one for each", _of_all_tensors, "rule", "", False)
    yield from _written(row, MORE[row.name])


def _written(row: Routine, rules: Mapping[str, Any]) -> Iterator[Hypothesis]:
    """Wrong rules that have names."""
    for wrong in rules.values():
        if wrong.name:
            yield Hypothesis(wrong.name, partial(_with_rule, rule=_in_place(row, wrong.rule)), "rule")


def _exchanges(row: Routine) -> Iterator[Hypothesis]:
    """Two states, each in the other's place."""
    for one, two in itertools.combinations([name for name in row.states if name not in row.scalars], 2):
        places = row.carried.index(one), row.carried.index(two)
        change = lambda s, places=places: s._replace(rule=partial(_exchanged, rule=s.rule, places=places))  # noqa: E731
        yield Hypothesis(f"{one} and {two} exchanged, each in the other's place", change, "array", one, False)


def _exchanged(p: Any, g: Any, *states: Any, rule: Rule, places: tuple[int, int], **numbers: Any) -> tuple:
    def turned(values: Any) -> list[Any]:
        turned, (i, j) = list(values), places
        turned[i], turned[j] = values[j], values[i]
        return turned

    new, *after = rule(p, g, *turned(states), **numbers)
    return new, *turned(after)


def _of_all_tensors(s: Situation) -> Situation | None:
    """All tensors in one, of which the results of this one are."""
    present = [i for i, g in enumerate(s.case.grads) if g is not None]
    if len(present) < 2 or s.among or np.dtype(s.real).itemsize > 4 or not isinstance(s.elements, slice):
        return None
    arrays = dict(s.arrays)
    for name, x in s.arrays.items():
        if x is not None and name not in s.row.scalars:
            arrays[name] = np.concatenate([memory(s.case.lists()[name][i]) for i in present])
    start = sum(s.case.params[i].size for i in present if i < s.tensor)
    return s._replace(arrays=arrays, among=slice(start, start + s.arrays["params"].size))


def _approximate(row: Routine) -> Iterator[Hypothesis]:
    """Updates by a reciprocal or a root that is less exact than the arithmetic."""
    if any(hyper.name == "epsilon" for hyper in row.hypers):
        for bits in (20, 11, 9):
            text = f"a fast reciprocal or root: the update is off by as much as 2**-{bits} of it, either way"
            yield Hypothesis(text, partial(_loosened, bits=bits), "rough", "", False)


def _loosened(s: Situation, bits: int) -> Situation | None:
    return s._replace(rule=partial(_nearly, rule=s.rule, off=2.0**-bits), loose=True)


def _nearly(p: Any, *arrays: Any, rule: Rule, off: float, lr: Any, **numbers: Any) -> tuple:
    """A rule whose update, apart from decay, is known to so much of it."""
    new, *rest = rule(p, *arrays, lr=lr, **numbers)
    if isinstance(new, Bounded):
        decay = sum(lr * x * abs(p) for name, x in numbers.items() if name in DECAYS)
        change = abs(new - p) + decay
        new = Bounded(new.value, new.error + off * (abs(change.value) + change.error), new.arithmetic)
    return new, *rest


def _in_place(row: Routine, rule: Rule) -> Rule:
    """The rule of a row with another in place of the catalogue's."""
    own = IN_PAPERS.get(row.name, catalog.KNOWN[row.name].rule)
    return substituted(rule_of(row), own, rule) if variants.is_extended(row) else rule


def _gradients(row: Routine) -> Iterator[Hypothesis]:
    """What the gradient may be made into first."""
    changes: dict[str, Callable[[Any], Any]] = {
        "divided by its norm": limits.normalized, "replaced by its sign": np.sign, "replaced by its size": abs,
    }  # fmt: skip
    for limit in limits.USUAL:
        changes[f"clipped to a norm of {limit:g}"] = partial(limits.norm_at_most, limit=limit)
        changes[f"clipped to a norm of {limit:g}, with 1e-6 added to the norm"] = partial(
            limits.norm_at_most, limit=limit, epsilon=1e-6
        )
        changes[f"clipped by element to {limit:g}"] = partial(limits.within, limit=limit)
    for text, to in changes.items():
        yield Hypothesis(f"gradient {text}", partial(_with_gradient, to=to), "gradient", "", text.startswith("clip"))
    for name in DECAYS & {hyper.name for hyper in row.hypers}:
        yield Hypothesis(f"{name} * p added to the gradient as well", partial(_decayed, name=name), "gradient")


def _with_gradient(s: Situation, to: Callable[[Any], Any]) -> Situation | None:
    return s._replace(rule=partial(_of_gradient, rule=s.rule, to=to))


def _decayed(s: Situation, name: str) -> Situation | None:
    return s._replace(rule=partial(_of_decayed, rule=s.rule, name=name)) if s.numbers[name] else None


def _of_decayed(p: Any, g: Any, *others: Any, rule: Rule, name: str, **numbers: Any) -> tuple:
    return rule(p, g + numbers[name] * p, *others, **numbers)


def _of_gradient(p: Any, g: Any, *others: Any, rule: Rule, to: Callable[[Any], Any], **numbers: Any) -> tuple:
    return rule(p, to(g), *others, **numbers)


def _with_rule(s: Situation, rule: Rule) -> Situation | None:
    if s.rule is base_rule(s.row):
        return s._replace(rule=rule)
    both = _both(s.rule, rule) or _both(rule, s.rule)
    return both and s._replace(rule=both)


def _both(one: Rule, other: Rule) -> Rule | None:
    """Two wrong rules in one: places of the same rule, or Adam's under a decay of AdamW's."""
    inner = [x.keywords["rule"] for x in (one, other) if isinstance(x, partial) and x.func is prepares]
    if len(inner) == 2:
        both = _both(*inner)
        return both and partial(prepares, rule=both)
    if isinstance(one, partial) and isinstance(other, partial) and one.func is other.func:
        if one.args or other.args:
            return None
        return partial(one.func, **one.keywords, **other.keywords) if not one.keywords.keys() & other.keywords else None
    if isinstance(other, partial) and "adam" in other.keywords and not isinstance(one, partial):
        return partial(one, adam=other.keywords["adam"])
    return None
