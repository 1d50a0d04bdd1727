"""Norms of fewer or of other elements: changes to the elements before their squares are added."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.bound.values import high

BLOCKS = 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 65536


def count_of(x: Any) -> int:
    return np.size(getattr(x, "error", x))


def part(x: Any, first: int, last: int) -> Any:
    """An array with 0 instead of the elements outside the range."""
    k = np.arange(count_of(x))
    return x * ((first <= k) & (k < last)).astype(x.dtype)


def of_first(x: Any, block: int) -> Any:
    return part(x, 0, block)


def of_whole_blocks(x: Any, block: int) -> Any:
    whole = count_of(x) // block * block
    return part(x, 0, whole) if whole else x


def of_half(x: Any, upper: bool, up: bool) -> Any:
    middle = (count_of(x) + up) // 2
    return part(x, middle, count_of(x)) if upper else part(x, 0, middle)


def of_sizes(x: Any) -> Any:
    """An array whose sum of squares is the square of the sum of sizes."""
    return np.sqrt(sum_of_squares(np.sqrt(abs(x)))) * np.sqrt(abs(x))


def of_largest(x: Any) -> Any:
    """An array with 0 instead of all but the element of the largest size."""
    k = int(np.argmax(abs(high(getattr(x, "value", x))))) if count_of(x) else 0
    return part(x, k, k + 1)


def over_root_of_count(x: Any) -> Any:
    return x / float(np.sqrt(max(count_of(x), 1)))


def summands() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Changes to the elements for a norm only; ``{}`` is the original."""
    yield "sizes of {} (1-norm) instead of their squares", of_sizes
    yield "{} with the mean of squares instead of their sum", over_root_of_count
    yield "the largest of {} alone (infinity norm)", of_largest
    for upper, up in ((False, False), (False, True), (True, False), (True, True)):
        yield f"the {('first', 'second')[upper]} half of {{}} alone", partial(of_half, upper=upper, up=up)
    for block in BLOCKS:
        yield f"{{}} without the tail after whole blocks of {block}", partial(of_whole_blocks, block=block)
        yield f"the first {block} elements of {{}} alone", partial(of_first, block=block)
