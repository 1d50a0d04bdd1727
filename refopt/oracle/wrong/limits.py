"""Limits that implementations apply to gradients, directions, ratios and norms; and other changes of one quantity."""

import numpy as np

from refopt.cpu.reduce import sum_of_squares

USUAL = 0.01, 0.1, 1.0, 5.0, 10.0  # values of limits


def chosen(condition, x, y):
    """`np.where`, which returns a number for single numbers."""
    selected = np.where(condition, x, y)
    return selected[()] if isinstance(selected, np.ndarray) else selected


def at_most(x, limit):
    return chosen(x < limit, x, limit)


def at_least(x, limit):
    return chosen(x > limit, x, limit)


def within(x, limit):
    """Each element clipped to plus or minus a limit."""
    return chosen(x > limit, limit, chosen(x < -limit, -limit, x))


def norm_at_most(x, limit, epsilon=0.0):
    """A tensor scaled so that its norm is no more than a limit."""
    norm = np.sqrt(sum_of_squares(x)) + epsilon
    return x * chosen(norm > limit, limit / norm, 1.0)


def root_of_mean(x):
    """The root of the mean square of a tensor's elements."""
    return np.sqrt(sum_of_squares(x) / float(max(np.size(getattr(x, "error", x)), 1)))


def normalized(x):
    return x / np.sqrt(sum_of_squares(x))
