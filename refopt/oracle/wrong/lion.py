"""What is wrong, or easily is, in Lion."""

import numpy as np

from refopt.cpu.lion import rule as lion_rule
from refopt.cpu.lion import sign
from refopt.oracle.wrong.rule import Wrong


def sign_of_the_new_momentum(p, g, m, *, lr, beta1, beta2, coeff):
    m = beta2 * m + (1 - beta2) * g
    return p * (1 - lr * coeff) - lr * sign(m), m


def lion_decay_in_gradient(p, g, m, *, coeff, **numbers):
    return lion_rule(p, g + coeff * p, m, coeff=0, **numbers)


def nan_taken_for_zero(p, g, m, *, lr, beta1, beta2, coeff):
    c = beta1 * m + (1 - beta1) * g
    return p * (1 - lr * coeff) - lr * np.nan_to_num(sign(c)), beta2 * m + (1 - beta2) * g


def betas_swapped(*arrays, beta1, beta2, **numbers):
    return lion_rule(*arrays, beta1=beta2, beta2=beta1, **numbers)


def lion_with(sign_of, p, g, m, *, lr, beta1, beta2, coeff):
    c = beta1 * m + (1 - beta1) * g
    return p * (1 - lr * coeff) - lr * sign_of(c), beta2 * m + (1 - beta2) * g


def sign_of_zero_is_one(*arrays, **numbers):
    return lion_with(lambda c: np.where(c == 0, 1.0, sign(c)), *arrays, **numbers)


def sign_of_zero_is_plus_zero(*arrays, **numbers):
    return lion_with(lambda c: np.where(c == 0, abs(c), sign(c)), *arrays, **numbers)


def lion_decay_afterwards(*arrays, lr, coeff, **numbers):
    p, m = lion_rule(*arrays, lr=lr, coeff=0, **numbers)
    return p * (1 - lr * coeff), m


def lion_decay_subtracted(p, *arrays, lr, coeff, **numbers):
    return lion_rule(p - lr * coeff * p, *arrays, lr=lr, coeff=0, **numbers)


RULES = {
    "SignOfZeroIsOne": Wrong("sign of zero taken as 1", sign_of_zero_is_one),
    "SignOfZeroIsPlusZero": Wrong(None, sign_of_zero_is_plus_zero),
    "SignOfTheNewMomentum": Wrong("sign of the new momentum", sign_of_the_new_momentum),
    "DecayInGradient": Wrong("decay in the gradient, not on the parameter", lion_decay_in_gradient),
    "NanTakenForZero": Wrong(None, nan_taken_for_zero),
    "BetasSwapped": Wrong("beta1 and beta2 swapped", betas_swapped),
    "DecayAfterwards": Wrong("decay of the new parameter, after the step", lion_decay_afterwards),
    "DecaySubtracted": Wrong(None, lion_decay_subtracted),
}
