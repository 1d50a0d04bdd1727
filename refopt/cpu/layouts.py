"""The places of tensors that share a buffer.

::

    length of tensor i = use_align ? round_up(n_i * s, A) / s : n_i        n_i elements of s bytes each
    offset of tensor i = the sum of the lengths before it

A, in bytes, is the alignment. The space between a tensor and the next is padding.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from refopt.checks.arguments import chosen, collected, whole

# The default alignment of a tensor, the smallest piece that a device allocates.
CHUNK = {"bytes": 4096, "elements": 16384}
LIMIT = 2**63  # bytes, one more than int64 counts, in which offsets and addresses are kept


class Layout(NamedTuple):
    """The places of tensors in a buffer, in elements: ``offsets`` and ``lengths`` (P,), the latter with padding."""

    offsets: np.ndarray
    lengths: np.ndarray
    total: int


def layout(sizes: Sequence[int], itemsize: int, align: int | None = None, align_unit: str = "bytes") -> Layout:
    """Lay tensors out one after the other.

    Args:
        sizes: elements of each tensor, at least one.
        itemsize: bytes of an element.
        align: ``None``, or the number to whose multiples every tensor's length is rounded up: in elements, or in bytes
            and then a multiple of ``itemsize``.
        align_unit: ``"bytes"`` or ``"elements"``.

    Raises:
        ValueError, TypeError: the message names the argument.
    """
    entries = enumerate(collected("layout: sizes", sizes, "sizes"))
    counts = [whole(f"layout: sizes[{i}]", size, 1) for i, size in entries]
    itemsize = whole("layout: itemsize", itemsize, 1)
    align_unit = chosen("layout: align_unit", align_unit, CHUNK)
    align = None if align is None else whole("layout: align", align)
    names = [f"layout: sizes[{i}]" for i in range(len(counts))]
    return arranged("layout: align", names, counts, itemsize, align, align_unit)


def arranged(
    where: str, names: list[str], counts: list[int], itemsize: int, align: int | None, align_unit: str
) -> Layout:
    """`layout` for integers; errors name the alignment ``where``, and the sizes ``names``."""
    unit = 1
    if align is not None:
        item = itemsize if align_unit == "bytes" else 1
        if align < 1 or align % item:
            raise ValueError(f"{where}: expected a multiple of the element's {item} bytes, got {align}")
        unit = align // item
    padded = [-(-size // unit) * unit for size in counts]  # Python integers do not overflow
    ends = list(accumulate(padded, initial=0))
    for i, end in enumerate(ends[1:]):
        if end * itemsize >= LIMIT:
            raise ValueError(f"{names[i]}: expected an end, padded, below 2**63 bytes, got {end * itemsize}")
    return Layout(np.array(ends[:-1], np.int64), np.array(padded, np.int64), ends[-1])
