"""Limits that implementations apply to gradients, directions, ratios and norms, and other changes of one quantity.

Norms may be of fewer or of other elements: these are changed before their squares are added.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.bound.double_double import high

USUAL = 0.01, 0.1, 1.0, 5.0, 10.0  # values of limits
BLOCKS = 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 65536


def chosen(condition, x, y):
    """`np.where`, which returns a number for single numbers."""
    selected = np.where(condition, x, y)
    return selected[()] if isinstance(selected, np.ndarray) else selected


def at_most(x, limit):
    return chosen(x < limit, x, limit)


def at_least(x, limit):
    return chosen(x > limit, x, limit)


def within(x, limit):
    """Each element clipped to plus or minus a limit."""
    return chosen(x > limit, limit, chosen(x < -limit, -limit, x))


def norm_at_most(x, limit, epsilon=0.0):
    """A tensor scaled so that its norm is no more than a limit."""
    norm = np.sqrt(sum_of_squares(x)) + epsilon
    return x * chosen(norm > limit, limit / norm, 1.0)


def root_of_mean(x):
    """The root of the mean square of a tensor's elements."""
    return np.sqrt(sum_of_squares(x) / float(max(count_of(x), 1)))


def normalized(x):
    return x / np.sqrt(sum_of_squares(x))


def count_of(x: Any) -> int:
    return np.size(getattr(x, "error", x))


def part(x: Any, first: int, last: int) -> Any:
    """An array with 0 instead of the elements outside the range."""
    k = np.arange(count_of(x))
    return x * ((first <= k) & (k < last)).astype(x.dtype)


def of_whole_blocks(x: Any, block: int) -> Any:
    whole = count_of(x) // block * block
    return part(x, 0, whole) if whole else x


def of_rank(x: Any, rank: int, ranks: int, up: bool) -> Any:
    """The share of a rank; all shares are equal, rounded up or down, but for the last one."""
    share = (count_of(x) + up * (ranks - 1)) // ranks
    return part(x, rank * share, count_of(x) if rank == ranks - 1 else (rank + 1) * share)


def of_every_second_block(x: Any, block: int) -> Any:
    return x * (np.arange(count_of(x)) // block % 2 == 0).astype(x.dtype)


def of_sizes(x: Any) -> Any:
    """An array whose sum of squares is the square of the sum of sizes."""
    return np.sqrt(sum_of_squares(np.sqrt(abs(x)))) * np.sqrt(abs(x))


def of_largest(x: Any) -> Any:
    """An array with 0 instead of all but the element of the largest size."""
    k = int(np.argmax(abs(high(getattr(x, "value", x))))) if count_of(x) else 0
    return part(x, k, k + 1)


def summands(most: int = 8) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Changes to the elements for a norm only, as of up to ``most`` ranks; ``{}`` is the original."""
    yield "sizes of {} (1-norm) instead of their squares", of_sizes
    yield "{} with the mean of squares instead of their sum", lambda x: x / float(np.sqrt(max(count_of(x), 1)))
    yield "the largest of {} alone (infinity norm)", of_largest
    for ranks in (2, 3, 4, 8):
        for rank, up in itertools.product(range(ranks) if ranks <= most else (), (False, True)):
            share = f"the {('first', 'second')[rank]} half" if ranks == 2 else f"part {rank + 1} of {ranks}"
            yield f"{share} of {{}} alone", partial(of_rank, rank=rank, ranks=ranks, up=up)
    for block in BLOCKS:
        yield f"{{}} without the tail after whole blocks of {block}", partial(of_whole_blocks, block=block)
        yield f"the first {block} elements of {{}} alone", partial(part, first=0, last=block)
    for block in BLOCKS if most > 2 else ():
        yield f"every second block of {block} of {{}} alone", partial(of_every_second_block, block=block)
