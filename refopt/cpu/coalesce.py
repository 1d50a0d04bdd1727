"""Many tensors in one buffer, so that one operation does for all of them: one all-reduce, one optimizer step.

::

    length of tensor i = use_align ? round_up(n_i * s, A) / s : n_i        n_i elements of s bytes each
    offset of tensor i = the sum of the lengths before it

A, in bytes, is the alignment. What lies between a tensor and the next is padding.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from refopt import checks
from refopt.checks import Array
from refopt.checks.arguments import listed, to_float, whole
from refopt.cpu import cast
from refopt.dtypes import ITEM_SIZES, SIZES, name_of, numpy_dtype

# What a tensor is aligned to by default, the smallest piece that a device allocates.
CHUNK = {"bytes": 4096, "elements": 16384}
LIMIT = 2**63  # bytes, one more than int64 counts, in which offsets and addresses are kept


class Layout(NamedTuple):
    """Where tensors lie in a buffer, in elements: ``offsets`` and ``lengths`` (P,), the latter with padding."""

    offsets: np.ndarray
    lengths: np.ndarray
    total: int


def layout(sizes: Sequence[int], itemsize: int, align: int | None = None, align_unit: str = "bytes") -> Layout:
    """Lay tensors out one after the other.

    Args:
        sizes: elements of each tensor, at least one.
        itemsize: bytes of an element.
        align: ``None``, or what every tensor's length is rounded up to a multiple of: in bytes, then a multiple
            of ``itemsize``, or in elements.
        align_unit: ``"bytes"`` or ``"elements"``.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    counts = [whole(f"layout: sizes[{i}]", size) for i, size in enumerate(sizes)]
    itemsize = whole("layout: itemsize", itemsize)
    for i, size in enumerate(counts):
        if size < 1:
            raise ValueError(f"layout: sizes[{i}]: expected at least one element, got {size}")
    if align_unit not in CHUNK:
        raise ValueError(f"layout: align_unit: expected one of {', '.join(CHUNK)}, got {align_unit!r}")
    if itemsize < 1:
        raise ValueError(f"layout: itemsize: expected at least 1 byte, got {itemsize}")
    unit = 1
    if align is not None:
        align = whole("layout: align", align)
        item = itemsize if align_unit == "bytes" else 1
        if align < 1 or align % item:
            raise ValueError(f"layout: align: expected a multiple of the element's {item} bytes, got {align}")
        unit = align // item
    padded = [-(-size // unit) * unit for size in counts]  # in Python's integers, which do not wrap around
    ends = list(accumulate(padded, initial=0))
    for i, end in enumerate(ends[1:]):
        if end * itemsize >= LIMIT:
            raise ValueError(f"layout: sizes[{i}]: expected an end, padded, below 2**63 bytes, got {end * itemsize}")
    return Layout(np.array(ends[:-1], np.int64), np.array(padded, np.int64), ends[-1])


class Coalesced:
    """Tensors in one buffer. Unpacks as ``views, buffer``.

    Attributes:
        views: P arrays that share the buffer's memory, of the tensors' shapes and axis orders.
        buffer: one-dimensional, with padding.
        layout: offsets and lengths, in elements.
    """

    _describe: Callable[[Any, str], Array] = staticmethod(checks.host_array)

    def __init__(self, views: list[Any], buffer: Any, layout: Layout) -> None:
        self.views, self.buffer, self.layout = views, buffer, layout

    def __iter__(self) -> Iterator[Any]:
        return iter((self.views, self.buffer))

    @property
    def offsets(self) -> np.ndarray:
        """First element of each view in the buffer, shape (P,)."""
        return self.layout.offsets

    def gather(self, tensors: Sequence[Any], *, scale: Any = 1.0) -> None:
        """Copy tensors into the buffer, by `merged_cast`; padding is left alone, and so is the place of a ``None``.

        Args:
            tensors: P arrays of the views' shapes, or ``None``.
            scale: what multiplies every value, as in `merged_cast`.
        """
        self._matched("gather", tensors)
        self._gather(tensors, scale, ("gather", "tensors", "views"))

    def scatter(self, tensors: Sequence[Any], *, scale: Any = 1.0) -> None:
        """Copy the views out of the buffer, the way back of `gather`."""
        self._matched("scatter", tensors)
        views = [None if x is None else view for x, view in zip(tensors, self.views, strict=True)]
        self._cast(views, tensors, scale, ("scatter", "views", "tensors"))

    def _gather(self, tensors: Sequence[Any], scale: Any, names: checks.Names) -> None:
        """`gather` under the names that errors are to use."""
        views = [None if x is None else view for x, view in zip(tensors, self.views, strict=True)]
        self._cast(tensors, views, scale, names)

    def _matched(self, name: str, tensors: Any) -> None:
        if len(listed(f"{name}: tensors", tensors)) != len(self.views):
            raise ValueError(f"{name}: tensors: expected {len(self.views)} entries, as coalesced, got {len(tensors)}")
        for i, (tensor, view) in enumerate(zip(tensors, self.views, strict=True)):
            where = f"{name}: tensors[{i}]"
            if tensor is not None and (shape := self._describe(tensor, where).shape) != view.shape:
                raise ValueError(f"{where}: expected shape {view.shape}, as coalesced, got {shape}")

    def _cast(self, sources: Sequence[Any], targets: Sequence[Any], scale: Any, names: checks.Names) -> None:
        cast.run(checks.check_cast(sources, targets, scale, checks.host_array, names), sources, targets, scale)


class Request(NamedTuple):
    """A checked call of ``coalesce_tensor``: what the buffer and its views are, and what goes into them."""

    dtype: np.dtype
    layout: Layout
    shapes: list[tuple[int, ...]]
    strides: list[tuple[int, ...]]
    constant: np.ndarray
    contents: list[Any]
    names: checks.Names


def request(
    inputs: Any,
    describe: Callable[[Any, str], Array],
    chunk: dict[str, int],
    /,
    *,
    dtype: Any = None,
    outputs: Any = None,
    shapes: Any = None,
    copy_data: bool = False,
    set_constant: bool = False,
    constant: float = 0.0,
    persist_output: bool = False,
    use_align: bool = True,
    align_size: int = -1,
    align_unit: str = "bytes",
    size_of_dtype: int = -1,
    **unknown: Any,
) -> Request:
    """Check a call; ``chunk`` is the device's default alignment in each unit."""
    name = "coalesce_tensor"
    for key in unknown:
        raise TypeError(f"{name}: {key}: expected one of scale, {', '.join(request.__kwdefaults__ or ())}")
    lists = _lists(name, inputs, outputs, shapes)
    arrays = _described(name, "inputs", lists["inputs"], describe)
    kept = _described(name, "outputs", lists["outputs"], describe)
    found = _shapes(name, arrays, kept, lists["shapes"])
    kind = _dtype(name, arrays, kept, dtype)
    for key, value in (("align_size", align_size), ("size_of_dtype", size_of_dtype)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or (value < 1 and value != -1):
            raise ValueError(f"{name}: {key}: expected -1 or an integer of at least 1, got {value!r}")
    if align_unit not in chunk:
        raise ValueError(f"{name}: align_unit: expected one of {', '.join(chunk)}, got {align_unit!r}")
    align = int(align_size) if align_size != -1 else chunk[align_unit]
    item = kind.itemsize if size_of_dtype == -1 else int(size_of_dtype)
    try:
        made = layout([math.prod(s) for s in found], item, align if use_align else None, align_unit)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if made.total * kind.itemsize >= LIMIT:  # by the dtype, where size_of_dtype is smaller
        raise ValueError(f"{name}: size_of_dtype: expected a buffer below 2**63 bytes, got {made.total} of {kind}")
    fills = set_constant and not copy_data
    persists = persist_output and not (copy_data or set_constant)
    if persists and outputs is None:
        raise TypeError(f"{name}: outputs: expected a list of arrays, whose contents are to persist, got None")
    key = "outputs" if persists else "inputs"
    contents = lists[key] if copy_data or persists else [None] * len(found)
    strides = [_strides(a, s, kind.itemsize) for a, s in zip(arrays, found, strict=True)]
    fill = _constant(name, kind, constant if fills else 0)
    return Request(kind, made, found, strides, fill, contents, (name, key, "views"))


def _lists(name: str, inputs: Any, outputs: Any, shapes: Any) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for key, value in (("inputs", inputs), ("outputs", outputs), ("shapes", shapes)):
        if value is None and key != "inputs":
            value = [None] * len(lists["inputs"])
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise TypeError(f"{name}: {key}: expected a list, got {type(value).__name__}")
        lists[key] = list(value)
        if len(value) != len(lists["inputs"]):
            raise ValueError(f"{name}: {key}: expected {len(lists['inputs'])} entries, as inputs has, got {len(value)}")
    if not lists["inputs"]:
        raise ValueError(f"{name}: inputs: expected at least one tensor, got none")
    return lists


def _described(name: str, key: str, values: list[Any], describe: Callable[[Any, str], Array]) -> list[Array | None]:
    arrays = [None if x is None else describe(x, f"{name}: {key}[{i}]") for i, x in enumerate(values)]
    for i, array in enumerate(arrays):
        if array and array.dtype not in ITEM_SIZES:
            raise TypeError(f"{name}: {key}[{i}]: expected one of {', '.join(ITEM_SIZES)}, got {array.dtype}")
        if array and array.size and array.layout() is None:
            raise ValueError(
                f"{name}: {key}[{i}]: expected a dense array, got strides {array.strides} for {array.shape}"
            )
    return arrays


def _shapes(name: str, arrays: list[Array | None], kept: list[Array | None], given: list[Any]) -> list[tuple[int, ...]]:
    """The shape of every tensor, from itself or from what the caller says of one that is not there yet."""
    shapes: list[tuple[int, ...]] = []
    for i, (array, output, shape) in enumerate(zip(arrays, kept, given, strict=True)):
        if not isinstance(shape, Sequence) and not (shape is None and array):
            raise TypeError(f"{name}: shapes[{i}]: expected a shape, since inputs[{i}] is None, got {shape!r}")
        asked = tuple(whole(f"{name}: shapes[{i}][{k}]", extent) for k, extent in enumerate(shape or ()))
        found = array.shape if array else asked
        if shape is not None and asked != found:
            raise ValueError(f"{name}: shapes[{i}]: expected {found}, as inputs[{i}] has, got {asked}")
        if any(extent < 1 for extent in found):
            raise ValueError(
                f"{name}: inputs[{i}]: expected at least one element, since a view of none has no place in the "
                f"buffer, got shape {found}"
            )
        if output and output.shape != found:
            raise ValueError(f"{name}: outputs[{i}]: expected shape {found}, as inputs[{i}] has, got {output.shape}")
        shapes.append(found)
    return shapes


def _dtype(name: str, arrays: list[Array | None], kept: list[Array | None], dtype: Any) -> np.dtype:
    """The dtype of the buffer: the one asked for, or the one that all inputs have."""
    first = next((i for i, array in enumerate(arrays) if array), None)
    if dtype is None and first is None:
        raise TypeError(f"{name}: dtype: expected a dtype, since no input has one, got None")
    chosen = arrays[first].dtype if dtype is None else name_of(dtype)  # type: ignore[index, union-attr]
    if chosen not in ITEM_SIZES:
        raise TypeError(f"{name}: dtype: expected one of {', '.join(ITEM_SIZES)}, got {chosen}")
    for key, values in (("inputs", arrays), ("outputs", kept)):
        for i, array in enumerate(values):
            if array is None or array.dtype == chosen:
                continue
            if dtype is None:
                raise TypeError(
                    f"{name}: {key}[{i}]: expected {chosen}, as inputs[{first}] has, got {array.dtype}; "
                    "with a dtype given, floats are cast"
                )
            if not (array.dtype in SIZES and chosen in SIZES):
                expected = f"one of {', '.join(SIZES)}" if chosen in SIZES else chosen
                raise TypeError(f"{name}: {key}[{i}]: expected {expected} for a buffer of {chosen}, got {array.dtype}")
    return numpy_dtype(chosen)


def _strides(array: Array | None, shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Dense strides in bytes, axes in the order that the array has them in."""
    given = array.strides if array else [0] * len(shape)
    strides = [0] * len(shape)
    for axis in reversed(sorted(range(len(shape)), key=lambda axis: -given[axis])):
        strides[axis] = item
        item *= shape[axis]
    return tuple(strides)


def _constant(name: str, dtype: np.dtype, value: Any) -> np.ndarray:
    """A number as an array of one element of the buffer's dtype."""
    if not isinstance(value, Real | np.floating | np.integer | np.bool_):
        raise TypeError(f"{name}: constant: expected a number, got {value!r}")
    to_float(f"{name}: constant", value)  # only to refuse
    if dtype.name in SIZES:
        with np.errstate(all="ignore"):
            return cast.rounded(np.array([value], np.float64), dtype)
    number: Any = value
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not low <= number <= high or int(number) != number:
        raise ValueError(f"{name}: constant: expected a number of {dtype.name}, got {value!r}")
    return np.array([int(number)], dtype)


def coalesce_tensor(inputs: Any, *, scale: Any = 1.0, **attributes: Any) -> Coalesced:
    """Lay tensors out in one new, contiguous buffer.

    What goes in is decided in this order: ``copy_data``, ``set_constant``, ``persist_output``; with none of them the
    buffer is zero. Padding is zero, too, except under ``set_constant``.

    Args:
        inputs: P arrays of at least one element each, each dense in memory. ``None`` stands for one that is not
            there yet, whose shape is in ``shapes``.
        scale: multiplies what is copied in, as in `merged_cast`.
        attributes: by name,
            ``dtype``: of the buffer; by default that of the inputs, which must then all have it. Given, floats of
            other dtypes are cast.
            ``shapes``: ``None``, or P shapes; entries may be ``None`` where there is an input.
            ``copy_data``: copy the inputs in.
            ``set_constant``, ``constant``: fill the whole buffer, padding included, with a number.
            ``outputs``, ``persist_output``: P arrays or ``None``, and whether to copy them in; for tensors that
            have moved into an earlier buffer and are to keep their contents.
            ``use_align``: whether to round lengths up; true by default.
            ``align_size``: the alignment, or -1 for the device's smallest piece of memory: 4096 bytes here, 256 on a
            GPU and on the executor.
            ``align_unit``: ``"bytes"``, or ``"elements"``, which is how the first version of the operator counted;
            -1 then stands for 16384 elements here, 256 on a GPU.
            ``size_of_dtype``: bytes of an element in the layout alone, -1 for those of the dtype. It divides an
            alignment in bytes.

    Returns:
        The buffer and the views into it, with ways in and out.

    Raises:
        ValueError, TypeError: naming the argument and the index.

    Source: Paddle's ``coalesce_tensor`` operator, first ``alloc_continuous_space``. It leaves padding, and without
    one of the three attributes everything, uninitialised; it loses bytes where the size of an element does not
    divide the alignment, which is refused here. Its ``check_name`` compares the names of inputs and outputs, which
    arrays do not have.
    """
    asked = request(inputs, checks.host_array, CHUNK, **attributes)
    buffer = np.full(asked.layout.total, asked.constant)
    views = [
        np.ndarray(shape, asked.dtype, buffer.view(np.uint8), int(first) * asked.dtype.itemsize, strides)
        for first, shape, strides in zip(asked.layout.offsets, asked.shapes, asked.strides, strict=True)
    ]
    made = Coalesced(views, buffer, asked.layout)
    made._gather(asked.contents, scale, asked.names)
    return made
