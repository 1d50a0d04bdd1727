"""What a sum of n terms, none of them negative, may be off by: in units of its own size and of one rounding.

Nobody knows in which order foreign code adds. Every order has each term pass through some number of additions, its
depth, and is off by no more than the depth. One after the other, the depth is n; along a tree, log2(n). For data drawn
at random, the roundings are of random signs, and the sum is off by no more than ``LAMBDA * sqrt(n)`` in any order, but
with a probability of ``2 n exp(-LAMBDA**2 / 2)`` (Higham and Mary 2019, theorem 2.4, as a model of the roundings): 3e-8
for n = 2**20. Structured data, such as equal terms, can be off by the full n.
"""

import math
from collections.abc import Callable

LAMBDA = 8.0

Depth = Callable[[int], float]


def tree(count: int) -> float:
    """The tree of numerics N6: 3 additions of a lane, 8 levels for 256 lanes, and those for the tiles of 1024."""
    return 3 + 8 + math.ceil(math.log2(max(1, -(-count // 1024))))


def any_order(count: int) -> float:
    """One after the other at worst."""
    return float(count)


def random_data(count: int) -> float:
    """Any order, for terms drawn at random."""
    return min(float(count), LAMBDA * math.sqrt(count))


def declared(depth: float) -> Depth:
    """Of code that says how many additions a term passes through."""
    return lambda count: min(float(depth), float(count))
