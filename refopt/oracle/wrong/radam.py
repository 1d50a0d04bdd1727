"""What is wrong, or easily is, in RAdam."""

from functools import partial

import numpy as np

from refopt.cpu.adam import moments
from refopt.cpu.radam import next_rho, rectification
from refopt.cpu.radam import update as radam_rule
from refopt.oracle.wrong.options import with_options
from refopt.oracle.wrong.rule import Wrong


def radam_with(p, g, m, u, b1, b2, rho, *, lr, beta1, beta2, epsilon, threshold=5, factor=rectification):
    """The rule with another threshold or rectification."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    if rho > threshold:
        p = p - lr / (1 - b1) * factor(rho, beta2) * np.sqrt(1 - b2) * (m / (np.sqrt(u) + epsilon))
    else:
        p = p - lr / (1 - b1) * m
    return p, m, u, b1 * beta1, b2 * beta2, next_rho(rho, beta2, b2 * beta2)


def without_the_one_less(rho, beta2):
    """rho_inf = 2 / (1 - beta2)."""
    rho_inf = 2 / (1 - beta2)
    return np.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))


def rectification_squared(rho, beta2):
    rho_inf = 2 / (1 - beta2) - 1
    return (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)


def rho_not_advanced(*arrays, **numbers):
    return (*radam_rule(*arrays, **numbers)[:5], arrays[-1])


def rho_before_use(p, g, m, u, b1, b2, rho, *, beta2, **numbers):
    rho = next_rho(rho, beta2, b2 * beta2)
    return (*radam_rule(p, g, m, u, b1, b2, rho, beta2=beta2, **numbers)[:5], rho)


def rho_from_the_old_power(p, g, m, u, b1, b2, rho, *, beta2, **numbers):
    return (*radam_rule(p, g, m, u, b1, b2, rho, beta2=beta2, **numbers)[:5], next_rho(rho, beta2, b2))


def radam_no_bias_correction(p, g, m, u, b1, b2, rho, *, beta1, beta2, **numbers):
    p, m, u, *_ = radam_rule(p, g, m, u, b1 * 0, b2 * 0, rho, beta1=beta1, beta2=beta2, **numbers)
    return p, m, u, b1 * beta1, b2 * beta2, next_rho(rho, beta2, b2 * beta2)


def unrectified_uncorrected(p, g, m, u, b1, b2, rho, *, beta1, **numbers):
    """No bias correction in the steps without rectification."""
    p, m, u, _, b2, rho = radam_rule(p, g, m, u, b1 if rho > 5 else b1 * 0, b2, rho, beta1=beta1, **numbers)
    return p, m, u, b1 * beta1, b2, rho


def radam_epsilon_corrected(p, g, m, u, b1, b2, rho, *, epsilon, **numbers):
    return radam_rule(p, g, m, u, b1, b2, rho, epsilon=epsilon * np.sqrt(1 - b2), **numbers)


RULES = with_options(
    radam_rule,
    {
        "AlwaysRectified": Wrong("always rectified", partial(radam_with, threshold=-1.0)),
        "NeverRectified": Wrong("never rectified", partial(radam_with, threshold=2.0**60)),
        "ThresholdReached": Wrong(None, partial(radam_with, threshold=np.nextafter(5, 0))),
        "ThresholdOfFour": Wrong(None, partial(radam_with, threshold=4)),
        "ThresholdOfSix": Wrong("rectified from rho > 6", partial(radam_with, threshold=6)),
        "RhoInfOneMore": Wrong(
            "rho_inf = 2 / (1 - beta2), without the - 1", partial(radam_with, factor=without_the_one_less)
        ),
        "RectificationSquared": Wrong(
            "rectification without its root", partial(radam_with, factor=rectification_squared)
        ),
        "RhoNotAdvanced": Wrong("rho not advanced", rho_not_advanced),
        "RhoBeforeUse": Wrong("rho advanced before use", rho_before_use),
        "RhoFromTheOldPower": Wrong("rho from the old power of beta2", rho_from_the_old_power),
        "NoBiasCorrection": Wrong("no bias correction", radam_no_bias_correction),
        "UnrectifiedUncorrected": Wrong("no bias correction in steps without rectification", unrectified_uncorrected),
        "EpsilonCorrected": Wrong(None, radam_epsilon_corrected),
    },
)  # fmt: skip
