"""Warp operations: shuffles, votes, matches, syncwarp. Each waits for the lanes in its mask.

`collective` makes an operation from a function of the values of all 32 lanes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import BarrierDivergence, LaunchError
from ..base.places import Site, here
from ..base.state import current
from ..base.threads import WARP_SIZE, Thread
from ..base.undefined import Undefined, refuse

FULL_MASK = 0xFFFFFFFF


def _meet(operation: Callable[[list[Thread]], None], mask: int, value: Any, operand: Any = None) -> Any:
    """Wait for the other lanes, let `operation` set the result of each, and return this lane's."""
    launch, thread = current.launch, current.thread
    warp = thread.warp
    if type(mask) is not int or mask != FULL_MASK:
        mask = int(mask) & FULL_MASK
        if not mask >> thread.lane & 1:
            raise LaunchError(
                f"lane {thread.lane} calls a warp operation whose mask {mask:#010x} does not name it", here()
            )
    if type(value) is Undefined and operation not in SHUFFLES:
        refuse(value, "a vote", "is on")
    thread.value = value
    if operand is not None:
        thread.operand = int(operand) & 31
    if launch.watched:
        thread.met = Site.of(sys._getframe(2))
    key = operation, mask
    lanes = warp.pending.setdefault(key, [])
    lanes.append(thread)
    if len(lanes) == (mask & warp.alive).bit_count():
        warp.complete(key)
    launch.park()
    result = thread.result
    return operand.through(lambda _: result) if type(operand) is Undefined else result


def _shuffle(source: Callable[[Thread], int]) -> Callable[[list[Thread]], None]:
    def operation(lanes: list[Thread]) -> None:
        values = {thread.lane: thread.value for thread in lanes}
        for thread in lanes:
            lane = source(thread)
            thread.result = values[lane] if lane in values else _missing(thread, lane)

    return operation


def _missing(thread: Thread, lane: int) -> Any:
    """The result of a shuffle from a lane that does not take part: the caller's value, defined only past the ends."""
    launch = current.launch
    if not 0 <= lane < WARP_SIZE or not launch.watched or not launch.rules.shuffle_lanes:
        return thread.value
    why = f"lane {lane} has exited" if not thread.warp.alive >> lane & 1 else f"the mask leaves out lane {lane}"
    return Undefined(thread.value, why, thread.met.place(launch.name, thread.block.index, thread.index))


def _vote(result: Callable[[list[bool]], Any]) -> Callable[[list[Thread]], None]:
    def operation(lanes: list[Thread]) -> None:
        answer = result([bool(thread.value) for thread in lanes])
        for thread in lanes:
            thread.result = answer

    return operation


def _ballot(lanes: list[Thread]) -> None:
    mask = _signed(_lanes(thread for thread in lanes if thread.value))
    for thread in lanes:
        thread.result = mask


def _match_any(lanes: list[Thread]) -> None:
    masks: dict[Any, int] = {}
    for thread in lanes:
        bits = _bits(thread.value)
        masks[bits] = masks.get(bits, 0) | 1 << thread.lane
    for thread in lanes:
        thread.result = _signed(masks[_bits(thread.value)])


def _match_all(lanes: list[Thread]) -> None:
    same = len({_bits(thread.value) for thread in lanes}) == 1
    for thread in lanes:
        thread.result = (_signed(_lanes(lanes)), True) if same else (0, False)


def _bits(value: Any) -> Any:
    """The key that a match compares: of a float its bits, so that 0.0 is not -0.0, and a NaN equals itself."""
    return np.asarray(value).tobytes() if isinstance(value, float | np.floating) else value


def _lanes(threads: Any) -> int:
    return sum(1 << thread.lane for thread in threads)


def _signed(mask: int) -> int:
    """A mask as Numba returns it, an int32: that of all lanes is -1."""
    return mask - (mask >> 31 << 32)


# PTX uses the lowest five bits of the operand. For a lane past the ends, or one that does not take part, the caller
# gets its own value.
_index = _shuffle(lambda thread: thread.operand)
_up = _shuffle(lambda thread: thread.lane - thread.operand)
_down = _shuffle(lambda thread: thread.lane + thread.operand)
_xor = _shuffle(lambda thread: thread.lane ^ thread.operand)
SHUFFLES = {_index, _up, _down, _xor}
_all, _any = _vote(all), _vote(any)
_eq = _vote(lambda values: len(set(values)) == 1)
warp_barrier = _vote(lambda values: None)


def collective(name: str, exchange: Callable[..., tuple[np.ndarray, ...]]) -> Callable[[Any], Any]:
    """An operation of all 32 lanes of a warp: a function that each lane calls with its values.

    Args:
        name: of the operation, for errors.
        exchange: takes an array of shape (warps, 32) for each value of a lane, and returns such arrays, one for each
            result of a lane.
    """

    def operation(lanes: list[Thread]) -> None:
        if len(lanes) < WARP_SIZE:
            raise _incomplete(name, lanes)
        columns = list(zip(*(thread.value for thread in lanes), strict=True))
        for column in columns:
            refuse(column, name, "takes")
        before = sys.gettrace()
        if current.observer is not None:
            sys.settrace(None)  # tracers of kernels must not trace `exchange`
        try:
            results = exchange(*(np.array(column)[None] for column in columns))
        finally:
            sys.settrace(before)
        for lane, thread in enumerate(lanes):
            own = tuple(result[0, lane] for result in results)
            thread.result = own[0] if len(own) == 1 else own

    return lambda value: _meet(operation, FULL_MASK, value)


def _incomplete(name: str, lanes: list[Thread]) -> BarrierDivergence:
    """The error for an operation that needs all lanes of a warp, if some have ended or do not exist."""
    first = lanes[0]
    missing = sorted({*range(WARP_SIZE)} - {thread.lane for thread in lanes})
    there = len(first.block.threads) - (first.rank - first.lane)
    why = f"the warp has {there} threads" if there < WARP_SIZE else "they have ended"
    place = Site.of(first.greenlet.gr_frame or sys._getframe()).place(
        current.launch.name, first.block.index, first.index
    )
    return BarrierDivergence(f"{name} needs all 32 lanes of a warp, but {_ranges(missing)} are missing: {why}", place)


def _ranges(lanes: list[int]) -> str:
    """A list of lanes as text: lanes 3, 5 to 7."""
    runs: list[list[int]] = []
    for lane in lanes:
        if runs and lane == runs[-1][-1] + 1:
            runs[-1].append(lane)
        else:
            runs.append([lane])
    return "lanes " + ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def shfl_sync(mask: int, value: Any, src_lane: int) -> Any:
    """The value of lane `src_lane`, modulo 32."""
    return _meet(_index, mask, value, src_lane)


def shfl_up_sync(mask: int, value: Any, delta: int) -> Any:
    """The value of the lane that is `delta`, modulo 32, below the caller."""
    return _meet(_up, mask, value, delta)


def shfl_down_sync(mask: int, value: Any, delta: int) -> Any:
    """The value of the lane that is `delta`, modulo 32, above the caller."""
    return _meet(_down, mask, value, delta)


def shfl_xor_sync(mask: int, value: Any, lane_mask: int) -> Any:
    """The value of the lane whose number differs by an exclusive or with `lane_mask`."""
    return _meet(_xor, mask, value, lane_mask)


def all_sync(mask: int, predicate: Any) -> bool:
    """Whether the predicate is true in all lanes."""
    return _meet(_all, mask, predicate)


def any_sync(mask: int, predicate: Any) -> bool:
    """Whether the predicate is true in any lane."""
    return _meet(_any, mask, predicate)


def eq_sync(mask: int, predicate: Any) -> bool:
    """Whether the predicate is the same in all lanes."""
    return _meet(_eq, mask, predicate)


def ballot_sync(mask: int, predicate: Any) -> int:
    """The mask of the lanes whose predicate is true, as an int32."""
    return _meet(_ballot, mask, predicate)


def match_any_sync(mask: int, value: Any) -> int:
    """The mask of the lanes that have this lane's value, as an int32."""
    return _meet(_match_any, mask, value)


def match_all_sync(mask: int, value: Any) -> tuple[int, bool]:
    """The mask, as an int32, and True if all lanes have the same value, else 0 and False."""
    return _meet(_match_all, mask, value)


def syncwarp(mask: int = FULL_MASK) -> None:
    """Wait for the lanes of the mask."""
    _meet(warp_barrier, mask, None)


def activemask() -> int:
    """A mask of lanes that run together: only the caller, which hardware may also return."""
    return 1 << current.thread.lane


def lanemask_lt() -> int:
    """The mask of the lanes below the caller."""
    return (1 << current.thread.lane) - 1


def laneid() -> int:
    """The caller's lane."""
    return current.thread.lane


warpsize = WARP_SIZE
