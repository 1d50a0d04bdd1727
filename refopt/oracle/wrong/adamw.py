"""What is wrong, or easily is, in AdamW."""

from functools import partial

import numpy as np

from refopt.cpu.adam import update as adam_rule
from refopt.cpu.adamw import update as adamw_rule
from refopt.oracle.wrong.adam import RULES as OF_ADAM
from refopt.oracle.wrong.options import OF_MAXIMIZE, prepares, with_options
from refopt.oracle.wrong.rule import Wrong


def decayed(p, *arrays, lr, lr_ratio, coeff, adam=adam_rule, **numbers):
    return adam(p * (1 - lr * lr_ratio * coeff), *arrays, lr=lr, **numbers)


def decay_in_gradient(p, g, *arrays, lr_ratio, coeff, adam=adam_rule, **numbers):
    return adam(p, g + lr_ratio * coeff * p, *arrays, **numbers)


def ratio_on_everything(p, *arrays, lr, lr_ratio, coeff, adam=adam_rule, **numbers):
    return adam(p * (1 - lr * lr_ratio * coeff), *arrays, lr=lr * lr_ratio, **numbers)


def decay_afterwards(p, *arrays, lr, lr_ratio, coeff, adam=adam_rule, **numbers):
    new, *rest = adam(p, *arrays, lr=lr, **numbers)
    return new * (1 - lr * lr_ratio * coeff), *rest


def decay_without_lr(p, *arrays, lr, lr_ratio, coeff, adam=adam_rule, **numbers):
    return adam(p * (1 - lr_ratio * coeff), *arrays, lr=lr, **numbers)


def decay_subtracted(p, g, *arrays, lr, lr_ratio, coeff, adam=adam_rule, **numbers):
    """p - lr * lr_ratio * coeff * p: equal in exact arithmetic alone."""
    return adam(p - lr * lr_ratio * coeff * p, g, *arrays, lr=lr, **numbers)


def decay_twice(p, *arrays, lr, lr_ratio, coeff, adam=adam_rule, **numbers):
    factor = 1 - lr * lr_ratio * coeff
    return adam(p * factor * factor, *arrays, lr=lr, **numbers)


def decay_by_the_corrected_rate(p, g, m, u, b1, *arrays, lr, lr_ratio, coeff, adam=adam_rule, **numbers):
    return adam(p * (1 - lr / (1 - b1) * lr_ratio * coeff), g, m, u, b1, *arrays, lr=lr, **numbers)


def decay_by_sign(p, *arrays, lr, lr_ratio, coeff, adam=adam_rule, **numbers):
    return adam(p - lr * lr_ratio * coeff * np.sign(p), *arrays, lr=lr, **numbers)


def decay_of_the_gradient(p, g, *arrays, lr, lr_ratio, coeff, adam=adam_rule, **numbers):
    return adam(p - lr * lr_ratio * coeff * g, g, *arrays, lr=lr, **numbers)


RULES = with_options(
    adamw_rule,
    {
        "DecayInGradient": Wrong("decay in the gradient (Adam with L2), not on the parameter", decay_in_gradient),
        "RatioOnEverything": Wrong("lr_ratio on the whole step, not on the decay alone", ratio_on_everything),
        "DecayAfterwards": Wrong("decay of the new parameter, after the step", decay_afterwards),
        "DecayWithoutLr": Wrong("decay without the learning rate", decay_without_lr),
        "DecayTwice": Wrong("decay applied twice", decay_twice),
        "DecayByTheCorrectedRate": Wrong("decay by the bias-corrected learning rate", decay_by_the_corrected_rate),
        "DecayBySign": Wrong("decay by the sign of the parameter (L1)", decay_by_sign),
        "DecayOfTheGradient": Wrong("decay of the gradient for that of the parameter", decay_of_the_gradient),
        "DecaySubtracted": Wrong(None, decay_subtracted),
    }, OF_MAXIMIZE,
)  # fmt: skip
# What is wrong in Adam is, under AdamW's decay.
MORE = {
    name: Wrong(wrong.name, partial(prepares, rule=partial(decayed, adam=wrong.update)))
    for name, wrong in OF_ADAM.items() if wrong.update
}  # fmt: skip
