"""Steps of variants, written out: right for who says which one it is, and named by the report for who does not."""

import numpy as np
import pytest

from refopt import oracle

pytestmark = pytest.mark.clause("N13")


def amsgrad(params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1, beta2, epsilon, moment2_max=None):
    """The maximum of corrected moments."""
    largest = moment2_max or [None] * len(params)
    for p, g, m, v, b1, b2, top in zip(params, grads, moment1, moment2, beta1_pow, beta2_pow, largest, strict=True):
        real = p.dtype.type
        m[...] = real(beta1) * m + (1 - real(beta1)) * g
        v[...] = real(beta2) * v + (1 - real(beta2)) * g * g
        size = v / (1 - b2)
        if top is not None:
            size = top[...] = np.maximum(top, size)
        p -= real(lr) * (m / (1 - b1)) / (np.sqrt(size) + real(epsilon))
        b1 *= real(beta1)
        b2 *= real(beta2)


def in_the_root(params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1, beta2, epsilon, epsilon_root):
    for p, g, m, v, b1, b2 in zip(params, grads, moment1, moment2, beta1_pow, beta2_pow, strict=True):
        real = p.dtype.type
        m[...] = real(beta1) * m + (1 - real(beta1)) * g
        v[...] = real(beta2) * v + (1 - real(beta2)) * g * g
        p -= real(lr) * (m / (1 - b1)) / (np.sqrt(v / (1 - b2) + real(epsilon_root)) + real(epsilon))
        b1 *= real(beta1)
        b2 *= real(beta2)


def radam(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, step, threshold=5):
    """Epsilon beside the corrected root; rho as the paper has it, in double."""
    b1, b2, longest = beta1**step, beta2**step, 2 / (1 - beta2) - 1
    rho = longest - 2 * step * b2 / (1 - b2)
    for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
        real = p.dtype.type
        m[...] = real(beta1) * m + (1 - real(beta1)) * g
        v[...] = real(beta2) * v + (1 - real(beta2)) * g * g
        towards = m / real(1 - b1)
        if rho > threshold:
            factor = np.sqrt((rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho))
            towards = real(factor) * towards / (np.sqrt(v / real(1 - b2)) + real(epsilon))
        p -= real(lr) * towards


def radam_of_four(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, step):
    corrected = epsilon / np.sqrt(1 - beta2**step)  # which is beside the uncorrected root
    numbers = dict(lr=lr, beta1=beta1, beta2=beta2, epsilon=corrected, step=step)
    radam(params, grads, moment1, moment2, threshold=4, **numbers)


def lars(params, grads, velocities, *, lr, mu, lars_coeff, lars_weight_decay, epsilon):
    for p, g, v in zip(params, grads, velocities, strict=True):
        real = p.dtype.type
        towards = g + real(lars_weight_decay) * p
        norms = np.linalg.norm(p), np.linalg.norm(towards)
        rate = real(lr)
        if min(norms) > 0:
            rate = rate * real(lars_coeff) * norms[0] / (norms[1] + real(epsilon))
        v[...] = real(mu) * v + rate * towards
        p -= v


def novograd(params, grads, moment, second_moment, *, lr, beta1, beta2, epsilon, weight_decay, step):
    for p, g, m, v in zip(params, grads, moment, second_moment, strict=True):
        real = p.dtype.type
        n = (g * g).sum()
        v[...] = n if step == 1 else real(beta2) * v + (1 - real(beta2)) * n
        m[...] = real(beta1) * m + g / (np.sqrt(v) + real(epsilon)) + real(weight_decay) * p
        p -= real(lr) * m


def sgdw(params, grads, velocities, *, lr, mu, l2_decay):
    for p, g, v in zip(params, grads, velocities, strict=True):
        real = p.dtype.type
        p *= 1 - real(lr) * real(l2_decay)
        v[...] = real(mu) * v + g
        p -= real(lr) * v


ROWS = [
    ("adam", amsgrad, {"max_of": "corrected"}, "AMSGrad's maximum of the corrected second moments"),
    ("radam", radam, {"epsilon_at": "corrected"}, "epsilon beside the corrected root"),
    ("radam", radam_of_four, {"threshold": 4}, "rectified from rho > 4"),
    ("lars_momentum", lars, {"grad_norm": "decayed", "adapt": "norms"}, "the norm of the gradient and its decay"),
    ("momentum", sgdw, {"decay": "decoupled"}, "weight decay apart from the gradient"),
]


def l1(routine, step, **options):
    return oracle.check(routine, step, dtypes=["float32"], laws=["L1"], **options)


@pytest.mark.parametrize(("routine", "step", "variant", "name"), ROWS, ids=lambda x: getattr(x, "__name__", None))
def test_said_or_named(routine, step, variant, name):
    l1(routine, step, set=variant).raise_if_failed()
    report = l1(routine, step, set={key: x for key, x in variant.items() if key == "adapt"})
    assert report.wrong == ["L1"]
    assert name in str(report)


def test_an_epsilon_in_the_root_is_a_number():
    report = l1("adam", in_the_root)
    report.raise_if_failed()
    assert "epsilon_root=0" in {item.label for item in report.of("passed")}


def test_novograd_knows_its_first_step():
    l1("novograd", novograd, set={"first_norm": "by_number"}).raise_if_failed()
    with pytest.raises(TypeError, match="expect: step_number: expected arrays of one element, for first_norm"):
        one = [np.ones(3, np.float32)]
        given = dict(moment=one, second_moment=[np.ones(1, np.float32)], lr=0.1, first_norm="by_number")
        oracle.expect("novograd", params=one, grads=one, **given)


def clipped(params, grads, velocities, *, lr, mu):
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))
    for p, g, v in zip(params, grads, velocities, strict=True):
        v[...] = p.dtype.type(mu) * v + g / p.dtype.type(max(norm, 1))
        p -= p.dtype.type(lr) * v


def from_one(params, grads, moment, *, lr, epsilon, step):
    for p, g, s in zip(params, grads, moment, strict=True):
        s[...] = (1 if step == 1 else s) + g * g
        p -= p.dtype.type(lr) * g / (np.sqrt(s) + p.dtype.type(epsilon))


@pytest.mark.parametrize(
    ("routine", "step", "name"),
    [
        ("momentum", clipped, "gradients clipped, to a norm of 1 of all tensors (100 %"),
        ("adagrad", from_one, "moment starts from 1 (100 %"),
    ],
)
def test_what_is_done_outside_of_the_rule_is_named(routine, step, name):
    assert name in str(l1(routine, step))
