"""RAdam: epsilon added to the corrected root, and rectified from 4 on, as in optax.

::

    p  = p - lr / (1 - beta1_pow) * r * (m / (sqrt(u / (1 - beta2_pow) + epsilon_root) + epsilon))    if rho > threshold

This is ``epsilon_at="corrected"``; the catalogue's rule adds epsilon to the uncorrected root, and its threshold is 5.
"""

import numpy as np

from refopt import catalog
from refopt.cpu.adam import moments
from refopt.cpu.radam import next_rho, rectification
from refopt.cpu.radam import rule as radam_rule
from refopt.oracle.variants.variant import EPSILON_ROOT, Variants, after_options, extended


def rectified(p, g, m, u, beta1_pow, beta2_pow, rho, *, lr, beta1, beta2, epsilon, epsilon_root, epsilon_at, threshold):
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    if rho > threshold:
        if epsilon_at == "corrected":
            root = np.sqrt(u / (1 - beta2_pow) + epsilon_root) + epsilon
        else:
            root = (np.sqrt(u) + epsilon) / np.sqrt(1 - beta2_pow)
        p = p - lr / (1 - beta1_pow) * rectification(rho, beta2) * (m / root)
    else:
        p = p - lr / (1 - beta1_pow) * m
    beta2_pow = beta2_pow * beta2
    return p, m, u, beta1_pow * beta1, beta2_pow, next_rho(rho, beta2, beta2_pow)


def rule(p, g, *states, epsilon_root, epsilon_at, threshold, **numbers):
    if epsilon_at == "uncorrected" and threshold == 5:
        return radam_rule(p, g, *states, **numbers)
    numbers |= dict(epsilon_root=epsilon_root, epsilon_at=epsilon_at, threshold=threshold)
    return after_options(rectified, p, g, *states, **numbers)


RADAM = Variants(
    extended(
        catalog.RADAM, hypers=[EPSILON_ROOT],
        choices={"epsilon_at": ("uncorrected", "corrected"), "threshold": (5, 4)},
    ),
    rule,
    {
        "epsilon_at=corrected": "epsilon added to the corrected root, as in optax's RAdam",
        "epsilon_at=uncorrected": "epsilon added to the uncorrected root, as in PyTorch's RAdam",
        "threshold=4": "rectified from rho > 4, as in the paper",
        "threshold=5": "rectified from rho > 5, as in PyTorch and optax by default",
    },
)
