"""PyTorch's optimizers on the CPU: somebody else's code, some steps long, within a bound on what rounding may do.

The truth is the rule of `refopt.cpu` itself, evaluated on `Bounded` numbers: of at least eleven bits more than the
working precision (fp64 for fp32, long double for fp64), each with a running bound on how far a rounded evaluation may
be off. The operators count their own roundings, at the size at which they happen, and follow what divisions, roots
and cancellation make of earlier errors, so no amplification is left out. Both sides start from the same
hyperparameters, rounded to the working type. Underflow is left out: there is none here.

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
from mutants.family import Optimizer, rule_of

from evidence.cells import cell_of
from refopt.catalog import ROUTINES
from refopt.oracle.exact.cases import Case
from refopt.oracle.exact.laws import reference
from refopt.oracle.wrong import RULES

try:
    import torch
except ModuleNotFoundError:  # what shows is known without it
    torch = None

ROUNDINGS = 2
LIMIT = 300  # what a bound may be at most, in eps, for parameters near 1
STEPS = 10  # RAdam rectifies from the sixth
SHAPES = [(), (3,), (0,), (4, 5), (2, 3, 7), (300,)]
WIDE: dict[Any, Any] = {np.float32: np.float64, np.float64: np.longdouble}
PLAIN_LONG_DOUBLE = np.finfo(np.longdouble).nmant < 63
PRECISIONS = [
    np.float32,
    pytest.param(np.float64, marks=pytest.mark.skipif(PLAIN_LONG_DOUBLE, reason="long double is fp64 here"))]


class Bounded:
    """A number, and a bound on the error of a rounded evaluation that has come to it."""

    def __init__(self, value, unit, error=0):
        self.value, self.unit, self.error = value, unit, error + 0 * abs(value)

    def rounded(self, value, error):
        return Bounded(value, self.unit, error + self.unit * (abs(value) + error))

    def lift(self, x):
        return x if isinstance(x, Bounded) else Bounded(x, self.unit)

    def __neg__(self):
        return Bounded(-self.value, self.unit, self.error)

    def __abs__(self):
        return Bounded(abs(self.value), self.unit, self.error)

    def __add__(self, other):
        other = self.lift(other)
        return self.rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other):
        return self + -self.lift(other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        x, y = self, self.lift(other)
        return self.rounded(x.value * y.value, abs(x.value) * y.error + abs(y.value) * x.error + x.error * y.error)

    def __truediv__(self, other):
        x, y = self, self.lift(other)
        assert np.all(abs(y.value) > y.error), "a divisor that may be 0"
        quotient = x.value / y.value
        return self.rounded(quotient, (x.error + abs(quotient) * y.error) / (abs(y.value) - y.error))

    def __rtruediv__(self, other):
        return self.lift(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def __gt__(self, other):
        """A single comparison must be certain; elements are compared for `larger` alone."""
        difference = self.value - self.lift(other).value
        assert np.ndim(difference) or abs(difference) > self.error, "a branch that rounding could decide"
        return difference > 0

    def __array_ufunc__(self, ufunc, method, *inputs, **_):
        """The square root: |sqrt(x) - sqrt(y)| is at most sqrt(|x - y|), and at most |x - y| / sqrt(x)."""
        assert ufunc is np.sqrt
        root = np.sqrt(self.value)
        return self.rounded(root, np.minimum(np.sqrt(self.error), self.error / np.maximum(root, np.finfo(float).tiny)))

    def __array_function__(self, function, types, arguments, _):
        """np.where, of the larger of two: it is off by no more than one of them, whichever is taken."""
        assert function is np.where
        condition, x, y = arguments
        return Bounded(np.where(condition, x.value, y.value), self.unit, np.maximum(x.error, y.error))


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
both_precisions = pytest.mark.parametrize("real", PRECISIONS)


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
    row, wide = ROWS[name], WIDE[real]
    routine, rule = ROUTINES[row.routine], rule_of(ROUTINES[row.routine])
    unit = roundings * float(np.finfo(real).eps) / 2 + float(np.finfo(wide).eps)  # the truth rounds, too
    numbers = {h.name: wide(real(row.numbers.get(h.name, h.default))) for h in routine.hypers}
    del numbers["rescale_grad"], numbers["seed"]
    numbers = {n: Bounded(x, unit, unit * x if n == "decay_base" else 0) for n, x in numbers.items()}
    p = Bounded(joined(arrays(0, real)).astype(wide), unit)
    states = first(row, numbers, lambda: Bounded(0 * p.value, unit), p.lift)
    for step in range(1, STEPS + 1):
        if "rho" in states:
            double = roundings * 2.0**-53
            beta2, power = Bounded(numbers["beta2"].value, double), states["beta2_pow"].value
            power = Bounded(power, double, double * power)
            cancelling = 2 / (1 - beta2) - 1 - 2 * step * power / (1 - power)
            states["rho"].error = max(states["rho"].error, cancelling.error)
        g = Bounded(joined(arrays(step, real)).astype(wide), unit)
        choices = {name: values[0] for name, values in routine.choices.items() if name != "rounding"}
        p, *values = rule(p, g, *states.values(), **numbers, **choices | row.choices)
        states = dict(zip(states, values, strict=True))
    return p.value, p.error


def inside(name, real, got, roundings=ROUNDINGS):
    value, error = truth(name, real, roundings)
    assert got.dtype == real
    return bool((abs(got - value) <= error).all())


def of_a_cell(name, precision):
    """A row with the marker of the cell that it shows something of, if there is one of just its choices."""
    row, real = ROWS[name], {"fp32": np.float32, "fp64": np.float64}[precision]
    optional = (row.optional,) if row.optional else ()
    cells = cell_of(ROUTINES[row.routine], precision, row.choices, row.numbers, optional)
    plain = pytest.mark.skipif(real is np.float64 and PLAIN_LONG_DOUBLE, reason="long double is fp64 here")
    marks = [plain, *(pytest.mark.evidence(*cell) for cell in cells)]
    return pytest.param(name, real, marks=marks, id=f"{name}-{precision}")


@pytest.mark.clause("N13")
@pytest.mark.parametrize("name", ROWS)
@both_precisions
def test_refopt_is_within_the_bound(name, real):
    """refopt comes to what the rule comes to without rounding; the bound is tight enough to say so."""
    assert truth(name, real, ROUNDINGS)[1].max() <= LIMIT * np.finfo(real).eps
    assert inside(name, real, ours(ROWS[name], real), roundings=1)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("name", "real"), [of_a_cell(name, precision) for name in ROWS for precision in ("fp32", "fp64")])
def test_pytorch_is_within_the_bound(name, real):
    """What the rule comes to is what PyTorch comes to."""
    assert inside(name, real, theirs(ROWS[name], real))


# Wrong in their roundings alone, or for constant lr, lr_ratio 1, no dampening, decay in the gradient alone and no NaN
# not wrong at all, nor where parameters are compared alone, and the velocity has the other sign throughout.
NOT_DECOUPLED = {"WeightDecayWithoutLr", "WeightDecayAfterwards"}
EQUAL = {
    "sgd": {"DecayDecoupled", "Distributed"},
    "momentum": {"LearningRateInVelocity", "OtherSign", "DampeningIgnored", "DampeningOfEverything"},
    "adam": {"SquareFirst", "StepRegrouped"}, "adamw": {"RatioOnEverything", "DecaySubtracted"},
    "adagrad": {"StepRegrouped", "TimesTheReciprocal"} | NOT_DECOUPLED,
    "rmsprop": {"LearningRateAtTheOtherPlace", "SquareFirst", "VarianceClamped", "StepRegrouped"} | NOT_DECOUPLED,
    "adadelta": {"RootsDivided", "SquareFirst", "StepRegrouped"} | NOT_DECOUPLED,
    "adamax": {"NormTakesNan", "NormLosesNan"} | NOT_DECOUPLED, "nadam": set(), "radam": {"ThresholdReached"}}


@pytest.mark.parametrize(("routine", "wrong"), [(routine, wrong) for routine in EQUAL for wrong in RULES[routine]])
@pytest.mark.parametrize("real", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_another_formula_is_outside(routine, wrong, real):
    """A wrong rule is outside the bound for one of its routine's rows; one that only rounds otherwise is inside."""
    run = Optimizer(RULES[routine][wrong])
    rows = [name for name, row in ROWS.items() if row.routine == routine]
    assert all(inside(name, real, ours(ROWS[name], real, run)) for name in rows) == (wrong in EQUAL[routine])
