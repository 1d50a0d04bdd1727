"""The step itself: one flat tensor at several steps, with every choice and optional state."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from refopt.oracle.cases import optional_states
from refopt.oracle.exact.cases import Case, memory
from refopt.oracle.laws import matrices
from refopt.oracle.laws.law import Law, Try, of_bound
from refopt.oracle.trial import Trial
from refopt.oracle.variants import by_request

SIZE = 300
COUNTS = 1, 2, 3, 5, 6, 7, 60  # RAdam rectifies from the sixth; in the last one Adam's corrections are near 1
LATE = 1000  # a step whose moments average many gradients
# Scales that reveal limits on gradients, updates, norms and their ratios, from below and from above.
SCALES: dict[str, dict[str, float]] = {
    "large gradients": {"grads": 64.0}, "small gradients": {"grads": 2.0**-12},
    "large parameters": {"params": 64.0}, "small parameters": {"params": 2.0**-8},
    "small gradients and parameters": {"params": 2.0**-12, "grads": 2.0**-12},
}
KEEPING = "mu", "decay_base"  # from 1 on, what they multiply would grow without limit
SMALL = {"weight_decay": 2.0**-7, "lars_weight_decay": 2.0**-7}  # so small that the decay alone does not limit a ratio


def tries(trial: Trial) -> Iterator[Try]:
    for count in COUNTS:
        yield of_bound(trial, f"step {count}", [SIZE], count=count)
    yield from of_row(trial)
    yield from _of_sizes(trial)
    if trial.row.matrix_arguments:
        yield from matrices.step(trial)
    if "second_moment" in trial.row.scalars and not trial.takes("step"):
        yield Try("second_moment zero", partial(zeroed, trial, ("second_moment",)), trial.hold)
    for k in range(trial.examples):
        yield Try(f"example {k}", partial(example, trial, k), trial.hold)


def of_row(trial: Trial) -> Iterator[Try]:
    """Each optional state, each value of a choice, and each number that may be 0."""
    row = trial.row
    for name in optional_states(trial.row):
        yield of_bound(trial, f"with {name}", [SIZE], count=3, optional=[name])
    for name, values in row.choices.items():
        if name != "rounding" and _asked_for(trial, name):
            for value in [x for x in values if x != trial.choices()[name]]:
                yield of_bound(trial, f"{name}={value}", [SIZE], count=3, choices={name: value})
    for hyper in row.hypers:
        if not hyper.positive and not hyper.whole and _asked_for(trial, hyper.name):
            yield of_bound(trial, f"{hyper.name}=0", [SIZE], count=3, **{hyper.name: 0.0})


def _asked_for(trial: Trial, name: str) -> bool:
    """Whether a number or choice is not fixed; options must be taken by the subject."""
    return name not in trial.fixed and (trial.takes(name) or name not in by_request(trial.row.name))


def _of_sizes(trial: Trial) -> Iterator[Try]:
    """Parameters and gradients of other magnitudes, or zero."""
    for name in ("params", "grads"):
        yield Try(f"{name} zero", partial(zeroed, trial, (name,)), trial.hold)
    # The parameter is the update alone, and corrections are near 1, so a factor shows if it is a few ULPs off.
    yield Try(f"params zero, step {COUNTS[-1]}", partial(zeroed, trial, ("params",), COUNTS[-1]), trial.hold)
    small = {name: x for name, x in SMALL.items() if free(trial, name)}
    for label, scales in SCALES.items():
        count = 1 if label.startswith("small gradients") else 3  # without larger numbers in the states
        yield Try(label, partial(scaled, trial, scales, small, count), trial.hold)
    late = {name: 0.0 for name in ("beta1",) if free(trial, name)}
    large = SCALES["large gradients"]
    yield Try(f"large gradients, step {LATE}", partial(scaled, trial, large, late, LATE), trial.hold)
    yield Try("everything zero", partial(zeroed, trial, ("params", "grads"), count=1), trial.hold)


def free(trial: Trial, name: str) -> bool:
    """Whether cases may give a number of the routine any value."""
    return name in trial.numbers() and trial.takes(name) and name not in trial.fixed


def scaled(trial: Trial, scales: dict[str, float], numbers: dict[str, float], count: int) -> Case:
    """A case whose parameters or gradients have another magnitude than in earlier steps."""
    return times(trial.case([SIZE], None, count=count, **numbers), scales)  # type: ignore[arg-type]


def times(case: Case, scales: Mapping[str, float]) -> Case:
    """A case with slots multiplied by numbers, in their dtypes."""
    slots = {name: [x * x.dtype.type(scale) for x in case.slots[name] or ()] for name, scale in scales.items()}
    return case.replace(**slots)


def zeroed(trial: Trial, names: tuple[str, ...], count: int = 2) -> Case:
    """A case with some slots set to zero."""
    return times(trial.case([SIZE], count=count), dict.fromkeys(names, 0.0))


def example(trial: Trial, k: int) -> Case:
    """A case with size, step, states, numbers and data drawn at random; its numbers have at most 13 bits."""
    rng = np.random.default_rng([trial.seed, k])
    numbers = numbers_of_example(trial, rng)
    chosen = [name for name in optional_states(trial.row) if trial.takes(name) and rng.integers(2)]
    size, count = int(rng.integers(1, 2000)), int(rng.integers(1, 20))
    case = trial.case([size], None, count=count, optional=chosen, seed=k + 1, **numbers)  # type: ignore[arg-type]
    for name in ("params", "grads"):
        for x in case.slots[name] or ():
            memory(x)[...] *= x.dtype.type(2.0 ** rng.integers(-6, 7))
    return case


def numbers_of_example(trial: Trial, rng: "np.random.Generator") -> dict[str, float]:
    """The numbers that cases may vary, scaled by up to a factor of four."""
    numbers, usual = {}, trial.numbers()
    for hyper in trial.row.hypers:
        x = usual[hyper.name]
        if free(trial, hyper.name) and x and hyper.name != "rescale_grad" and not hyper.whole:
            end = min(hyper.below, 1.0 if hyper.name in KEEPING and x < 1 else np.inf)
            most = min(4079 / 4096 * end, 2.0)
            numbers[hyper.name] = float(min(np.round(4096 * x * rng.uniform(0.25, 4)) / 4096, most)) or x
    return numbers


LAWS = (Law("L1", "step", "One step is within the bound, from states that real steps reach.", tries),)
