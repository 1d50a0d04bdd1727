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
"""

import numpy as np

from refopt.cpu.muon import norm_of, ratio
from refopt.oracle.bound.bounded import Bounded
from refopt.oracle.bound.values import high

DELTA = 1e-9  # the probability that an element of correct code is outside
DRAWS, FEWER, MANY = 128, 32, 2500  # fewer draws for matrices of more than MANY elements
BITS = {"bfloat16": (8, -133), "float16": (11, -24), "float32": (24, -149), "float64": (53, -1074)}
TENSOR_CORE = 2.0**-23  # the unit of its sums, which are truncated


def updates(u, *, cut, triples, lr, epsilon, adjust_lr, compute, norm=norm_of, scale=ratio):
    """`refopt.cpu.muon.updates` of a `Bounded` tensor. ``norm`` and ``scale`` are for rules with other ones."""
    of, values = u.arithmetic, high(u.value)
    results, rooms = np.zeros(values.shape), np.zeros(values.shape)
    every = (cut.matrices(x) for x in (values, np.broadcast_to(u.error, values.shape), results, rooms))
    for matrix, error, result, room in zip(*every, strict=True):
        if not matrix.size:
            continue
        if not np.isfinite(matrix).all():
            result[...], room[...] = np.nan, np.inf
            continue
        rounding = of.rounding, (of.depth(matrix.size) / 2 + 2) * of.unit_of_sums
        x, off = orthogonalized(matrix, error, triples, float(high(epsilon.value)), compute, rounding, norm)
        factor = of.exact(scale(*matrix.shape, adjust_lr, np.float64))
        factor.error = 2 * of.rounding * high(factor.value)
        moved = lr * factor * Bounded(of.exact(x).value, off, of)
        result[...], room[...] = high(moved.value), moved.error + 2.0**-53 * abs(high(moved.value))
    return Bounded(of.exact(results).value, rooms, of)


def orthogonalized(u, error, triples, epsilon, compute, rounding=(0.0, 0.0), norm=norm_of):
    """A matrix after the iterations, in fp64 without roundings, and by how much each of its elements may be off.

    ``rounding`` has the relative errors of the quotient by the norm and of the norm itself.
    """
    if u.shape[0] > u.shape[1]:
        return (x.T for x in orthogonalized(u.T, error.T, triples, epsilon, compute, rounding, norm))
    wide = compute in ("float32", "float64")
    unit = 2.0 ** -BITS[compute][0] if wide else TENSOR_CORE
    draws, rng = DRAWS if u.size <= MANY else FEWER, np.random.default_rng(list(u.shape))

    def drawn(*sizes, symmetric=False):
        """Independent normal numbers with these deviations; the last perturbation, the systematic one, is not drawn."""
        noise = rng.standard_normal((draws + 1, *sizes[0].shape)) * np.sqrt(sum(x * x for x in sizes))
        noise[-1] = 0
        return np.triu(noise) + np.triu(noise, 1).transpose(0, 2, 1) if symmetric else noise

    def half(x):
        return half_a_unit(x, compute)

    def sums(x, y):
        """The error of the sums of a product."""
        return (y.shape[0] + 2) * unit * (abs(x) @ abs(y))

    size = norm(u, epsilon)
    x = u / size
    off = drawn(half(u) / size, error / size, half(x), rounding[0] * x)
    off[-1] = x * (half(size) / size + rounding[1])
    for a, b, c in triples:
        square, lost = x @ x.T, 0.0 if wide else 1.0
        product, inner = square @ square, sums(x, x.T)
        polynomial = b * square + c * product
        moved, outer = polynomial @ x, sums(polynomial, x)
        second = sums(c * square, square)
        d_square = perturbed_square(off, x) + drawn(half(square), inner, symmetric=True)
        d_square[-1] -= lost * inner * np.sign(square)
        d_polynomial = b * d_square + c * (d_square @ square + square @ d_square)
        d_polynomial += drawn(half(polynomial), half(b * square), half(c * product), second, symmetric=True)
        d_polynomial += drawn(half(c * square), symmetric=True) @ square
        d_polynomial[-1] -= lost * second * np.sign(product)
        off = a * off + d_polynomial @ x + polynomial @ off
        x, before = a * x + moved, x
        off += drawn(half(x), half(a * before), half(moved), outer)
        off[-1] -= lost * outer * np.sign(moved)
    t = draws / 2 * ((2 / DELTA) ** (2 / draws) - 1)
    return x, np.sqrt(2 * t / 3 * np.mean(off[:-1] ** 2, 0)) + abs(off[-1])


def perturbed_square(off, x):
    """The perturbations of x x^T from those of x."""
    one = off @ x.T
    return one + one.transpose(0, 2, 1)


def half_a_unit(x, dtype):
    """Half a unit in the last place of each number in a dtype: its largest rounding error."""
    digits, least = BITS[dtype]
    size = abs(np.asarray(x, np.float64))
    with np.errstate(divide="ignore"):
        exponent = np.maximum(np.floor(np.log2(size)) + 1 - digits, least)
    return np.where(size > 0, 2.0 ** (exponent - 1), 0.0)
