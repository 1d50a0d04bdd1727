"""What is wrong, or easily is, in Adadelta."""

from functools import partial

import numpy as np

from refopt.cpu.adadelta import update as adadelta_rule
from refopt.oracle.wrong.options import with_options
from refopt.oracle.wrong.rule import Wrong


def adadelta_from(p, g, s, x, r, *, lr, rho):
    """The step with the quotient r of the roots."""
    d = r * g
    return p - lr * d, s, rho * x + (1 - rho) * d * d


def roots_divided(p, g, s, x, *, lr, rho, epsilon):
    s = rho * s + (1 - rho) * g * g
    return adadelta_from(p, g, s, x, np.sqrt(x + epsilon) / np.sqrt(s + epsilon), lr=lr, rho=rho)


def epsilon_outside_the_roots(p, g, s, x, *, lr, rho, epsilon):
    s = rho * s + (1 - rho) * g * g
    return adadelta_from(p, g, s, x, (np.sqrt(x) + epsilon) / (np.sqrt(s) + epsilon), lr=lr, rho=rho)


def epsilon_outside_one_root(which, p, g, s, x, *, lr, rho, epsilon):
    s = rho * s + (1 - rho) * g * g
    roots = [np.sqrt(y) + epsilon if y is (x, s)[which] else np.sqrt(y + epsilon) for y in (x, s)]
    return adadelta_from(p, g, s, x, roots[0] / roots[1], lr=lr, rho=rho)


def adadelta_square_first(p, g, s, x, *, lr, rho, epsilon):
    s = rho * s + (1 - rho) * (g * g)
    return adadelta_from(p, g, s, x, np.sqrt((x + epsilon) / (s + epsilon)), lr=lr, rho=rho)


def old_average_of_squares(p, g, s, x, *, lr, rho, epsilon):
    new = rho * s + (1 - rho) * g * g
    return adadelta_from(p, g, new, x, np.sqrt((x + epsilon) / (s + epsilon)), lr=lr, rho=rho)


def learning_rate_in_the_average(p, g, s, x, *, lr, rho, epsilon):
    s = rho * s + (1 - rho) * g * g
    return adadelta_from(p, g, s, x, lr * np.sqrt((x + epsilon) / (s + epsilon)), lr=1, rho=rho)


def average_of_updates_before_use(p, g, s, x, *, lr, rho, epsilon):
    _, s, x = adadelta_rule(p, g, s, x, lr=lr, rho=rho, epsilon=epsilon)
    return p - lr * (np.sqrt((x + epsilon) / (s + epsilon)) * g), s, x


def adadelta_step_regrouped(p, g, s, x, *, lr, rho, epsilon):
    _, s, new = adadelta_rule(p, g, s, x, lr=lr, rho=rho, epsilon=epsilon)
    return p - lr * np.sqrt((x + epsilon) / (s + epsilon)) * g, s, new


RULES = with_options(
    adadelta_rule,
    {
        "RootsDivided": Wrong(None, roots_divided),
        "EpsilonOutsideTheRoots": Wrong("epsilon outside of the roots", epsilon_outside_the_roots),
        "EpsilonOutsideTheDivisor": Wrong(
            "epsilon outside of the divisor's root", partial(epsilon_outside_one_root, 1)
        ),
        "EpsilonOutsideTheDividend": Wrong(
            "epsilon outside of the dividend's root", partial(epsilon_outside_one_root, 0)
        ),
        "SquareFirst": Wrong(None, adadelta_square_first),
        "OldAverageOfSquares": Wrong("root of the old average of squares", old_average_of_squares),
        "LearningRateInTheAverage": Wrong("learning rate inside the average of updates", learning_rate_in_the_average),
        "AverageOfUpdatesBeforeUse": Wrong("average of updates advanced before use", average_of_updates_before_use),
        "StepRegrouped": Wrong(None, adadelta_step_regrouped),
    },
)  # fmt: skip
