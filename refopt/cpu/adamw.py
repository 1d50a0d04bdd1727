"""Adam with decoupled weight decay: one tensor, and any number of them merged.

AdamW (Loshchilov and Hutter, arXiv:1711.05101) in the form of Paddle's ``adamw`` operator. The parameter
decays, and then takes the step of `refopt.cpu.adam`::

    p = p * (1 - lr * lr_ratio * coeff)

As in Paddle's CPU operator, ``lr_ratio`` is a factor of the decay alone; Paddle's CUDA kernel also applies it to the
step. With ``maximize`` the sign of the rescaled gradient is flipped.
"""

from refopt.cpu.adam import ADAM
from refopt.cpu.adam import update as adam_update
from refopt.cpu.merged import step
from refopt.cpu.routine import routine, single


def update(p, g, *states, lr, coeff, lr_ratio, **numbers):
    """The new parameter, moments and powers, and with AMSGrad the new maximum."""
    p = p * (1 - lr * lr_ratio * coeff)
    return adam_update(p, g, *states, lr=lr, **numbers)


def rule(p, g, *states, maximize, **numbers):
    """The rule, ascending if ``maximize``."""
    return update(p, -g if maximize else g, *states, **numbers)


def merged_adamw(
    params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, coeff=0.01,
    lr_ratio=1.0, rescale_grad=1.0, epsilon_at="corrected", maximize=False, moment2_max=None, master_params=None,
    grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by AdamW, in place.

    Args:
        lr_ratio: multiplies lr in the decay, one number or one per tensor; at least 0.
    """
    step(ADAMW, locals())


ADAMW = routine(
    merged_adamw, rule, source="arXiv:1711.05101; Paddle's adamw operator",
    states=ADAM.slots[2:-1],  # without parameters, gradients and masters
    choices={"epsilon_at": ADAM.choices["epsilon_at"]},
)
adamw = single(merged_adamw)
