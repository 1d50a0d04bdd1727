"""Cases from states that a number of real steps reach, with numbers that are exact in the working precision."""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt import checks
from refopt.catalog import Hyper, Routine
from refopt.checks.dtypes import REMAINDERS, arithmetic, arithmetic_name, numpy_dtype
from refopt.cpu import Blocks
from refopt.cpu.merged import run, tensors
from refopt.cpu.remainder import split
from refopt.oracle.bound.bounded import SLACK, Arithmetic, Bounded
from refopt.oracle.bound.double_double import high, size
from refopt.oracle.bound.evaluate import evaluate, rounded_off
from refopt.oracle.bound.expected import Expected, expected_of
from refopt.oracle.exact.cases import Case, Outcome, copied
from refopt.oracle.variants import initial_of
from refopt.oracle.variants.variant import STEP_NUMBER
from refopt.state.steps import BASES, power_after, rho_after


def longer(x: float) -> float:
    """A number of few bits with a twelfth, which 16-bit dtypes cannot hold; both round it by nearly half a unit."""
    return x + 9 * 2.0 ** (math.floor(math.log2(x)) - 11)


# Of twelve bits, so that they and 1 - beta are exact in fp32 but in no narrower dtype. No two are equal and none is
# near a power of two, so that losing, misplacing or rounding one causes an error far beyond the bound.
SHORT = {
    "lr": 0.09375, "mu": 0.875, "l2_decay": 0.3125, "beta1": 0.875, "beta2": 0.9921875, "epsilon": 0.01171875,
    "coeff": 0.21875, "lr_ratio": 0.6875, "rho": 0.9375, "lars_coeff": 0.46875, "lars_weight_decay": 0.53125,
    "weight_decay": 0.578125, "decay_base": 0.8125, "rescale_grad": 0.40625, "seed": 5, "dampening": 0.34375,
    "lr_decay": 0.15625, "initial_accumulator": 0.28125, "epsilon_root": 0.03515625,
}
NUMBERS = {name: x if name == "seed" else longer(x) for name, x in SHORT.items()}
# The values with which a number has no effect, for steps that do not take it.
NEUTRAL = {
    "rescale_grad": 1.0, "lr_ratio": 1.0, "l2_decay": 0.0, "coeff": 0.0, "weight_decay": 0.0,
    "lars_weight_decay": 0.0, "mu": 0.0, "seed": 0, "dampening": 0.0, "lr_decay": 0.0, "initial_accumulator": 0.0,
    "epsilon_root": 0.0,
}
DECAYS = {"coeff", "weight_decay", "l2_decay", "lars_weight_decay"}  # of parameters, in any routine
COUNTED = {*BASES, "rho", STEP_NUMBER.name}  # scalars that follow from the step count and the numbers
CODED = "float32", "float16", "bfloat16"  # dtypes of parameters whose states may be in few bits
LR = 2.0**-10  # of optimizers whose states are coded, beside which epsilon must be as small as usual
KEPT = 2**13  # the most elements of a case that is cached for other laws and checks
PATTERNS = 37  # tensors of a long list repeat with this period, which divides no limit of a launch


class Dtypes(NamedTuple):
    """The dtypes of a tensor's slots. ``master`` is ``None``, the arithmetic type, or that of a remainder (N15)."""

    param: str
    grad: str
    state: str
    master: str | None = None

    def __str__(self) -> str:
        names = f"{self.param}, gradient {self.grad}, states {self.state}"
        return names if self.master is None else f"{names}, {'remainder' if self.master in REMAINDERS else 'master'}"


def alike(dtype: str) -> Dtypes:
    """One dtype for all slots."""
    return Dtypes(dtype, dtype, dtype)


def in_one_order(case: Case, got: Outcome) -> tuple[Case, Outcome]:
    """A case and its outcome, in C order if the arrays of a tensor have different orders of axes."""
    lists = [values for values in case.slots.values() if values is not None]
    orders = ({x.flags.c_contiguous for x in of if x is not None and x.ndim > 1} for of in zip(*lists, strict=True))
    if not any(len(of_tensor) > 1 for of_tensor in orders):
        return case, got
    return case.replace(**copied(case.slots, "C")), copied(got, "C")


def noise(seed: Sequence[int], shape: tuple[int, ...], small: float = 2.0**-6) -> np.ndarray:
    """Numbers of random signs and magnitudes near 1; every eleventh is small, at other places in each step.

    Callers must not write the array, which is cached if it is small.
    """
    return (_noise if math.prod(shape) <= KEPT // 8 else _noise.__wrapped__)(tuple(seed), tuple(shape), small)


@functools.lru_cache(4096)
def _noise(seed: tuple[int, ...], shape: tuple[int, ...], small: float) -> np.ndarray:
    rng = np.random.default_rng(list(seed))
    x = np.asarray(rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape))
    x.reshape(-1)[(5 + 3 * seed[1]) % 11 :: 11] *= small
    x.flags.writeable = False
    return x


def number(hyper: Hyper) -> float:
    """The value that cases use for a number of a routine."""
    if hyper.name in NUMBERS and hyper.allows(NUMBERS[hyper.name]):
        return NUMBERS[hyper.name]
    return int(hyper.default or hyper.other) if hyper.whole else longer(hyper.other)


def usual(hyper: Hyper) -> float:
    """The value that users give a number of a routine: its default, or one close to it."""
    return LR if hyper.name == "lr" else number(hyper) if hyper.default is None else hyper.default


def numbers_of(
    row: Routine, takes: Callable[[str], bool] = lambda name: True, number: Callable[[Hyper], Any] = number
) -> dict[str, Any]:
    """The numbers of a step that takes some of a routine's; the others have no effect, or their default."""
    numbers = {hyper.name: NEUTRAL.get(hyper.name, hyper.default) for hyper in row.hypers}
    told = [hyper for hyper in row.hypers if hyper.name not in ("rescale_grad", "seed") and takes(hyper.name)]
    return numbers | {hyper.name: number(hyper) for hyper in told}


def choices_of(row: Routine) -> dict[str, Any]:
    """The default choices of a step."""
    return {name: values[0] for name, values in row.choices.items()}


def optional_states(row: Routine) -> list[str]:
    """The optional states of tensors, except masters."""
    return [x.name for x in row.slots if x.optional and not x.scalar and x.name != "master_params"]


def draw(
    row: Routine, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Dtypes], *, seed: int, numbers: Mapping[str, Any],
    choices: Mapping[str, Any], optional: Sequence[str] = (), count: int = 1,
) -> Case:
    """A case of tensors of some shapes, whose states `refopt.cpu` has reached in ``count - 1`` steps.

    Args:
        row: a row of the catalogue.
        shapes: of each tensor.
        dtypes: of each tensor.
        seed: whole number; tensors of one shape that are ``PATTERNS`` apart are equal.
        numbers, choices: of every step.
        optional: the optional states that are present.
        count: the number of the step to take, from 1.
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
    """The same, cached, so callers must not write it."""
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
        before = {name: value for name, value in row.parted(choices)[0].items() if name != "rounding"}
        if row.matrix_arguments:  # skip the iterations: they take long, and no state depends on them
            numbers = numbers | {"iterations": 0}
        every_tensor = tensors(row.rule, checks.check(row, slots, numbers | before, checks.host_array))
        for t in range(1, count):
            fill(t)
            run(every_tensor)
    fill(count)
    absent = [slot.name for slot in row.slots if slot.optional and all(x is None for x in slots[slot.name])]
    case = Case(row, slots | dict.fromkeys(absent), [dict(known)], choices, count)
    return case if unlike == every else case.only([unlike.index(one) for one in every])


def _first(
    row: Routine, exact: np.ndarray, types: Dtypes, numbers: Mapping[str, Any], optional: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """A tensor's slots before the first step, without the gradient."""
    real = arithmetic_name(types.param)
    slots: dict[str, np.ndarray] = {}
    if types.master in REMAINDERS:
        slots["params"], slots["master_params"] = map(np.asarray, split(exact.astype(np.float32), types.master))
    else:
        slots["params"] = exact.astype(numpy_dtype(types.param))
        if types.master:
            slots["master_params"] = exact.astype(real)
    for slot in row.slots[2:-1]:
        if slot.scalar:
            first = numbers[slot.initial] if isinstance(slot.initial, str) else slot.initial
            slots[slot.name] = np.full(1, first, real)
        elif not slot.optional or slot.name in optional:
            shape, dtype = (Blocks().row_shape(exact.shape), real) if slot.by_row else (exact.shape, types.state)
            slots[slot.name] = np.full(shape, initial_of(row, slot.name, numbers), numpy_dtype(dtype))
    return slots


def true_scalars(row: Routine, arrays: Mapping[str, Any], numbers: Mapping[str, Any], choices: Mapping[str, Any],
                 count: int, arithmetic_: Arithmetic) -> dict[str, Bounded]:
    """Scalars such as powers at a step, with how far off they may be in code that computes its own.

    The exact values are the rule's without rounding. A step may use the slots, which are running products in the
    working precision; compute powers in double; or use a ``pow`` that is off by an ulp. Each is within the error.
    Scalars of the first step, and the number of a step, are exact. RAdam's rho may come from the paper's closed form in
    double.
    """
    scalars = {}
    for name in by_count(row):
        value = truth(row, name, numbers, choices, count, arithmetic_.real)
        held = arithmetic_.exact(arrays[name].reshape(-1)[0])
        rounding = 2 * arithmetic_.rounding * size(value) if count > 1 and name != STEP_NUMBER.name else 0.0
        error = max(float(size(held.value - value)), float(rounding))
        if arithmetic_.inputs and rounded_off(numbers, arithmetic_.real):
            in_double = truth(row, name, numbers, choices, count, np.float64)
            error = max(error, float(size(high(in_double) - high(value))) * SLACK)
        if name == "rho":
            error += _lost_in_double(float(numbers["beta2"]), count)
        scalars[name] = Bounded(value, np.float64(error), arithmetic_)
    return scalars


def expected_at(
    row: Routine, arrays: Mapping[str, Any], numbers: Mapping[str, Any], choices: Mapping[str, Any], count: int,
    **allowed: Any,
) -> dict[str, Expected]:
    """The expected result of step ``count`` for one tensor, whoever computes its powers.

    ``allowed`` is passed to `Arithmetic`.
    """
    of = Arithmetic(arithmetic(arrays["params"].dtype.name), inputs=True)
    known = true_scalars(row, arrays, numbers, choices, count, of)
    return expected_of(row, arrays, numbers, choices, scalars=known, **allowed)


@functools.cache
def by_count(row: Routine) -> tuple[str, ...]:
    """The scalars of a routine that depend only on the step number, not on data, such as powers."""
    scalars = [slot for slot in row.slots if slot.scalar]
    return tuple(slot.name for slot in scalars if row.elementwise or isinstance(slot.initial, str))


def scalar_after(name: str, numbers: Mapping[str, Any], steps: int, real: Any) -> np.ndarray:
    """A power, RAdam's rho, or the step number, after a number of steps."""
    if name == STEP_NUMBER.name:
        return np.full(1, steps + 1, real)
    if name == "rho":
        return np.full(1, rho_after(real(numbers["beta2"]), steps), real)
    return np.full(1, power_after(real(numbers[BASES[name]]), steps), real)


def at_step(case: Case, count: int, names: Collection[str] | None = None) -> Case:
    """The same states at another step, with that step's scalars that depend on its number: all, or some by name."""

    def then(name: str, i: int) -> np.ndarray:
        real, numbers = arithmetic(case.params[i].dtype.name), case.numbers_of(i)
        if name in COUNTED:
            return scalar_after(name, numbers, count - 1, real)
        return np.full(1, high(truth(case.routine, name, numbers, case.choices, count, real)), real)

    slots: dict[str, Any] = {
        name: [x if x is None else then(name, i) for i, x in enumerate(case.lists()[name])]
        for name in by_count(case.routine) if names is None or name in names
    }
    return case.replace(count=count, **slots)


@functools.lru_cache(256)
def _lost_in_double(beta2: float, count: int) -> float:
    """By how much rho is off if the paper's formula is evaluated in double, where a difference cancels."""
    with np.errstate(all="ignore"):
        rho = _rho(Arithmetic(np.float64).exact(beta2), count)
    return float(rho.error) if np.isfinite(rho.error) else 0.0


def truth(
    row: Routine, name: str, numbers: Mapping[str, Any], choices: Mapping[str, Any], count: int, real: type
) -> Any:
    """A scalar of a routine before step ``count``, without rounding: in fp64, or `DoubleDouble` if real is fp64."""
    if name in COUNTED:
        return _by_closed_form(name, float(numbers.get(BASES.get(name, "beta2"), 0.0)), count, real)
    known = tuple(sorted((number, float(x)) for number, x in numbers.items() if number != "grad_factor"))
    return _step_by_step(row, known, tuple(sorted(choices.items())), count, real)[name]


@functools.lru_cache(256)
def _step_by_step(row: Routine, numbers: tuple, choices: tuple, count: int, real: type) -> dict[str, Any]:
    """The scalars of a routine before step ``count``, by its rule."""
    of, values, arrays = Arithmetic(real, roundings=0), dict(numbers), dict[str, Any]()
    for slot in row.slots:
        if slot.scalar:
            first = values[slot.initial] if isinstance(slot.initial, str) else slot.initial
            arrays[slot.name] = np.full(1, first, real)
        else:
            arrays[slot.name] = None if slot.optional else np.zeros(0, np.dtype(real))
    scalars = {name: of.exact(arrays[name][0]) for name in row.scalars}
    for _ in range(count - 1):
        after = evaluate(row, arrays, values, dict(choices), of, scalars=scalars)
        scalars = {name: after[name] for name in row.scalars}
    return {name: x.value for name, x in scalars.items()}


@functools.lru_cache(256)
def _by_closed_form(name: str, base: float, count: int, real: type) -> Any:
    """One of the scalars `COUNTED` before step ``count``, of a beta, which a step number does not depend on."""
    of = Arithmetic(real, roundings=0)
    if name == STEP_NUMBER.name:
        return of.exact(count).value
    if name in BASES:
        return (of.number(base) ** of.exact(count)).value
    wide = Arithmetic(np.float64, roundings=0)  # for fp32, too, since a difference cancels
    rho = _rho(wide.exact(real(base)), count).value
    return rho if real is np.float64 else high(rho)


def _rho(beta2: Bounded, count: int) -> Bounded:
    """RAdam's rho before step ``count``, by the paper's formula."""
    power = beta2 ** beta2.arithmetic.exact(count)
    return 2 / (1 - beta2) - 1 - 2 * count * power / (1 - power)
