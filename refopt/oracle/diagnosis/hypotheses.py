"""What may be wrong with a step: each hypothesis changes the situation that the rule is evaluated in."""

import functools
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refopt import catalog
from refopt.checks.dtypes import SIZES, numpy_dtype
from refopt.checks.rows import Routine, Slot
from refopt.cpu.adam import descend, moments
from refopt.oracle import variants
from refopt.oracle.bound.evaluate import rule_of
from refopt.oracle.cases import Case, has, memory
from refopt.oracle.diagnosis.situation import NONE, Rule, Situation
from refopt.oracle.diagnosis.source import substituted
from refopt.oracle.variants.lars_momentum import lars_with
from refopt.oracle.wrong import OF, limits, norms
from refopt.oracle.wrong.adamw import decayed
from refopt.oracle.wrong.lamb import lamb_with
from refopt.oracle.wrong.novograd import novograd_with
from refopt.oracle.wrong.options import prepares

CORRECTS = {
    "beta1_pow": "no bias correction of the first moment", "beta2_pow": "no bias correction of the second moment",
}  # fmt: skip


DECAYS = {"l2_decay", "coeff", "weight_decay", "lars_weight_decay"}


class Hypothesis(NamedTuple):
    """``change`` gives the changed situation, or ``None`` where the hypothesis says nothing.

    ``kind`` is what it changes: two of one kind and ``about`` make no pair. Nor does one that is not ``paired``.
    ``needs`` are numbers that the step has to take.
    """

    name: str
    change: Callable[[Situation], Situation | None]
    kind: str
    about: str = ""
    paired: bool = True
    needs: tuple[str, ...] = ()


@functools.cache
def base_rule(row: Routine) -> Rule:
    """The rule, all of whose code can be looked at, as it stands in papers."""
    if row.name == "lars_momentum" and not variants.is_extended(row):
        return lars_with
    return substituted(substituted(rule_of(row), descend, descend_as_in_the_paper), moments, moments_one_by_one)


def moments_one_by_one(g, m, u, *, beta1, beta2):
    """`refopt.cpu.adam.moments`, with names for the new ones."""
    m = beta1 * m + (1 - beta1) * g
    u = beta2 * u + (1 - beta2) * g * g
    return m, u


def descend_as_in_the_paper(p, m, u, beta1_pow, beta2_pow, *, lr, epsilon, epsilon_at):
    """Adam's step by corrected moments; `refopt.cpu.adam.descend` has it regrouped."""
    if epsilon_at == "uncorrected":
        return p - lr * np.sqrt(1 - beta2_pow) / (1 - beta1_pow) * (m / (np.sqrt(u) + epsilon))
    m_hat = m / (1 - beta1_pow)
    d = m_hat / (np.sqrt(u / (1 - beta2_pow)) + epsilon)
    return p - lr * d


@functools.cache
def named(row: Routine) -> tuple[Hypothesis, ...]:
    """All hypotheses about a routine that have names."""
    of_rule = *_choices(row), *_rules(row), *_gradients(row)
    return (*of_rule, *_numbers(row), *_scalars(row), *_arrays(row), *_arithmetic())


def _arithmetic() -> Iterator[Hypothesis]:
    def change(s: Situation, to: str) -> Situation | None:
        param = s.arrays["params"].dtype
        fits = param.name == to if to != "float32" else param.itemsize == 8
        return s._replace(worked=to) if fits and not s.worked else None

    for to in ("float32", "float16", "bfloat16") if has("bfloat16") else ("float32", "float16"):
        yield Hypothesis(f"worked out in {to}", partial(change, to=to), "arithmetic")


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
    for wrong in OF[row.name].values():
        if wrong.name:
            yield Hypothesis(wrong.name, partial(_with_rule, rule=_in_place(row, wrong.rule)), "rule")
    for module, places in (("lars_momentum", lars_with), ("lamb", lamb_with), ("novograd", novograd_with)):
        if row.name == module:
            for text, squares in norms.squares():
                rule = _in_place(row, partial(places, squares=squares))
                yield Hypothesis(text, partial(_with_rule, rule=rule), "rule", "", False)
    if row.name == "adamw":
        for wrong in OF["adam"].values():
            if wrong.name and wrong.update:
                rule = _in_place(row, partial(prepares, rule=partial(decayed, adam=wrong.update)))
                yield Hypothesis(wrong.name, partial(_with_rule, rule=rule), "rule")


def _in_place(row: Routine, rule: Rule) -> Rule:
    """The rule of a row with another in place of the catalogue's."""
    own = lars_with if row.name == "lars_momentum" else catalog.ROUTINES[row.name].rule
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
        return partial(one.func, **one.keywords, **other.keywords) if not one.keywords.keys() & other.keywords else None
    if isinstance(other, partial) and "adam" in other.keywords and not isinstance(one, partial):
        return partial(one, adam=other.keywords["adam"])
    return None


def _numbers(row: Routine) -> Iterator[Hypothesis]:
    for hyper in row.hypers:
        if hyper.name != "seed":
            for text, to, paired in _other_numbers(hyper.name, hyper.default):
                yield from _changed(row, text, lambda s, x, to=to: to(x), (hyper.name,), paired)  # type: ignore[misc]
    for dtype, real in _narrow_numbers():
        yield Hypothesis(f"all numbers rounded to {dtype}", partial(_all_rounded, real=real), "number", "", False)
    for text, to, paired in _other_numbers("grad_factor", None):
        yield from _changed(row, text, lambda s, x, to=to: to(x), ("grad_factor",), paired)  # type: ignore[misc]
    names = [hyper.name for hyper in row.hypers if hyper.name != "seed"]
    for one, two in itertools.combinations(names, 2):

        def other(s: Situation, x: float, one: str = one, two: str = two) -> float:
            return float(s.numbers[two if x == s.numbers[one] else one])

        both = one, two
        for first, second in (both, both[::-1]):

            def product(s: Situation, x: float, by: str = second) -> float:
                return x * float(s.numbers[by])

            yield from _changed(row, f"{first} * {second} for {first}", product, (first,), False, both)
        yield from _changed(row, f"{one} and {two} swapped", other, both, False, both)
        yield from _changed(row, f"{two} for {one}", other, (one,), False, both)
        yield from _changed(row, f"{one} for {two}", other, (two,), False, both)
    for name in names:

        def of_first(s: Situation, x: float, name: str = name) -> float:
            return s.case.numbers_of(0)[name]

        yield from _changed(row, f"{name} of the first tensor for all", of_first, (name,), False)


def _other_numbers(name: str, default: float | None) -> Iterator[tuple[str, Callable[[float], float], bool]]:
    """What a number may have been taken for, and whether pairs are made with it."""
    yield f"{name} ignored: taken as 0", lambda x: 0.0, True
    yield f"{name} ignored: taken as 1", lambda x: 1.0, True
    if default not in (None, 0.0, 1.0):
        yield f"{name} always {default:g}, the default", lambda x: float(default), True
    yield f"{name} squared, or applied twice", lambda x: x * x, False
    yield f"the root of {name} for {name}", lambda x: float(np.sqrt(x)), False
    yield f"1 / {name} for {name}", lambda x: float(np.divide(1, x)), False
    yield f"twice {name}", lambda x: 2 * x, False
    yield f"half of {name}", lambda x: x / 2, False
    yield f"1 - {name} for {name}", lambda x: 1 - x, False
    yield f"minus {name} for {name}", lambda x: -x, False
    for dtype, real in _narrow_numbers():
        yield f"{name} rounded to {dtype}", lambda x, real=real: float(real(x)), False  # type: ignore[misc]


def _all_rounded(s: Situation, real: Any) -> Situation | None:
    changed = {name: x if name == "seed" else float(real(x)) for name, x in s.numbers.items()}
    return s._replace(numbers=changed, of_powers=changed) if changed != s.numbers else None


def _narrow_numbers() -> list[tuple[str, Any]]:
    return [(dtype, numpy_dtype(dtype).type) for dtype in ("float16", "bfloat16") if has(dtype)]


def _changed(
    row: Routine, text: str, to: Callable[[Situation, float], float], names: tuple[str, ...], paired: bool,
    needs: tuple[str, ...] = (),
) -> Iterator[Hypothesis]:
    """Other numbers in the rule; where powers are made of them, in those as well, or not."""

    def change(s: Situation, powers: bool) -> Situation | None:
        if any(name not in s.numbers for name in names):
            return None
        with np.errstate(all="ignore"):
            changed = {name: float(to(s, float(s.numbers[name]))) for name in names}
        if any(x == s.numbers[name] or not np.isfinite(x) for name, x in changed.items()):
            return None
        return s._replace(numbers=s.numbers | changed, of_powers={**s.of_powers} | (changed if powers else {}))

    carried = [slot for slot in row.slots if slot.scalar and isinstance(slot.initial, str)]
    if any(slot.initial in names for slot in carried):
        yield Hypothesis(text, partial(change, powers=True), "number", names[0], paired, needs or names)
        text += ", but not in its powers"
    yield Hypothesis(text, partial(change, powers=False), "number", names[0], paired, needs or names)


def _scalars(row: Routine) -> Iterator[Hypothesis]:
    carried = [slot for slot in row.slots if slot.scalar]
    by_count = _by_count(row)
    for name in by_count:
        if name in CORRECTS:
            yield Hypothesis(CORRECTS[name], partial(_powers, names=(name,), to=lambda t, i: NONE), "power", name)
        yield from _other_steps(name, (name,))
    if len(by_count) > 1:
        yield from _other_steps("bias correction", by_count)
    for slot in carried:
        yield Hypothesis(f"{slot.name} not advanced", partial(_kept, name=slot.name), "kept", slot.name)


def _by_count(row: Routine) -> tuple[str, ...]:
    """The scalars that follow from the number of the step."""
    return tuple(x.name for x in row.slots if x.scalar and (row.elementwise or isinstance(x.initial, str)))


def _other_steps(what: str, names: tuple[str, ...]) -> Iterator[Hypothesis]:
    steps: dict[str, Callable[[int, int], int]] = {
        "one step late: of t - 1": lambda t, i: t - 1, "one step early: of t + 1": lambda t, i: t + 1,
        "always of the first step": lambda t, i: 1, "counted up by each tensor: of t + i": lambda t, i: t + i,
    }  # fmt: skip
    for text, to in steps.items():
        yield Hypothesis(f"{what} {text}", partial(_powers, names=names, to=to), "power", names[0])


def _powers(s: Situation, names: tuple[str, ...], to: Callable[[int, int], int]) -> Situation | None:
    count = to(s.case.count, s.tensor)
    return s._replace(powers=s.powers | dict.fromkeys(names, count)) if count != s.case.count else None


def _kept(s: Situation, name: str) -> Situation | None:
    return s._replace(kept=s.kept | {name}) if s.arrays.get(name) is not None else None


def _arrays(row: Routine) -> Iterator[Hypothesis]:
    """What is read of arrays, and what becomes of results on their way to memory."""
    yield Hypothesis("gradient with the other sign", partial(_read, name="grads", by=lambda x: -x), "array", "grads")
    for by in ("all tensors", "each tensor"):
        yield Hypothesis(f"gradients clipped, to a norm of 1 of {by}", partial(_clipped, by=by), "clipped", by)
    yield Hypothesis("gradient taken as 0", partial(_read, name="grads", by=lambda x: 0 * x), "array", "grads")
    for slot in row.slots:
        name = slot.name
        if name == "master_params":
            yield Hypothesis("masters not read: the parameter for the exact one", _without_master, "array", name)
        if slot.written and not slot.scalar:
            yield Hypothesis(f"{name} not written", partial(_kept, name=name), "kept", name)
        if name in row.states:
            yield Hypothesis(f"{name} starts from 1", partial(_started, name=name), "array", name)
        if name not in ("params", "grads", "master_params", *_by_count(row)):
            yield Hypothesis(
                f"{name} not read: taken as 0", partial(_read, name=name, by=lambda x: 0 * x), "array", name
            )
        for what, which in NEIGHBOURS.items():
            if name != "params":
                yield Hypothesis(f"{name} of {what}", partial(_of_tensor, name=name, which=which), "array", name, False)
        for dtype in ("float16", "bfloat16", "float32") if has("bfloat16") else ("float16", "float32"):
            yield from _in_dtype(row, slot, dtype)


def _in_dtype(row: Routine, slot: Slot, dtype: str) -> Iterator[Hypothesis]:
    """A slot that is stored, used or read in another dtype."""
    name = slot.name
    if slot.written and not slot.scalar:
        yield Hypothesis(f"{name} stored in {dtype}", partial(_narrow, name=name, dtype=dtype), "narrow", name)
        if name in row.states and row.elementwise:
            rounded = partial(_narrow, name=name, dtype=dtype, first=True)
            yield Hypothesis(f"{name} rounded to {dtype} before its use", rounded, "narrow", name)
    if not slot.written or name in row.states:
        yield Hypothesis(f"{name} read in {dtype}", partial(_through, name=name, dtype=dtype), "array", name)


def _started(s: Situation, name: str) -> Situation | None:
    """A state of ones before the first step."""
    x = s.arrays.get(name)
    return None if x is None or s.case.count != 1 else s._replace(arrays=s.arrays | {name: np.ones_like(x)})


def _clipped(s: Situation, by: str) -> Situation | None:
    """Gradients that are clipped to a norm of 1: that of all tensors, or of each."""
    grads = [x for x in s.case.grads if x is not None] if by == "all tensors" else [s.arrays["grads"]]
    norm = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in grads))
    return s._replace(numbers=s.numbers | {"grad_factor": s.numbers.get("grad_factor", 1) / norm}) if norm > 1 else None


NEIGHBOURS: dict[str, Callable[[int, int], int]] = {
    "the first tensor": lambda i, n: 0, "the tensor before": lambda i, n: i - 1,
    "the tensor after": lambda i, n: i + 1, "the last tensor": lambda i, n: n - 1,
}  # fmt: skip


def _read(s: Situation, name: str, by: Callable[[Any], Any]) -> Situation | None:
    x = s.arrays.get(name)
    return None if x is None else s._replace(arrays=s.arrays | {name: by(x)})


def _without_master(s: Situation) -> Situation | None:
    master = s.arrays.get("master_params")
    if master is None or master.dtype == np.uint16:
        return None
    return s._replace(arrays=s.arrays | {"master_params": s.arrays["params"].astype(master.dtype)})


def _of_tensor(s: Situation, name: str, which: Callable[[int, int], int]) -> Situation | None:
    j, mine = which(s.tensor, len(s.case)), s.arrays.get(name)
    if mine is None or j == s.tensor or not 0 <= j < len(s.case):
        return None
    other, size = s.case.lists()[name][j], s.case.lists()[name][s.tensor].size
    if other is None or other.size < size:
        return None
    elements = np.empty_like(mine)
    memory(elements)[...] = memory(other)[:size][s.elements]
    return s._replace(arrays=s.arrays | {name: elements})


def _narrow(s: Situation, name: str, dtype: str, first: bool = False) -> Situation | None:
    x = s.arrays.get(name)
    if x is None or x.dtype.kind == "u" or SIZES[dtype] >= x.dtype.itemsize:
        return None
    rounded = s.rounded | {name} if first else s.rounded
    return s._replace(narrow={**s.narrow, name: dtype}, rounded=rounded)


def _through(s: Situation, name: str, dtype: str) -> Situation | None:
    x = s.arrays.get(name)
    if x is None or SIZES[dtype] >= x.dtype.itemsize:
        return None
    return s._replace(arrays=s.arrays | {name: x.astype(numpy_dtype(dtype)).astype(x.dtype)})
