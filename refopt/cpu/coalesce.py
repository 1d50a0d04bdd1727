"""Many tensors in one buffer, so that one operation processes all of them: one all-reduce, one optimizer step.

`refopt.cpu.layouts` computes their places.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from refopt import checks
from refopt.checks import Array
from refopt.checks.arguments import chosen, flag, is_number, is_whole, listed, shown, to_float, whole
from refopt.checks.arrays import c_strides, check_dense
from refopt.checks.dtypes import ITEM_SIZES, SIZES, name_of, numpy_dtype
from refopt.cpu import cast
from refopt.cpu.layouts import CHUNK, LIMIT, Layout, arranged

NAME = "coalesce_tensor"
AXES = 64  # the most of a NumPy array


class Coalesced:
    """Tensors in one buffer. Unpacks as ``views, buffer``.

    Attributes:
        views: P arrays that share the buffer's memory, of the tensors' shapes and axis orders.
        buffer: one-dimensional, with padding.
        layout: offsets and lengths, in elements.

    It cannot be copied, since a copy's views would not be in its buffer.
    """

    _describe: Callable[[Any, str], Array] = staticmethod(checks.host_array)

    def __init__(self, views: list[Any], buffer: Any, layout: Layout) -> None:
        self.views, self.buffer, self.layout = views, buffer, layout

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse ``copy``, ``deepcopy`` and ``pickle``, which call this."""
        raise TypeError("Coalesced: cannot be copied, since its views share the buffer; coalesce the tensors")

    def __iter__(self) -> Iterator[Any]:
        return iter((self.views, self.buffer))

    @property
    def offsets(self) -> np.ndarray:
        """First element of each view in the buffer, shape (P,)."""
        return self.layout.offsets

    def gather(self, tensors: Sequence[Any], *, scale: Any = 1.0) -> None:
        """Copy tensors into the buffer, by `merged_cast`; padding and the places of ``None`` stay unchanged.

        Args:
            tensors: P arrays of the views' shapes, or ``None``.
            scale: multiplies every value, as in `merged_cast`.
        """
        self._matched("gather", tensors)
        self._gather(tensors, scale, ("gather", "tensors", "views"))

    def scatter(self, tensors: Sequence[Any], *, scale: Any = 1.0) -> None:
        """Copy the views from the buffer to tensors, the inverse of `gather`."""
        self._matched("scatter", tensors)
        views = [None if x is None else view for x, view in zip(tensors, self.views, strict=True)]
        self._cast(views, tensors, scale, ("scatter", "views", "tensors"))

    def _gather(self, tensors: Sequence[Any], scale: Any, names: checks.Names) -> None:
        """`gather`, with the names for errors."""
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
        cast.bound(checks.check_cast(sources, targets, scale, checks.host_array, names), sources, targets, scale)()


def coalesced(
    inputs: Any, describe: Callable[[Any, str], Array], chunk: dict[str, int], make: Callable[..., Coalesced], /, *,
    scale: Any = 1.0, dtype: Any = None, outputs: Any = None, shapes: Any = None, copy_data: bool = False,
    set_constant: bool = False, constant: float = 0.0, persist_output: bool = False, use_align: bool = True,
    align_size: int = -1, align_unit: str = "bytes", size_of_dtype: int = -1, **unknown: Any,
) -> Any:
    """`coalesce_tensor` on any device.

    Args:
        inputs: as there, and so are the attributes.
        describe: describes the device's arrays for the checks.
        chunk: the device's default alignment in each unit.
        make: ``make(layout, shapes, strides, constant)`` returns a new buffer with its views, of strides in bytes,
            filled with ``constant``, an array of one element of the buffer's dtype.
    """
    for key in unknown:
        raise TypeError(f"{NAME}: {key}: expected one of {', '.join(coalesced.__kwdefaults__ or ())}")
    lists = _lists(inputs, outputs, shapes)
    arrays, kept = (_described(key, lists[key], describe) for key in ("inputs", "outputs"))
    extents = [_shape(i, *of_one) for i, of_one in enumerate(zip(arrays, kept, lists["shapes"], strict=True))]
    stored = _dtype(arrays, kept, dtype)
    align_unit = chosen(f"{NAME}: align_unit", align_unit, chunk)
    align = _size("align_size", align_size, chunk[align_unit])
    item = _size("size_of_dtype", size_of_dtype, stored.itemsize)
    flags = {"copy_data": copy_data, "set_constant": set_constant, "persist_output": persist_output}
    source, fills = _source(flags, outputs)
    unit = align if flag(f"{NAME}: use_align", use_align) else None
    names = [f"{NAME}: {'inputs' if array else 'shapes'}[{i}]" for i, array in enumerate(arrays)]
    layout = arranged(f"{NAME}: align_size", names, [math.prod(x) for x in extents], item, unit, align_unit)
    if layout.total * stored.itemsize >= LIMIT:  # by the dtype, where size_of_dtype is smaller
        raise ValueError(f"{NAME}: size_of_dtype: expected a buffer below 2**63 bytes, got {layout.total} of {stored}")
    strides = [_strides(array, shape, stored.itemsize) for array, shape in zip(arrays, extents, strict=True)]
    filling = _constant(stored, constant)
    result = make(layout, extents, strides, filling if fills else np.zeros(1, stored))
    contents = lists[source] if source else [None] * len(extents)
    result._gather(contents, scale, (NAME, source or "inputs", "views"))
    return result


def _source(flags: dict[str, Any], outputs: Any) -> tuple[str, bool]:
    """Which list to copy to the buffer, "" for none, and whether to fill it; the first flag that is set decides."""
    copies, fills, persists = (flag(f"{NAME}: {key}", value) for key, value in flags.items())
    if copies or fills or not persists:
        return "inputs" if copies else "", fills and not copies
    if outputs is None:
        raise TypeError(f"{NAME}: outputs: expected a list of arrays, whose contents are to persist, got None")
    return "outputs", False


def _size(key: str, value: Any, default: int) -> int:
    """A number of elements or bytes, the default for -1."""
    if not is_whole(value) or (value < 1 and value != -1):
        raise ValueError(f"{NAME}: {key}: expected -1 or an integer of at least 1, got {shown(value)}")
    return default if value == -1 else int(value)


def _lists(inputs: Any, outputs: Any, shapes: Any) -> dict[str, list[Any]]:
    lists = {"inputs": listed(f"{NAME}: inputs", inputs)}
    if not (count := len(lists["inputs"])):
        raise ValueError(f"{NAME}: inputs: expected at least one tensor, got none")
    for key, value, of in (("outputs", outputs, "arrays"), ("shapes", shapes, "shapes")):
        lists[key] = [None] * count if value is None else listed(f"{NAME}: {key}", value, of)
        if len(lists[key]) != count:
            raise ValueError(f"{NAME}: {key}: expected {count} entries, as inputs has, got {len(lists[key])}")
    return lists


def _described(key: str, values: list[Any], describe: Callable[[Any, str], Array]) -> list[Array | None]:
    arrays = [None if x is None else describe(x, f"{NAME}: {key}[{i}]") for i, x in enumerate(values)]
    for i, array in enumerate(arrays):
        if array and array.dtype not in ITEM_SIZES:
            raise TypeError(f"{NAME}: {key}[{i}]: expected one of {', '.join(ITEM_SIZES)}, got {array.dtype}")
        if array:
            check_dense(f"{NAME}: {key}[{i}]", array)
    return arrays


def _shape(i: int, array: Array | None, output: Array | None, asked: Any) -> tuple[int, ...]:
    """The shape of a tensor: its own, or the caller's for one that does not exist yet."""
    where = f"{NAME}: shapes[{i}]"
    if asked is None and not array:
        raise TypeError(f"{where}: expected a shape, since inputs[{i}] is None, got None")
    entries = [] if asked is None else listed(where, asked, "extents")
    extents = tuple(whole(f"{where}[{k}]", extent) for k, extent in enumerate(entries))
    shape = array.shape if array else extents
    if asked is not None and extents != shape:
        raise ValueError(f"{where}: expected {shape}, as inputs[{i}] has, got {extents}")
    if len(shape) > AXES:
        raise ValueError(f"{where}: expected at most {AXES} axes, got {len(shape)}")
    if any(extent < 1 for extent in shape):
        raise ValueError(
            f"{NAME}: {'inputs' if array else 'shapes'}[{i}]: expected at least one element, since a view of none "
            f"has no place in the buffer, got shape {shape}"
        )
    if output and output.shape != shape:
        raise ValueError(f"{NAME}: outputs[{i}]: expected shape {shape}, as inputs[{i}] has, got {output.shape}")
    return shape


def _dtype(arrays: list[Array | None], kept: list[Array | None], asked: Any) -> np.dtype:
    """The dtype of the buffer: the one asked for, or the one that all inputs have."""
    first = next((i for i, array in enumerate(arrays) if array), None)
    if asked is None and first is None:
        raise TypeError(f"{NAME}: dtype: expected a dtype, since no input has one, got None")
    dtype = arrays[first].dtype if asked is None else asked  # type: ignore[index, union-attr]
    checks.check_native(f"{NAME}: dtype", dtype)
    known = isinstance(dtype, str | type | np.dtype) or type(dtype).__name__ == "dtype"  # PyTorch's
    name = name_of(dtype) if known else shown(dtype)
    if not known or name not in ITEM_SIZES:
        raise TypeError(f"{NAME}: dtype: expected one of {', '.join(ITEM_SIZES)}, got {name}")
    for key, values in (("inputs", arrays), ("outputs", kept)):
        for i, array in enumerate(values):
            if array and array.dtype != name:
                _check_cast(f"{NAME}: {key}[{i}]", array.dtype, name, f"inputs[{first}]" if asked is None else "")
    return numpy_dtype(name)


def _check_cast(where: str, dtype: str, stored: str, like: str) -> None:
    """Refuse an array of another dtype than the buffer's: any if that is ``like`` an input's, else all but floats."""
    if like:
        raise TypeError(f"{where}: expected {stored}, as {like} has, got {dtype}; with a dtype given, floats are cast")
    if dtype not in SIZES or stored not in SIZES:
        expected = f"one of {', '.join(SIZES)}" if stored in SIZES else stored
        raise TypeError(f"{where}: expected {expected} for a buffer of {stored}, got {dtype}")


def _strides(array: Array | None, shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Dense strides in bytes, with the axes in the array's order."""
    axes = range(len(shape))
    outermost_first = sorted(axes, key=lambda axis: -array.strides[axis]) if array else axes
    dense = c_strides([shape[axis] for axis in outermost_first], item)
    return tuple(stride for _, stride in sorted(zip(outermost_first, dense, strict=True)))


def _constant(dtype: np.dtype, value: Any) -> np.ndarray:
    """A number as an array of one element of the buffer's dtype."""
    if not is_number(value) and not (dtype.kind == "b" and isinstance(value, bool | np.bool_)):
        raise TypeError(f"{NAME}: constant: expected a number, got {shown(value)}")
    number = to_float(f"{NAME}: constant", value)
    if dtype.name in SIZES:
        with np.errstate(all="ignore"):
            return cast.rounded(np.array([number]), dtype)
    exact: Any = value.item() if isinstance(value, np.generic | np.ndarray) else value
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not low <= exact <= high or int(exact) != exact:
        raise ValueError(f"{NAME}: constant: expected a number of {dtype.name}, got {shown(value)}")
    return np.array([int(exact)], dtype)


def coalesce_tensor(inputs: Any, *, scale: Any = 1.0, **attributes: Any) -> Coalesced:
    """Lay out tensors in one new, contiguous buffer.

    The first of ``copy_data``, ``set_constant`` and ``persist_output`` that is set determines the contents; without
    any, the buffer is zero. Padding is zero, too, except with ``set_constant``.

    Args:
        inputs: P arrays of at least one element each, each dense in memory. ``None`` stands for one that does not
            exist yet; its shape is in ``shapes``.
        scale: multiplies the values that are copied in, as in `merged_cast`.
        attributes: by name,
            ``dtype``: of the buffer; by default that of the inputs, which must then be the same. If given, floats of
            other dtypes are cast.
            ``shapes``: ``None``, or P shapes; entries may be ``None`` where there is an input.
            ``copy_data``: copy the inputs in.
            ``set_constant``, ``constant``: fill the whole buffer, padding included, with a number.
            ``outputs``, ``persist_output``: P arrays or ``None``, and whether to copy them in; for tensors that
            are in an earlier buffer and must keep their contents.
            ``use_align``: whether to round lengths up; true by default.
            ``align_size``: the alignment, or -1 for the device's smallest piece of memory: 4096 bytes here, 256 on a
            GPU and on the executor.
            ``align_unit``: ``"bytes"``, or ``"elements"``, the unit of the operator's first version;
            -1 then stands for 16384 elements here, 256 on a GPU.
            ``size_of_dtype``: bytes of an element, for the layout only; -1 for those of the dtype. It must divide an
            alignment in bytes.

    Returns:
        The buffer and its views, with methods to gather and scatter.

    Raises:
        ValueError, TypeError: the message names argument and index.

    Source: Paddle's ``coalesce_tensor`` operator, first ``alloc_continuous_space``. It leaves padding uninitialized,
    and without the three attributes everything; it loses bytes if the size of an element does not divide the
    alignment, which is refused here. Its ``check_name`` compares the names of inputs and outputs, which arrays do not
    have.
    """
    return coalesced(inputs, checks.host_array, CHUNK, _on_host, scale=scale, **attributes)


def _on_host(layout: Layout, shapes: list, strides: list, constant: np.ndarray) -> Coalesced:
    buffer = np.full(layout.total, constant)
    views = [
        np.ndarray(shape, buffer.dtype, buffer.view(np.uint8), int(first) * buffer.itemsize, steps)
        for first, shape, steps in zip(layout.offsets, shapes, strides, strict=True)
    ]
    return Coalesced(views, buffer, layout)
