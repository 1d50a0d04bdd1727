"""What is wrong, or easily is, in Adagrad."""

import numpy as np

from refopt.cpu.adagrad import update as adagrad_rule
from refopt.oracle.variants.adagrad import epsilon_in_the_root
from refopt.oracle.wrong.options import with_options
from refopt.oracle.wrong.rule import Wrong


def sum_assigned(p, g, s, **numbers):
    return adagrad_rule(p, g, 0 * s, **numbers)


def root_of_the_old_sum(p, g, s, *, lr, epsilon):
    return p - lr * g / (np.sqrt(s) + epsilon), s + g * g


def adagrad_step_regrouped(p, g, s, *, lr, epsilon):
    s = s + g * g
    return p - lr * (g / (np.sqrt(s) + epsilon)), s


def learning_rate_in_the_square(p, g, s, *, lr, epsilon):
    return adagrad_rule(p, lr * g, s, lr=1, epsilon=epsilon)


def times_the_reciprocal(p, g, s, *, lr, epsilon):
    s = s + g * g
    return p - lr * g * (1 / (np.sqrt(s) + epsilon)), s


RULES = with_options(
    adagrad_rule,
    {
        "EpsilonInTheRoot": Wrong(None, epsilon_in_the_root),
        "SumAssigned": Wrong("sum of squares assigned, not accumulated", sum_assigned),
        "RootOfTheOldSum": Wrong("root of the old sum", root_of_the_old_sum),
        "StepRegrouped": Wrong(None, adagrad_step_regrouped),
        "LearningRateInTheSquare": Wrong("learning rate inside the square", learning_rate_in_the_square),
        "TimesTheReciprocal": Wrong(None, times_the_reciprocal),
    },
)  # fmt: skip
