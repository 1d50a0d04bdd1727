"""What the iterations of a matrix may be off by: `refopt.cpu.muon.updates` of numbers that carry their errors.

A worst case over all roundings says nothing: it grows by ``|a| + 3 |b| + 5 |c|`` in each iteration. But roundings are
many, and of random signs. To first order, the error of an element is a sum over all roundings ``r`` on the way,

    error[i, j] = sum over k of J[i, j, k] r[k]

where ``|r[k]|`` is at most ``h[k]``, half a unit in the last place of what is rounded. The derivative J is that of the
iteration, which carries perturbations of x on::

    A = x x^T           dA = dx x^T + x dx^T
    B = b A + c A A     dB = b dA + c (dA A + A dA)
    x = a x + B x       dx = a dx + dB x + B dx

Of roundings that are independent and uniform in [-h, h], which are sub-Gaussian with the variance h**2 / 3, the sum
exceeds ``sqrt(2 t V / 3)`` with a probability of ``2 exp(-t)`` at most, where V is the sum of ``(J h)**2`` (Hoeffding).
V is not computed but drawn: for N normal draws of r with the deviations h, all propagated at once, the mean square M of
an element's errors is V times a chi-squared variable over N, which the error is independent of. So it exceeds
``sqrt(2 t M / 3)`` with a probability of ``2 (1 + 2 t / N) ** (-N / 2)`` at most, and t follows from `DELTA`.

What is rounded, once each, whatever of it code fuses: the matrix before and after it is normalised, A, b A, c A, c A A,
B, a x, B x and the new x; A and B by symmetric matrices, as the two halves of them are alike. Products add up terms in
any order: ``(k + 2) * unit`` of their absolute values is another such rounding. Tensor cores cut off instead, all
towards zero, which is one more perturbation, whose effect is added as it is; so is that of the norm, which may be
rounded to the compute dtype. Code of more precision than the compute dtype is within
the bound as well, since the truth is that of no rounding. The analysis is of first order: second-order terms were not
seen with 7 bits or more. Structured matrices, such as those of equal elements, round alike and are outside of it.
"""

import numpy as np

from refopt.cpu.muon import norm_of, ratio
from refopt.oracle.bound.bounded import Bounded
from refopt.oracle.bound.values import high

DELTA = 1e-9  # the probability that right code is outside, of an element
DRAWS, FEWER, MANY = 128, 32, 2500  # of larger matrices fewer, from so many elements on
BITS = {"bfloat16": (8, -133), "float16": (11, -24), "float32": (24, -149), "float64": (53, -1074)}
TENSOR_CORE = 2.0**-23  # the unit of its sums, which are cut off


def updates(u, *, cut, triples, lr, epsilon, adjust_lr, compute, norm=norm_of, scale=ratio):
    """`refopt.cpu.muon.updates` of a `Bounded` tensor. ``norm`` and ``scale`` are for rules that have others."""
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

    ``rounding`` is what the quotient by the norm, and the norm itself, are off by of their values where they are come
    to.
    """
    if u.shape[0] > u.shape[1]:
        return (x.T for x in orthogonalized(u.T, error.T, triples, epsilon, compute, rounding, norm))
    wide = compute in ("float32", "float64")
    unit = 2.0 ** -BITS[compute][0] if wide else TENSOR_CORE
    draws, rng = DRAWS if u.size <= MANY else FEWER, np.random.default_rng(list(u.shape))

    def drawn(*sizes, symmetric=False):
        """Normal numbers of deviations that are independent; the last perturbation, of what is sure, is not drawn."""
        noise = rng.standard_normal((draws + 1, *sizes[0].shape)) * np.sqrt(sum(x * x for x in sizes))
        noise[-1] = 0
        return np.triu(noise) + np.triu(noise, 1).transpose(0, 2, 1) if symmetric else noise

    def half(x):
        return half_a_unit(x, compute)

    def sums(x, y):
        """What the sum of a product may be off by."""
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
    """What perturbations of x make of x x^T."""
    one = off @ x.T
    return one + one.transpose(0, 2, 1)


def half_a_unit(x, dtype):
    """Half a unit in the last place of each number, in a dtype: by as much is it rounded at most."""
    digits, least = BITS[dtype]
    size = abs(np.asarray(x, np.float64))
    with np.errstate(divide="ignore"):
        exponent = np.maximum(np.floor(np.log2(size)) + 1 - digits, least)
    return np.where(size > 0, 2.0 ** (exponent - 1), 0.0)
