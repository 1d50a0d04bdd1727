"""Error bounds for the iterations of a matrix: `refopt.cpu.muon.updates` of numbers that carry their errors.

A worst case over all roundings is useless: it grows by ``|a| + 3 |b| + 5 |c|`` in each iteration. But roundings are
many, and have random signs. To first order, the error of an element is a sum over all roundings ``r`` on the way,

    error[i, j] = sum over k of J[i, j, k] r[k]

where ``|r[k]|`` is at most ``h[k]``, half a unit in the last place of the rounded number. J is the derivative of the
iteration, which propagates perturbations of x::

    A = x x^T           dA = dx x^T + x dx^T
    B = b A + c A A     dB = b dA + c (dA A + A dA)
    x = a x + B x       dx = a dx + dB x + B dx

If roundings are independent and uniform in [-h, h], and so sub-Gaussian with the variance h**2 / 3, the sum
exceeds ``sqrt(2 t V / 3)`` with a probability of at most ``2 exp(-t)``, where V is the sum of ``(J h)**2`` (Hoeffding).
V is not computed but sampled: for N normal draws of r with the deviations h, all propagated at once, the mean square M
of an element's errors is V times a chi-squared variable over N that is independent of the error. So it exceeds
``sqrt(2 t M / 3)`` with a probability of at most ``2 (1 + 2 t / N) ** (-N / 2)``, and t follows from `DELTA`.

Rounded once each, whatever code fuses, are the matrix before and after it is normalized, A, b A, c A, c A A,
B, a x, B x and the new x; A and B by symmetric matrices, as their two halves are alike. Products add up terms in
any order: ``(k + 2) * unit`` of their absolute values is another such rounding. Tensor cores truncate instead, always
towards zero, which is one more perturbation, whose effect is added in full; so is that of the norm, which may be
rounded to the compute dtype. Code with more precision than the compute dtype is also within
the bound, since the truth has no rounding. The analysis is of first order: second-order terms were not
seen with 7 bits or more. It does not cover structured matrices, such as those of equal elements, which round alike.

Iterations by Gram matrices are propagated likewise, R, Z, Q, T and x, as far as `refopt.cpu.newton_schulz` allows them:
between restarts that are further apart, second-order terms outgrow the others. Squares are mirrored in the truth, too.

NorMuon's factors of rows are computed of each perturbed x: intervals of its elements would leave the norms of rows
without a bound. Their own roundings are added as a running error.
"""

from itertools import zip_longest

import numpy as np

from refopt.cpu.muon import norm_of, ratio
from refopt.cpu.newton_schulz import applied, takes_gram
from refopt.cpu.normuon import factors
from refopt.oracle.bound.bounded import Bounded, sqrt, total
from refopt.oracle.bound.double_double import high

DELTA = 1e-9  # the probability that an element of correct code is outside
DRAWS, FEWER, MANY = 128, 32, 2500  # fewer draws for matrices of more than MANY elements
BITS = {"bfloat16": (8, -133), "float16": (11, -24), "float32": (24, -149), "float64": (53, -1074)}
TENSOR_CORE = 2.0**-23  # the unit of its sums, which are truncated


def by_gram(x, off, triples, restarts, of, restarted=applied, finished=applied, mirrored=None):
    """x and its perturbations after iterations by Gram matrices; either triangle has the same bound."""
    starts, q = {0, *restarts}, None

    def product(q, x):
        return of.plus(0, None, (q, x), symmetric=False)

    x = x, off
    for i, (a, b, c) in enumerate(triples):
        if i in starts:
            x, of_r = (x, x) if q is None else restarted(q, x, product)
            r = of.square(*of_r)
        z, d_z = polynomial_of(r[0], r[1], b, c, of)
        if i in starts:
            whole, one = z + a * np.eye(len(z)), np.eye(len(z))
            q = whole, d_z + of.drawn(of.half(whole), one * of.half(a), symmetric=True)
        else:
            q = of.plus(a, q, (q, (z, d_z)))
        if i + 1 < len(triples) and i + 1 not in starts:
            t = of.plus(a, r, (r, (z, d_z)))
            r = of.plus(a, t, ((z, d_z), t))
    return x if q is None else finished(q, x, product)[0]


def updates(
    u, *, cut, triples, lr, epsilon, adjust_lr, compute, restarts=None, norm=norm_of, scale=ratio, gram=by_gram,
    rows=(),
):
    """`refopt.cpu.muon.updates` of a `Bounded` tensor. ``norm``, ``scale`` and ``gram`` are for rules with others."""
    of, values = u.arithmetic, high(u.value)
    results, rooms = np.zeros(values.shape), np.zeros(values.shape)
    every = (cut.matrices(x) for x in (values, np.broadcast_to(u.error, values.shape), results, rooms))
    for matrix, error, result, room, by_rows in zip_longest(*every, rows):
        if not matrix.size:
            continue
        if not np.isfinite(matrix).all():
            result[...], room[...] = np.nan, np.inf
            if by_rows:
                by_rows(matrix, None)
            continue
        rounding = of.rounding, (of.depth(matrix.size) / 2 + 2) * of.unit_of_sums
        least = float(high(epsilon.value))
        x, off = perturbed(matrix, error, triples, least, compute, rounding, norm, restarts, gram)
        factor = of.exact(scale(*matrix.shape, adjust_lr, np.float64))
        factor.error = 2 * of.rounding * high(factor.value)
        moved = lr * factor * (by_rows(x, off) if by_rows else Bounded(of.exact(x).value, allowance(off), of))
        result[...], room[...] = high(moved.value), moved.error + 2.0**-53 * abs(high(moved.value))
    return Bounded(of.exact(results).value, rooms, of)


def row_updates(u, w, *, cut, beta2, row_epsilon, **numbers):
    """`refopt.cpu.normuon.row_updates` of `Bounded` tensors."""
    of, values = u.arithmetic, np.array(high(w.value))
    rooms = np.array(w.error + 0 * values)

    def by_rows(own):
        value, error = own

        def normalized(x, off):
            if off is None:  # x is not finite
                error[...] = np.inf
                return None
            rows = [of.exact(row) for row in x]
            held = [Bounded(of.exact(one).value, room, of) for one, room in zip(value, error, strict=True)]
            averages, scales = zip(*row_factors(rows, held, beta2, row_epsilon), strict=True)
            moved = joined(scale * row for scale, row in zip(scales, rows, strict=True))

            def factored(x):
                w, factor = factors(x, before, beta2=high(beta2.value), row_epsilon=high(row_epsilon.value))
                return w, factor[:, None] * x

            before = value.copy()
            w, y = factored(x)
            every = [factored(x + one) for one in off]
            value[...] = [high(a.value) for a in averages]
            error[...] = [a.error for a in averages] + allowance(np.array([of_w - w for of_w, _ in every]))
            moved.error += allowance(np.array([of_y - y for _, of_y in every]))
            return moved

        return normalized

    update = updates(u, cut=cut, rows=map(by_rows, zip(*map(cut.by_row, (values, rooms)), strict=True)), **numbers)
    return update, Bounded(of.exact(values).value, rooms, of)


def row_factors(rows, held, beta2, row_epsilon):
    """`refopt.cpu.normuon.factors`, row by row: the new average and the factor."""
    squares = [row.sum_of_squares() for row in rows]
    averages = [beta2 * w + (1 - beta2) * (n / row.error.size) for w, n, row in zip(held, squares, rows, strict=True)]
    divisors = [sqrt(w) + row_epsilon for w in averages]
    none = [high(n.value) == 0 for n in squares]
    after = [n if zero else n / d / d for n, d, zero in zip(squares, divisors, none, strict=True)]
    share = sqrt(total(joined(squares))) / sqrt(total(joined(after))) if not all(none) else 0
    return [(w, n if zero else share / d) for w, n, d, zero in zip(averages, squares, divisors, none, strict=True)]


def joined(parts):
    """Bounded numbers or rows as one array."""
    parts = list(parts)
    values = np.array([high(x.value) for x in parts])
    of = parts[0].arithmetic
    bounded = Bounded(of.exact(values).value, np.array([x.error for x in parts]) + 2.0**-53 * abs(values), of)
    return bounded.signed_as(*parts)


def allowance(off):
    """By how much each element may be off, from the draws of its perturbations."""
    draws = len(off) - 1
    t = draws / 2 * ((2 / DELTA) ** (2 / draws) - 1)
    return np.sqrt(2 * t / 3 * np.mean(off[:-1] ** 2, 0)) + abs(off[-1])


def perturbed(u, error, triples, epsilon, compute, rounding=(0.0, 0.0), norm=norm_of, restarts=None, gram=by_gram):
    """A matrix after the iterations, in fp64 without roundings, and draws of its perturbations.

    ``rounding`` has the relative errors of the quotient by the norm and of the norm itself.
    """
    if u.shape[0] > u.shape[1]:
        x, off = perturbed(u.T, error.T, triples, epsilon, compute, rounding, norm, restarts, gram)
        return x.T, turned(off)
    of = Roundings(u.shape, compute)
    size = norm(u, epsilon)
    x = u / size
    off = of.drawn(of.half(x), error / size, of.half(x), rounding[0] * x)  # as if u were not below any dtype's range
    off[-1] = x * (of.half(1.0) + rounding[1])
    if takes_gram(u.shape[0], u.shape[1], restarts):
        return gram(x, off, triples, restarts, of)
    return standard(x, off, triples, of)


class Roundings:
    """The roundings of one dtype on the way of a matrix, each drawn once for all its elements."""

    def __init__(self, shape, compute):
        self.compute, self.wide = compute, compute in ("float32", "float64")
        self.unit = 2.0 ** -BITS[compute][0] if self.wide else TENSOR_CORE
        self.draws = DRAWS if shape[0] * shape[1] <= MANY else FEWER
        self.rng = np.random.default_rng(list(shape))

    def drawn(self, *sizes, symmetric=False):
        """Independent normal numbers with these deviations; the last perturbation, the systematic one, is not drawn."""
        noise = self.rng.standard_normal((self.draws + 1, *sizes[0].shape)) * np.sqrt(sum(x * x for x in sizes))
        noise[-1] = 0
        return np.triu(noise) + turned(np.triu(noise, 1)) if symmetric else noise

    def half(self, x):
        return half_a_unit(x, self.compute)

    def sums(self, x, y):
        """The error of the sums of a product."""
        return (y.shape[0] + 2) * self.unit * (abs(x) @ abs(y))

    def truncated(self, off, sums, value):
        """Perturbations with that of a tensor core's truncation."""
        off[-1] -= (0.0 if self.wide else 1.0) * sums * np.sign(value)
        return off

    def square(self, x, off):
        """x x^T, rounded, and its perturbations."""
        value, lost, one = x @ x.T, self.sums(x, x.T), off @ x.T
        d_value = one + turned(one) + self.drawn(self.half(value), lost, symmetric=True)
        return value, self.truncated(d_value, lost, value)

    def plus(self, scale, added, product, symmetric=True):
        """scale added + a b, rounded, of ``added`` and ``product`` (a, b) with their perturbations."""
        (a, d_a), (b, d_b) = product
        value, lost = a @ b, self.sums(a, b)
        off = d_a @ b + a @ d_b
        off = np.tril(off) + turned(np.tril(off, -1)) if symmetric else off
        off = self.truncated(off, lost, value)
        if added is None:
            return value, off + self.drawn(self.half(value), lost, symmetric=symmetric)
        x, d_x = added
        whole = scale * x + value
        rounds = self.half(whole), self.half(scale * x), self.half(value), lost
        return whole, scale * d_x + off + self.drawn(*rounds, symmetric=symmetric)


def turned(x):
    """Each of several matrices transposed."""
    return x.transpose(0, 2, 1)


def standard(x, off, triples, of):
    """x and its perturbations after the standard iterations."""
    for a, b, c in triples:
        square, d_square = of.square(x, off)
        polynomial, d_polynomial = polynomial_of(square, d_square, b, c, of)
        moved, outer = polynomial @ x, of.sums(polynomial, x)
        off = a * off + d_polynomial @ x + polynomial @ off
        x, before = a * x + moved, x
        off += of.drawn(of.half(x), of.half(a * before), of.half(moved), outer)
        off = of.truncated(off, outer, moved)
    return x, off


def polynomial_of(square, d_square, b, c, of):
    """b A + c A A, rounded, and its perturbations."""
    product, second = square @ square, of.sums(c * square, square)
    polynomial = b * square + c * product
    off = b * d_square + c * (d_square @ square + square @ d_square)
    rounds = of.half(polynomial), of.half(b * square), of.half(c * product), second
    off += of.drawn(*rounds, symmetric=True)
    off += of.drawn(of.half(c * square), symmetric=True) @ square
    return polynomial, of.truncated(off, second, product)


def half_a_unit(x, dtype):
    """Half a unit in the last place of each number in a dtype: its largest rounding error."""
    digits, least = BITS[dtype]
    size = abs(np.asarray(x, np.float64))
    with np.errstate(divide="ignore"):
        exponent = np.maximum(np.floor(np.log2(size)) + 1 - digits, least)
    return np.where(size > 0, 2.0 ** (exponent - 1), 0.0)
