"""Cutting variables into blocks of whole rows, and joining the blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from refopt.checks import Array
from refopt.checks.arguments import collected, listed, names, shown, whole
from refopt.checks.arrays import host_array
from refopt.checks.dtypes import ITEM_SIZES, numpy_dtype

Shape = tuple[int, ...]


class Block(NamedTuple):
    """A part of a variable.

    Attributes:
        number: the index of the block in its variable, from 0.
        first: the index of its first element. Paddle stores the block's number as ``offset``, and multiplies later.
        size: how many elements it has.
    """

    number: int
    first: int
    size: int

    def text(self, name: str) -> str:
        """The block in the format of Paddle's transpiler: ``w:0:2352``."""
        names("text: name", [name])
        return f"{name}:{self.number}:{self.size}"


def slice_variable(
    shapes: Iterable[Sequence[int]], slice_count: int, min_block_size: int = 8192
) -> list[tuple[Block, ...]]:
    """Cut variables into blocks.

    With n elements in rows of r, the target is ``k = min(slice_count, max(1, floor(n / min_block_size)))`` blocks, each
    of ``ceil(n / k)`` elements, rounded up to a multiple of r if there are two dimensions or more. Covering n elements
    with blocks of that size may take fewer than k; the last has the rest, at least one row.

    Args:
        shapes: at least one element each.
        slice_count: the largest number of blocks of a variable.
        min_block_size: the smallest number of elements of a block in a variable that is cut.

    Returns:
        For each shape, its blocks, which are contiguous.

    Source: Paddle's ``slice_variable`` in ``distribute_transpiler.py``, as of PR 11221.
    """
    slice_count = whole("slice_variable: slice_count", slice_count, 1)
    min_block_size = whole("slice_variable: min_block_size", min_block_size, 1)
    sliced = []
    for i, entry in enumerate(collected("slice_variable: shapes", shapes, "shapes")):
        extents = enumerate(collected(f"slice_variable: shapes[{i}]", entry, "extents"))
        shape = tuple(whole(f"slice_variable: shapes[{i}][{k}]", n, 1) for k, n in extents)
        count = math.prod(shape)
        blocks = min(slice_count, max(1, count // min_block_size))
        size = -(-count // blocks)
        if len(shape) > 1:
            row = math.prod(shape[1:])
            size = -(-size // row) * row
        firsts = range(0, count, size)
        sliced.append(tuple(Block(j, first, min(size, count - first)) for j, first in enumerate(firsts)))
    return sliced


def rows_of(where: str, shape: Shape, block: Block) -> tuple[int, int]:
    """The first row of a block, and the one after its last.

    Raises:
        ValueError: the block does not consist of whole rows of the shape.
    """
    width = math.prod(shape[1:])
    first, stop = block.first, block.first + block.size
    if not shape or first % width or stop % width or not 0 <= first < stop <= math.prod(shape):
        got = f"elements {first} to {stop - 1}"
        raise ValueError(f"{where}: block {block.number}: expected whole rows of shape {shape}, got {got}")
    return first // width, stop // width


def block_shape(shape: Shape, block: Block) -> Shape:
    """The shape of a block: that of the variable, with fewer rows."""
    if block.size == math.prod(shape):
        return tuple(shape)
    first, stop = rows_of("block_shape", shape, block)
    return (stop - first, *shape[1:])


def state_block(shape: Shape, of: Shape, block: Block) -> Block:
    """The part of a state that goes with a block of its parameter, whose shape is ``of``: its rows, or all of a scalar.

    A parameter that is cut has several rows, and a state by row or element as many.
    """
    if shape[:1] != of[:1]:
        return Block(0, 0, 1)
    own, width = math.prod(shape[1:]), math.prod(of[1:])
    return Block(block.number, block.first // width * own, block.size // width * own)


def split_by_ref(array: Any, blocks: Sequence[Block]) -> list[Any]:
    """Views of an array, one for each block: memory is shared, nothing is copied.

    Args:
        array: a NumPy or device array, with at least one dimension unless there is only one block.
        blocks: all blocks of the array, in order.

    Raises:
        ValueError: the blocks do not make up the array. Paddle's ``split_byref`` does not check this.
        TypeError: it is not an array, or they are not blocks.
    """
    shape, blocks = _described("split_by_ref: array", array).shape, _blocks("split_by_ref: blocks", blocks)
    _check_cover("split_by_ref", shape, blocks)
    if not shape:
        return [array]
    return [array[slice(*rows_of("split_by_ref", shape, block))] for block in blocks]


def concat(parts: Iterable[Any], target: Any, stream: Any = 0) -> None:
    """Join blocks, row after row.

    Args:
        parts: with the target's dtype, and its extents except the first.
        target: a NumPy or device array, like the parts; overwritten. A part may be the very rows of the target that it
            is for; otherwise it must not share memory with the target.
        stream: the stream in which device arrays are copied.

    Raises:
        ValueError, TypeError: naming the part; then nothing has been modified.
    """
    parts, all_of_it = collected("concat: parts", parts, "arrays"), _described("concat: target", target)
    if isinstance(target, np.ndarray) and stream is not None:
        whole("concat: stream", stream, 0, 0)  # NumPy has no other
    if not all_of_it.writable:
        raise ValueError("concat: target: expected a writable array, got a read-only one")
    places = _places(parts, all_of_it)
    ends = [(part, target[rows] if all_of_it.shape else target) for part, rows in zip(parts, places, strict=True)]
    for k, (part, place) in enumerate(ends):
        _check_place(f"concat: parts[{k}]", part, place, target)
    for part, place in ends:
        if hasattr(place, "copy_to_device"):
            place.copy_to_device(part, stream=stream)
        else:
            place[...] = part


def _places(parts: Sequence[Any], target: Array) -> list[slice]:
    """The target's rows for each part; raises unless the parts make up all rows."""
    shape, first, places = target.shape, 0, []
    for k, part in enumerate(parts):
        described = _described(f"concat: parts[{k}]", part)
        if described.dtype != target.dtype:
            raise TypeError(f"concat: parts[{k}]: expected {target.dtype}, as target has, got {described.dtype}")
        if len(described.shape) != len(shape) or described.shape[1:] != shape[1:]:
            raise ValueError(f"concat: parts[{k}]: expected rows of shape {shape[1:]}, got shape {described.shape}")
        rows = part.shape[0] if shape else 1
        places.append(slice(first, first + rows))
        first += rows
    expected = shape[0] if shape else 1
    if first != expected:
        raise ValueError(f"concat: parts: expected {expected} rows in all, got {first}")
    return places


def _described(where: str, array: Any) -> Array:
    """The description of a NumPy or device array for checks; raises for anything else, or an unsupported dtype."""
    if isinstance(array, np.ndarray):
        described = host_array(array, where)
    else:
        from refopt.gpu.arrays import describer, device_of

        if not (device := device_of([array])):
            raise TypeError(f"{where}: expected an array of NumPy or of a device, got {shown(array)}")
        described = describer(device)(array, where)
    if described.dtype not in ITEM_SIZES:
        raise TypeError(f"{where}: expected one of {', '.join(ITEM_SIZES)}, got {described.dtype}")
    return described


def _blocks(where: str, blocks: Any) -> list[Block]:
    """Blocks with whole numbers; raises for anything else."""
    checked = listed(where, blocks, "blocks")
    for k, block in enumerate(checked):
        if not isinstance(block, Block):
            raise TypeError(f"{where}[{k}]: expected a Block, got {shown(block)}")
        for key, value in block._asdict().items():
            whole(f"{where}[{k}]: {key}", value, 0)
    return checked


def _check_place(where: str, part: Any, place: Any, target: Any) -> None:
    """Raise if a part shares memory with the target other than its own rows."""
    if isinstance(part, np.ndarray) != isinstance(target, np.ndarray):
        return
    own, there, all_of_it = (_outline(where, array) for array in (part, place, target))
    begins = own.ctypes.data == there.ctypes.data
    if begins and all(n == 1 or s == t for n, s, t in zip(own.shape, own.strides, there.strides, strict=True)):
        return
    if np.shares_memory(own, all_of_it):
        raise ValueError(f"{where}: expected its own place in target or other memory, got another place in target")


def _outline(where: str, array: Any) -> np.ndarray:
    """An array with the address range of another one. It must not be read if that is a device array."""
    if isinstance(array, np.ndarray):
        return array
    from refopt.gpu.arrays import describer, device_of

    described = describer(device_of([array]))(array, where)
    kind = f"|V{numpy_dtype(described.dtype).itemsize}"
    about = {"data": (described.address, True), "shape": described.shape, "strides": described.strides, "typestr": kind}
    return np.asarray(SimpleNamespace(__array_interface__=about | {"version": 3}))


def _check_cover(where: str, shape: Shape, blocks: Sequence[Block]) -> None:
    end = 0
    for k, block in enumerate(blocks):
        if block.first != end:
            raise ValueError(f"{where}: blocks[{k}]: expected it to start at element {end}, got {block.first}")
        end += block.size
    if end != math.prod(shape):
        raise ValueError(f"{where}: blocks: expected the {math.prod(shape)} elements of shape {shape}, got {end}")
