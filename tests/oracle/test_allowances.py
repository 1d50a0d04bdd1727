"""Each row of docs/oracle-bounds.md on what correct code may do differently, by code that does it, with other bits."""

from pathlib import Path

import numpy as np
import pytest

from oracle.corpus import PLANTED
from oracle.test_rewritings import EXAMPLES
from refopt import cpu, oracle

pytestmark = pytest.mark.clause("N13")
PAGE = (Path(oracle.__file__).parents[2] / "docs/oracle-bounds.md").read_text()
TABLE = PAGE.partition("| what correct code may do differently |")[2].partition("\n\n")[0]
ROWS = [line.split("|")[1].strip() for line in TABLE.splitlines()[2:]]
SAID = f"requires {EXAMPLES} examples of each", f"plants {len(PLANTED)} bugs"
f4, f8 = np.float32, np.float64
QUICK = dict(examples=0, diagnose=False, process=False)


def fma(x, y, z):
    """``x * y + z``, rounded once: a product of fp32 is exact in fp64."""
    return (f8(x) * f8(y) + f8(z)).astype(f4)


def plain(m, v, g, beta1, beta2):
    return beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g


def lerped(m, v, g, beta1, beta2):
    return m + (1 - beta1) * (g - m), v + (1 - beta2) * (g * g - v)


def fused(m, v, g, beta1, beta2):
    return fma(f4(beta1), m, f4(1 - beta1) * g), fma(f4(1 - beta2), g * g, f4(beta2) * v)


def quotient(m, v, c1, c2, epsilon):
    return (m / c1) / (np.sqrt(v / c2) + epsilon)


def reciprocal(m, v, c1, c2, epsilon):
    return m * (f4(1) / (np.sqrt(v) * f4(1 / np.sqrt(c2)) + f4(epsilon))) * f4(1 / c1)


def one_root(m, v, c1, c2, epsilon):
    """Of PyTorch's: the root of the correction apart."""
    return m / c1 / (np.sqrt(v) / np.sqrt(c2) + epsilon)


def by_count(beta, beta_pow, step):
    return beta**step


def by_pow(beta, beta_pow, step):
    return np.nextafter(np.power(f4(beta), f4(step)), f4(0))


def by_products(beta, beta_pow, step):
    return beta_pow[0]


def before(p, update, lr, coeff):
    return p * (1 - lr * coeff) - lr * update


def beside(p, update, lr, coeff):
    return p - lr * (update + coeff * p)


def adamw(averages=plain, ratio=quotient, power=by_count, decay=before):
    def step(params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1, beta2, epsilon, coeff, step):
        for p, g, m, v, b1, b2 in zip(params, grads, moment1, moment2, beta1_pow, beta2_pow, strict=True):
            m[...], v[...] = averages(m, v, g, beta1, beta2)
            corrections = 1 - power(beta1, b1, step), 1 - power(beta2, b2, step)
            p[...] = decay(p, ratio(m, v, *corrections, epsilon), lr, coeff)
            b1 *= f4(beta1)
            b2 *= f4(beta2)

    return step


def lars(norm):
    def step(params, grads, velocities, *, lr, mu, lars_coeff, lars_weight_decay, epsilon):
        for p, g, v in zip(params, grads, velocities, strict=True):
            of_p, of_g = norm(p), norm(g)
            local = lr
            if of_p > 0 and of_g > 0:
                local = lr * lars_coeff * of_p / (of_g + lars_weight_decay * of_p + epsilon)
            v[...] = mu * v + f4(local) * (g + lars_weight_decay * p)
            p -= v

    return step


def one_by_one(x):
    return np.sqrt(np.add.accumulate(x.ravel() * x.ravel())[-1])


def backwards(x):
    return np.sqrt(np.add.accumulate((x.ravel() * x.ravel())[::-1])[-1])


def wider_lamb(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, weight_decay, step):
    """16-bit states are stored at last, and the step uses what was not rounded yet."""
    for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
        x, d, one, two = (y.astype(f4) for y in (p, g, m, v))
        one, two = plain(one, two, d, beta1, beta2)
        r = quotient(one, two, 1 - beta1**step, 1 - beta2**step, epsilon) + weight_decay * x
        of_p, of_r = (np.sqrt(np.sum(y * y)) for y in (x, r))
        trust = of_p / of_r if weight_decay and of_p > 0 and of_r > 0 else 1
        m[...], v[...], p[...] = one, two, x - f4(lr * trust) * r


def subnormal_sgd(params, grads, *, lr, l2_decay):
    for p, g in zip(params, grads, strict=True):
        p -= lr * g + (lr * l2_decay) * p


def radam(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, step):
    """With the paper's rho, in double."""
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * beta2**step / (1 - beta2**step)
    for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
        m[...], v[...] = plain(m, v, g, beta1, beta2)
        mean = m / (1 - beta1**step)
        if rho > 5:
            r = np.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
            p -= lr * mean * r * np.sqrt(1 - beta2**step) / (np.sqrt(v) + epsilon)
        else:
            p -= lr * mean


STEPS = {
    "regroup products, quotients and roots": [
        ("adamw", adamw(), "float32", "L1"), ("adamw", adamw(ratio=reciprocal), "float32", "L1"),
        ("adamw", adamw(ratio=one_root), "float32", "L1"), ("adamw", adamw(averages=fused), "float32", "L1")],
    "regroup sums": [("adamw", adamw(averages=lerped), "float32", "L1"),
                     ("adamw", adamw(decay=beside), "float32", "L1"),
                     ("adamw", adamw(averages=lerped, ratio=one_root, decay=beside), "float64", "L1")],
    "add the squares": [("lars_momentum", lars(one_by_one), "float32", "L1"),
                        ("lars_momentum", lars(backwards), "float32", "L5")],
    "keep numbers in double": [("adamw", adamw(), "float32", "L1", {"beta1": 0.9, "beta2": 0.999})],
    "compute RAdam's rho by the paper's": [("radam", radam, "float32", "L1"), ("radam", radam, "float64", "L1")],
    "compute powers of beta": [("adamw", adamw(power=by_pow), "float32", "L1"),
                               ("adamw", adamw(power=by_products), "float32", "L1")],
    "keep 16-bit states wider": [("lamb", wider_lamb, "bfloat16", "L1")],
    "regroup products of subnormal": [("sgd", subnormal_sgd, "float32", "L7")]}
BRANCH = "take the other side of a branch"
OFTEN = "regroup sums", "add the squares", "compute powers of beta", "regroup products of subnormal"


def test_every_row_has_code():
    assert len(ROWS) == len(STEPS) + 1 and all(x in PAGE for x in SAID)
    for row in ROWS:
        assert sum(row.startswith(name) for name in (*STEPS, BRANCH)) == 1, row


@pytest.mark.parametrize(
    ("routine", "step", "dtype", "law", "numbers"), [
        pytest.param(*(*x, {})[:5], id=f"{name} {k}", marks=[pytest.mark.slow] * (k > 0 or name not in OFTEN))
        for name, rows in STEPS.items() for k, x in enumerate(rows)])
def test_right_code_is_within(routine, step, dtype, law, numbers):
    report = oracle.check(routine, step, dtypes=[dtype], laws=[law], set=numbers, **QUICK)
    assert not report.failed_laws and report.of("passed"), report
    exact = oracle.check(routine, step, dtypes=[dtype], laws=["L18"], exact=True, **QUICK)
    assert exact.failed_laws == ["L18"]  # or it would not be other code


def test_a_branch_may_be_decided_the_other_way():
    """Lion's sign, of an average that is 0 within its rounding, and of one that is not."""
    m = np.array([0.1, 0.1], f4)
    beta1 = 0.9
    g = np.array([-beta1 * f8(m[0]) / (1 - f8(beta1)), -0.8], f4)
    p = np.full(2, 0.5, f4)
    numbers = dict(lr=0.25, beta1=beta1, beta2=0.99, coeff=0.0)
    expected = oracle.expect("lion", params=[p], grads=[g], moment=[m], **numbers)["params"][0]
    for sign in (-1, 1):
        assert (expected.ratio(p - f4(0.25) * np.array([sign, 1], f4)) <= 1).tolist() == [True, True]
        for wrong in (-1, 0):
            assert (expected.ratio(p - f4(0.25) * np.array([sign, wrong], f4)) <= 1).tolist() == [True, False]
    cpu.merged_lion([p], [g], [m], **numbers)
    assert (expected.ratio(p) <= 1).all()
