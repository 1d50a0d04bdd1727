"""The numbers that carry bounds: exact where they say so, and never closer than a rounded evaluation comes."""

import importlib
from fractions import Fraction

import numpy as np
import pytest
from evidence import bounded
from evidence.bounded import Arithmetic, Bounded, high
from evidence.cells import FOUND_INF, RESCALE_GRAD, STOCHASTIC, cells
from evidence.double_double import UNIT, DoubleDouble
from evidence.trial import Trial
from hypothesis import given
from hypothesis import strategies as st

from refopt.conformance.laws import reference

pytestmark = pytest.mark.clause("N13")

numbers = st.floats(1e-3, 1e3) | st.floats(-1e3, -1e-3)
wide = st.tuples(numbers, st.floats(-(2.0**-54), 2.0**-54)).map(lambda x: DoubleDouble(np.float64(x[0]), x[0] * x[1]))
OPERATIONS = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y}
reals = pytest.mark.parametrize("real", [np.float32, np.float64])


def fraction(x):
    return Fraction(float(x.high)) + Fraction(float(x.low))


@pytest.mark.parametrize("operation", OPERATIONS)
@given(x=wide, y=wide)
def test_double_doubles_are_precise(operation, x, y):
    """Within a fourth of `UNIT` of the exact result, after a cancellation, too."""
    for other in (y, DoubleDouble(x.high, -x.low)):
        exact = OPERATIONS[operation](fraction(x), fraction(other))
        got = fraction(OPERATIONS[operation](x, other))
        assert abs(got - exact) <= Fraction(UNIT) / 4 * abs(exact)


@given(x=wide)
def test_roots_are_precise(x):
    """The square of a root is its radicand."""
    square = fraction(abs(x).sqrt()) ** 2
    assert abs(square - abs(fraction(x))) <= Fraction(UNIT) / 2 * square
    assert fraction(DoubleDouble(np.float64(0)).sqrt()) == 0


@given(st.lists(wide, min_size=1, max_size=40))
def test_sums_are_precise(values):
    values = [abs(x) for x in values]
    whole = DoubleDouble(np.array([x.high for x in values]), np.array([x.low for x in values]))
    exact = sum(map(fraction, values))
    assert abs(fraction(whole.sum()) - exact) <= 6 * Fraction(UNIT) * exact


def polynomial(x, y, root, more):
    """Something of every operation, with a cancellation that `more` makes near or far."""
    z = x * y + root(abs(x)) / y
    return root(abs(z)) - z * more / (x * x + y * y)


@reals
@given(data=st.data())
def test_a_rounded_evaluation_is_within_its_bound(real, data):
    """With one rounding for each operation, as numerics N13 has it."""
    x, y, more = (real(data.draw(numbers)) for _ in range(3))
    of = Arithmetic(real, roundings=1)
    bound = polynomial(*map(of.exact, (x, y)), bounded.sqrt, of.exact(more))
    low, high = bound.ends()
    assert low <= polynomial(x, y, np.sqrt, more) <= high


@reals
def test_the_bound_is_met(real):
    """Some evaluation comes close to its bound; of products that underflow as well."""
    of, rng = Arithmetic(real, roundings=1), np.random.default_rng(0)
    for scale in (1.0, 2.0**-70 if real is np.float32 else 1.0):
        x, y = (rng.uniform(1, 2, 10000).astype(real) * real(scale) for _ in range(2))
        product = of.exact(x) * of.exact(y)
        off = abs(high(product.value - of.exact(x * y).value)) / product.error
        assert 0.4 < off.max() <= 1


def test_what_rounding_could_decide_is_refused():
    """A branch, a divisor near 0, a root of what may be negative; a sign is anything between."""
    of = Arithmetic(np.float32)
    near = of.exact(np.float32(1)) / 3 * 3 - 1
    zero = of.exact(np.float32(0))
    for refused in (lambda: near > 0, lambda: 1 / near, lambda: bounded.sqrt(near)):
        with pytest.raises(AssertionError, match=r"may be|could decide"):
            refused()
    assert not zero > 0 and of.exact(np.float32(1)) > 0 and bounded.sqrt(zero).error == 0
    assert bounded.sign(near).error == 1 and bounded.sign(zero).error == 0 == high(bounded.sign(zero).value)


# That the bound of a formula covers the order of operations in refopt.cpu.


class Traced(Bounded):
    """A number that the rules of refopt.cpu compute with: roots by way of NumPy, equality to a constant.

    ``type(x)(1)`` is the constant 1.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value, error=0.0, arithmetic=None):
        super().__init__(value, error, arithmetic)

    def __array_ufunc__(self, ufunc, *_, **__):
        assert ufunc is np.sqrt
        return bounded.sqrt(self)

    def __eq__(self, other):
        return bool(high(self.value) == other)


def make_traceable(monkeypatch):
    """Sums along a tree, maxima and signs are not made of operators."""
    for module, name, function in (
        ("lars", "sum_of_squares", lambda x: bounded.total(x * x)),
        ("lamb", "sum_of_squares", lambda x: bounded.total(x * x)),
        ("novograd", "sum_of_squares", lambda x: bounded.total(x * x)),
        ("adam", "larger", bounded.maximum),
        ("adamax", "larger", bounded.maximum),
        ("lion", "sign", bounded.sign),
    ):
        monkeypatch.setattr(importlib.import_module(f"refopt.cpu.{module}"), name, function)


def by_the_rule(trial, known, scalars):
    """What the rule of refopt.cpu comes to, by slot, with one rounding for each operator."""
    of, routine = known.inputs, trial.routine
    module = importlib.import_module(f"refopt.cpu.{routine.name.removesuffix('_momentum')}")
    numbers = {hyper.name: of[hyper.name] for hyper in routine.hypers if hyper.name in of}
    numbers |= {name: of[name] for name in routine.choices if name != "rounding"}
    numbers.pop("rescale_grad", None)
    if routine.name == "lars_momentum":
        normed = of["param"] if numbers.pop("norm_of") == "param" else of["x"]
        norms = (bounded.norm(x) for x in (normed, of["g"]))
        mu, decay = numbers.pop("mu"), numbers["lars_weight_decay"]
        rate = module.local_lr(*norms, **numbers)
        results = module.rule(of["x"], of["g"], of["velocities"], local_lr=rate, mu=mu, lars_weight_decay=decay)
        return dict(zip(("params", "velocities"), results, strict=True))
    if not routine.elementwise:
        numbers["stored"] = lambda name, _: of["new_" + name]
    carried = [name for name in routine.slot_names if name in (*routine.states, *routine.scalars)]
    results = module.rule(of["x"], of["g"], *(scalars.get(name, of[name]) for name in carried), **numbers)
    return dict(zip(("params", *carried), results, strict=True))


FIRST = {(cell.routine, cell.variant): cell for cell in reversed(cells())}.values()  # the first precision of each
COVERED = [cell for cell in cells() if cell in FIRST or (cell.variant, cell.precision) == ("default", "fp64")]
COVERED = [cell for cell in COVERED if cell.variant not in (FOUND_INF, RESCALE_GRAD, STOCHASTIC)]


@pytest.mark.parametrize("cell", COVERED, ids="-".join)
def test_the_bound_of_a_formula_covers_the_rule(monkeypatch, cell):
    """Whatever the rule of refopt.cpu may come to, with one rounding for each operator, is within it."""
    trial, once = Trial(cell), Trial(cell, roundings=1, number=Traced)
    pairs = list(zip(trial.steps(reference), once.steps(reference), strict=True))
    make_traceable(monkeypatch)
    powers = {}
    for known, traced in pairs:
        tensor = known.where.rpartition(" ")[2]
        results = by_the_rule(once, traced, powers.setdefault(tensor, {}))
        powers[tensor] = {name: x for name, x in results.items() if name in trial.routine.scalars}
        powers[tensor].pop("second_moment", None)
        for name, bound in trial.outcome(known).items():
            distance = abs(high(bound.value - results[name].value))
            assert np.all(distance + results[name].error <= bound.error), f"{known.where}: {name}"
