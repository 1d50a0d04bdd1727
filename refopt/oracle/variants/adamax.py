"""Adamax: epsilon on the gradient's size, weight decay.

::

    n  = larger(beta2 * n, |g'| + epsilon)      epsilon_at="gradient": PyTorch, optax
    n  = larger(|g'|, beta2 * n + epsilon)      epsilon_at="norm": refopt
"""

from refopt import catalog
from refopt.cpu.adam import larger
from refopt.cpu.adamax import rule as adamax_rule
from refopt.oracle.variants.variant import DECAY, MAXIMIZE, OF_DECAY, WEIGHT_DECAY, Variants, extended, prepared


def epsilon_on_the_gradient(p, g, m, n, beta1_pow, *, lr, beta1, beta2, epsilon):
    m = beta1 * m + (1 - beta1) * g
    n = larger(abs(g) + epsilon, beta2 * n)
    return p - lr / (1 - beta1_pow) * (m / n), m, n, beta1_pow * beta1


def rule(p, g, m, n, beta1_pow, *, lr, epsilon_at, weight_decay, decay, maximize, **numbers):
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    if epsilon_at == "gradient":
        return epsilon_on_the_gradient(p, g, m, n, beta1_pow, lr=lr, **numbers)
    return adamax_rule(p, g, m, n, beta1_pow, lr=lr, **numbers)


ADAMAX = Variants(
    extended(catalog.ADAMAX, hypers=[WEIGHT_DECAY], choices={"epsilon_at": ("norm", "gradient")} | DECAY | MAXIMIZE),
    rule,
    OF_DECAY | {
        "epsilon_at=gradient": "epsilon on the gradient's size, as PyTorch and optax have it",
        "epsilon_at=norm": "epsilon on the norm before it fades, as refopt and Paddle have it",
    },
    matters={"decay": "weight_decay"},
)  # fmt: skip
