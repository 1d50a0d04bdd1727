"""Casts and copies of any number of tensors: ``refopt.cpu.cast``, one launch for each pair of dtypes.

A block takes a chunk of 2048 elements of a pair of tensors, and its two warps take rows of 256 in turn. A thread has
eight elements of a row (`refopt.gpu.rows`). Plain copies use the kernel of `refopt.gpu.words`, which only moves bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refopt import checks
from refopt.checks import Array
from refopt.checks.arguments import rounded
from refopt.checks.dtypes import ACCESSES, ITEM_SIZES
from refopt.gpu import tables, words
from refopt.gpu.arrays import describer, device_of_lists
from refopt.gpu.exclusive import Exclusive, in_turn
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.rows import PARTIAL, ROW, WHOLE, access, of_warp, own
from refopt.gpu.runtime import device
from refopt.gpu.tables import ALIGNED, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function, intrinsic
from refopt.gpu.vectors import load_of

BOUNDS = 64, 16  # threads of a block, and blocks that must fit on a multiprocessor
CHUNK_TILES = 2  # of elements, in a cast
CHUNK_KILOBYTES = 8  # in a copy

Pair = tuple[Array, Array]


@intrinsic(
    "{ .reg .f32 near; .reg .f64 back; .reg .pred p; .reg .b32 w, odd; cvt.rz.f32.f64 near, $1; "
    "cvt.f64.f32 back, near; setp.neu.f64 p, back, $1; selp.b32 odd, 1, 0, p; mov.b32 w, near; or.b32 w, w, odd; "
    "mov.b32 $0, w; }",
    "=f,d", "f", "d", lanes=True,
)
def to_odd(value):
    """`refopt.cpu.cast.to_odd`: round toward zero, and set the last bit if that was inexact."""
    near: Any = np.float32(value)
    back = np.float64(near)
    if type(value) is np.ndarray:
        near = np.where(abs(back) > abs(value), np.nextafter(near, np.float32(0)), near)
    elif abs(back) > abs(value):
        near = np.nextafter(near, np.float32(0))
    return (near.view(np.uint32) | np.uint32(back != value)).view(np.float32)


@factory
def caster(source: str, target: str, scale: str) -> Kernel:
    """The kernel for a pair of dtypes and the dtype of the scale, empty if there is none."""
    real: Any = checks.cast_type(source, target)
    given: Any = np.float64 if target == "float64" else np.float32  # what the stores of the target take
    load, store = access(source, real).load, access(target, given).store
    load_scale, one = load_of(scale or "float32"), real(1)
    scaled, narrowed = bool(scale), to_odd if real is not given and target != "float32" else given  # stores round

    @device_function
    def cast_row(at, i, stop, whole, factor):
        x, y = cuda.local.array((1, 8), real), cuda.local.array((1, 8), given)
        load(at[0], i, stop, whole, x, 0)
        for e in range(8):
            y[0, e] = narrowed(factor * x[0, e] if scaled else x[0, e])
        store(at[1], i, stop, whole, y, 0)

    @kernel(BOUNDS)
    def merged_cast(addresses, chunks, scale_at):
        c = cuda.blockIdx.x
        tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
        at, factor = (addresses[0, tensor], addresses[1, tensor]), real(load_scale(scale_at)) if scaled else one
        for first in of_warp(start, stop, ROW):
            if chunks[c, ALIGNED] and first + ROW <= stop:
                cast_row(at, own(first), stop, WHOLE, factor)
            else:
                cast_row(at, own(first), stop, PARTIAL, factor)

    return merged_cast


class CastPlan(Exclusive):
    """`refopt.cpu.merged_cast` bound to its arrays. Made by `refopt.gpu.cast_plan`.

    The plan keeps the arrays alive; their memory must not move. Calls from several threads run one after another; a
    plan cannot be copied.

    Attributes:
        launches: kernel launches of one call: one for each pair of dtypes that occurs with elements.
        bytes: bytes that one call reads and writes.
        scale: the current number, or the array that every call reads.
    """

    def __init__(
        self, sources: Any, targets: Any, scale: Any = 1.0, stream: Any = 0,
        names: checks.Names = ("merged_cast", "sources", "targets"),
    ) -> None:
        machine = device(device_of_lists(sources, targets))
        super().__init__(machine, stream, names[0])
        self._describe = describer(machine.name)
        call = checks.check_cast(sources, targets, scale, self._describe, names)
        self._keep = list(sources), list(targets)
        self._names, self._pairs = names, call.pairs
        number = call.scale if isinstance(call.scale, float) else None
        self._array = call.scale if isinstance(call.scale, Array) else None
        self.scale = scale if number is None else number
        self._groups: dict[tuple[str, str], list[Pair]] = {}
        for pair in call.pairs:
            if pair and pair[0].size:
                self._groups.setdefault((pair[0].dtype, pair[1].dtype), []).append(pair)
        reals = set() if number is None else call.reals()
        self._numbers = {real: machine.to_device(rounded([number], real)) for real in reals}
        self._write = [machine.filler(array, 0, 1) for array in self._numbers.values()]
        self._prepared: dict[bool, Callable[[Any], bool]] = {}
        self._run = self._prepare()
        self.launches = len(self._groups)
        items = ((pair[0].size, dtypes) for dtypes, group in self._groups.items() for pair in group)
        self.bytes = sum(size * (ITEM_SIZES[source] + ITEM_SIZES[target]) for size, (source, target) in items)

    @in_turn
    def __call__(self, *, scale: Any = None) -> None:
        """Cast, in stream order. A scale given here also applies to later calls."""
        if scale is not None:
            self.set(scale=scale)
        self._run(self._stream)

    @in_turn
    def set(self, *, scale: Any) -> None:
        """Change the scale, a number, in stream order, for the next call or the next replay of a captured one.

        A call that was captured with the number 1 does not multiply, whatever is set later.
        """
        name, first, _ = self._names
        if self._array:
            raise TypeError(f"{name}: scale: expected no new value, since the planned scale is an array; got {scale!r}")
        value: Any = checks.check_scale(name, first, self._pairs, scale)
        if value == self.scale:
            return
        self._refuse_capture("scale")
        self.scale = value
        for write in self._write:
            write(value, self._stream)
        self._run = self._prepare()

    def _prepare(self) -> Callable[[Any], bool]:
        scaled = self._array is not None or self.scale != 1
        if scaled not in self._prepared:
            launches = [self._launch(dtypes, group, scaled) for dtypes, group in self._groups.items()]
            self._prepared[scaled] = self.device.sequence(launches) if launches else lambda stream: True
        return self._prepared[scaled]

    def _launch(self, dtypes: tuple[str, str], group: list[Pair], scaled: bool) -> Callable[[Any], None]:
        machine, (source, target) = self.device, dtypes
        addresses = machine.to_device(np.array([[pair[k].address for pair in group] for k in (0, 1)], np.int64))
        sizes = [pair[0].size for pair in group]
        if source == target and not scaled:
            sizes = [size * ITEM_SIZES[source] for size in sizes]
            chunks = tables.build(sizes, [False] * len(sizes), CHUNK_KILOBYTES).chunks
            args = addresses, machine.to_device(chunks)
            return machine.prepare(words.merged_move, len(chunks), words.BOUNDS[0], args)
        aligned = [all(x.address % ACCESSES[x.dtype] == 0 for x in pair) for pair in group]
        chunks = tables.build(sizes, aligned, CHUNK_TILES).chunks
        at, dtype = self._scale_of(checks.cast_type(source, target)) if scaled else (0, "")
        cast = caster(source, target, dtype)
        return machine.prepare(cast, len(chunks), BOUNDS[0], (addresses, machine.to_device(chunks), at))

    def _scale_of(self, real: type) -> tuple[int, str]:
        """The address and dtype of the scale for an arithmetic type."""
        array = self._array or self._describe(self._numbers[real], "scale")
        return array.address, array.dtype


def cast_plan(sources: Any, targets: Any, *, scale: Any = 1.0, stream: Any = 0) -> CastPlan:
    """Bind a merged cast to its arrays; see `refopt.cpu.merged_cast` and `CastPlan`.

    Args:
        sources, targets: lists of device arrays, as in `refopt.cpu.merged_cast`.
        scale: a number, which calls may change, or a device array of one element, which every call reads.
        stream: the stream on which calls run; the legacy default stream if not given.
    """
    return CastPlan(sources, targets, scale, stream)


def merged_cast(sources: Sequence[Any], targets: Sequence[Any], *, scale: Any = 1.0, stream: Any = 0) -> None:
    """`refopt.cpu.merged_cast` for device arrays."""
    plan = CastPlan(sources, targets, scale, stream)
    plan()
    plan.device.synchronize()
