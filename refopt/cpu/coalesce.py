"""Many tensors in one buffer, so that one operation does for all of them: one all-reduce, one optimizer step.

`refopt.cpu.layouts` says where each lies.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from refopt import checks
from refopt.checks import Array
from refopt.checks.arguments import chosen, flag, is_number, is_whole, listed, shown, to_float, whole
from refopt.cpu import cast
from refopt.cpu.layouts import CHUNK, LIMIT, Layout, arranged
from refopt.dtypes import ITEM_SIZES, SIZES, name_of, numpy_dtype

AXES = 64  # of an array of NumPy's, at most


class Coalesced:
    """Tensors in one buffer. Unpacks as ``views, buffer``.

    Attributes:
        views: P arrays that share the buffer's memory, of the tensors' shapes and axis orders.
        buffer: one-dimensional, with padding.
        layout: offsets and lengths, in elements.

    It is not copied: views of a copy would lie in no buffer.
    """

    _describe: Callable[[Any, str], Array] = staticmethod(checks.host_array)

    def __init__(self, views: list[Any], buffer: Any, layout: Layout) -> None:
        self.views, self.buffer, self.layout = views, buffer, layout

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """What ``copy``, ``deepcopy`` and ``pickle`` ask for."""
        raise TypeError("Coalesced: expected no copy of it, since its views share the buffer; coalesce the tensors")

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
    asked, item = _size("align_size", align_size), _size("size_of_dtype", size_of_dtype)
    align_unit = chosen(f"{name}: align_unit", align_unit, chunk)
    copies, fills, persists = _of_contents(copy_data, set_constant, persist_output, outputs)
    use_align = flag(f"{name}: use_align", use_align)
    align, item = asked or chunk[align_unit], item or kind.itemsize
    names = [f"{name}: {'inputs' if array else 'shapes'}[{i}]" for i, array in enumerate(arrays)]
    counts, unit = [math.prod(s) for s in found], align if use_align else None
    made = arranged(f"{name}: align_size", names, counts, item, unit, align_unit)
    if made.total * kind.itemsize >= LIMIT:  # by the dtype, where size_of_dtype is smaller
        raise ValueError(f"{name}: size_of_dtype: expected a buffer below 2**63 bytes, got {made.total} of {kind}")
    key = "outputs" if persists else "inputs"
    contents = lists[key] if copies or persists else [None] * len(found)
    strides = [_strides(a, s, kind.itemsize) for a, s in zip(arrays, found, strict=True)]
    fill = _constant(name, kind, constant if fills else 0)
    return Request(kind, made, found, strides, fill, contents, (name, key, "views"))


def _size(key: str, value: Any) -> int:
    """A number of elements or bytes, 0 for -1."""
    if not is_whole(value) or (value < 1 and value != -1):
        raise ValueError(f"coalesce_tensor: {key}: expected -1 or an integer of at least 1, got {shown(value)}")
    return max(int(value), 0)


def _of_contents(copy_data: Any, set_constant: Any, persist_output: Any, outputs: Any) -> tuple[bool, bool, bool]:
    """Whether the buffer takes the inputs, a constant or the outputs; the first that is asked for goes before."""
    flags = {"copy_data": copy_data, "set_constant": set_constant, "persist_output": persist_output}
    copies, fills, persists = (flag(f"coalesce_tensor: {key}", value) for key, value in flags.items())
    fills, persists = fills and not copies, persists and not (copies or fills)
    if persists and outputs is None:
        raise TypeError(
            "coalesce_tensor: outputs: expected a list of arrays, whose contents are to persist, got None"
        )
    return copies, fills, persists


def _lists(name: str, inputs: Any, outputs: Any, shapes: Any) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for key, value in (("inputs", inputs), ("outputs", outputs), ("shapes", shapes)):
        if value is None and key != "inputs":
            value = [None] * len(lists["inputs"])
        lists[key] = listed(f"{name}: {key}", value, "shapes" if key == "shapes" else "arrays")
        expected, got = len(lists["inputs"]), len(lists[key])
        if got != expected:
            raise ValueError(f"{name}: {key}: expected {expected} entries, as inputs has, got {got}")
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
        where = f"{name}: shapes[{i}]"
        if shape is None and not array:
            raise TypeError(f"{where}: expected a shape, since inputs[{i}] is None, got None")
        extents = [] if shape is None else listed(where, shape, "extents")
        asked = tuple(whole(f"{where}[{k}]", extent) for k, extent in enumerate(extents))
        found = array.shape if array else asked
        if shape is not None and asked != found:
            raise ValueError(f"{where}: expected {found}, as inputs[{i}] has, got {asked}")
        if len(found) > AXES:
            raise ValueError(f"{where}: expected at most {AXES} axes, got {len(found)}")
        if any(extent < 1 for extent in found):
            raise ValueError(
                f"{name}: {'inputs' if array else 'shapes'}[{i}]: expected at least one element, since a view of none "
                f"has no place in the buffer, got shape {found}"
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
    checks.check_native(f"{name}: dtype", dtype)
    named = dtype is None or isinstance(dtype, str | type | np.dtype) or type(dtype).__name__ == "dtype"  # PyTorch's
    if not named:
        raise TypeError(f"{name}: dtype: expected one of {', '.join(ITEM_SIZES)}, got {shown(dtype)}")
    kind = arrays[first].dtype if dtype is None else name_of(dtype)  # type: ignore[index, union-attr]
    if kind not in ITEM_SIZES:
        raise TypeError(f"{name}: dtype: expected one of {', '.join(ITEM_SIZES)}, got {kind}")
    for key, values in (("inputs", arrays), ("outputs", kept)):
        for i, array in enumerate(values):
            if array and array.dtype != kind:
                _check_cast(f"{name}: {key}[{i}]", array.dtype, kind, f"inputs[{first}]" if dtype is None else "")
    return numpy_dtype(kind)


def _check_cast(where: str, dtype: str, kind: str, like: str) -> None:
    """Refuse an array of another dtype than the buffer's: any without a dtype given, then all but floats."""
    if like:
        raise TypeError(f"{where}: expected {kind}, as {like} has, got {dtype}; with a dtype given, floats are cast")
    if dtype not in SIZES or kind not in SIZES:
        expected = f"one of {', '.join(SIZES)}" if kind in SIZES else kind
        raise TypeError(f"{where}: expected {expected} for a buffer of {kind}, got {dtype}")


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
    if not is_number(value) and not (dtype.kind == "b" and isinstance(value, bool | np.bool_)):
        raise TypeError(f"{name}: constant: expected a number, got {shown(value)}")
    to_float(f"{name}: constant", value)  # only to refuse
    if dtype.name in SIZES:
        with np.errstate(all="ignore"):
            return cast.rounded(np.array([float(value)]), dtype)
    number: Any = value.item() if isinstance(value, np.generic | np.ndarray) else value
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not low <= number <= high or int(number) != number:
        raise ValueError(f"{name}: constant: expected a number of {dtype.name}, got {shown(value)}")
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
