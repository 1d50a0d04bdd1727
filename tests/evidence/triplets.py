"""Which elements of a sum meet first, seen from its result alone.

Of three elements that are not 0, one has a large square B, and each of the others a square of more than a fourth and
less than a half of the distance from B to the next larger number. B absorbs either of them, but not their sum: the
whole is larger than B if, and only if, the two small ones meet before the large one does. That settles how any three
elements of a binary tree hang together, and with enough triplets the tree.

The large element is 1.5, so that the root of the sum shows the difference, too: B is 2.25, and where the distance to
the next number is 2 ** (2 - p), the root of that is 1.5 + 2 ** (2 - p) / 3, which rounds to the number after 1.5.
"""

import itertools
from collections.abc import Callable
from functools import cache
from random import Random
from typing import NamedTuple

import numpy as np

LARGE = 1.5
SMALL = {np.float32: 1.25 * 2.0**-12, np.float64: 0.875 * 2.0**-26}


class Triplet(NamedTuple):
    """The indices of the large element and of the small ones; whether their sum is to exceed the large square."""

    large: int
    small: tuple[int, int]
    exceeds: bool


def height(a: int, b: int) -> int:
    """How far above the elements of a tensor two of them meet: docs/numerics.md, N6.

    Tiles are of 1024 elements. In a tile, element i is of lane i mod 256. A lane adds its up to four elements in index
    order, in 3 additions. 256 lanes are joined neighbours first, in 8 levels, and so are the tiles.
    """
    if a // 1024 != b // 1024:
        return 3 + 8 + (a // 1024 ^ b // 1024).bit_length()
    return 3 + (a % 256 ^ b % 256).bit_length() if a % 256 != b % 256 else max(a, b) % 1024 // 256


def partner(rng: Random, a: int, level: int) -> int:
    """Some element that meets another at a level, wherever the tensor ends; itself if there is none.

    What of its place the level leaves open is that of the other as often as not, since another tree may be made of it.
    """
    tile, row, lane = a // 1024, a % 1024 // 256, a % 256
    if level > 11:
        tile, row, lane = across(rng, tile, level - 11), either(rng, row, 4), either(rng, lane, 256)
    elif level > 3:
        row, lane = either(rng, row, 4), across(rng, lane, level - 3)
    elif row <= level:
        row = level if row < level else rng.randrange(level)
    return (tile * 4 + row) * 256 + lane


def either(rng: Random, a: int, count: int) -> int:
    """A number, or any below the count."""
    return a if rng.getrandbits(1) else rng.randrange(count)


def across(rng: Random, a: int, level: int) -> int:
    """Some index that meets another at a level of a binary tree that joins neighbours first."""
    half = 1 << level - 1
    return a // half * half ^ half | either(rng, a % half, half)


def triplets(
    size: int, seed: str, count: int = 10**6, height: Callable = height, partner: Callable = partner, first: int = 0,
) -> list[Triplet]:
    """For any two levels of the tree of a sum, some three elements of which two meet at the lower, all at the higher.

    One of the two is at ``first`` or behind it. The large one is apart from the others in one triplet, and in another
    it is one of the two. Of more than ``count``, some.
    """
    some = _every(size, height, partner, first)
    places = Random(seed).sample(range(len(some)), min(count, len(some)))
    return [some[i] for i in sorted(places)]


@cache
def _every(size: int, height: Callable, partner: Callable, first: int) -> list[Triplet]:
    rng, some = Random(size), []
    for low, high in itertools.combinations(range(1, 3 + 8 + size.bit_length()), 2):
        several = len(some) + 8
        for _ in range(200):
            a = rng.randrange(first, size)
            b, c = partner(rng, a, low), partner(rng, a, high)
            if max(b, c) < size and (height(a, b), height(a, c), height(b, c)) == (low, high, high):
                some += [Triplet(c, (a, b), True), Triplet(b, (a, c), False)]
            if len(some) == several:
                break
    return some


def values(triplet: Triplet, size: int, dtype: np.dtype, real: type) -> np.ndarray:
    """A tensor of zeros but for the three."""
    x = np.zeros(size, dtype)
    x[triplet.large], x[list(triplet.small)] = LARGE, SMALL[real]
    return x
