"""The numbers that carry bounds: exact where they say so, and never closer than a rounded evaluation comes."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.cells import FOUND_INF, RESCALE_GRAD, STOCHASTIC, cells
from evidence.trial import Trial
from refopt.oracle.bound import bounded
from refopt.oracle.bound.bounded import Arithmetic
from refopt.oracle.bound.branches import Undecided, every_way
from refopt.oracle.bound.double_double import UNIT, DoubleDouble, high
from refopt.oracle.bound.evaluate import evaluate
from refopt.oracle.exact.laws import reference

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
        assert abs(fraction(OPERATIONS[operation](x, other)) - exact) <= Fraction(UNIT) / 4 * abs(exact)
    exact = OPERATIONS[operation](Fraction(3), fraction(y))
    assert abs(fraction(OPERATIONS[operation](3.0, y)) - exact) <= Fraction(UNIT) / 4 * abs(exact)


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
    low, high = polynomial(*map(of.exact, (x, y)), bounded.sqrt, of.exact(more)).ends()
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


def test_what_has_no_bound_has_an_infinite_one():
    """A divisor near 0, a root of what may be negative, a result that may overflow."""
    of = Arithmetic(np.float32)
    near = of.exact(np.float32(1)) / 3 * 3 - 1
    zero = of.exact(np.float32(0))
    with np.errstate(all="ignore"):
        for unknown in (1 / near, bounded.sqrt(near), of.exact(np.float32(3e38)) * 2 - of.exact(np.float32(3e38))):
            assert unknown.error == np.inf
    assert bounded.sqrt(zero).error == 0
    assert bounded.sign(near).error == 1 and bounded.sign(zero).error == 0 == high(bounded.sign(zero).value)


def test_both_ways_of_a_branch_are_followed():
    """The truth's first; what is certain has one way; the same condition goes the same way throughout."""
    of = Arithmetic(np.float32)
    one = of.exact(np.float32(1))
    near, zero = one / 3 * 3 - 1, of.exact(np.float32(0))
    with pytest.raises(Undecided, match="could decide"):
        bool(near > 0)

    def rule():
        up, more = near > 0, near < 1
        return (5 if up else 7) + (10 if up else 20) + (100 if more else 200)

    positive = high(near.value) > 0
    assert every_way(rule) == ([115, 127] if positive else [127, 115])
    assert not zero > 0 and one > 0 and one != zero and zero == 0
    others = [near, one / 7 * 7 - 1, one / 11 * 11 - 1]
    ways = every_way(lambda: [bool(x > 0) for x in others])
    assert ways[0] == [high(x.value) > 0 for x in others] and len({*map(tuple, ways)}) == len(ways) == 8
    united = one.covering(zero)
    assert high(united.value) == 1 and 1 <= united.error < 1.1


def test_elements_that_rounding_could_choose_cover_both():
    """The maximum of two averages that may come out either way, and a sign."""
    of = Arithmetic(np.float32)
    x = of.exact(np.array([1, 2, 3], np.float32)) / 3 * 3
    y = of.exact(np.array([1, 1, 4], np.float32))
    chosen = np.where(x > y, x, 10 * y)
    assert list(high(chosen.value).round()) in ([10, 2, 40], [1, 2, 40])
    assert chosen.error[0] > 8.9 and max(chosen.error[1:]) < 1e-4
    signs = np.where(x - y > 0, np.float32(1), np.where(x - y < 0, np.float32(-1), x - y))
    assert signs.error[0] >= 1 and list(signs.error[1:]) == [0, 0]


# That the bound of a formula covers the order of operations in refopt.cpu.


def by_the_rule(trial, known, scalars):
    """What the rule of refopt.cpu comes to, by slot, with one rounding for each operator."""
    of, row = known.inputs, trial.routine
    rows = {hyper.name: float(high(of[hyper.name].value)) for hyper in row.hypers if hyper.name in of}
    if "grad_factor" in of:
        rows["grad_factor"] = float(high(of["grad_factor"].value))
    return evaluate(row, known.before, rows, trial.choices, trial.arithmetic, scalars=scalars, after=known.after)


FIRST = {(cell.routine, cell.variant): cell for cell in reversed(cells())}.values()  # the first precision of each
COVERED = [cell for cell in cells() if cell in FIRST or (cell.variant, cell.precision) == ("default", "fp64")]
COVERED = [cell for cell in COVERED if cell.variant not in (FOUND_INF, RESCALE_GRAD, STOCHASTIC)]


OF_RULES = [  # laws hold each variant to its formula
    pytest.param(cell, id="-".join(cell), marks=[pytest.mark.slow] * (cell.variant != "default")) for cell in COVERED]


@pytest.mark.parametrize("cell", OF_RULES)
def test_the_bound_of_a_formula_covers_the_rule(cell):
    """Whatever the rule of refopt.cpu may come to, with one rounding for each operator, is within it."""
    trial, once = Trial(cell), Trial(cell, roundings=1)
    pairs = list(zip(trial.steps(reference), once.steps(reference), strict=True))
    powers = {}
    for known, traced in pairs:
        tensor = known.where.rpartition(" ")[2]
        results = by_the_rule(once, traced, powers.setdefault(tensor, {}))
        powers[tensor] = {name: x for name, x in results.items() if name in trial.routine.scalars}
        powers[tensor].pop("second_moment", None)
        for name, bound in trial.outcome(known).items():
            distance = abs(high(bound.value - results[name].value))
            assert np.all(distance + results[name].error <= bound.error), (
                f"{known.where}: {name}: expected a bound of the formula (tests/evidence/formulas.py) that covers the "
                "rule of refopt.cpu, got a narrower one: has the formula at least as many roundings?")
