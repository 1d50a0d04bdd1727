"""NovoGrad: its formula evaluated in higher precision, within a running error bound, and what only it does.

What it shares with the other routines is in test_family.py, test_gradient_check.py and test_ptx.py.
"""

import math

import numpy as np
import pytest
from evidence.cells import cell_of
from mutants.family import Optimizer

from refopt import cpu
from refopt.catalog import NOVOGRAD
from refopt.cpu.reduce import LANES, TILE, sum_of_squares
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import SIGNATURES, make, scaled, step_of
from refopt.oracle.exact.cases import Case, assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, PlacedCase, kernels
from refopt.oracle.wrong import RULES

implementations = pytest.mark.parametrize("form", ["reference", *NOVOGRAD.forms])


def implementation(form, machine):
    return reference if form == "reference" else kernels(form, machine)


def beginning(sizes, steps, dtypes=SIGNATURES[0], **choices):
    """A case before its first step: both moments 0."""
    case = make(NOVOGRAD, sizes, dtypes, steps=steps, **choices)
    return case.replace(moment=[0 * m for m in case.moment], second_moment=[0 * v for v in case.second_moment])


# Against the plain formula.

STEPS = 6
SIZES = [1, 3, 20, 300, 2100]
NUMBERS = dict(lr=0.1, beta1=0.9, beta2=0.8, epsilon=0.01, weight_decay=0.05, rescale_grad=0.7)
LIMIT = 200  # what a bound may be at most, in eps, for parameters near 1
WIDE = {np.float32: np.float64, np.float64: np.longdouble}
PLAIN_LONG_DOUBLE = np.finfo(np.longdouble).nmant < 63
REALS = {
    "fp32": (np.float32, ()),
    "fp64": (np.float64, [pytest.mark.skipif(PLAIN_LONG_DOUBLE, reason="long double is fp64")]),
}
precisions = pytest.mark.parametrize("real", [pytest.param(real, marks=marks) for real, marks in REALS.values()])
averaging = pytest.mark.parametrize("grad_averaging", [False, True])


def data(seed, real):
    """Of random signs and of sizes near 1."""
    rng = np.random.default_rng(seed)
    return [(rng.choice([-1, 1], n) * rng.uniform(0.5, 1.5, n)).astype(real) for n in SIZES]


def truth(real, grad_averaging):
    """Parameters and moments after the steps, each as what they are and how far off a rounded evaluation may be."""
    wide = WIDE[real]
    unit = np.finfo(real).eps / 2 + 2 * np.finfo(wide).eps  # the truth rounds, too

    def rounded(x, error):
        return x, error + unit * (abs(x) + error)

    def plus(x, y):
        return rounded(x[0] + y[0], x[1] + y[1])

    def times(x, y):
        return rounded(x[0] * y[0], abs(x[0]) * y[1] + abs(y[0]) * x[1] + x[1] * y[1])

    def over(x, y):
        return rounded(x[0] / y[0], (x[1] + abs(x[0] / y[0]) * y[1]) / (y[0] - y[1]))

    def root(x):
        return rounded(np.sqrt(x[0]), x[1] / np.sqrt(x[0]))

    def squared_norm(x):
        """Squares of a rounded product, added by the tree of N6: all terms are positive, so errors are relative."""
        roundings = 3 + TILE // LANES - 1 + math.log2(LANES) + math.ceil(math.log2(-(-x[0].size // TILE)))
        total = (x[0] * x[0]).sum()
        return total, total * roundings * unit / (1 - roundings * unit)

    lr, beta1, beta2, epsilon, decay, rescale = ((wide(real(x)), wide(0)) for x in NUMBERS.values())
    rest1, rest2 = (rounded(1 - beta[0], wide(0)) for beta in (beta1, beta2))
    left = []
    for i, p in enumerate(data(0, real)):
        p, m, v = ((x.astype(wide), 0 * x.astype(wide)) for x in (p, 0 * p, 0 * p))
        for step in range(1, STEPS + 1):
            g = times(rescale, (data(step, real)[i].astype(wide), wide(0)))
            n = squared_norm(g)
            v = n if step == 1 else plus(times(beta2, v), times(rest2, n))
            d = plus(over(g, plus(root(v), epsilon)), times(decay, p))
            m = plus(times(beta1, m), times(rest1, d) if grad_averaging else d)
            x, error = times(lr, m)
            p = plus(p, (-x, error))
        left.append((p, m, v))
    return left


def ours(real, grad_averaging, run=reference):
    """The same by an implementation."""
    params = data(0, real)
    slots = {"params": params, "moment": [0 * p for p in params], "second_moment": [np.zeros(1, real) for _ in params]}
    case = Case(NOVOGRAD, slots, [NUMBERS], {"grad_averaging": grad_averaging})
    for step in range(1, STEPS + 1):
        case = case.replace(grads=data(step, real))
        case = case.replace(**run(case))
    return list(zip(case.params, case.moment, case.second_moment, strict=True))


def inside(real, grad_averaging, run=reference):
    return all(
        (abs(got - value) <= error).all()
        for exact, mine in zip(truth(real, grad_averaging), ours(real, grad_averaging, run), strict=True)
        for (value, error), got in zip(exact, mine, strict=True)
    )


@pytest.mark.clause("N13")
@pytest.mark.parametrize(
    ("real", "grad_averaging"),
    [
        pytest.param(real, choice, marks=[pytest.mark.evidence(*cell), *marks], id="-".join(cell))
        for precision, (real, marks) in REALS.items()
        for choice in NOVOGRAD.choices["grad_averaging"]
        for cell in cell_of(NOVOGRAD, precision, {"grad_averaging": choice}, NUMBERS)
    ],
)
def test_within_the_bound(real, grad_averaging):
    """What comes out is within the bound, which is tight enough to say something."""
    for (_, p_error), (_, m_error), (v, v_error) in truth(real, grad_averaging):
        assert max(p_error.max(), m_error.max(), v_error / v) <= LIMIT * np.finfo(real).eps
    assert inside(real, grad_averaging)


EQUAL = {"TimesTheReciprocal", "SumByNumPy", "SumInIndexOrder"}  # wrong in their roundings alone


@pytest.mark.parametrize("wrong", RULES["novograd"])
@precisions
def test_another_formula_is_outside(wrong, real):
    run = Optimizer(RULES["novograd"][wrong])
    assert all(inside(real, choice, run) for choice in (False, True)) == (wrong in EQUAL)


# The second moment.


@implementations
def test_the_first_step_of_one_element_is_its_sign(machine, form):
    """sqrt(g * g) is |g| in binary arithmetic, so the quotient is 1 or -1."""
    case = beginning([1] * 30, [dict(lr=0.5, epsilon=0.0)])
    got = implementation(form, machine)(case)
    expected = [p - np.float32(0.5) * np.sign(g) for p, g in zip(case.params, case.grads, strict=True)]
    assert_same({"params": expected}, got, "sign")


@implementations
@averaging
def test_the_size_of_gradients_does_not_matter(machine, form, grad_averaging):
    """Without epsilon, a power of two on all gradients changes no bit but of the second moment."""
    steps = [step_of(NOVOGRAD, epsilon=0.0), step_of(NOVOGRAD, epsilon=0.0, lr=0.25)]
    case = beginning([5, 1300], steps, grad_averaging=grad_averaging)
    small, large = (implementation(form, machine)(scaled(case, factor, "grads")) for factor in (1, 1024))
    small["second_moment"] = [v * np.float32(2**20) for v in small["second_moment"]]
    assert_same(small, large, "scale")


@implementations
@pytest.mark.parametrize("sizes", [[0, 3, 0], [0, 0]])
def test_tensors_of_no_elements(machine, form, sizes):
    """Their squared norm is 0: a second moment of 0 stays, another fades."""
    one = step_of(NOVOGRAD)
    carried = [np.full(1, x, np.float32) for x in (0.0, 0.5, 0.5)[: len(sizes) - 1]] + [np.full(1, 0.5, np.float32)]
    left = implementation(form, machine)(make(NOVOGRAD, sizes, steps=[one]).replace(second_moment=carried))
    faded = np.full(1, np.float32(one["beta2"]) * np.float32(0.5))
    ends = [left["second_moment"][0], left["second_moment"][-1]]
    assert_same({"v": [np.zeros(1, np.float32), faded]}, {"v": ends}, "no elements")


@implementations
@pytest.mark.parametrize("dtypes", SIGNATURES[:3], ids="-".join)
def test_the_first_gradient_is_taken_as_it_is(machine, form, dtypes):
    """Whenever it comes: as long as all of a gradient is 0, so is the second moment."""
    run, one = implementation(form, machine), step_of(NOVOGRAD)
    real = np.float64 if dtypes[0] == "float64" else np.float32
    case = beginning([2100, 4], [one, one], dtypes)
    still = run(case.replace(grads=[0 * g for g in case.grads]))
    assert_same({"v": [np.zeros(1, real)] * 2}, {"v": still["second_moment"]}, "no gradient")
    slots = {name: still[name] for name in still if case.slots[name]}
    got = run(case.replace(**slots, steps=[one]))
    norms = [sum_of_squares(real(one["rescale_grad"]) * g.astype(real)) for g in case.grads]
    assert_same({"v": [np.full(1, n) for n in norms]}, {"v": got["second_moment"]}, "first gradient")


@pytest.mark.clause("N12")
@implementations
@pytest.mark.parametrize(
    ("entry", "moment", "element"),
    [(np.inf, np.inf, np.nan), (-np.inf, np.inf, np.nan), (3e38, np.inf, 0.0), (np.nan, np.nan, np.nan)],
)
def test_what_is_not_finite_stays_in_the_second_moment(machine, form, entry, moment, element):
    """Divided by inf all but the infinite are 0, in this step and after; a NaN is everywhere."""
    run, one = implementation(form, machine), dict(lr=1.0, beta1=0.0, weight_decay=0.0)
    case = make(NOVOGRAD, [300, 4], steps=[one])
    case.grads[0][7] = entry
    left = run(case)
    expected = np.full(300, np.nan if np.isnan(moment) else 0, np.float32)
    expected[7] = element
    assert np.array_equal(left["moment"][0], expected, equal_nan=True)
    assert np.array_equal(left["second_moment"][0], np.float32([moment]), equal_nan=True)
    assert np.isfinite(left["params"][1]).all() and np.isfinite(left["second_moment"][1]).all()
    case = case.replace(**{name: left[name] for name in ("params", "moment", "second_moment")})
    case.grads[0][7] = 1
    assert np.array_equal(run(case)["second_moment"][0], np.float32([moment]), equal_nan=True)


@pytest.mark.parametrize("form", NOVOGRAD.forms)
def test_second_moments_written_by_somebody_else(machine, form):
    """A plan keeps none to itself: every step takes what is in the arrays, and `rebind` other arrays."""
    one = step_of(NOVOGRAD)
    case = make(NOVOGRAD, [1300, 0, 5], steps=[one])
    placed = PlacedCase(machine, case)
    step = placed.plan(form)
    step(**one)
    for moved in (False, True):
        middle = placed.outcome()
        halved = [v / np.float32(2) for v in middle["second_moment"]]
        expected = reference(case.replace(**{n: middle[n] for n in ("params", "moment")}, second_moment=halved))
        if moved:
            placed.placed["second_moment"] = [Placed(machine, v, 3) for v in halved]
            step.rebind(second_moment=[v.array for v in placed.placed["second_moment"]])
        else:
            for target, v in zip(placed.placed["second_moment"], halved, strict=True):
                target._memory.copy_to_device(Placed(machine, v)._memory)
        step()
        assert_same(expected, placed.outcome(), "second moment")


def test_a_tensor_alone():
    """`novograd` has the defaults of `merged_novograd`: decay 0, no averaging."""
    p, g, m, v = np.float32([1, 2]), np.float32([3, 4]), np.zeros(2, np.float32), np.zeros(1, np.float32)
    cpu.novograd(p, g, m, v, lr=0.5)
    assert v[0] == 25 and np.allclose(m, [0.6, 0.8]) and np.allclose(p, [0.7, 1.6])


@pytest.mark.clause("N4")
@pytest.mark.parametrize("form", NOVOGRAD.forms)
@pytest.mark.parametrize("dtypes", SIGNATURES, ids="-".join)
def test_from_the_beginning(machine, form, dtypes):
    """Three steps from moments of 0."""
    one = step_of(NOVOGRAD)
    case = beginning([1025, 0, 7], [one, one | {"lr": 0.2}, one], dtypes, grad_averaging=True)
    laws.same_bits_as_reference(kernels(form, machine), case)
