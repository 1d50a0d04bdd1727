"""What is wrong, or easily is, in NovoGrad."""

from functools import partial

import numpy as np

from refopt.cpu.novograd import average
from refopt.cpu.novograd import direction as novograd_direction
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.wrong.rule import Wrong


def novograd_with(
    p, g, m, v, *, stored, lr, beta1, beta2, epsilon, weight_decay, grad_averaging,
    squares=sum_of_squares, advance=average, towards=novograd_direction, rest=lambda beta1: 1 - beta1,
):  # fmt: skip
    """The rule, with places to change."""
    v = advance(v, squares(g), beta2=beta2)
    d = towards(p, g, v, epsilon=epsilon, weight_decay=weight_decay)
    m = beta1 * m + (rest(beta1) * d if grad_averaging else d)
    return p - lr * m, m, v


def first_norm_averaged(v, n, *, beta2):
    return beta2 * v + (1 - beta2) * n


def average_of_norms(v, n, *, beta2):
    """The square of an average of norms for an average of their squares."""
    norm = beta2 * np.sqrt(v) + (1 - beta2) * np.sqrt(n)
    return n if v == 0 else norm * norm


def novograd_epsilon_in_the_root(p, g, v, *, epsilon, weight_decay):
    return g / np.sqrt(v + epsilon) + weight_decay * p


def novograd_decay_normalized(p, g, v, *, epsilon, weight_decay):
    return (g + weight_decay * p) / (np.sqrt(v) + epsilon)


def novograd_times_the_reciprocal(p, g, v, *, epsilon, weight_decay):
    return g * (1 / (np.sqrt(v) + epsilon)) + weight_decay * p


def novograd_decay_decoupled(p, g, m, v, *, lr, weight_decay, **numbers):
    new, m, v = novograd_with(p, g, m, v, lr=lr, weight_decay=0 * weight_decay, **numbers)
    return new - lr * weight_decay * p, m, v


def divided_by_the_old_norm(p, g, m, v, *, beta2, **numbers):
    _, _, new = novograd_with(p, g, m, v, beta2=beta2, **numbers)
    return (*novograd_with(p, g, m, v, beta2=beta2, advance=lambda v, n, **_: n if v == 0 else v, **numbers)[:2], new)


def averaging_without_decay(p, g, m, v, *, beta1, weight_decay, grad_averaging, **numbers):
    rest = 1 - beta1 if grad_averaging else 1
    decay = weight_decay / rest
    return novograd_with(p, g, m, v, beta1=beta1, weight_decay=decay, grad_averaging=grad_averaging, **numbers)


def learning_rate_in_the_moment(p, g, m, v, *, lr, **numbers):
    _, new, v = novograd_with(p, g, 0 * m, v, lr=lr, **numbers)
    m = numbers["beta1"] * m + lr * new
    return p - m, m, v


def elementwise_second_moment(p, g, m, v, **numbers):
    """Each element divided by its own size, and the norm carried."""
    new = novograd_with(p, g, m, v, **numbers)[2]
    return (*novograd_with(p, g, m, v, squares=lambda g: g * g, advance=lambda v, n, **_: n, **numbers)[:2], new)


def mean_of_squares(g):
    return sum_of_squares(g) / np.maximum(sum_of_squares(0 * g + 1), 1)


def not_averaged(v, n, *, beta2):
    return n


def always_averaged_by_one(v, n, *, beta2):
    return n if v == 0 else beta2 * v + n


def root_forgotten(p, g, v, *, epsilon, weight_decay):
    return g / (v + epsilon) + weight_decay * p


def decay_in_the_gradient(p, g, m, v, *, weight_decay, **numbers):
    return novograd_with(p, g + weight_decay * p, m, v, weight_decay=0 * weight_decay, **numbers)


def normalized_by_the_moment(p, g, m, v, *, lr, beta1, epsilon, weight_decay, **numbers):
    """The moment of the gradient as it is, divided by the norm in the step."""
    _, _, new = novograd_with(
        p, g, m, v, lr=lr, beta1=beta1, epsilon=epsilon, weight_decay=weight_decay, **numbers
    )
    m = beta1 * m + g
    return p - lr * (m / (np.sqrt(new) + epsilon) + weight_decay * p), m, new


WITH_SQUARES = novograd_with
RULES = {
    "FirstNormAveraged": Wrong(
        "first norm averaged with 0, not taken as it is", partial(novograd_with, advance=first_norm_averaged)
    ),
    "AverageOfNorms": Wrong("average of norms, not of their squares", partial(novograd_with, advance=average_of_norms)),
    "DividedByTheOldNorm": Wrong("divided by the old norm", divided_by_the_old_norm),
    "DividedElementByElement": Wrong("second moment by element, not by tensor", elementwise_second_moment),
    "MeanOfSquares": Wrong("mean of squares for their sum", partial(novograd_with, squares=mean_of_squares)),
    "NormForItsSquare": Wrong(
        "norm of the gradient for its square", partial(novograd_with, squares=lambda g: np.sqrt(sum_of_squares(g)))
    ),
    "NotAveraged": Wrong("norm of this gradient alone, not averaged", partial(novograd_with, advance=not_averaged)),
    "NormSummed": Wrong(
        "second moment without the factor 1 - beta2", partial(novograd_with, advance=always_averaged_by_one)
    ),
    "RootForgotten": Wrong("root of the second moment forgotten", partial(novograd_with, towards=root_forgotten)),
    "DecayInTheGradient": Wrong("decay in the gradient, and so in its norm", decay_in_the_gradient),
    "NormalizedAfterwards": Wrong("divided by the norm in the step, not in the moment", normalized_by_the_moment),
    "EpsilonInTheRoot": Wrong("epsilon inside the root", partial(novograd_with, towards=novograd_epsilon_in_the_root)),
    "DecayNormalized": Wrong(
        "decay divided by the norm as well", partial(novograd_with, towards=novograd_decay_normalized)
    ),
    "DecayDecoupled": Wrong("decay on the parameter, not in the moment", novograd_decay_decoupled),
    "AveragingWithoutDecay": Wrong("grad_averaging without the decay", averaging_without_decay),
    "AveragingIgnored": Wrong("grad_averaging ignored", partial(novograd_with, rest=lambda beta1: 1)),
    "LearningRateInTheMoment": Wrong("learning rate inside the moment", learning_rate_in_the_moment),
    "TimesTheReciprocal": Wrong(None, partial(novograd_with, towards=novograd_times_the_reciprocal)),
    "SumByNumPy": Wrong(None, partial(novograd_with, squares=lambda g: np.sum(g * g))),
    "SumInIndexOrder": Wrong(
        None, partial(novograd_with, squares=lambda g: np.add.accumulate(g * g)[-1] if g.size else g.sum())
    ),
}
