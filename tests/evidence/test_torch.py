"""PyTorch's optimizers on the CPU: independent code, several steps long, within a bound on rounding errors.

The truth is the rule of `refopt.cpu` itself, evaluated on the numbers of `refopt.oracle.bound.bounded`, from the first
step to the last: each has a running bound on how far a rounded evaluation may be off. Both sides start from the same
hyperparameters, rounded to the working type.

refopt rounds once per operator, so it lies within the bound of one rounding each. PyTorch works out scalars in
doubles, but has other forms of some rules, with at most twice the roundings, at sizes no larger than the rule's:

- moments by lerp, m + (1 - beta) * (g - m), with 1 - beta much smaller than beta;
- lr times the velocity in RMSProp, where the rule has it in each of the velocity's terms;
- a root for each average in Adadelta;
- one subtraction from the parameter for the moment and one for the gradient in NAdam.

Hence ROUNDINGS = 2, which has room for a power by pow(), good to 1 ulp, too. Two inputs are off by themselves: the
decay_base of NAdam, of whose unrounded value PyTorch takes powers, and the rho of RAdam, for which PyTorch has the
formula that cancels (see `refopt.cpu.radam`).
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from mutants.family import implementation

from evidence.cells import cell_of
from refopt import oracle
from refopt.catalog import ROUTINES
from refopt.oracle.bound.bounded import Arithmetic
from refopt.oracle.bound.double_double import high
from refopt.oracle.exact.cases import Case
from refopt.oracle.exact.laws import reference
from refopt.oracle.wrong import OF

try:
    import torch
except ModuleNotFoundError:  # what shows is known without it
    torch = None

ROUNDINGS = 2
LIMIT = 300  # what a bound may be at most, in eps, for parameters near 1
STEPS = 10  # RAdam rectifies from the sixth
SHAPES = [(), (3,), (0,), (4, 5), (2, 3, 7), (300,)]


class Row(NamedTuple):
    """A routine and its peer: numbers by our names, then the peer's switches and our own."""

    routine: str
    peer: str
    numbers: dict[str, float]
    switches: Mapping[str, Any] = MappingProxyType({})
    choices: Mapping[str, Any] = MappingProxyType({})
    optional: str | None = None


SGD = {"lr": 0.1, "l2_decay": 0.05}
MOMENTUM = SGD | {"mu": 0.9}
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}
RMSPROP = {"lr": 0.02, "rho": 0.9, "mu": 0.8, "epsilon": 1e-3}
CORRECTED, OUTSIDE = {"epsilon_at": "corrected"}, {"epsilon_at": "outside"}
ON_THE_GRADIENT, IN_THE_STEP = {"epsilon_at": "gradient"}, {"lr_at": "step"}
DECAY, UP = {"weight_decay": 0.05}, {"maximize": True}
APART, DECOUPLED = {"decoupled_weight_decay": True}, {"decay": "decoupled"}
ADAGRAD, ADADELTA = {"lr": 0.1, "epsilon": 1e-3}, {"lr": 0.8, "rho": 0.9, "epsilon": 1e-3}
NADAM, SCHEDULE = ADAM | {"decay_base": 0.96**0.004}, {"momentum_decay": 0.004}
ROWS = {
    "sgd": Row("sgd", "SGD", SGD), "sgd_no_decay": Row("sgd", "SGD", SGD | {"l2_decay": 0.0}),
    "sgd_up": Row("sgd", "SGD", SGD, UP, UP), "momentum": Row("momentum", "SGD", MOMENTUM, {}, {"use_nesterov": False}),
    "momentum_no_decay": Row("momentum", "SGD", MOMENTUM | {"l2_decay": 0.0}, {}, {"use_nesterov": False}),
    "momentum_up": Row("momentum", "SGD", MOMENTUM, UP, UP),
    "nesterov": Row("momentum", "SGD", MOMENTUM, {"nesterov": True}, {"use_nesterov": True}),
    "adam": Row("adam", "Adam", ADAM | DECAY, {}, CORRECTED), "adam_no_decay": Row("adam", "Adam", ADAM, {}, CORRECTED),
    "adam_decoupled": Row("adam", "Adam", ADAM | DECAY, APART, CORRECTED | DECOUPLED),
    "adam_up": Row("adam", "Adam", ADAM | DECAY, UP, CORRECTED | UP),
    "amsgrad": Row("adam", "Adam", ADAM | DECAY | {"beta2": 0.9}, {"amsgrad": True}, CORRECTED, "moment2_max"),
    "adamw": Row("adamw", "AdamW", ADAM | {"coeff": 0.1}, {}, CORRECTED),
    "adamw_no_decay": Row("adamw", "AdamW", ADAM | {"coeff": 0.0}, {}, CORRECTED),
    "adamw_up": Row("adamw", "AdamW", ADAM | {"coeff": 0.1}, UP, CORRECTED | UP), "adamw_amsgrad": Row(
        "adamw", "AdamW", ADAM | {"beta2": 0.9, "coeff": 0.1}, {"amsgrad": True}, CORRECTED, "moment2_max"),
    "adagrad": Row("adagrad", "Adagrad", ADAGRAD | DECAY), "adagrad_no_decay": Row("adagrad", "Adagrad", ADAGRAD),
    "adagrad_up": Row("adagrad", "Adagrad", ADAGRAD | DECAY, UP, UP),
    "rmsprop": Row("rmsprop", "RMSprop", RMSPROP | DECAY, {}, OUTSIDE | IN_THE_STEP),
    "rmsprop_in_the_velocity": Row("rmsprop", "RMSprop", RMSPROP | DECAY, {}, OUTSIDE),
    "rmsprop_up": Row("rmsprop", "RMSprop", RMSPROP | DECAY, UP, OUTSIDE | IN_THE_STEP | UP), "centered": Row(
        "rmsprop", "RMSprop", RMSPROP | DECAY, {"centered": True}, OUTSIDE | IN_THE_STEP, "mean_grad"),
    "centered_in_the_velocity": Row(
        "rmsprop", "RMSprop", RMSPROP | DECAY, {"centered": True}, OUTSIDE, "mean_grad"),
    "adadelta": Row("adadelta", "Adadelta", ADADELTA | DECAY),
    "adadelta_no_decay": Row("adadelta", "Adadelta", ADADELTA),
    "adadelta_up": Row("adadelta", "Adadelta", ADADELTA | DECAY, UP, UP),
    "adamax": Row("adamax", "Adamax", ADAM | DECAY, {}, ON_THE_GRADIENT),
    "adamax_no_epsilon": Row("adamax", "Adamax", ADAM | DECAY | {"epsilon": 0.0}),
    "adamax_up": Row("adamax", "Adamax", ADAM | DECAY, UP, ON_THE_GRADIENT | UP),
    "nadam": Row("nadam", "NAdam", NADAM | DECAY, SCHEDULE), "nadam_no_decay": Row("nadam", "NAdam", NADAM, SCHEDULE),
    "nadam_decoupled": Row("nadam", "NAdam", NADAM | DECAY, SCHEDULE | APART, DECOUPLED),
    "nadam_up": Row("nadam", "NAdam", NADAM | DECAY, SCHEDULE | UP, UP), "radam": Row("radam", "RAdam", ADAM | DECAY),
    "radam_no_decay": Row("radam", "RAdam", ADAM),
    "radam_decoupled": Row("radam", "RAdam", ADAM | DECAY, APART, DECOUPLED),
    "radam_up": Row("radam", "RAdam", ADAM | DECAY, UP, UP)}
THEIR_NAMES = {"l2_decay": "weight_decay", "coeff": "weight_decay", "mu": "momentum", "epsilon": "eps"}
both_precisions = pytest.mark.parametrize("real", [np.float32, np.float64])


def arrays(seed, real):
    """Of random signs and of sizes near 1, so that no element comes near a singularity of a rule."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.choice([-1, 1], shape) * rng.uniform(0.5, 1.5, shape), real) for shape in SHAPES]


def joined(tensors):
    return np.concatenate([np.reshape(x, -1) for x in tensors])


def first(row, numbers, zeros, scalar):
    """What each state and scalar is before the first step."""
    powers = {"beta1_pow": "beta1", "beta2_pow": "beta2", "momentum_decay_pow": "decay_base"}
    routine, values = ROUTINES[row.routine], {}
    for slot in routine.slots:
        if slot.scalar:
            values[slot.name] = scalar(numbers.get(powers.get(slot.name), 1))
        elif slot.name in routine.states:
            values[slot.name] = None if slot.optional and slot.name != row.optional else zeros()
    return values


def ours(row, real, run=reference):
    """The parameters after the steps, by refopt or by a mutant."""
    params = arrays(0, real)
    states = first(
        row, row.numbers, lambda: [np.zeros_like(p) for p in params], lambda x: [np.full(1, x, real) for _ in params])
    case = Case(ROUTINES[row.routine], {"params": params} | states, [row.numbers], row.choices)
    for step in range(1, STEPS + 1):
        case = case.replace(grads=arrays(step, real))
        case = case.replace(**run(case))
    return joined(case.params)


def theirs(row, real):
    """The parameters after the steps, by PyTorch."""
    numbers = {name: float(real(x)) for name, x in row.numbers.items() if name != "decay_base"}
    named = {THEIR_NAMES.get(name, name): x for name, x in numbers.items()} | row.switches | {"foreach": False}
    if "beta1" in named:
        named["betas"] = named.pop("beta1"), named.pop("beta2")
    if row.peer == "RMSprop":
        named["alpha"] = named.pop("rho")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if real is np.float64 else torch.float32)  # NAdam's product is of this type
    try:
        params = [torch.nn.Parameter(torch.from_numpy(np.array(x))) for x in arrays(0, real)]
        optimizer = getattr(torch.optim, row.peer)(params, **named)
        for step in range(1, STEPS + 1):
            for p, g in zip(params, arrays(step, real), strict=True):
                p.grad = torch.from_numpy(np.array(g))
            optimizer.step()
    finally:
        torch.set_default_dtype(before)
    return joined([p.detach().numpy() for p in params])


@functools.cache
def truth(name, real, roundings):
    """The parameters after the steps, and how far off they may be."""
    row, of = ROWS[name], Arithmetic(real, roundings)
    routine, rule = ROUTINES[row.routine], ROUTINES[row.routine].rule
    numbers = {h.name: of.exact(real(row.numbers.get(h.name, h.default))) for h in routine.hypers}
    del numbers["rescale_grad"], numbers["seed"]
    if "decay_base" in numbers:
        numbers["decay_base"].error = of.unit * row.numbers["decay_base"]
    p = of.exact(joined(arrays(0, real)))
    states = first(row, numbers, lambda: of.exact(np.zeros(p.error.size)), p.lift)
    choices = {name: values[0] for name, values in routine.choices.items() if name != "rounding"} | dict(row.choices)
    for step in range(1, STEPS + 1):
        if "rho" in states:
            double = Arithmetic(np.float64, roundings)
            beta2, power = (double.exact(high(numbers[x].value if x == "beta2" else states[x].value))
                            for x in ("beta2", "beta2_pow"))
            power.error = double.unit * high(power.value)
            cancelling = 2 / (1 - beta2) - 1 - 2 * step * power / (1 - power)
            states["rho"].error = np.maximum(states["rho"].error, cancelling.error)
        p, *values = rule(p, of.exact(joined(arrays(step, real))), *states.values(), **numbers, **choices)
        states = dict(zip(states, values, strict=True))
    return p


def inside(name, real, got, roundings=ROUNDINGS):
    low, most = truth(name, real, roundings).ends()
    assert got.dtype == real
    return bool(((low <= got) & (got <= most)).all())


def of_a_cell(name, precision):
    """A row with the marker of the cell that it shows something of, if there is one of just its choices."""
    row, real = ROWS[name], {"fp32": np.float32, "fp64": np.float64}[precision]
    optional = (row.optional,) if row.optional else ()
    cells = cell_of(ROUTINES[row.routine], precision, row.choices, row.numbers, optional)
    return pytest.param(name, real, marks=[pytest.mark.evidence(*cell) for cell in cells], id=f"{name}-{precision}")


@pytest.mark.clause("N13")
@pytest.mark.parametrize("name", ROWS)
@both_precisions
def test_refopt_is_within_the_bound(name, real):
    """refopt comes to what the rule comes to without rounding; the bound is tight enough to say so."""
    assert truth(name, real, ROUNDINGS).error.max() <= LIMIT * np.finfo(real).eps
    assert inside(name, real, ours(ROWS[name], real), roundings=1)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("name", "real"), [of_a_cell(name, precision) for name in ROWS for precision in ("fp32", "fp64")])
def test_pytorch_is_within_the_bound(name, real):
    """What the rule comes to is what PyTorch comes to."""
    assert inside(name, real, theirs(ROWS[name], real))


@pytest.mark.skipif(torch is None, reason="torch is not installed")
@pytest.mark.parametrize("peer", ["AdamW", "NAdam", "RAdam"])
def test_scalars_follow_from_the_steps_that_pytorch_counts(peer):
    """So the oracle compares them, as any slot."""
    named = dict(dtypes=["float32"], laws=["L1", "L15"], examples=0, diagnose=False, process=False)
    report = oracle.check(peer.lower(), getattr(torch.optim, peer), **named)
    assert report.ok and not any("not returned" in note for note in report.notes), str(report)


# Not wrong at all for constant lr, lr_ratio 1, no dampening and decay in the gradient alone, nor where parameters are
# compared alone, and the velocity has the other sign throughout.
NOT_DECOUPLED = {"WeightDecayAfterwards"}
EQUAL = {
    "sgd": set(), "momentum": {"LearningRateInVelocity", "OtherSign", "DampeningOfEverything"}, "adam": set(),
    "adamw": {"RatioOnEverything", "RatioOfTheStep"}, "adagrad": NOT_DECOUPLED, "rmsprop": NOT_DECOUPLED,
    "adadelta": NOT_DECOUPLED, "adamax": NOT_DECOUPLED, "nadam": set(), "radam": set()}


WRONG = [pytest.param(routine, wrong, marks=[pytest.mark.slow] * (k > 2 and wrong not in EQUAL[routine]))
         for routine in EQUAL for k, wrong in enumerate(OF[routine])]


@pytest.mark.parametrize(("routine", "wrong"), WRONG)
@pytest.mark.parametrize("real", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_another_formula_is_outside(routine, wrong, real):
    """A wrong rule is outside the bound for one of its routine's rows, unless it is not wrong for any."""
    run = implementation(ROUTINES[routine], OF[routine][wrong].of(ROUTINES[routine].rule))
    rows = [name for name, row in ROWS.items() if row.routine == routine]
    assert all(inside(name, real, ours(ROWS[name], real, run)) for name in rows) == (wrong in EQUAL[routine])
