"""What is wrong, or easily is, in Adamax."""

import numpy as np

from refopt.cpu.adam import larger
from refopt.cpu.adamax import update as adamax_rule
from refopt.oracle.wrong.options import with_options
from refopt.oracle.wrong.rule import Wrong


def adamax_from(p, g, m, n, b1, *, lr, beta1):
    """The step with the norm n."""
    m = beta1 * m + (1 - beta1) * g
    return p - lr / (1 - b1) * (m / n), m, n, b1 * beta1


def epsilon_at_the_other_place(*arrays, epsilon_at, **numbers):
    return adamax_rule(*arrays, epsilon_at={"norm": "gradient", "gradient": "norm"}[epsilon_at], **numbers)


def norm_by(of, size, n, *, beta2, epsilon, epsilon_at):
    """The norm, by another function of its two parts."""
    return of(size + epsilon, beta2 * n) if epsilon_at == "gradient" else of(size, beta2 * n + epsilon)


def absolute_forgotten(p, g, m, n, b1, *, lr, beta1, **numbers):
    return adamax_from(p, g, m, norm_by(larger, g, n, **numbers), b1, lr=lr, beta1=beta1)


def norm_takes_nan(p, g, m, n, b1, *, lr, beta1, **numbers):
    """A NaN in the gradient stays in the norm, as np.maximum has it."""
    return adamax_from(p, g, m, norm_by(np.maximum, abs(g), n, **numbers), b1, lr=lr, beta1=beta1)


def norm_loses_nan(p, g, m, n, b1, *, lr, beta1, **numbers):
    """A NaN in the norm goes with the next gradient, as fmaxf has it."""
    return adamax_from(p, g, m, norm_by(np.fmax, abs(g), n, **numbers), b1, lr=lr, beta1=beta1)


def epsilon_in_the_denominator(p, g, m, n, b1, *, beta2, epsilon, epsilon_at, **numbers):
    n = larger(abs(g), beta2 * n)
    p, m, _, b1 = adamax_from(p, g, m, n + epsilon, b1, **numbers)
    return p, m, n, b1


def adamax_no_bias_correction(p, g, m, n, b1, *, beta1, **numbers):
    return (*adamax_rule(p, g, m, n, b1 * 0, beta1=beta1, **numbers)[:3], b1 * beta1)


def power_before_use(p, g, m, n, b1, *, beta1, **numbers):
    return (*adamax_rule(p, g, m, n, b1 * beta1, beta1=beta1, **numbers)[:3], b1 * beta1)


RULES = with_options(
    adamax_rule,
    {
        "EpsilonAtTheOtherPlace": Wrong(None, epsilon_at_the_other_place),
        "AbsoluteForgotten": Wrong("no absolute value of the gradient", absolute_forgotten),
        "NormTakesNan": Wrong(None, norm_takes_nan),
        "NormLosesNan": Wrong(None, norm_loses_nan),
        "EpsilonInTheDenominator": Wrong("epsilon in the denominator", epsilon_in_the_denominator),
        "NoBiasCorrection": Wrong("no bias correction", adamax_no_bias_correction),
        "PowerBeforeUse": Wrong("power of beta1 advanced before use: that of step t + 1", power_before_use),
    },
)  # fmt: skip
