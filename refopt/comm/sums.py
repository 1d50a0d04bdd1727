"""The order in which ranks are summed, for the engines that can choose it (numerics, N10).

``rank_order`` defines refopt's results. ``ring`` is the usual ring algorithm, to show by how many bits the two differ:
the partial sum of a chunk travels from rank to rank, is stored in the array's dtype at each hop, and ends at the rank
that owns the chunk.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from refopt.checks.arguments import chosen
from refopt.checks.dtypes import SIZES, arithmetic

ALGORITHMS = "rank_order", "ring"


def slices(count: int, size: int) -> list[slice]:
    """Cut ``count`` elements into ``size`` consecutive slices, the first ones longer by one if need be."""
    edges = [rank * (count // size) + min(rank, count % size) for rank in range(size + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def rank_order(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of arrays of one shape, from the first to the last, rounded to their dtype once.

    Added in fp32 for fp16, bf16 and fp32, in fp64 for fp64, in their own type for integers, which wrap around.
    """
    dtype = parts[0].dtype
    if len(parts) == 1:
        return parts[0].copy()
    wide = arithmetic(dtype.name) if dtype.name in SIZES else dtype
    with np.errstate(all="ignore"):
        total = parts[0].astype(wide)
        for part in parts[1:]:
            total += part.astype(wide, copy=False)
        return total.astype(dtype, copy=False)


def ring(parts: Sequence[np.ndarray], owner: int) -> np.ndarray:
    """The sum of arrays that starts at the rank after the owner and ends at the owner, rounded at each hop."""
    size = len(parts)
    total = parts[(owner + 1) % size].copy()
    for hop in range(2, size + 1):
        total = rank_order([total, parts[(owner + hop) % size]])
    return total


def total(parts: Sequence[np.ndarray], algorithm: str, owner: int | None = None) -> np.ndarray:
    """The sum of one-dimensional arrays.

    Args:
        parts: one per rank, in rank order.
        algorithm: one of `ALGORITHMS`.
        owner: the rank that gets the sum; ``None`` for all, each of which then owns one of the `slices`.
    """
    if algorithm == "rank_order":
        return rank_order(parts)
    if owner is not None:
        return ring(parts, owner)
    cuts = slices(parts[0].size, len(parts))
    return np.concatenate([ring([part[cut] for part in parts], rank) for rank, cut in enumerate(cuts)])


def check_algorithm(where: str, algorithm: str, known: Sequence[str]) -> str:
    """The name of an algorithm; raises if the engine has none of that name."""
    return chosen(f"{where}: algorithm", algorithm, known)
