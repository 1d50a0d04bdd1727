"""Functions of values of either precision: fp64, or `DoubleDouble`."""

import numpy as np

from refopt.oracle.bound.double_double import DoubleDouble


def size(value):
    """The magnitude of a value, rounded to fp64."""
    return abs(high(value))


def high(value):
    """A value, rounded to fp64; no rounding changes its sign."""
    return value.high if isinstance(value, DoubleDouble) else value


def select(condition, x, y):
    """x or y, element by element."""
    if isinstance(x, DoubleDouble):
        return DoubleDouble(np.where(condition, x.high, y.high), np.where(condition, x.low, y.low))
    return np.where(condition, x, y)


class Same:
    """A number compared by identity, not by value."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return id(self.number)

    def __eq__(self, other):
        return self.number is other.number
