"""Somebody's AdamW: right on paper, and not the reference's bits. Solve exercise 17 before you read on."""

import numpy as np

from refopt.catalog import ROUTINES
from refopt.oracle.wrong import Wrong

RATE = "lr * lr_ratio * coeff"
HOW = Wrong("decay subtracted", {f"p = p * (1 - {RATE})": f"p = p - {RATE} * p"})  # equal in exact arithmetic alone
RULE = HOW.of(ROUTINES["adamw"].rule)


def adamw(p, g, m, u, lr, beta1, beta2, epsilon, coeff, beta1_pow, beta2_pow):
    """One step, in place."""
    new = RULE(
        p, g, m, u, beta1_pow, beta2_pow, None, lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon,
        epsilon_at="corrected", maximize=False, coeff=coeff, lr_ratio=np.float32(1),
    )
    p[...], m[...], u[...] = new[:3]


def step(params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1, beta2, epsilon, coeff):
    """One step of lists of tensors, as the oracle takes it."""
    for p, g, m, u, b1, b2 in zip(params, grads, moment1, moment2, beta1_pow, beta2_pow, strict=True):
        kind = p.dtype.type
        adamw(p, g, m, u, kind(lr), kind(beta1), kind(beta2), kind(epsilon), kind(coeff), b1[0], b2[0])
        b1 *= kind(beta1)
        b2 *= kind(beta2)
