"""The functions of `cuda` for lanes: barriers, warp operations, atomics, shared and local arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.arguments import element
from ..base.errors import SimtError
from ..base.threads import WARP_SIZE
from ..machine import atomics, barriers, cache_hints, indices, warps
from ..machine.launch import PATIENCE
from ..memory import buffers as memory
from ..memory import shared
from .places import Lanes, Local, Memory, Shared, View
from .typed import Refused
from .values import cast, each, pick, truth


def _each_lane(lanes: Lanes, value: Any) -> np.ndarray:
    """A value as an array with an element for each lane."""
    return value if type(value) is np.ndarray else np.full(lanes.count, value)


# Places


def grid(lanes: Lanes, axes: int, extents: bool = False) -> Any:
    """`cuda.grid` and `cuda.gridsize`."""
    found = tuple(
        lanes.of(f"blockDim.{axis}") * lanes.of(f"gridDim.{axis}") if extents
        else lanes.of(f"blockIdx.{axis}") * lanes.of(f"blockDim.{axis}") + lanes.of(f"threadIdx.{axis}")
        for axis in "xyz"[:axes]
    )
    return found[0] if axes == 1 else found


def shared_array(lanes: Lanes, site: int, shape: Any, dtype: Any) -> Shared:
    """`cuda.shared.array`: one per block and call site."""
    batch = lanes.batch
    if site not in batch.shared:
        extents = shared.extents(shape)
        kind, nbytes = element("dtype", dtype), batch.run.dynamic_bytes
        if extents == (0,):
            if batch.dynamic is None:
                aligned = shared.poisoned((batch.blocks, -(-nbytes // kind.itemsize)), kind)
                batch.dynamic = aligned.view(np.uint8)[:, :nbytes]
            count = nbytes // kind.itemsize
            batch.shared[site] = Shared(batch.dynamic[:, : count * kind.itemsize].view(kind))
        else:
            batch.shared[site] = Shared(shared.poisoned((batch.blocks, *extents), kind))
            batch.static_bytes += batch.shared[site].nbytes
            batch.run.check(batch)
    return batch.shared[site]


def local_array(lanes: Lanes, shape: Any, dtype: Any) -> Local:
    """`cuda.local.array`: a new one for each thread."""
    return Local(lanes, shared.extents(shape), element("dtype", dtype))


# Barriers and warps


def syncthreads(lanes: Lanes, predicate: Any = None, reduce: Callable[..., Any] | None = None) -> Any:
    """A barrier, where all threads of the blocks already are; return the reduction of a predicate in each block."""
    if not lanes.whole_blocks:
        raise Refused("a barrier in part of a block")
    lanes.batch.run.steps += 1
    if lanes.batch.run.cooperative:
        _diverge(lanes)
    if reduce is None:
        return None
    threads = lanes.batch.run.threads
    return np.repeat(reduce(truth(_each_lane(lanes, predicate)).reshape(-1, threads), axis=1), threads).astype(np.int64)


class Grid:
    """`cuda.cg.this_grid`; all blocks are in one batch."""

    def __init__(self, lanes: Lanes) -> None:
        lanes.batch.run.check(lanes.batch)

    def sync(self, lanes: Lanes) -> int:
        """A barrier of all threads; return 0, as in CUDA."""
        if lanes.count < lanes.batch.count:
            raise Refused("a barrier in part of the grid")
        syncthreads(lanes)
        return 0


def _diverge(lanes: Lanes) -> None:
    """Note that only some lanes wait for each other: by threads, the others run before these."""
    if lanes.count < lanes.batch.count:
        lanes.batch.run.turns += PATIENCE


def _full(lanes: Lanes, mask: Any = warps.FULL_MASK) -> None:
    """Refuse a warp operation unless all lanes of its warps take part."""
    _diverge(lanes)
    if type(mask) is np.ndarray or int(mask) & warps.FULL_MASK != warps.FULL_MASK:
        raise Refused("a warp operation of some lanes")
    if not lanes.whole_warps:
        raise Refused("a warp operation in part of a warp")


def _shuffle(source: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def shuffle(lanes: Lanes, mask: Any, value: Any, operand: Any) -> Any:
        _full(lanes, mask)
        if type(value) is not np.ndarray:
            return value
        number = np.arange(lanes.count)
        lane = number % WARP_SIZE
        other = source(lane, cast("int64", operand) & 31)
        return value[number - lane + np.where((other >= 0) & (other < WARP_SIZE), other, lane)]

    return shuffle


class _Placed:
    """A shared array for some lanes, with the interface that `refopt.simt.vectors` uses."""

    def __init__(self, lanes: Lanes, array: Shared) -> None:
        self.lanes, self.array, self.itemsize = lanes, array, array.itemsize

    def vector(self, index: Any, count: int) -> np.ndarray:
        """Consecutive elements of each lane, shape (count, lanes); errors are left to a launch by threads."""
        if self.array.ndim != 1 or np.any(index < 0) or np.any(index % count):
            raise Refused("a vector that is outside an array, or misaligned")
        return np.stack([_each_lane(self.lanes, self.array.get(self.lanes, index + k)) for k in range(count)])

    def assign(self, index: Any, values: Any) -> None:
        """Write consecutive elements of each lane; the values have shape (count, lanes)."""
        self.vector(index, len(values))  # for the checks
        for k, value in enumerate(values):
            self.array.put(self.lanes, index + k, value)

    def copy_async(self, index: Any, values: Any) -> None:
        """Begin to write consecutive elements asynchronously."""
        self.assign(index, [shared.poisoned(value.shape, value.dtype) for value in values])
        self.lanes.batch.copies[-1].append((self, index, values))


def of_warps(function: Any, lanes: Lanes, *args: Any) -> Any:
    """The twin of an instruction that warps execute together."""
    _full(lanes)
    brought = function.__wrapped__(*(_Placed(lanes, arg) if isinstance(arg, Shared) else arg for arg in args))
    results = function.__simt_warp__(*(_each_lane(lanes, value).reshape(-1, WARP_SIZE) for value in brought))
    own = tuple(result.reshape(-1) for result in results)
    return own[0] if len(own) == 1 else own


def _vote(reduce: Callable[[np.ndarray], Any]) -> Callable[..., Any]:
    def vote(lanes: Lanes, mask: Any, predicate: Any) -> Any:
        _full(lanes, mask)
        truths = truth(_each_lane(lanes, predicate)).reshape(-1, WARP_SIZE)
        return np.repeat(reduce(truths), WARP_SIZE)

    return vote


def _ballot(rows: np.ndarray) -> np.ndarray:
    bits = (rows.astype(np.int64) << np.arange(WARP_SIZE)).sum(1)
    return bits - (bits >> 31 << 32)


# Atomics

_AT: dict[Any, np.ufunc] = {
    atomics.add: np.add, atomics.sub: np.subtract, atomics.and_: np.bitwise_and, atomics.or_: np.bitwise_or,
    atomics.xor: np.bitwise_xor, atomics.max: np.maximum, atomics.min: np.minimum,
}
ATOMICS = {each for each in vars(atomics).values() if hasattr(each, "operation")}


def atomic(function: Any, used: bool, lanes: Lanes, array: Memory | View, index: Any, *operands: Any) -> Any:
    """An atomic operation by the lanes in turn; return the old value of each if it is used."""
    if isinstance(array, View):
        index = array.within(index)[0]
        array = array.base
    where, run, name = array.where(lanes, index), lanes.batch.run, array.dtype.name
    whole = name in (atomics.COUNTERS if function in (atomics.inc, atomics.dec) else atomics.WHOLE)
    if name not in atomics.NUMBERS or slice in map(type, where) or len(where) < array.data.ndim:
        raise Refused(f"an atomic on {name}")
    if not whole or function is atomics.cas:
        run.in_order(array.data)
    run.pause(True)
    array.save()
    values = [_each_lane(lanes, cast(name, operand)) for operand in operands]
    places = np.ravel_multi_index(where, array.data.shape)
    flat = array.data.reshape(-1)
    if not np.may_share_memory(flat, array.data):
        raise Refused("an atomic on a strided array")
    places = _each_lane(lanes, places)
    if not used and function in _AT and (whole or function in (atomics.add, atomics.sub)):
        _AT[function].at(flat, places, *values)
        return None
    old = np.empty(lanes.count, flat.dtype)
    for n, (place, *row) in enumerate(zip(places.tolist(), *values, strict=True)):
        old[n] = flat[place]
        flat[place] = function.operation(old[n], *row)
    return old


def get(lanes: Lanes, array: Any, index: Any) -> Any:
    """``array[index]``, also of a tuple."""
    if not isinstance(array, tuple | range):
        return array.get(lanes, index)
    if type(index) is not np.ndarray:
        return array[index]
    chosen = array[-1]
    if np.any((index < 0) | (index >= len(array))):
        raise Refused("an index outside a tuple")
    for n in range(len(array) - 2, -1, -1):
        chosen = pick(index == n, array[n], chosen)
    return chosen


def put(lanes: Lanes, array: Any, index: Any, value: Any) -> None:
    """``array[index] = value``."""
    array.put(lanes, index, value)


def of_all(form: Callable, lanes: Lanes, *args: Any) -> None:
    """A call that stores, with an element for each lane even if all store the same."""
    lanes.batch.run.active = lanes
    form(*(_spread(lanes, arg) for arg in args))


def _spread(lanes: Lanes, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_spread(lanes, part) for part in value)
    if isinstance(value, Shared):
        return _Placed(lanes, value)
    return _each_lane(lanes, value) if isinstance(value, int | float | np.ndarray | np.generic) else value


def failed(lanes: Lanes) -> None:
    """A kernel raises an exception, which is left to a launch by threads."""
    raise SimtError("a lane raises")


FENCES = "threadfence", "threadfence_block", "threadfence_system"
# Functions that take the lanes: calls with effects, or that need all lanes, whose order is kept.
OF_LANES: dict[Any, Callable[..., Any]] = {
    barriers.cg.this_grid: Grid,
    indices.grid: grid,
    indices.gridsize: lambda lanes, axes: grid(lanes, axes, True),
    barriers.syncthreads: syncthreads,
    barriers.syncthreads_count: lambda lanes, x: syncthreads(lanes, x, np.sum),
    barriers.syncthreads_and: lambda lanes, x: syncthreads(lanes, x, np.all),
    barriers.syncthreads_or: lambda lanes, x: syncthreads(lanes, x, np.any),
    warps.shfl_sync: _shuffle(lambda lane, operand: operand),
    warps.shfl_up_sync: _shuffle(lambda lane, operand: lane - operand),
    warps.shfl_down_sync: _shuffle(lambda lane, operand: lane + operand),
    warps.shfl_xor_sync: _shuffle(lambda lane, operand: lane ^ operand),
    warps.all_sync: _vote(lambda rows: rows.all(1)),
    warps.any_sync: _vote(lambda rows: rows.any(1)),
    warps.eq_sync: _vote(lambda rows: (rows == rows[:, :1]).all(1)),
    warps.ballot_sync: _vote(_ballot),
    warps.syncwarp: _full,
    warps.lanemask_lt: lambda lanes: (1 << lanes.of("lane")) - 1,
    **{getattr(barriers, name): lambda lanes: lanes.batch.run.pause(False) for name in FENCES},
    memory.load: lambda lanes, *args: memory.load(*args),
    memory.store: lambda lanes, address, *args: memory.store(_each_lane(lanes, address), *args),
    cache_hints.ldca: get,
    cache_hints.stcg: put,
}
PLAIN: dict[Any, Callable[..., Any]] = {
    indices.selp: pick,
    **{function: each(function) for function in (indices.popc, indices.clz, indices.ffs, indices.brev)},
}
