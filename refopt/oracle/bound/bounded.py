"""Numbers that carry a bound on the error of a rounded evaluation of the same formula (numerics, N13).

A `Bounded` number has a value, in about twice the precision of the arithmetic under test (fp64 for fp32, `DoubleDouble`
for fp64), and a bound on the distance between that value and the result of the arithmetic. The inputs of a step are
exact. Each operation then propagates the errors of its operands and adds its own rounding::

    x + y    error x + error y
    x * y    |x| error y + |y| error x + error x * error y
    x / y    (error x + |x / y| error y) / (|y| - error y)
    sqrt x   the smaller of error x / sqrt(x) and sqrt(error x)
    rounding UNIT * (|result| + error) + LEAST, if the result can be anything but 0

UNIT is ``ROUNDINGS * u`` plus the error of the value itself, with u = 2**-24 or 2**-53; LEAST is ROUNDINGS times
the smallest subnormal number, for products and quotients that underflow. So a bound is that of a running error
analysis (Higham 2002, section 3.3) in which every rounding counts ROUNDINGS times, and which includes all effects of
divisions, roots and cancellations on earlier errors.

Code under test that evaluates exactly the rule is within the bound for ROUNDINGS = 1. Code may evaluate it in another
order. Where only products, quotients and roots of the same factors are regrouped, relative errors add up to no more
than the number of roundings; where additions keep their operands, their errors are the same. ROUNDINGS = 2 allows
twice as many roundings, and those of the bound itself, which is computed in fp64. Rules of few operations get one
more (`roundings_of`): in any order, each operation may be off by a whole unit in the last place. Rules that correct
moments and then take norms, such as LAMB's, have enough room without it. Sums have their own allowance, of ROUNDINGS.

Where there is no bound, the error is inf: a divisor that may be 0, a root of a number that may be negative, a result
that may overflow. Comparisons are conditions (`branches`).
"""

import operator
from contextvars import ContextVar
from functools import partialmethod
from typing import Any

import numpy as np

from refopt.oracle.bound import sums
from refopt.oracle.bound.branches import Condition
from refopt.oracle.bound.double_double import UNIT, DoubleDouble, high, select, size

ROUNDINGS = 2
CURRENT: ContextVar[Any] = ContextVar("arithmetic", default=None)  # for constants in rules
SLACK = 1 + 2.0**-20  # for rounding the ends of an interval


def roundings_of(row):
    """By how many roundings each operation of a routine's rule may be off."""
    corrects = any(isinstance(slot.initial, str) for slot in row.slots)  # by powers of its numbers
    return ROUNDINGS if corrects and not row.elementwise else ROUNDINGS + 1


class Arithmetic:
    """fp32 or fp64 with ``roundings`` roundings for each operation.

    ``depth`` returns by how many such roundings a sum of n elements may be off (`sums`). With
    ``regroups`` sums may be regrouped and products distributed over them, such as averages ``b * x + (1 - b) * y`` that
    are evaluated as ``y + b * (x - y)``: sums round at the size of all their terms (`Bounded.mass`). With ``flushes``
    any subnormal number that is read or written may become 0. Where results underflow, an operation may be off by
    ``leasts`` of the smallest numbers, since regrouped products underflow elsewhere. With ``inputs`` code may keep
    numbers in double: rounding a number to the arithmetic is then an error of the input (`number`).
    """

    def __init__(
        self, real, roundings=ROUNDINGS, depth=sums.tree, regroups=False, flushes=False, leasts=1, inputs=False
    ):
        self.real, self.depth, info = real, depth, np.finfo(real)
        self.inputs = inputs
        self.regroups, self.flushes, self.tiny = regroups, flushes, float(info.tiny)
        self.rounding = float(info.eps) / 2
        of_double = 2.0**-53 if real is np.float32 else UNIT
        self.unit = roundings * self.rounding + of_double
        self.unit_of_sums = min(roundings, ROUNDINGS) * self.rounding + of_double
        of_value = 0 if real is np.float32 else 4  # its lower parts also underflow
        self.least = (roundings + of_value) * float(info.smallest_subnormal)
        self.least = leasts * self.least + (self.tiny if flushes else 0.0)
        self.most = float(info.max)

    def exact(self, x):
        """A number that the arithmetic represents exactly, or an array of them."""
        wide = np.float64(x)
        flushed = abs(wide) if self.flushes and np.ndim(wide) else 0.0
        error = np.where((flushed > 0) & (flushed < self.tiny), flushed, 0.0) + np.zeros(np.shape(wide))
        bounded = Bounded(wide if self.real is np.float32 else DoubleDouble(wide), error, self)
        bounded.never_negative = bool(np.all(wide >= 0))
        return bounded

    def number(self, x):
        """A number of a step, rounded to the arithmetic (N2)."""
        bounded = self.exact(self.real(x))
        if self.inputs:
            bounded.error = np.abs(np.float64(self.real(x)) - np.float64(x))
        return bounded

    def where(self, condition, x, y):
        """`where`, for conditions to call."""
        return where(condition, x, y)


class Same:
    """A number compared by identity, not by value."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return id(self.number)

    def __eq__(self, other):
        return self.number is other.number


class Bounded:
    """A value and the bound on its error, arrays or scalars of one shape. ``type(x)(1)`` is the constant 1."""

    __hash__ = None  # type: ignore[assignment]
    terms: Any = None  # of a sum, or a product with a sum: the magnitudes of all terms, added up
    never_negative = False  # regardless of rounding
    odd: Any = None  # of a product: its factors of unknown sign, except those that are squared

    def __init__(self, value, error=0.0, arithmetic=None):
        self.value, self.error, self.arithmetic = value, error, arithmetic or CURRENT.get()

    @property
    def dtype(self):
        """The dtype of the arithmetic."""
        return np.dtype(self.arithmetic.real)

    def mass(self):
        """The magnitude of a number, or of all terms of a sum."""
        return size(self.value) + self.error if self.terms is None else self.terms

    def rounded(self, value, error, terms=None):
        """The result of an operation, with the propagated ``error`` of its operands and its own.

        ``terms`` is the size at which it rounds, if that is larger than the result.
        """
        of = self.arithmetic
        reach = size(value) + error
        if terms is not None:
            reach = np.fmax(reach, terms)
        known = np.where(reach <= of.most, error + of.unit * reach + of.least * (reach > 0), np.inf)
        bounded = Bounded(value, known, of)
        bounded.terms = terms
        bounded.never_negative = np.ndim(known) == 0 and bool(high(value) >= known)
        return bounded

    def signed_as(self, *others):
        """This number, marked never negative if none of the others can be negative."""
        self.never_negative = self.never_negative or all(x.never_negative for x in others)
        return self

    def lift(self, x):
        return x if isinstance(x, Bounded) else self.arithmetic.exact(x)

    def __neg__(self):
        negative = Bounded(-self.value, self.error, self.arithmetic)
        negative.terms = self.terms
        return negative

    def __abs__(self):
        size = Bounded(abs(self.value), self.error, self.arithmetic)
        size.never_negative = True
        return size

    def __add__(self, other):
        other = self.lift(other)
        error, terms = self.error + other.error, None
        if self.arithmetic.regroups:
            terms = self.mass() + other.mass()
            if self.terms is not None or other.terms is not None:  # three terms or more, and so two additions
                error = error + self.arithmetic.unit * terms
        return self.rounded(self.value + other.value, error, terms).signed_as(self, other)

    def __sub__(self, other):
        return self + -self.lift(other)

    def __rsub__(self, other):
        if np.ndim(other) or not isinstance(other, int | float):
            return -self + other
        rest = self.rounded(other - self.value, self.error)  # for single numbers, which are not regrouped
        rest.terms = other + self.mass() if self.arithmetic.regroups else None
        return rest

    def __mul__(self, other):
        x, y = self, self.lift(other)
        error = size(x.value) * y.error + size(y.value) * x.error + x.error * y.error
        terms = None if x.terms is None and y.terms is None else x.mass() * y.mass()
        product = self.rounded(x.value * y.value, error, terms)
        product.odd = x._odd() ^ y._odd()
        product.never_negative = product.never_negative or not product.odd
        return product

    def _odd(self):
        return frozenset() if self.never_negative else self.odd or frozenset([Same(self)])

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other):
        x, y = self, self.lift(other)
        quotient = x.value / y.value
        room = size(y.value) - y.error
        error = np.where(room > 0, (x.error + size(quotient) * y.error) / room, np.inf)
        terms = None if x.terms is None else np.where(room > 0, x.terms / room, np.inf)
        return self.rounded(quotient, error, terms).signed_as(x, y)

    def __rtruediv__(self, other):
        return self.lift(other) / self

    def __pow__(self, count):
        """A running product; by repeated squaring if the exponent is a number of the step, which is whole."""
        power = None
        if isinstance(count, Bounded):
            base, left = self, int(high(count.value))
            while left:
                if left % 2:
                    power = base if power is None else power * base
                base, left = base * base, left // 2
        else:
            for _ in range(count):
                power = self if power is None else power * self
        return self.lift(1) if power is None else power

    def _compared(self, holds, other):
        """The condition that ``holds`` decides from the difference and 0."""
        other = self.lift(other)
        difference, error = high(self.value - other.value), self.error + other.error
        certain = (abs(difference) > error * SLACK) | (error == 0)
        return Condition(holds(difference, 0), certain, self.arithmetic)

    __gt__, __ge__ = partialmethod(_compared, operator.gt), partialmethod(_compared, operator.ge)
    __lt__, __le__ = partialmethod(_compared, operator.lt), partialmethod(_compared, operator.le)
    __eq__, __ne__ = partialmethod(_compared, operator.eq), partialmethod(_compared, operator.ne)

    def __array_ufunc__(self, ufunc, method, *operands, **named):
        """The NumPy functions that rules use."""
        function = UFUNCS.get(ufunc)
        if function is None or method != "__call__" or named:
            return NotImplemented
        return function(*map(self.lift, operands))

    def __array_function__(self, function, types, arguments, named):
        return where(*arguments) if function is np.where and not named else NotImplemented

    def sum_of_squares(self):
        """The sum of the squares of all elements of a flat array."""
        return total(self * self)

    def covering(self, *others):
        """This value with an error that also covers the ranges of the others."""
        error = self.error
        for other in others:
            error = np.maximum(error, (size(self.value - other.value) + other.error) * SLACK)
        return Bounded(self.value, error, self.arithmetic).signed_as(self, *others)

    def ends(self):
        """The least and the largest result that a rounded evaluation may have, in the arithmetic."""
        error = self.error * SLACK
        if isinstance(self.value, DoubleDouble):
            return self.value.high + (self.value.low - error), self.value.high + (self.value.low + error)
        with np.errstate(over="ignore", invalid="ignore"):
            return (self.value - error).astype(self.arithmetic.real), (self.value + error).astype(self.arithmetic.real)


def sqrt(x):
    """The root. |sqrt(x) - sqrt(y)| is at most |x - y| / sqrt(x), and at most sqrt(|x - y|)."""
    value = x.value.sqrt() if isinstance(x.value, DoubleDouble) else np.sqrt(x.value)
    steep = x.error / np.maximum(size(value), np.finfo(float).tiny)
    error = np.where(x.never_negative | (high(x.value) >= x.error), np.minimum(np.sqrt(x.error), steep), np.inf)
    root = x.rounded(value, error)
    root.never_negative = True
    return root


def where(condition, x, y):
    """x or y, element by element; where rounding could decide, with an error that covers both."""
    if not isinstance(condition, Condition):
        number = x if isinstance(x, Bounded) else y
        condition = Condition(condition, np.True_, number.arithmetic)
    of = condition.arithmetic
    x, y = (z if isinstance(z, Bounded) else of.exact(z) for z in (x, y))
    error = np.where(condition.holds, x.error, y.error)
    chosen = Bounded(select(condition.holds, x.value, y.value), error, of)
    if not np.all(condition.certain):
        chosen.error = np.where(condition.certain, error, chosen.covering(x, y).error)
    return chosen.signed_as(x, y)


def maximum(x, y):
    """The larger of two, element by element. Its error is at most that of one of them, and it does not round."""
    larger = high(x.value - y.value) > 0
    bounded = Bounded(select(larger, x.value, y.value), np.maximum(x.error, y.error), x.arithmetic)
    return bounded.signed_as(x, y)


def sign(x):
    """1, -1 or 0, element by element; where rounding could decide, anything from -1 to 1."""
    certain = (size(x.value) > x.error) | (x.error == 0)
    value = select(certain, x.arithmetic.exact(np.sign(high(x.value))).value, 0 * x.value)
    return Bounded(value, np.where(certain, 0.0, 1.0), x.arithmetic)


def total(x):
    """The sum of all elements of a flat array, none of which is negative.

    Relative to itself, the rounded sum of the computed elements is off by the arithmetic's depth in roundings.
    """
    count = x.error.size
    depth, unit = x.arithmetic.depth(count), x.arithmetic.unit_of_sums
    error = x.error.sum()
    value = x.value.sum() if count else x.lift(0).value
    own = count * 2.0**-52 if x.arithmetic.real is np.float32 else 0.0  # of the value, in any order
    share = depth * unit / (1 - depth * unit) + own
    reach = size(value) + error
    known = np.where(reach <= x.arithmetic.most, error + share * reach, np.inf)
    bounded = Bounded(value, known, x.arithmetic)
    bounded.never_negative = True
    return bounded


def norm(x):
    """The Euclidean norm of a tensor."""
    return sqrt(total(x * x))


UFUNCS: dict[Any, Any] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.divide: operator.truediv,
    np.negative: operator.neg, np.absolute: abs, np.square: lambda x: x * x, np.sqrt: sqrt, np.maximum: maximum,
    np.sign: sign, np.greater: operator.gt, np.less: operator.lt,
}
