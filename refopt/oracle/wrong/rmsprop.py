"""What is wrong, or easily is, in RMSProp."""

import numpy as np

from refopt.cpu.rmsprop import descend
from refopt.cpu.rmsprop import update as rmsprop_rule
from refopt.oracle.wrong.options import with_options
from refopt.oracle.wrong.rule import Wrong


def epsilon_at_the_other_place(*arrays, epsilon_at, **numbers):
    return rmsprop_rule(*arrays, epsilon_at={"inside": "outside", "outside": "inside"}[epsilon_at], **numbers)


def centering_ignored(p, g, s, v, a, **numbers):
    new = rmsprop_rule(p, g, s, v, a, **numbers)[-1]
    return (*rmsprop_rule(p, g, s, v, None, **numbers)[:3], new)


def learning_rate_at_the_other_place(*arrays, lr_at, **numbers):
    return rmsprop_rule(*arrays, lr_at={"velocity": "step", "step": "velocity"}[lr_at], **numbers)


def rmsprop_from(p, g, s, v, a, d, **numbers):
    """The step with d under the root."""
    p, v = descend(p, g, v, d, **numbers)
    return p, s, v, a


def rmsprop_square_first(p, g, s, v, a, *, rho, **numbers):
    s = rho * s + (1 - rho) * (g * g)
    a = a if a is None else rho * a + (1 - rho) * g
    return rmsprop_from(p, g, s, v, a, s if a is None else s - a * a, **numbers)


def old_mean_grad(p, g, s, v, a, *, rho, **numbers):
    s = rho * s + (1 - rho) * g * g
    new = a if a is None else rho * a + (1 - rho) * g
    return rmsprop_from(p, g, s, v, new, s if a is None else s - a * a, **numbers)


def variance_clamped(p, g, s, v, a, *, rho, **numbers):
    """No root of a negative number, where the specification has NaN."""
    s = rho * s + (1 - rho) * g * g
    a = a if a is None else rho * a + (1 - rho) * g
    return rmsprop_from(p, g, s, v, a, s if a is None else np.maximum(s - a * a, 0), **numbers)


def rmsprop_step_regrouped(p, g, s, v, a, *, lr, mu, lr_at, **numbers):
    _, s, step, a = rmsprop_rule(p, g, s, np.zeros_like(v), a, lr=1, mu=0, lr_at=lr_at, **numbers)
    v = mu * v + (lr * step if lr_at == "velocity" else step)
    return p - (v if lr_at == "velocity" else lr * v), s, v, a


RULES = with_options(
    rmsprop_rule,
    {
        "EpsilonAtTheOtherPlace": Wrong(
            "epsilon on the other side of the root (epsilon_at)", epsilon_at_the_other_place
        ),
        "CenteringIgnored": Wrong("centering ignored", centering_ignored),
        "LearningRateAtTheOtherPlace": Wrong(None, learning_rate_at_the_other_place),
        "SquareFirst": Wrong(None, rmsprop_square_first),
        "OldMeanGrad": Wrong("centered by the old mean of the gradient", old_mean_grad),
        "VarianceClamped": Wrong(None, variance_clamped),
        "StepRegrouped": Wrong(None, rmsprop_step_regrouped),
    },
)  # fmt: skip
