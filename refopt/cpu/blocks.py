"""How a parameter is cut into matrices, each of which is updated separately (numerics, N19).

::

    Blocks()                          a parameter of two axes: one matrix
    Blocks(rows=12)                   twelve heads, whose outputs are its rows
    Blocks(rows=(1024, 256, 256))     queries, keys and values in one parameter
    Blocks(columns=12)                twelve heads, whose inputs are its columns
    Blocks(of="experts")              a matrix for each index of the axes before the last two
    Blocks(of="convolution")          a row for each output channel, all other axes as columns
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import chosen, is_whole, listed, shown, whole
from refopt.checks.arrays import Array, host_array
from refopt.checks.rows import Routine

KINDS = "matrix", "experts", "convolution"


class Blocks(NamedTuple):
    """Parts along rows and columns: a number of equal ones or the size of each; ``of`` is how axes form matrices."""

    rows: int | tuple[int, ...] = 1
    columns: int | tuple[int, ...] = 1
    of: str = "matrix"

    def row_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a parameter's states by row: its axes but those of a row, then the number of column parts."""
        parts = self.columns if isinstance(self.columns, int) else len(self.columns)
        return *(shape[:1] if self.of == "convolution" else shape[:-1]), parts


class Cut(NamedTuple):
    """The matrices of a parameter: its shape, its axes in memory order, and the ends of parts along two axes."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    of: str
    ends: tuple[list[int], list[int]]

    def matrices(self, flat: np.ndarray) -> Iterator[np.ndarray]:
        """Views of the parameter's elements; ``flat`` has them in memory order."""
        whole = flat.reshape([self.shape[axis] for axis in self.order])
        if self.of == "convolution":
            stacked = whole.reshape(1, self.shape[0], math.prod(self.shape[1:]))
        else:
            stacked = whole.transpose(np.argsort(self.order))[(None,) * (self.of == "matrix")]
        for index in np.ndindex(stacked.shape[:-2]):
            for top, bottom in pairwise(self.ends[0]):
                for left, right in pairwise(self.ends[1]):
                    yield stacked[index][top:bottom, left:right]

    def by_row(self, flat: np.ndarray) -> Iterator[np.ndarray]:
        """Views of a state by row, in the order of `matrices`: a number for each row of the matrix."""
        count = math.prod(self.shape[:-2]) if self.of == "experts" else 1
        for each in flat.reshape(count, self.ends[0][-1], len(self.ends[1]) - 1):
            for top, bottom in pairwise(self.ends[0]):
                yield from each[top:bottom].T


def cuts(name: str, params: list[Array], blocks: Any) -> list[Cut]:
    """The cut of each parameter, from one `Blocks` for all or one for each.

    Raises:
        ValueError, TypeError: the message names argument and index.
    """
    if isinstance(blocks, Blocks):
        return [cut(f"{name}: params[{i}]", param, blocks, f"{name}: blocks") for i, param in enumerate(params)]
    entries = listed(f"{name}: blocks", blocks, "Blocks")
    if len(entries) != len(params):
        raise ValueError(f"{name}: blocks: expected one or one per parameter, {len(params)}, got {len(entries)}")
    pairs = zip(params, entries, strict=True)
    return [cut(f"{name}: params[{i}]", x, entry, f"{name}: blocks[{i}]") for i, (x, entry) in enumerate(pairs)]


def cuts_of(row: Routine, arrays: Mapping[str, Sequence[Any]], blocks: Any) -> list[Cut]:
    """The cut of each parameter of a checked call; also raises if a state by row does not fit it."""
    name, params = row.merged_name, arrays["params"]
    every = cuts(name, [host_array(x, f"{name}: params[{i}]") if isinstance(x, np.ndarray) else x
                        for i, x in enumerate(params)], blocks)
    for slot in (slot.name for slot in row.slots if slot.by_row):
        for i, (param, array) in enumerate(zip(params, arrays[slot], strict=True)):
            expected = (blocks if isinstance(blocks, Blocks) else blocks[i]).row_shape(param.shape)
            if array.shape != expected:
                raise ValueError(f"{name}: {slot}[{i}]: expected shape {expected}, a number for each row of each "
                                 f"matrix of params[{i}], got {array.shape}")
    return every


def cut(name: str, param: Array, blocks: Any, where: str, instead: str = "merged_adamw") -> Cut:
    """The cut of one parameter. Errors name it ``name`` and its blocks ``where``; ``instead`` takes any shape."""
    if not isinstance(blocks, Blocks):
        raise TypeError(f"{where}: expected Blocks, got {shown(blocks)}")
    of, axes = chosen(f"{where}.of", blocks.of, KINDS), len(param.shape)
    order = tuple(int(axis) for axis in np.argsort([-s for s in param.strides], kind="stable"))
    order = tuple(range(axes)) if param.in_c_order() else order
    if axes < 2:
        raise ValueError(f"{name}: expected a matrix, got shape {param.shape}, which {instead} takes")
    if of == "matrix" and axes > 2:
        raise ValueError(
            f'{name}: expected a matrix, got shape {param.shape}; Blocks(of="experts") takes the last two axes for a '
            f'matrix, Blocks(of="convolution") all but the first for columns, and {instead} any shape'
        )
    if of == "convolution" and order[0] != 0:
        raise ValueError(f"{name}: expected output channels outermost in memory, got axes {order}")
    rows, columns = (param.shape[0], math.prod(param.shape[1:])) if of == "convolution" else param.shape[-2:]
    ends = [_ends(f"{where}.{side}", parts, size, name.partition(": ")[2], side)
            for side, parts, size in (("rows", blocks.rows, rows), ("columns", blocks.columns, columns))]
    return Cut(param.shape, order, of, (ends[0], ends[1]))


def _ends(where: str, parts: Any, size: int, of: str, side: str) -> list[int]:
    """Where parts begin and end, from 0 to the size."""
    if is_whole(parts):
        count = whole(where, parts, 1)
        if size % count:
            raise ValueError(f"{where}: expected a divisor of the {size} {side} of {of}, got {count}")
        return [size // count * k for k in range(count + 1)]
    sizes = [whole(f"{where}[{k}]", part, 1) for k, part in enumerate(listed(where, parts, "sizes"))]
    if sum(sizes) != size:
        raise ValueError(f"{where}: expected sizes whose sum is the {size} {side} of {of}, got a sum of {sum(sizes)}")
    return list(accumulate(sizes, initial=0))
