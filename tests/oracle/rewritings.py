"""A rule of refopt.cpu in other orders of operations, at random: what right code may be.

The rule runs on expressions. These are then evaluated in the working precision: sums in any order, products over sums
distributed or not, quotients as reciprocals, FMA, averages from either end, and each operation to either neighbour.
"""

import functools

import numpy as np

from refopt.oracle.bound.evaluate import rebound


class Number:
    """What a rule computes with: an operation and its operands; leaves are arrays.

    Its value is known in fp64, so that it can be compared.
    """

    __hash__ = None
    dtype = np.dtype(np.float64)

    def __init__(self, operation, *operands, value):
        self.operation, self.operands, self.value = operation, operands, value

    def lift(self, x):
        return x if isinstance(x, Number) else number(x)

    def __neg__(self):
        return Number("neg", self, value=-self.value)

    def __abs__(self):
        return Number("abs", self, value=abs(self.value))

    def __add__(self, other):
        other = self.lift(other)
        return Number("add", self, other, value=self.value + other.value)

    __radd__ = __add__

    def __sub__(self, other):
        return self + -self.lift(other)

    def __rsub__(self, other):
        return self.lift(other) + -self

    def __mul__(self, other):
        other = self.lift(other)
        return Number("mul", self, other, value=self.value * other.value)

    __rmul__ = __mul__

    def __truediv__(self, other):
        other = self.lift(other)
        return Number("div", self, other, value=self.value / other.value)

    def __rtruediv__(self, other):
        return self.lift(other) / self

    def sum_of_squares(self):
        return Number("squares", self, value=np.sum(self.value**2))

    def __gt__(self, other):
        return self.value > self.lift(other).value

    def __lt__(self, other):
        return self.value < self.lift(other).value

    def __eq__(self, other):
        return self.value == self.lift(other).value

    def __array_ufunc__(self, ufunc, method, *operands, **_):
        assert ufunc is np.sqrt
        return Number("sqrt", self, value=np.sqrt(self.value))

    def __array_function__(self, function, types, arguments, _):
        assert function is np.where
        condition, x, y = arguments
        x, y = map(self.lift, (x, y))
        return Number("where", condition, x, y, value=np.where(condition, x.value, y.value))


class Evaluator:
    """One way to evaluate an expression, drawn at random."""

    def __init__(self, real, rng, chance):
        self.real, self.rng, self.chance = real, rng, chance
        self.wide = np.longdouble if real is np.float64 else np.float64
        self.known = {}

    def rounded(self, x):
        """To nearest, or with ``chance`` to either neighbour."""
        near = np.asarray(x).astype(self.real)
        if not self.chance:
            return near
        other = np.nextafter(near, np.where(near < x, np.inf, -np.inf).astype(self.real))
        exact = near == x
        return np.where(exact | (self.rng.random(near.shape) < 0.5), near, other).astype(self.real)

    def __call__(self, x):
        if id(x) not in self.known:
            self.known[id(x)] = x, self.of(x)
        return self.known[id(x)][1]

    def of(self, x):
        kind, operands = x.operation, x.operands
        if kind == "leaf":
            return self.real(operands[0]) if np.ndim(operands[0]) == 0 else operands[0].astype(self.real)
        if kind == "where":
            condition, one, two = operands
            return np.where(condition, self(one), self(two))
        if kind in ("neg", "abs", "sqrt"):
            y = self(operands[0])
            return -y if kind == "neg" else abs(y) if kind == "abs" else self.rounded(np.sqrt(y.astype(self.wide)))
        if kind == "squares":
            y = self(operands[0])
            squares = self.rng.permutation(self.rounded(y.astype(self.wide) ** 2))
            return np.add.accumulate(squares)[-1] if self.rng.random() < 0.5 else squares.sum()
        if kind == "add":
            return self.total(self.terms(x, True))
        if kind == "div" and self.rng.random() < 0.3:
            return self.product([operands[0], None], self.rounded(1 / self(operands[1]).astype(self.wide)))
        if kind == "div":
            return self.rounded(self(operands[0]).astype(self.wide) / self(operands[1]))
        return self.product(self.factors(x))

    def factors(self, x):
        if x.operation == "mul" and id(x) not in self.known:
            return [*self.factors(x.operands[0]), *self.factors(x.operands[1])]
        return [x]

    def product(self, factors, inverse=None):
        """In any order."""
        values = [inverse if f is None else self(f) for f in factors]
        self.rng.shuffle(order := list(range(len(values))))
        result = values[order[0]]
        for k in order[1:]:
            result = self.rounded(result.astype(self.wide) * values[k])
        return result

    def terms(self, x, top=False):
        """Of a sum, those of sums in it, and of products with a sum that are distributed over it."""
        if x.operation == "neg":
            return [(-sign, factors) for sign, factors in self.terms(x.operands[0])]
        if x.operation == "add" and (top or self.rng.random() < 0.8) and np.ndim(x.value):
            return [term for y in x.operands for term in self.terms(y)]
        if x.operation == "add" and top:
            return [(1, [y]) for y in x.operands]
        if x.operation == "mul" and np.ndim(x.value):
            factors = self.factors(x)
            sums = [k for k, f in enumerate(factors) if f.operation == "add"]
            if sums and self.rng.random() < 0.5:
                inner = [(s, fs) for y in factors.pop(sums[0]).operands for s, fs in self.terms(y)]
                rest = factors
                return [(sign, [*rest, *fs]) for sign, fs in inner]
            return [(1, factors)]
        return [(1, [x])]

    def total(self, terms):
        """In any order, with FMA now and then."""
        self.rng.shuffle(order := list(range(len(terms))))
        result = None
        for k in order:
            sign, factors = terms[k]
            if result is not None and len(factors) > 1 and self.rng.random() < 0.4:
                one = self.product(factors[1:]).astype(self.wide)
                result = self.rounded(result + sign * one * self(factors[0]))  # of 48 bits, exact but for the sum
                continue
            term = sign * self.product(factors)
            result = term if result is None else self.rounded(result.astype(self.wide) + term)
        return result


def number(x):
    x = np.float64(x)
    return Number("leaf", x, value=x)


def evaluated(rule, arguments, numbers, real, rng, chance):
    """What a rule comes to in some order: values in the working precision, as many as it returns."""
    evaluator = Evaluator(real, rng, chance)
    run = rule if isinstance(rule, functools.partial) else rebound(rule)
    return [None if x is None else evaluator(x) for x in run(*arguments, **numbers)]
