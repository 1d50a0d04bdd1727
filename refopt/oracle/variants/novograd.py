"""NovoGrad: which step is the first, whose norm is not averaged.

::

    v  = n                                where v is 0: first_norm="where_zero", NVIDIA, timm, refopt
    v  = n                                in step 1: first_norm="by_number", the paper, optax
    v  = beta2 * v + (1 - beta2) * n      elsewhere

They differ after gradients that are entirely 0.
"""

from refopt import catalog
from refopt.cpu.novograd import direction
from refopt.cpu.novograd import rule as novograd_rule
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.variants.variant import STEP_NUMBER, Variants, advanced, extended


def averaged(p, g, m, v, *, lr, beta1, beta2, epsilon, weight_decay, grad_averaging, stored=None):
    """A step that averages the norm whatever the average is."""
    v = beta2 * v + (1 - beta2) * sum_of_squares(g)
    d = direction(p, g, v, epsilon=epsilon, weight_decay=weight_decay)
    m = beta1 * m + ((1 - beta1) * d if grad_averaging else d)
    return p - lr * m, m, v


def rule(p, g, m, v, step_number, *, first_norm, **numbers):
    if first_norm == "by_number" and step_number > 1:
        return *averaged(p, g, m, v, **numbers), advanced(step_number)
    return *novograd_rule(p, g, m, v, **numbers), advanced(step_number)


NOVOGRAD = Variants(
    extended(catalog.NOVOGRAD, choices={"first_norm": ("where_zero", "by_number")}, slots=[STEP_NUMBER]),
    rule,
    {
        "first_norm=by_number": "the norm is not averaged in step 1, as in optax",
        "first_norm=where_zero": "the norm is not averaged wherever the average is 0, as in NVIDIA's code",
    },
    counted=("first_norm",),
)
