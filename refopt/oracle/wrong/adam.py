"""What is wrong, or easily is, in Adam."""

from functools import partial

import numpy as np

from refopt.cpu.adam import descend, moments
from refopt.cpu.adam import update as adam_rule
from refopt.oracle.wrong.options import with_options
from refopt.oracle.wrong.rule import Wrong


def no_bias_correction(p, g, m, u, b1, b2, u_max, **numbers):
    zero = b1 * 0
    p, m, u, _, _, u_max = adam_rule(p, g, m, u, zero, zero, u_max, **numbers)
    return p, m, u, b1 * numbers["beta1"], b2 * numbers["beta2"], u_max


def epsilon_uncorrected(*arrays, epsilon_at, **numbers):
    other = {"corrected": "uncorrected", "uncorrected": "corrected"}[epsilon_at]
    return adam_rule(*arrays, epsilon_at=other, **numbers)


def powers_before_use(p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    b1, b2 = b1 * beta1, b2 * beta2
    p, m, u, _, _, u_max = adam_rule(p, g, m, u, b1, b2, u_max, beta1=beta1, beta2=beta2, **numbers)
    return p, m, u, b1, b2, u_max


def square_first(p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    """(1 - beta2) * (g * g): another rounding, and another underflow."""
    m, u = beta1 * m + (1 - beta1) * g, beta2 * u + (1 - beta2) * (g * g)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    p = descend(p, m, u if u_max is None else u_max, b1, b2, **numbers)
    return p, m, u, b1 * beta1, b2 * beta2, u_max


def step_regrouped(p, g, m, u, b1, b2, u_max, *, lr, beta1, beta2, epsilon, epsilon_at):
    """lr * ((m / (1 - beta1_pow)) / ...): the order of operations is part of the rule."""
    one = adam_rule(p, g, m, u, b1, b2, u_max, lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, epsilon_at=epsilon_at)
    d = one[2] if u_max is None else one[5]
    if epsilon_at == "corrected":
        new = p - lr * (one[1] / (1 - b1) / (np.sqrt(d) / np.sqrt(1 - b2) + epsilon))
    else:
        new = p - lr * (np.sqrt(1 - b2) / (1 - b1)) * (one[1] / (np.sqrt(d) + epsilon))
    return new, *one[1:]


def epsilon_in_the_root(p, g, m, u, b1, b2, u_max, *, lr, beta1, beta2, epsilon, epsilon_at):
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    d = u if u_max is None else u_max
    return p - lr / (1 - b1) * (m / np.sqrt(d / (1 - b2) + epsilon)), m, u, b1 * beta1, b2 * beta2, u_max


def maximum_forgotten(p, g, m, u, b1, b2, u_max, **numbers):
    p, m, u, b1, b2, _ = adam_rule(p, g, m, u, b1, b2, None, **numbers)
    return p, m, u, b1, b2, u_max if u_max is None else np.where(u_max > u, u_max, u)


def maximum_of_the_old(p, g, m, u, b1, b2, u_max, **numbers):
    p, m, new, *powers, _ = adam_rule(p, g, m, u, b1, b2, u_max, **numbers)
    return p, m, new, *powers, u_max if u_max is None else np.where(u_max > u, u_max, u)


def root_forgotten(p, g, m, u, b1, b2, u_max, *, lr, beta1, beta2, epsilon, epsilon_at):
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    d = u if u_max is None else u_max
    return p - lr / (1 - b1) * (m / (d / (1 - b2) + epsilon)), m, u, b1 * beta1, b2 * beta2, u_max


def nesterov(p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    """The average looked ahead by the gradient of this step, without the powers of the next."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    ahead = beta1 * m + (1 - beta1) * g
    p = descend(p, ahead, u if u_max is None else u_max, b1, b2, **numbers)
    return p, m, u, b1 * beta1, b2 * beta2, u_max


def gradient_for_moment(p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    """RMSProp's step: no average of the gradient."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    p = descend(p, g, u if u_max is None else u_max, b1, b2, **numbers)
    return p, m, u, b1 * beta1, b2 * beta2, u_max


def summed(which, p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    """No factor 1 - beta before what is new in an average."""
    m = beta1 * m + (1 if 1 in which else 1 - beta1) * g
    u = beta2 * u + (1 if 2 in which else 1 - beta2) * g * g
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    p = descend(p, m, u if u_max is None else u_max, b1, b2, **numbers)
    return p, m, u, b1 * beta1, b2 * beta2, u_max


def second_from(square, p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    """Another square in the second moment."""
    m = beta1 * m + (1 - beta1) * g
    u = beta2 * u + (1 - beta2) * square(g, m)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    p = descend(p, m, u if u_max is None else u_max, b1, b2, **numbers)
    return p, m, u, b1 * beta1, b2 * beta2, u_max


def old_moments(p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    new = descend(p, m, u if u_max is None else u_max, b1, b2, **numbers)
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    return new, m, u, b1 * beta1, b2 * beta2, u_max


def powers_exchanged(p, g, m, u, b1, b2, u_max, *, beta1, beta2, **numbers):
    p, m, u, _, _, u_max = adam_rule(p, g, m, u, b2, b1, u_max, beta1=beta1, beta2=beta2, **numbers)
    return p, m, u, b1 * beta1, b2 * beta2, u_max


def maximum_for_sum(p, g, m, u, b1, b2, u_max, *, lr, beta1, beta2, epsilon, epsilon_at):
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    u_max = u_max if u_max is None else np.where(u_max > u, u_max, u)
    root = np.sqrt(u if u_max is None else u_max) / np.sqrt(1 - b2)
    return p - lr / (1 - b1) * (m / np.maximum(root, epsilon)), m, u, b1 * beta1, b2 * beta2, u_max


RULES = with_options(
    adam_rule,
    {
        "NoBiasCorrection": Wrong("no bias correction", no_bias_correction),
        "EpsilonUncorrected": Wrong("epsilon beside the other root (epsilon_at)", epsilon_uncorrected),
        "PowersBeforeUse": Wrong("powers of beta advanced before use: those of step t + 1", powers_before_use),
        "SquareFirst": Wrong(None, square_first),
        "StepRegrouped": Wrong(None, step_regrouped),
        "EpsilonInTheRoot": Wrong("epsilon inside the root", epsilon_in_the_root),
        "RootForgotten": Wrong("root of the second moment forgotten", root_forgotten),
        "Nesterov": Wrong("Nesterov's momentum, as in NAdam", nesterov),
        "GradientForMoment": Wrong("gradient for its average in the step", gradient_for_moment),
        "FirstSummed": Wrong("first moment without the factor 1 - beta1", partial(summed, (1,))),
        "SecondSummed": Wrong("second moment without the factor 1 - beta2", partial(summed, (2,))),
        "BothSummed": Wrong("both moments without the factor 1 - beta", partial(summed, (1, 2))),
        "SquareOfTheMoment": Wrong(
            "second moment of the average's squares, not the gradient's", partial(second_from, lambda g, m: m * m)
        ),
        "Belief": Wrong(
            "second moment about the average, as in AdaBelief", partial(second_from, lambda g, m: (g - m) * (g - m))
        ),
        "OldMoments": Wrong("step by the old moments, which are advanced after it", old_moments),
        "PowersExchanged": Wrong("powers of beta1 and beta2 exchanged", powers_exchanged),
        "MaximumForSum": Wrong("the larger of root and epsilon, not their sum", maximum_for_sum),
        "MaximumForgotten": Wrong("AMSGrad: maximum kept, but not used", maximum_forgotten),
        "MaximumOfTheOld": Wrong("AMSGrad: maximum of the old second moment", maximum_of_the_old),
    },
)  # fmt: skip
