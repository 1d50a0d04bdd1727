"""NovoGrad: its formula evaluated in higher precision, within a running error bound.

Its laws are those of all routines, in tests/laws.
"""

import math

import numpy as np
import pytest
from mutants.family import Optimizer

from evidence.cells import cell_of
from refopt.catalog import NOVOGRAD
from refopt.cpu.reduce import LANES, TILE
from refopt.oracle.exact.cases import Case
from refopt.oracle.exact.laws import reference
from refopt.oracle.wrong import RULES

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
@pytest.mark.parametrize(("real", "grad_averaging"), [
    pytest.param(real, choice, marks=[pytest.mark.evidence(*cell), *marks], id="-".join(cell))
    for precision, (real, marks) in REALS.items()
    for choice in NOVOGRAD.choices["grad_averaging"]
    for cell in cell_of(NOVOGRAD, precision, {"grad_averaging": choice}, NUMBERS)
])
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
