"""The error of a sum of n terms, none of them negative, relative to the sum, in roundings.

The order in which foreign code adds is unknown. In every order each term passes through some number of additions, its
depth, and the sum is off by no more than the depth. One after the other, the depth is n; along a tree, log2(n). For
random data, the roundings have random signs, and in any order the sum is off by no more than ``LAMBDA * sqrt(n)``,
except with a probability of ``2 n exp(-LAMBDA**2 / 2)`` (Higham and Mary 2019, theorem 2.4, as a model of the
roundings): 3e-8 for n = 2**20. Sums of structured data, such as equal terms, can be off by the full n.
"""

import math
from collections.abc import Callable

LAMBDA = 8.0

Depth = Callable[[int], float]


def tree(count: int) -> float:
    """The tree of numerics N6: 3 additions in a lane, 8 levels for 256 lanes, and those for the tiles of 1024."""
    return 3 + 8 + math.ceil(math.log2(max(1, -(-count // 1024))))


def any_order(count: int) -> float:
    """One after the other at worst."""
    return float(count)


def random_data(count: int) -> float:
    """Any order, for terms drawn at random."""
    return min(float(count), LAMBDA * math.sqrt(count))


def declared(depth: float) -> Depth:
    """The depth of code that declares how many additions a term passes through."""
    return lambda count: min(float(depth), float(count))
