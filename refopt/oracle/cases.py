"""Cases from states that so many real steps reach, of numbers that the working precision has."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt import checks
from refopt.catalog import Hyper, Routine
from refopt.checks.dtypes import arithmetic, arithmetic_name, numpy_dtype
from refopt.cpu.merged import run, tensors
from refopt.cpu.remainder import split_numbers
from refopt.oracle.bound.bounded import SLACK, Arithmetic, Bounded
from refopt.oracle.bound.evaluate import evaluate, rounded_off, rule_of
from refopt.oracle.bound.expected import Expected, expected_of
from refopt.oracle.bound.values import high, size
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.variants import initial_of
from refopt.oracle.variants.variant import STEP_NUMBER
from refopt.state.steps import BASES, power_after, rho_after


def longer(x: float) -> float:
    """A number of few bits with a twelfth, which neither 16-bit dtype has; both round it by nearly half a unit."""
    return x + 9 * 2.0 ** (np.floor(np.log2(x)) - 11)


# Of twelve bits, so that fp32 has them, and 1 - beta, but no narrower dtype. No two alike and none near a power of two,
# so that a number that is lost, misplaced or rounded shows by far more than the bound.
SHORT = {
    "lr": 0.09375, "mu": 0.875, "l2_decay": 0.3125, "beta1": 0.875, "beta2": 0.9921875, "epsilon": 0.01171875,
    "coeff": 0.21875, "lr_ratio": 0.6875, "rho": 0.9375, "lars_coeff": 0.46875, "lars_weight_decay": 0.53125,
    "weight_decay": 0.578125, "decay_base": 0.8125, "rescale_grad": 0.40625, "seed": 5, "dampening": 0.34375,
    "lr_decay": 0.15625, "initial_accumulator": 0.28125, "epsilon_root": 0.03515625,
}
NUMBERS = {name: x if name == "seed" else longer(x) for name, x in SHORT.items()}
# What a step that does not take a number leaves out.
NEUTRAL = {
    "rescale_grad": 1.0, "lr_ratio": 1.0, "l2_decay": 0.0, "coeff": 0.0, "weight_decay": 0.0,
    "lars_weight_decay": 0.0, "mu": 0.0, "seed": 0, "dampening": 0.0, "lr_decay": 0.0, "initial_accumulator": 0.0,
    "epsilon_root": 0.0,
}
DECAYS = {"coeff", "weight_decay", "l2_decay", "lars_weight_decay"}  # of a parameter, by whatever routine
COUNTED = {*BASES, "rho", STEP_NUMBER.name}  # scalars that the number of steps gives, and the numbers
KEPT = 2**13  # elements of a case that is kept, for laws and other checks to draw again
LONG = 2000  # steps after which scalars are evaluated by closed forms
PATTERNS = 37  # tensors of a long list repeat after so many, which no limit on a launch is a multiple of


class Dtypes(NamedTuple):
    """Those of a tensor's slots. ``master`` is ``None``, the arithmetic type, or uint16 for a remainder (N15)."""

    param: str
    grad: str
    state: str
    master: str | None = None

    def __str__(self) -> str:
        names = f"{self.param}, gradient {self.grad}, states {self.state}"
        return names if self.master is None else f"{names}, {'remainder' if self.master == 'uint16' else 'master'}"


def alike(dtype: str) -> Dtypes:
    """One dtype for all slots."""
    return Dtypes(dtype, dtype, dtype)


def in_one_order(case: Case, got: Outcome) -> tuple[Case, Outcome]:
    """A case and what has come of it, in the order of C where arrays of a tensor lie in several orders."""
    lists = [values for values in case.slots.values() if values is not None]
    orders = ({x.flags.c_contiguous for x in of if x is not None and x.ndim > 1} for of in zip(*lists, strict=True))
    if not any(len(of_tensor) > 1 for of_tensor in orders):
        return case, got

    def plain(values: Sequence[Any]) -> list[Any]:
        return [x if x is None else x.copy(order="C") for x in values]

    slots = {name: plain(values) for name, values in case.slots.items() if values is not None}
    return case.replace(**slots), {name: plain(values) for name, values in got.items()}


def noise(seed: Sequence[int], shape: tuple[int, ...], small: float = 2.0**-6) -> np.ndarray:
    """Numbers of random signs and of sizes near 1, every eleventh of them small, others in each step."""
    rng = np.random.default_rng(list(seed))
    x = np.asarray(rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape))
    x.reshape(-1)[(5 + 3 * seed[1]) % 11 :: 11] *= small
    return x


def number(hyper: Hyper) -> float:
    """The number of a routine that cases have."""
    if hyper.name in NUMBERS and hyper.allows(NUMBERS[hyper.name]):
        return NUMBERS[hyper.name]
    return int(hyper.default or hyper.other) if hyper.whole else longer(hyper.other)


def numbers_of(row: Routine, takes: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """The numbers of a step that takes some of a routine's; what it does not take is left out, or has the default."""
    numbers = {hyper.name: NEUTRAL.get(hyper.name, hyper.default) for hyper in row.hypers}
    told = [hyper for hyper in row.hypers if hyper.name not in ("rescale_grad", "seed") and takes(hyper.name)]
    return numbers | {hyper.name: number(hyper) for hyper in told}


def choices_of(row: Routine) -> dict[str, Any]:
    """The choices of a step that is told none."""
    return {name: values[0] for name, values in row.choices.items()}


def optional_states(row: Routine) -> list[str]:
    """States of tensors that need not be there, but for masters."""
    return [x.name for x in row.slots if x.optional and not x.scalar and x.name != "master_params"]


def draw(
    row: Routine, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Dtypes], *, seed: int, numbers: Mapping[str, Any],
    choices: Mapping[str, Any], optional: Sequence[str] = (), count: int = 1,
) -> Case:
    """A case of tensors of some shapes, whose states `refopt.cpu` has reached in ``count - 1`` steps from the first.

    Args:
        row: a row of the catalogue.
        shapes: of each tensor.
        dtypes: of each tensor.
        seed: whole number; tensors ``PATTERNS`` apart that are of one shape are alike.
        numbers, choices: of every step.
        optional: optional states that are there.
        count: the step that is to be taken, from 1.
    """
    of = tuple(map(tuple, shapes)), tuple(dtypes), seed, tuple(numbers.items()), tuple(choices.items())
    small = len(shapes) <= PATTERNS and sum(map(math.prod, shapes)) <= KEPT
    case = (_drawn if small else _drawn.__wrapped__)(row, *of, tuple(optional), count).copy()
    return case.replace(steps=[dict(numbers)], choices=dict(choices))


@functools.lru_cache(256)
def _drawn(
    row: Routine, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[Dtypes, ...], seed: int, known: tuple,
    chosen: tuple, optional: tuple[str, ...], count: int,
) -> Case:
    """The same, not to be written."""
    numbers, choices = dict(known), dict(chosen)
    every = [(i % PATTERNS, shape, types) for i, (shape, types) in enumerate(zip(shapes, dtypes, strict=True))]
    unlike = list(dict.fromkeys(every))
    slots: dict[str, Any] = {slot.name: [] for slot in row.slots}
    for pattern, shape, types in unlike:
        first = _first(row, noise([seed, 0, pattern], shape), types, numbers, optional)
        for name, values in slots.items():
            values.append(first.get(name))
    slots["grads"] = [np.empty(shape, numpy_dtype(types.grad)) for _, shape, types in unlike]

    def fill(t: int) -> None:
        for grad, (k, shape, _) in zip(slots["grads"], unlike, strict=True):
            grad[...] = noise([seed, t, k], shape)

    if count > 1:
        checks.require_subnormals()
        before = {name: value for name, value in choices.items() if name != "rounding"}
        if row.told:  # no state follows from iterations, which take long
            numbers = numbers | {"iterations": 0}
        every_tensor = tensors(rule_of(row), checks.check(row, slots, numbers | before, checks.host_array))
        for t in range(1, count):
            fill(t)
            run(every_tensor)
    fill(count)
    case = Case(row, slots, [dict(known)], choices, count)
    case = case.replace(**_absent(case))
    return case if unlike == every else case.only([unlike.index(one) for one in every])


def _absent(case: Case) -> dict[str, None]:
    """The optional slots that no tensor has."""
    optional = [slot.name for slot in case.routine.slots if slot.optional]
    return {name: None for name in optional if all(x is None for x in case.lists()[name])}


def _first(
    row: Routine, exact: np.ndarray, types: Dtypes, numbers: Mapping[str, Any], optional: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """A tensor's slots before the first step, but for the gradient."""
    real = numpy_dtype(arithmetic_name(types.param))
    slots: dict[str, np.ndarray] = {}
    if types.master == "uint16":
        slots["params"], slots["master_params"] = map(np.asarray, split_numbers(exact.astype(np.float32)))
    else:
        slots["params"] = exact.astype(numpy_dtype(types.param))
        if types.master:
            slots["master_params"] = exact.astype(real)
    for slot in row.slots[2:-1]:
        if slot.scalar:
            first = numbers[slot.initial] if isinstance(slot.initial, str) else slot.initial
            slots[slot.name] = np.full(1, first, real)
        elif not slot.optional or slot.name in optional:
            slots[slot.name] = np.full(exact.shape, initial_of(row, slot.name, numbers), numpy_dtype(types.state))
    return slots


def true_scalars(row: Routine, arrays: Mapping[str, Any], numbers: Mapping[str, Any], choices: Mapping[str, Any],
                 count: int, arithmetic_: Arithmetic) -> dict[str, Bounded]:
    """What powers and the like are at a step, and how far off they may be of which code makes its own.

    The truth is the rule's, without rounding. A step may take what the slots hold, running products of the working
    precision; it may compute powers in double; or take them by a ``pow`` that is off by an ulp. Each is within the
    error. Numbers of the first steps are exact. RAdam's rho may be that of the paper's closed form in double.
    """
    scalars = {}
    for name in by_count(row):
        value = truth(row, numbers, choices, count, arithmetic_.real)[name].value
        held = arithmetic_.exact(arrays[name].reshape(-1)[0])
        rounding = 2 * arithmetic_.rounding * size(value) if count > 1 else 0.0
        error = max(float(size(held.value - value)), float(rounding))
        if arithmetic_.inputs and rounded_off(numbers, arithmetic_.real):
            in_double = truth(row, numbers, choices, count, np.float64)[name].value
            error = max(error, float(size(high(in_double) - high(value))) * SLACK)
        if name == "rho":
            error += _lost_in_double(float(numbers["beta2"]), count)
        scalars[name] = Bounded(value, np.float64(error), arithmetic_)
    return scalars


def expected_at(
    row: Routine, arrays: Mapping[str, Any], numbers: Mapping[str, Any], choices: Mapping[str, Any], count: int,
    **allowed: Any,
) -> dict[str, Expected]:
    """What step ``count`` of one tensor has to come to, whoever makes its powers; ``allowed`` is for `Arithmetic`."""
    real = arithmetic(arrays["params"].dtype.name)
    known, without = (
        true_scalars(row, arrays, numbers, choices, count, Arithmetic(real, inputs=inputs)) for inputs in (True, False)
    )
    return expected_of(row, arrays, numbers, choices, scalars=known, scalars_without=without, **allowed)


@functools.cache
def by_count(row: Routine) -> tuple[str, ...]:
    """The scalars of a routine that depend on the number of the step alone, not on data: powers and the like."""
    scalars = [slot for slot in row.slots if slot.scalar]
    return tuple(slot.name for slot in scalars if row.elementwise or isinstance(slot.initial, str))


def scalar_after(name: str, numbers: Mapping[str, Any], steps: int, real: Any) -> np.ndarray:
    """A power, the rho of RAdam, or the number of the step, as it is after so many steps."""
    if name == STEP_NUMBER.name:
        return np.full(1, steps + 1, real)
    if name == "rho":
        return np.full(1, rho_after(real(numbers["beta2"]), steps), real)
    return np.full(1, power_after(real(numbers[BASES[name]]), steps), real)


@functools.lru_cache(256)
def _lost_in_double(beta2: float, count: int) -> float:
    """By how much rho is off if it is evaluated in double as the paper has it, a difference that cancels."""
    beta2_ = Arithmetic(np.float64).exact(beta2)
    power = _power(beta2_, count) if count > LONG else beta2_**count
    with np.errstate(all="ignore"):
        rho = 2 / (1 - beta2_) - 1 - 2 * count * power / (1 - power)
    return float(rho.error) if np.isfinite(rho.error) else 0.0


def truth(
    row: Routine, numbers: Mapping[str, Any], choices: Mapping[str, Any], count: int, real: type
) -> dict[str, Bounded]:
    """What the scalars of a routine are before step ``count``, without rounding."""
    known = tuple(sorted((name, float(x)) for name, x in numbers.items() if name != "grad_factor"))
    return _truth(row, known, tuple(sorted(choices.items())), count, real)


@functools.lru_cache(256)
def _truth(row: Routine, numbers: tuple, choices: tuple, count: int, real: type) -> dict[str, Bounded]:
    of, empty = Arithmetic(real, roundings=0), np.zeros(0, np.dtype(real))
    values = dict(numbers)
    arrays: dict[str, Any] = {}
    for slot in row.slots:
        if slot.scalar:
            first = values[slot.initial] if isinstance(slot.initial, str) else slot.initial
            arrays[slot.name] = np.full(1, first, real)
        else:
            arrays[slot.name] = None if slot.optional else empty
    scalars = {name: of.exact(arrays[name][0]) for name in row.scalars}
    if count > LONG and (known := _long_after(row, values, count, of)):
        return known
    for _ in range(count - 1):
        after = evaluate(row, arrays, values, dict(choices), of, scalars=scalars)
        scalars = {name: after[name] for name in row.scalars}
    return scalars


def _long_after(row: Routine, numbers: Mapping[str, float], count: int, of: Arithmetic) -> dict[str, Bounded] | None:
    """The same by closed forms, which save thousands of steps; ``None`` where some scalar has none."""
    known: dict[str, Bounded] = {}
    for name in row.scalars:
        if name in BASES:
            known[name] = _power(of.exact(numbers[BASES[name]]), count)
        elif name == "rho":
            beta2 = of.exact(numbers["beta2"])
            power = _power(beta2, count - 1)
            known[name] = 2 / (1 - beta2) - 1 - 2 * (count - 1) * power / (1 - power)
        elif name == STEP_NUMBER.name:
            known[name] = of.exact(count)
        else:
            return None
    return known


def _power(base: Bounded, count: int) -> Bounded:
    """By squares, of which there are few."""
    power = None
    while count:
        if count % 2:
            power = base if power is None else power * base
        base, count = base * base, count // 2
    assert power is not None
    return power
