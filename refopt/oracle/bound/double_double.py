"""Numbers with twice the precision of fp64: unevaluated sums of two, so that no platform's long double is needed.

Sums, products and quotients are those of Dekker 1971 and of Joldes, Muller and Popescu 2017, "Tight and rigorous error
bounds for basic building blocks of double-word arithmetic". Each operation, including the root, has a relative error of
at most 15 units of 2**-106; `UNIT` is four times that.
"""

import numpy as np

UNIT = 2.0**-100


def two_sum(a, b):
    """a + b, rounded, and the rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def fast_two_sum(a, b):
    """`two_sum` for |a| >= |b|, or a = 0."""
    total = a + b
    return total, b - (total - a)


def halves(a):
    """a as the sum of two 26-bit numbers, whose products are exact."""
    scaled = 134217729.0 * a  # 2**27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def two_product(a, b):
    """a * b, rounded, and the rounding error."""
    product = a * b
    (a1, a2), (b1, b2) = halves(a), halves(b)
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


class DoubleDouble:
    """``high + low``, fp64 arrays or scalars, where high is the sum rounded to nearest."""

    __array_ufunc__ = None  # NumPy arrays leave operators to this class

    def __init__(self, high, low=0.0):
        self.high, self.low = high, low + 0 * high

    @staticmethod
    def of(x):
        return x if isinstance(x, DoubleDouble) else DoubleDouble(np.float64(x))

    def __neg__(self):
        return DoubleDouble(-self.high, -self.low)

    def __abs__(self):
        negative = self.high < 0
        return DoubleDouble(np.where(negative, -self.high, self.high), np.where(negative, -self.low, self.low))

    def __add__(self, other):
        other = DoubleDouble.of(other)
        high, rest = two_sum(self.high, other.high)
        low, least = two_sum(self.low, other.low)
        high, rest = fast_two_sum(high, rest + low)
        return DoubleDouble(*fast_two_sum(high, rest + least))

    def __sub__(self, other):
        return self + -DoubleDouble.of(other)

    def __rsub__(self, other):
        return DoubleDouble.of(other) - self

    def __mul__(self, other):
        other = DoubleDouble.of(other)
        high, rest = two_product(self.high, other.high)
        return DoubleDouble(*fast_two_sum(high, rest + (self.high * other.low + self.low * other.high)))

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other):
        """Long division: three digits of 53 bits."""
        other = DoubleDouble.of(other)
        first = self.high / other.high
        rest = self - other * first
        second = rest.high / other.high
        rest = rest - other * second
        return DoubleDouble(*fast_two_sum(first, second)) + rest.high / other.high

    def __rtruediv__(self, other):
        return DoubleDouble.of(other) / self

    def sqrt(self):
        """A Newton step from the root of the upper part."""
        root = np.sqrt(self.high)
        rest = self - DoubleDouble(*two_product(root, root))
        step = rest.high / np.maximum(2 * root, np.finfo(float).tiny)
        return DoubleDouble(*fast_two_sum(root, step))

    def sum(self):
        """The sum of all elements of a flat array, pairwise, so that it is off by log2(n) units."""
        high, low = self.high, self.low
        while high.size > 1:
            if high.size % 2:
                high, low = np.append(high, 0.0), np.append(low, 0.0)
            pairs = DoubleDouble(high[0::2], low[0::2]) + DoubleDouble(high[1::2], low[1::2])
            high, low = pairs.high, pairs.low
        return DoubleDouble(high.sum(), low.sum())


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
