"""Adamax: one tensor, and any number of them merged.

Adam with the infinity norm (Kingma and Ba, arXiv:1412.6980, Algorithm 2) in the form of Paddle's ``adamax``
operator. The power of beta1 is that of the step that is being taken, and starts at beta1::

    g' = rescale_grad * g
    m  = beta1 * m + (1 - beta1) * g'
    n  = larger(|g'|, beta2 * n + epsilon)
    p  = p - lr / (1 - beta1_pow) * (m / n)
    beta1_pow = beta1_pow * beta1

PyTorch adds epsilon to the gradient instead, ``larger(beta2 * n, |g'| + epsilon)``; the paper has none.

Where g' is NaN, n goes on without it, and a NaN in n stays (N5); m, and with it p, is NaN in both cases.
"""

from refopt.checks.rows import Slot
from refopt.cpu.adam import larger
from refopt.cpu.merged import step
from refopt.cpu.routine import routine, scalars, single


def rule(p, g, m, n, beta1_pow, *, lr, beta1, beta2, epsilon):
    """The new parameter, moment, norm and power."""
    m = beta1 * m + (1 - beta1) * g
    n = larger(abs(g), beta2 * n + epsilon)
    p = p - lr / (1 - beta1_pow) * (m / n)
    return p, m, n, beta1_pow * beta1


def merged_adamax(
    params, grads, moment, inf_norm, beta1_pow, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, rescale_grad=1.0,
    master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by Adamax, in place.

    Args:
        moment: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the running
            average of the gradient, 0 at first.
        inf_norm: P arrays like them: the largest magnitude of the gradient, fading, 0 at first.
        beta1, beta2: how slowly the moment moves and the norm fades, at least 0 and below 1.
        epsilon: added to the norm of the step before, at least 0.
    """
    step(ADAMAX, locals())


ADAMAX = routine(
    merged_adamax, rule, source="arXiv:1412.6980, Algorithm 2; Paddle's adamax operator",
    states=[Slot("moment"), Slot("inf_norm", signed=False), *scalars(beta1_pow="beta1")],
)  # fmt: skip
adamax = single(merged_adamax)
