"""AdamW: epsilon in the corrected root, as in optax for Adam."""

from refopt import catalog
from refopt.cpu.adamw import rule as adamw_rule
from refopt.oracle.variants.adam import of_the_corrected
from refopt.oracle.variants.variant import EPSILON_ROOT, Variants, extended


def rule(p, g, *states, lr, epsilon_root, epsilon_at, **numbers):
    if epsilon_root == 0 or epsilon_at == "uncorrected":
        return adamw_rule(p, g, *states, lr=lr, epsilon_at=epsilon_at, **numbers)
    return decayed(p, g, *states, lr=lr, epsilon_root=epsilon_root, **numbers)


def decayed(p, g, *states, lr, coeff, lr_ratio, maximize, **numbers):
    p = p * (1 - lr * lr_ratio * coeff)
    return of_the_corrected(p, -g if maximize else g, *states, lr=lr, max_of="moment", **numbers)


ADAMW = Variants(extended(catalog.ADAMW, hypers=[EPSILON_ROOT]), rule)
