"""Adam and AMSGrad: epsilon in the root, and the maximum of the corrected moments, as in optax.

::

    p     = p - lr / (1 - beta1_pow) * (m / (sqrt(u / (1 - beta2_pow) + epsilon_root) + epsilon))
    u_max = larger(u_max, u / (1 - beta2_pow))      max_of="corrected": in place of u / (1 - beta2_pow)
"""

import numpy as np

from refopt import catalog
from refopt.cpu.adam import larger, moments
from refopt.cpu.adam import rule as adam_rule
from refopt.oracle.variants.variant import EPSILON_ROOT, Variants, after_options, extended


def of_the_corrected(p, g, m, u, beta1_pow, beta2_pow, u_max, *, lr, beta1, beta2, epsilon, epsilon_root, max_of):
    """A step in which the second moment is corrected before its maximum or its root is taken."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    size = u / (1 - beta2_pow)
    if u_max is not None and max_of == "corrected":
        size = u_max = larger(u_max, size)
    elif u_max is not None:
        u_max = larger(u_max, u)
        size = u_max / (1 - beta2_pow)
    p = p - lr / (1 - beta1_pow) * (m / (np.sqrt(size + epsilon_root) + epsilon))
    return p, m, u, beta1_pow * beta1, beta2_pow * beta2, u_max


def rule(p, g, *states, epsilon_at, epsilon_root, max_of, **numbers):
    """The catalogue's step, or the one with corrected moments; the uncorrected root excludes the other variants."""
    plain = epsilon_root == 0 and (states[-1] is None or max_of == "moment")
    if plain or epsilon_at == "uncorrected":
        return adam_rule(p, g, *states, epsilon_at=epsilon_at, **numbers)
    numbers |= dict(epsilon_root=epsilon_root, max_of=max_of)
    return after_options(of_the_corrected, p, g, *states, **numbers)


MAX_OF = {"max_of": ("moment", "corrected")}
ADAM = Variants(
    extended(catalog.ADAM, hypers=[EPSILON_ROOT], choices=MAX_OF),
    rule,
    {
        "max_of=corrected": "AMSGrad's maximum of the corrected second moments, as in optax",
        "max_of=moment": "AMSGrad's maximum of the second moments, corrected by the last step, as in PyTorch",
    },
)
