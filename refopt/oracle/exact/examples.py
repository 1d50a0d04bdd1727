"""Small fixed cases of each routine that together cover everything the specification fixes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from refopt.catalog import LARS_MOMENTUM, Hyper, Routine
from refopt.oracle.exact import lars
from refopt.oracle.exact.build import SMALL, make, remainders, scaled, step_of, stochastic, storages
from refopt.oracle.exact.cases import Case

# Routines with further cases: those of a plain step, and those with a factor and a flag.
OWN = {LARS_MOMENTUM.name: (lars.examples, lars.gated)}
DECAYS = "weight_decay", "lars_weight_decay"


def gated(routine: Routine) -> Iterator[tuple[str, Case]]:
    """Named cases of steps with a factor and a flag, for routines that have such cases."""
    if routine.name in OWN:
        yield from OWN[routine.name][1]()


def examples(routine: Routine) -> Iterator[tuple[str, Case]]:
    """Named cases."""
    optional = tuple(slot.name for slot in routine.slots if slot.optional and slot.name != "master_params")
    one, other = step_of(routine), step_of(routine, lr=0.2, rescale_grad=3.0)
    yield from _lists(routine, one, other)
    yield from _choices_and_states(routine, one, other, optional)
    yield from _zeros_and_non_finite(routine, one, optional)
    for name in DECAYS:
        if name in one:
            yield from _weight_decays(routine, name)
    yield from _scalars(routine, one, other)
    yield from _sizes_of_numbers(routine, optional)
    yield from _dtypes(routine, one, other, optional)
    if routine.name in OWN:
        yield from OWN[routine.name][0]()


Step = dict[str, Any]


def _lists(routine: Routine, one: Step, other: Step) -> Iterator[tuple[str, Case]]:
    """Various lists of tensors, and numbers per tensor."""
    yield "one tensor", make(routine, [5])
    yield "no tensor", make(routine, [])
    yield "an empty tensor last", make(routine, [1, 0])
    yield "tiles and tails", make(routine, [1023, 1024, 1025, 2100])
    yield "two steps, other numbers", make(routine, SMALL, steps=[one, other])
    yield "numbers per tensor", make(routine, SMALL, steps=[one | varied(routine, len(SMALL))] * 2)


def _choices_and_states(
    routine: Routine, one: Step, other: Step, optional: tuple[str, ...]
) -> Iterator[tuple[str, Case]]:
    """Every choice, and more and more of the optional states."""
    for name, values in routine.choices.items():
        for value in values[1:]:
            yield f"{name}={value}", make(routine, SMALL, steps=[one, other], **{name: value})
            if optional:
                yield f"{name}={value}, all states", make(routine, SMALL, optional=optional, **{name: value})
    for k in range(len(optional)):
        case = make(routine, SMALL, steps=[one, other], optional=optional[: k + 1])
        yield f"with {optional[k]}", case
        some = [None, *case.lists()[optional[k]][1:]]
        yield f"with some {optional[k]}", case.replace(**{optional[k]: some})


def _zeros_and_non_finite(routine: Routine, one: Step, optional: tuple[str, ...]) -> Iterator[tuple[str, Case]]:
    """Zeros, inf and NaN in each slot."""
    for value in (np.inf, np.nan):
        for where in ("params", "grads", *routine.states):
            case = make(routine, [6, 2], optional=optional)
            case.slots[where][0][2] = value  # type: ignore[index]
            yield f"{value} in {where}", case
    case = make(routine, [4, 3], steps=[one, one])
    yield "a gradient of None", case.replace(grads=[None, case.grads[1]])
    for where in ("params", "grads", *routine.states):
        case = make(routine, [6, 2], optional=optional)
        case.slots[where][0][...] = 0  # type: ignore[index]
        yield f"{where} zero", case
    for zero in (0.0, -0.0):
        still = ("grads", *routine.states)
        case = make(routine, [6, 2], optional=optional)
        case.slots["params"][1][...] = zero  # type: ignore[index]
        nothing = {slot: [np.full_like(x, zero) for x in case.lists()[slot]] for slot in still}
        yield f"all but parameters {zero}", case.replace(**nothing)


def _weight_decays(routine: Routine, decay: str) -> Iterator[tuple[str, Case]]:
    """Weight decay, none, and of a parameter of zeros, for each choice."""
    for name, value in [(name, value) for name, values in routine.choices.items() for value in values]:
        for wd in (0.0, [0.3, 0.0]):
            steps = [step_of(routine, **{decay: wd})]
            yield f"{name}={value}, weight decay {wd}", make(routine, [6, 2], steps=steps, **{name: value})
        zeros = make(routine, [6, 2], steps=[step_of(routine, **{decay: 0.3})], **{name: value})
        zeros.params[0][...] = 0
        yield f"{name}={value}, a parameter of zeros", zeros


def _scalars(routine: Routine, one: Step, other: Step) -> Iterator[tuple[str, Case]]:
    """Unusual values of scalars."""
    if "rho" in routine.scalars:
        case = make(routine, [6])
        yield "at the threshold of rho", case.replace(rho=[np.full(1, 5, np.float32)])
    if "second_moment" in routine.scalars:
        for value in (0.0, -0.0, np.inf, np.nan):
            case = make(routine, [6, 2, 0], steps=[one, other])
            carried = [np.full(1, x, np.float32) for x in (value, 0.5, value)]
            yield f"{value} in second_moment", case.replace(second_moment=carried)
        case = make(routine, [6], steps=[one, other])
        yield "no gradient yet", case.replace(second_moment=[np.zeros(1, np.float32)], grads=[0 * case.grads[0]])


def _sizes_of_numbers(routine: Routine, optional: tuple[str, ...]) -> Iterator[tuple[str, Case]]:
    """Squares that underflow or overflow, and subnormal numbers."""
    for scale, name in ((1e-20, "squares underflow"), (1e25, "squares overflow")):
        yield name, scaled(make(routine, SMALL), scale, "grads")
    required = [name for name in routine.states if name not in optional]
    yield "everything subnormal", scaled(make(routine, SMALL), 1e-40, "params", "grads", *required)


def _dtypes(routine: Routine, one: Step, other: Step, optional: tuple[str, ...]) -> Iterator[tuple[str, Case]]:
    """Dtypes other than fp32, remainders, and stochastic rounding."""
    for dtypes in storages():
        yield " ".join(dtypes), make(routine, SMALL, dtypes, steps=[one, one | dict(lr=0.125)])
    for dtypes in remainders():
        yield " ".join(dtypes), make(routine, SMALL, dtypes, steps=[one, other])
    for dtypes in stochastic() if "rounding" in routine.choices else []:
        steps = [one, other | dict(seed=[1, 2, 3, 4, 2**24 - 1])]
        case = make(routine, SMALL, dtypes, steps=steps, optional=optional, rounding="stochastic")
        yield " ".join(dtypes) + " stochastic", case


def varied(routine: Routine, count: int) -> dict[str, list[float]]:
    """A different value per tensor for every number that may differ between tensors."""

    def values(hyper: Hyper) -> list[float]:
        number = step_of(routine)[hyper.name]
        return [number + i if hyper.whole else hyper.times(number, (1 + i % 5) / 4) for i in range(count)]

    return {hyper.name: values(hyper) for hyper in routine.hypers if hyper.per_tensor}
