"""What is wrong, or easily is, in LAMB."""

from functools import partial

import numpy as np

from refopt.cpu.adam import moments
from refopt.cpu.lamb import direction, trust_ratio
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.wrong.rule import Wrong


def lamb_with(
    p, g, m, u, b1, b2, *, stored, lr, beta1, beta2, epsilon, weight_decay, always_adapt,
    towards=direction, ratio=trust_ratio, squares=sum_of_squares, step=lambda p, lr, ratio, r: p - lr * ratio * r,
    sized=lambda p, g, m, r, decay: r,
):  # fmt: skip
    """The rule, with places to change."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    of_moments = stored("moment1", m), stored("moment2", u)
    r = towards(p, *of_moments, b1, b2, epsilon=epsilon, weight_decay=weight_decay)
    norms = np.sqrt(squares(p)), np.sqrt(squares(sized(p, g, of_moments[0], r, weight_decay)))
    p = step(p, lr, ratio(*norms, weight_decay=weight_decay, always_adapt=always_adapt), r)
    return p, m, u, b1 * beta1, b2 * beta2


def decay_after_the_norm(p, g, m, u, b1, b2, *, weight_decay, **numbers):
    def towards(*arrays, epsilon, weight_decay):
        return direction(*arrays, epsilon=epsilon, weight_decay=0 * weight_decay)

    new, *rest = lamb_with(p, g, m, u, b1, b2, weight_decay=weight_decay, towards=towards, **numbers)
    return new - numbers["lr"] * weight_decay * p, *rest


def lamb_uncorrected(p, m, u, b1, b2, **numbers):
    return direction(p, m, u, 0 * b1, 0 * b2, **numbers)


def lamb_roots_divided(p, m, u, b1, b2, *, epsilon, weight_decay):
    return m / (1 - b1) / (np.sqrt(u) / np.sqrt(1 - b2) + epsilon) + weight_decay * p


def lamb_step_prepared(p, m, u, b1, b2, *, epsilon, weight_decay):
    return m / ((1 - b1) * (np.sqrt(u / (1 - b2)) + epsilon)) + weight_decay * p


def ratio_by_norms_alone(p_norm, r_norm, *, weight_decay, always_adapt):
    return trust_ratio(p_norm, r_norm, weight_decay=weight_decay, always_adapt=True)


def ratio_by_decay_alone(p_norm, r_norm, *, weight_decay, always_adapt):
    return p_norm / r_norm if weight_decay > 0 or always_adapt else type(p_norm)(1)


def ratio_clipped(p_norm, r_norm, **numbers):
    return min(trust_ratio(p_norm, r_norm, **numbers), type(p_norm)(1))


def without_decay(p, m, u, b1, b2, *, epsilon, weight_decay):
    return direction(p, m, u, b1, b2, epsilon=epsilon, weight_decay=0 * weight_decay)


def lamb_epsilon_in_the_root(p, m, u, b1, b2, *, epsilon, weight_decay):
    return m / (1 - b1) / np.sqrt(u / (1 - b2) + epsilon) + weight_decay * p


def lamb_epsilon_uncorrected(p, m, u, b1, b2, *, epsilon, weight_decay):
    return m / (1 - b1) * np.sqrt(1 - b2) / (np.sqrt(u) + epsilon) + weight_decay * p


def lamb_root_forgotten(p, m, u, b1, b2, *, epsilon, weight_decay):
    return m / (1 - b1) / (u / (1 - b2) + epsilon) + weight_decay * p


def ratio_inverted(p_norm, r_norm, **numbers):
    ratio = trust_ratio(p_norm, r_norm, **numbers)
    return 1 / ratio


def ratio_of_squares(p_norm, r_norm, **numbers):
    return trust_ratio(p_norm * p_norm, r_norm * r_norm, **numbers)


def decay_afterwards(p, *arrays, lr, weight_decay, **numbers):
    def towards(*arrays, epsilon, weight_decay):
        return direction(*arrays, epsilon=epsilon, weight_decay=0 * weight_decay)

    new, *rest = lamb_with(p, *arrays, lr=lr, weight_decay=weight_decay, towards=towards, **numbers)
    return new * (1 - lr * weight_decay), *rest


def decay_in_the_gradient(p, g, *arrays, weight_decay, **numbers):
    def towards(*arrays, epsilon, weight_decay):
        return direction(*arrays, epsilon=epsilon, weight_decay=0 * weight_decay)

    return lamb_with(p, g + weight_decay * p, *arrays, weight_decay=weight_decay, towards=towards, **numbers)


def old_moments(p, g, m, u, *arrays, stored, **numbers):
    new = lamb_with(p, g, m, u, *arrays, stored=lambda name, x: {"moment1": m, "moment2": u}[name], **numbers)
    return new


def ratio_without_decay(p, g, m, u, b1, b2, *, stored, lr, beta1, beta2, epsilon, weight_decay, always_adapt):
    """The norm of the direction with its decay, the ratio on the rest of it."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    of_moments = stored("moment1", m), stored("moment2", u)
    a = direction(p, *of_moments, b1, b2, epsilon=epsilon, weight_decay=0 * weight_decay)
    norms = np.sqrt(sum_of_squares(p)), np.sqrt(sum_of_squares(a + weight_decay * p))
    ratio = trust_ratio(*norms, weight_decay=weight_decay, always_adapt=always_adapt)
    return p - lr * (ratio * a + weight_decay * p), m, u, b1 * beta1, b2 * beta2


def root_mean_square(p, g, m, u, b1, b2, *, lr, **numbers):
    """The direction's norm over the root of how many elements it has."""
    count = np.sqrt(sum_of_squares(0 * p + 1))
    return lamb_with(
        p, g, m, u, b1, b2, lr=lr, ratio=lambda p_norm, r_norm, **named: trust_ratio(p_norm, r_norm / count, **named),
        **numbers,
    )  # fmt: skip


WITH_SQUARES = lamb_with
RULES = {
    "DecayAfterTheNorm": Wrong("decay after the norm: not in the direction", decay_after_the_norm),
    "Uncorrected": Wrong("no bias correction", partial(lamb_with, towards=lamb_uncorrected)),
    "RootsDivided": Wrong(None, partial(lamb_with, towards=lamb_roots_divided)),
    "StepPrepared": Wrong(None, partial(lamb_with, towards=lamb_step_prepared)),
    "RatioByNormsAlone": Wrong(
        "trust ratio even without decay (always_adapt)", partial(lamb_with, ratio=ratio_by_norms_alone)
    ),
    "RatioByDecayAlone": Wrong("trust ratio whatever the norms are", partial(lamb_with, ratio=ratio_by_decay_alone)),
    "DecayForgotten": Wrong("no weight decay in the direction", partial(lamb_with, towards=without_decay)),
    "DecayAfterwards": Wrong("decay of the new parameter, outside of the ratio", decay_afterwards),
    "DecayInTheGradient": Wrong("decay in the gradient, not in the direction", decay_in_the_gradient),
    "NormWithoutDecay": Wrong(
        "norm of the direction without its decay", partial(lamb_with, sized=lambda p, g, m, r, decay: r - decay * p)
    ),
    "NormOfTheGradient": Wrong(
        "norm of the gradient for that of the direction", partial(lamb_with, sized=lambda p, g, m, r, decay: g)
    ),
    "NormOfTheMoment": Wrong(
        "norm of the first moment for that of the direction", partial(lamb_with, sized=lambda p, g, m, r, decay: m)
    ),
    "OldMoments": Wrong("step by the old moments, which are advanced after it", old_moments),
    "RatioWithoutDecay": Wrong("trust ratio not on the decay, whose norm it counts", ratio_without_decay),
    "RootMeanSquare": Wrong("root mean square of the direction for its norm", root_mean_square),
    "EpsilonInTheRoot": Wrong("epsilon inside the root", partial(lamb_with, towards=lamb_epsilon_in_the_root)),
    "EpsilonUncorrected": Wrong(
        "epsilon beside the uncorrected root", partial(lamb_with, towards=lamb_epsilon_uncorrected)
    ),
    "RootForgotten": Wrong(
        "root of the second moment forgotten", partial(lamb_with, towards=lamb_root_forgotten)
    ),
    "RatioInverted": Wrong("trust ratio inverted", partial(lamb_with, ratio=ratio_inverted)),
    "RatioOfSquares": Wrong("squared norms for norms: a root forgotten", partial(lamb_with, ratio=ratio_of_squares)),
    "RatioForgotten": Wrong("no trust ratio", partial(lamb_with, ratio=lambda p_norm, *_, **__: type(p_norm)(1))),
    "RatioClipped": Wrong("trust ratio clipped at 1", partial(lamb_with, ratio=ratio_clipped)),
    "SumByNumPy": Wrong(None, partial(lamb_with, squares=lambda x: np.sum(x * x))),
    "SumInIndexOrder": Wrong(
        None, partial(lamb_with, squares=lambda x: np.add.accumulate(x * x)[-1] if x.size else x.sum())
    ),
    "StepRegrouped": Wrong(None, partial(lamb_with, step=lambda p, lr, ratio, r: p - lr * (ratio * r))),
}
