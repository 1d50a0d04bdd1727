"""Adagrad: one tensor, and any number of them merged.

The adaptive subgradient method (Duchi, Hazan and Singer 2011) in the form of Paddle's ``adagrad`` operator::

    g' = rescale_grad * g
    s  = s + g' * g'
    p  = p - lr * g' / (sqrt(s) + epsilon)
"""

import numpy as np

from refopt.checks.rows import Slot
from refopt.cpu.merged import step
from refopt.cpu.routine import routine, single


def rule(p, g, s, *, lr, epsilon):
    """The new parameter and the new sum of squares."""
    s = s + g * g
    return p - lr * g / (np.sqrt(s) + epsilon), s


def merged_adagrad(
    params, grads, moment, *, lr, epsilon=1e-6, rescale_grad=1.0, master_params=None, grad_factor=None,
    found_inf=None, rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by Adagrad, in place.

    Args:
        moment: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the sum of
            the squares of all gradients, 0 or more at first.
        epsilon: added to the root, at least 0.
    """
    step(ADAGRAD, locals())


ADAGRAD = routine(
    merged_adagrad, rule, source="Duchi, Hazan and Singer 2011; Paddle's adagrad operator",
    states=[Slot("moment", signed=False)], trial={"lr": 0.5, "rescale_grad": 1 / 24},
)  # fmt: skip
adagrad = single(merged_adagrad)
