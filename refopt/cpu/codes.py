"""States in 8 bits: powers of integers times a scale, in groups of 32 elements of a tensor (N21).

A group has 36 bytes: a code for each of its elements, and the fp32 scale s. A signed state is s (q / 128)^3, with q
from -127 to 127. One that is never negative, such as an average of squares, is s (q / 256)^6, with q from 0 to 255: its
root has cubes. Cubes are finest near zero, so an element a thousand times smaller than the largest of its group is
within an eighth of its value, and the step of Adam, a quotient of both moments, stays close to that in fp32. Codes at
equal distances lose such elements, and if the second moment becomes 0 before the first, the step has no bound; so a
positive average of squares never becomes 0.

An element between two codes goes to the nearer one. With stochastic rounding it goes up with the probability that makes
it right on average: averages that change by less than the distance of two codes would otherwise stay where they are.

The scale gives the largest element of the group the largest code. It has 20 significant bits, so that a state that is
loaded and stored again keeps its codes and its scale. A group whose largest magnitude is below 2^-46, or 2^-100 for a
state that is never negative, is zero: of Adam's moments the first is, where the second is. One that has an infinity or
NaN is NaN, and no other group is affected.

    >>> from refopt.cpu.codes import SIGNED
    >>> state = SIGNED.coded(np.array([0.5, -0.001], np.float32))  # or zeros: coded_bytes(2) of uint8
    >>> state.shape, SIGNED.decode(state, 2)
    ((36,), array([ 0.5000004 , -0.00099981], dtype=float32))
"""

import numpy as np

from refopt.checks import flat
from refopt.checks.dtypes import CODED, GROUP, coded_bytes
from refopt.checks.rows import Slot
from refopt.cpu.stochastic import random16

HALF = np.float32(0.5)


class Codes:
    """Codes with or without a sign: what they stand for, as parts of the scale, and below what a group is zero."""

    def __init__(self, signed: bool) -> None:
        self.signed, self.unit = signed, np.float32(2.0**-7 if signed else 2.0**-8)
        self.least = np.float32(2.0**-46 if signed else 2.0**-100)
        self.parts = self.part(np.arange(128 if signed else 256, dtype=np.float32) * self.unit)
        self.above = np.float32(1) / self.parts[-1]  # the scale, where the largest element is 1

    def part(self, q: np.ndarray) -> np.ndarray:
        """What fractions q / 128 or q / 256 stand for: exact cubes, or the squares of those."""
        cube = q * q * q
        return cube if self.signed else cube * cube

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
        return (groups[:, GROUP:].copy().view(np.float32) * self.part(q * self.unit)).reshape(-1)[:size]

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
        values, u = (np.pad(a, padding).reshape(-1, GROUP) for a in (x, np.broadcast_to(chances, (size,))))
        scales = self.scales(abs(values).max(1, keepdims=True))
        groups = coded.reshape(-1, CODED)
        groups[:, :GROUP] = self.codes(values, scales, u).astype(np.uint8)
        groups[:, GROUP:] = scales.view(np.uint8)

    def scales(self, largest: np.ndarray) -> np.ndarray:
        """The scales of groups by their largest magnitudes, which are NaN if there is one."""
        with np.errstate(over="ignore", invalid="ignore"):
            exact = largest * self.above
        # Up to the next multiple of 16 in the last place, unless at most 3 beyond one: what codes are loaded as, and
        # what goes up by no chance from the largest code.
        rounded = (exact.view(np.uint32) + np.uint32(12) & np.uint32(0xFFFFFFF0)).view(np.float32)
        return np.where(np.isfinite(exact), np.where(largest < self.least, np.float32(0), rounded), np.float32(np.nan))

    def codes(self, x: np.ndarray, scales: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The codes of elements, as integers: zeros where the scale is 0 or NaN."""
        with np.errstate(all="ignore"):
            t = abs(x) * (np.float32(1) / scales)
            below = np.minimum(np.searchsorted(self.parts, t, side="right") - 1, len(self.parts) - 1)
            low, high = self.parts[below], self.part((below + 1).astype(np.float32) * self.unit)
            q = below + (t - low > u * (high - low))
        if not self.signed:
            q = np.maximum(q, x > 0)
        return np.where(scales > 0, np.where(x < 0, -q, q) if self.signed else q, 0)


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
