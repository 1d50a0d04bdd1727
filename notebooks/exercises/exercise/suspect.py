"""Somebody's AdamW: right on paper, and not the reference's bits. Solve exercise 17 before you read on."""

import numpy as np

from refopt.oracle.wrong import adamw as wrong


def adamw(p, g, m, u, lr, beta1, beta2, epsilon, coeff, beta1_pow, beta2_pow):
    """One step, in place."""
    rule = wrong.RULES["DecaySubtracted"].rule
    new = rule(
        p, g, m, u, beta1_pow, beta2_pow, None, lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon,
        epsilon_at="corrected", coeff=coeff, lr_ratio=np.float32(1),
    )  # fmt: skip
    p[...], m[...], u[...] = new[:3]
