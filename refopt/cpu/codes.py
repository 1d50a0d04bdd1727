"""States in 8 bits: cubes of integers times a scale, in groups of 32 elements of a tensor (N21).

A group has 36 bytes: a code for each of its elements, and the fp32 scale s. A signed state is s q^3, with q from -127
to 127. One that is never negative, such as an average of squares, is (s q^3)^2, with q from 0 to 255: its root is
coded. Cubes are finest near zero, so an element a thousand times smaller than the largest of its group is within an
eighth of its value, and the step of Adam, a quotient of both moments, stays close to that in fp32. Codes at equal
distances lose such elements, and if the second moment becomes 0 before the first, the step has no bound; so a positive
average of squares never becomes 0.

An element between two codes goes to the nearer one. With stochastic rounding it goes up with the probability that makes
it right on average: averages that change by less than the distance of two codes would otherwise stay where they are.

The scale is the largest magnitude of the group over the largest cube, rounded to 20 significant bits, so that a state
that is loaded and stored again keeps its codes and its scale. A group whose largest magnitude is below 2^-100 is zero.
One that has an infinity or NaN is NaN, and no other group is affected.

    >>> from refopt.cpu.codes import SIGNED
    >>> state = SIGNED.coded(np.array([0.5, -0.001], np.float32))  # or zeros: coded_bytes(2) of uint8
    >>> state.shape, SIGNED.decode(state, 2)
    ((36,), array([ 0.4999995 , -0.00099981], dtype=float32))
"""

import numpy as np

from refopt.checks import flat
from refopt.checks.dtypes import CODED, GROUP, coded_bytes
from refopt.checks.rows import Slot
from refopt.cpu.stochastic import random16

LEAST = np.float32(2.0**-100)
HALF = np.float32(0.5)


class Codes:
    """Signed codes, or codes of roots: how many there are, and what they stand for."""

    def __init__(self, signed: bool) -> None:
        self.signed, self.most = signed, 127 if signed else 255
        self.cubes = np.arange(self.most + 1, dtype=np.float32) ** 3  # exact: below 2**24
        self.inverse = np.float32(1) / self.cubes[-1]

    def decode(self, coded: np.ndarray, size: int) -> np.ndarray:
        """The values of a coded state.

        Args:
            coded: uint8 array, shape (coded_bytes(size),).
            size: elements of the tensor.

        Returns:
            fp32 array, shape (size,).
        """
        groups = coded.reshape(-1, CODED)
        q = groups[:, :GROUP].view(np.int8 if self.signed else np.uint8).astype(np.float32)
        x = groups[:, GROUP:].copy().view(np.float32) * (q * q * q)
        return (x if self.signed else x * x).reshape(-1)[:size]

    def coded(self, x: np.ndarray) -> np.ndarray:
        """A new coded state, rounded to nearest, of an fp32 array of any shape in its order in memory."""
        made = np.zeros(coded_bytes(x.size), np.uint8)
        self.encode(made, np.asarray(flat(x)))
        return made

    def encode(self, coded: np.ndarray, x: np.ndarray, chances: np.ndarray | np.float32 = HALF) -> None:
        """Store a state.

        Args:
            coded: uint8 array, shape (coded_bytes(size),), written.
            x: fp32 array, shape (size,); not negative unless the codes are signed.
            chances: fp32 array, shape (size,), from 0 to 1: an element goes up if it lies farther than this between two
                codes. The default rounds to nearest.
        """
        size, padding = x.size, (0, -x.size % GROUP)
        values = np.pad(abs(x) if self.signed else np.sqrt(x), padding).reshape(-1, GROUP)
        scales = self.scales(values.max(1, keepdims=True))
        with np.errstate(all="ignore"):
            t = values * (np.float32(1) / scales)
        below = np.clip(np.searchsorted(self.cubes, t, side="right") - 1, 0, self.most - 1)
        low, high = self.cubes[below], self.cubes[below + 1]
        over, step = t - low, high - low
        if not self.signed:  # the distance of squares
            over, step = over * (t + low), step * (high + low)
        u = np.pad(np.broadcast_to(chances, (size,)), padding).reshape(-1, GROUP)
        q = np.where(over > u * step, below + 1, below)
        if not self.signed:
            q = np.where(values > 0, np.maximum(q, 1), q)
        q = np.where(np.isfinite(scales) & (scales > 0), q, 0)
        groups = coded.reshape(-1, CODED)
        signs = np.pad(np.signbit(x), padding).reshape(-1, GROUP)
        groups[:, :GROUP] = np.where(signs & self.signed, -q, q).astype(np.uint8)
        groups[:, GROUP:] = scales.view(np.uint8)

    def scales(self, largest: np.ndarray) -> np.ndarray:
        """The scales of groups by their largest magnitudes, which are NaN if there is one."""
        pattern = (largest * self.inverse).view(np.uint32)
        rounded = (pattern + 7 + (pattern >> 4 & 1) & 0xFFFFFFF0).astype(np.uint32).view(np.float32)
        there = np.where(largest >= LEAST, rounded, np.float32(0))
        return np.where(np.isfinite(largest), there, np.float32(np.nan))


SIGNED, ROOTS = Codes(True), Codes(False)


def codes_of(slot: Slot) -> Codes:
    """The codes of a state, by whether it may be negative."""
    return SIGNED if slot.signed else ROOTS


def chances(size: int, seed: int, array: int) -> np.ndarray:
    """For each element the chance beyond which it goes up, from the bits of `random16`."""
    return chance(random16(size, seed, array))


def chance(bits: np.ndarray) -> np.ndarray:
    """A number between 0 and 1, neither of them, from the upper 14 of 16 bits."""
    return ((bits >> 2).astype(np.float32) + HALF) * np.float32(2.0**-14)
