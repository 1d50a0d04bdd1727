"""What is wrong, or easily is, in the norm of a tensor: parts of it left out, another norm."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.cpu.reduce import sum_of_squares

BLOCKS = 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 65536


def _count(x: Any) -> int:
    """The elements of an array, or of bounded numbers."""
    return np.size(getattr(x, "error", x))


def of_first(x: Any, block: int) -> Any:
    """The first block alone."""
    return sum_of_squares(x * (np.arange(_count(x)) < block).astype(x.dtype))


def of_whole_blocks(x: Any, block: int) -> Any:
    """Whole blocks, without the tail; of tensors that have any."""
    whole = _count(x) // block * block
    return of_first(x, whole) if whole else sum_of_squares(x)


def of_sizes(x: Any) -> Any:
    """The square of the sum of all sizes."""
    total = sum_of_squares(np.sqrt(abs(x)))
    return total * total


def squares() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What is wrong, and what is in the place of the sum of squares."""
    yield "sum of sizes (1-norm) for the Euclidean norm", of_sizes
    for block in BLOCKS:
        yield f"norm without the tail after whole blocks of {block}", partial(of_whole_blocks, block=block)
        yield f"norm of the first {block} elements alone", partial(of_first, block=block)
