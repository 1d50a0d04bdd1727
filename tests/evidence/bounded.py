"""Numbers that know how far a rounded evaluation of the same formula may be off (numerics, N13).

A `Bounded` number has a value, in about twice the precision of the arithmetic under test (fp64 for fp32, `DoubleDouble`
for fp64), and a bound on the distance between that value and what the arithmetic came to. The inputs of a step are
exact. Each operation then carries the errors of its operands on, by what the operation makes of them, and adds a
rounding of its own::

    x + y    error x + error y
    x * y    |x| error y + |y| error x + error x * error y
    x / y    (error x + |x / y| error y) / (|y| - error y)
    sqrt x   the smaller of error x / sqrt(x) and sqrt(error x)
    rounding UNIT * (|result| + error) + LEAST, if the result can be anything but 0

UNIT is ``ROUNDINGS * u`` plus the error of the value itself, with u = 2**-24 or 2**-53; LEAST is ROUNDINGS times
the smallest subnormal number, for products and quotients that underflow. So a bound is that of a running error
analysis (Higham 2002, section 3.3) in which every operation is ROUNDINGS times as bad as it is, and nothing that a
division, a root or a cancellation makes of earlier errors is left out.

Code under test that evaluates the very formula is within the bound for ROUNDINGS = 1. Formulas here are written as
their papers have them, and code may evaluate them in another order. Where only products, quotients and roots of the
same factors are regrouped, relative errors add up to no more than the number of roundings; where additions keep their
operands, their errors are the same. ROUNDINGS = 2 has room for twice as many roundings, and for those of the bound
itself, which is worked out in fp64. That it is enough for the order in which `refopt.cpu` has the operations is not
taken on trust: `test_error_bounds` evaluates the rules of `refopt.cpu` on these numbers, with one rounding for each
operator, and finds their bounds within those of the formulas, on the inputs of all variants.
"""

import math

import numpy as np
from evidence.double_double import UNIT, DoubleDouble

ROUNDINGS = 2
SLACK = 1 + 2.0**-20  # for the roundings of the ends of an interval


class Arithmetic:
    """fp32 or fp64 with so many roundings for each operation, and the class of the numbers that stand for it."""

    def __init__(self, real, roundings=ROUNDINGS, number=None):
        self.real, self.number, info = real, number or Bounded, np.finfo(real)
        self.unit = roundings * float(info.eps) / 2 + (2.0**-53 if real is np.float32 else UNIT)
        self.least = roundings * float(info.smallest_subnormal)

    def depth(self, count):
        """How many additions an element passes through, at most, in a sum of so many, by the tree of numerics N6.

        Up to 4 elements of a lane are added by 3 additions, 256 lanes by 8 levels of a tree, the tiles of 1024
        elements by the levels of another.
        """
        return 3 + 8 + math.ceil(math.log2(max(1, -(-count // 1024))))

    def exact(self, x):
        """A number that the arithmetic has, or an array of them."""
        wide = np.float64(x)
        return self.number(wide if self.real is np.float32 else DoubleDouble(wide), 0 * wide, self)


def size(value):
    """The magnitude of a value, rounded to fp64."""
    return abs(high(value))


def high(value):
    """A value, rounded to fp64; no rounding changes its sign."""
    return value.high if isinstance(value, DoubleDouble) else value


def select(condition, x, y):
    """Values, each of x or of y."""
    if isinstance(x, DoubleDouble):
        return DoubleDouble(np.where(condition, x.high, y.high), np.where(condition, x.low, y.low))
    return np.where(condition, x, y)


class Bounded:
    """A value and the bound on its error, arrays or scalars of one shape."""

    __array_ufunc__ = None

    def __init__(self, value, error, arithmetic):
        self.value, self.error, self.arithmetic = value, error, arithmetic

    def rounded(self, value, error):
        """The outcome of an operation: what it makes of the errors of its operands, and its own."""
        reach, of = size(value) + error, self.arithmetic
        return of.number(value, error + of.unit * reach + of.least * (reach > 0), of)

    def lift(self, x):
        return x if isinstance(x, Bounded) else self.arithmetic.exact(x)

    def __neg__(self):
        return self.arithmetic.number(-self.value, self.error, self.arithmetic)

    def __abs__(self):
        return self.arithmetic.number(abs(self.value), self.error, self.arithmetic)

    def __add__(self, other):
        other = self.lift(other)
        return self.rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other):
        return self + -self.lift(other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        x, y = self, self.lift(other)
        return self.rounded(x.value * y.value, size(x.value) * y.error + size(y.value) * x.error + x.error * y.error)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other):
        x, y = self, self.lift(other)
        assert np.all(size(y.value) > y.error), "a divisor that may be 0"
        quotient = x.value / y.value
        return self.rounded(quotient, (x.error + size(quotient) * y.error) / (size(y.value) - y.error))

    def __rtruediv__(self, other):
        return self.lift(other) / self

    def __pow__(self, count):
        """A running product."""
        power = self.lift(1)
        for k in range(count):
            power = power * self if k else self
        return power

    def __gt__(self, other):
        """A comparison of single numbers, which must be certain."""
        difference = self - other
        certain = size(difference.value) > difference.error or difference.error == 0
        assert certain, "a branch that rounding could decide"
        return bool(high(difference.value) > 0)

    def ends(self):
        """The least and the largest number of the arithmetic that a rounded evaluation may have come to."""
        error = self.error * SLACK
        if isinstance(self.value, DoubleDouble):
            return self.value.high + (self.value.low - error), self.value.high + (self.value.low + error)
        return (self.value - error).astype(self.arithmetic.real), (self.value + error).astype(self.arithmetic.real)


def sqrt(x):
    """The root. |sqrt(x) - sqrt(y)| is at most |x - y| / sqrt(x), and at most sqrt(|x - y|)."""
    assert np.all(high(x.value) >= x.error), "a root of what may be negative"
    value = x.value.sqrt() if isinstance(x.value, DoubleDouble) else np.sqrt(x.value)
    steep = x.error / np.maximum(size(value), np.finfo(float).tiny)
    return x.rounded(value, np.minimum(np.sqrt(x.error), steep))


def maximum(x, y):
    """The larger of two, element by element. It is off by no more than one of them, and does not round."""
    larger = high(x.value - y.value) > 0
    return x.arithmetic.number(select(larger, x.value, y.value), np.maximum(x.error, y.error), x.arithmetic)


def sign(x):
    """1, -1 or 0, element by element; where rounding could decide, anything from -1 to 1."""
    certain = (size(x.value) > x.error) | (x.error == 0)
    value = select(certain, x.arithmetic.exact(np.sign(high(x.value))).value, 0 * x.value)
    return x.arithmetic.number(value, np.where(certain, 0.0, 1.0), x.arithmetic)


def total(x):
    """The sum of all elements of a flat array, none of which is negative.

    Every element passes through no more additions than the arithmetic's depth, so the sum of what was come to for them
    is off by no more than ``depth * unit / (1 - depth * unit)`` of itself.
    """
    count = x.error.size
    depth, unit = x.arithmetic.depth(count), x.arithmetic.unit
    error = x.error.sum()
    value = x.value.sum() if count else x.lift(0).value
    own = count * 2.0**-52 if x.arithmetic.real is np.float32 else 0.0  # of the value, in whatever order
    share = depth * unit / (1 - depth * unit) + own
    return x.arithmetic.number(value, error + share * (size(value) + error), x.arithmetic)


def norm(x):
    """The Euclidean norm of a tensor."""
    return sqrt(total(x * x))
