"""A checked call with other arrays in place of some: what is cheap to see, for those who do it every step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.checks.arrays import Array
from refopt.checks.call import Call
from refopt.checks.dtypes import ITEM_SIZES

Extents = np.ndarray  # (2, n): where each array that is there begins and ends, in bytes


def rebound(call: Call, slots: Mapping[str, Any], describe: Callable[[Any, str], Array], held: dict) -> Call | None:
    """The call with other lists in some slots, if each array is like the one before and has memory of its own.

    Args:
        call: what has been checked as a whole.
        slots: by name, the new lists.
        describe: as for `refopt.checks.check`.
        held: what is kept of a call between two calls of this function, empty at first: the extents of each slot.

    Returns:
        The new call; ``None`` if anything is not as it was, for `refopt.checks.check` to find out what.
    """
    name = call.routine.merged_name
    arrays = dict(call.arrays)
    for slot, values in slots.items():
        if not isinstance(values, Sequence) or len(values) != len(arrays[slot]):
            return None
        described = [None if x is None else describe(x, f"{name}: {slot}[{i}]") for i, x in enumerate(values)]
        if not all(map(_alike, described, arrays[slot])):
            return None
        arrays[slot] = described
    kept = {slot: described for slot, described in held.items() if slot not in slots}
    extents = {slot: kept[slot] if slot in kept else extents_of(described) for slot, described in arrays.items()}
    written = [slot.written for slot in call.routine.slots]
    shared = extents_of(list(call.shared.values()))
    if overlap([*(extents[slot.name] for slot in call.routine.slots), shared], [*written, False]):
        return None
    held.update(extents)
    return call._replace(slots=call.slots | {slot: list(values) for slot, values in slots.items()}, arrays=arrays)


def _alike(new: Array | None, old: Array | None) -> bool:
    """Whether two arrays differ in their address alone."""
    return new is old if new is None or old is None else new[1:] == old[1:]


def extents_of(arrays: Sequence[Array | None]) -> Extents:
    """The extents of those that are there and have elements."""
    spans = [(a.address, a.address + a.size * ITEM_SIZES[a.dtype]) for a in arrays if a and a.size]
    return np.array(spans, np.int64).reshape(-1, 2).T


def overlap(extents: Sequence[Extents], written: Sequence[bool]) -> bool:
    """Whether an array that is written, one flag for each group, shares memory with any other."""
    starts, stops = np.concatenate(extents, 1)
    flags = np.repeat(written, [each.shape[1] for each in extents])
    order = np.argsort(starts, kind="stable")
    starts, stops, flags = starts[order], stops[order], flags[order]
    before = [np.maximum.accumulate(x)[:-1] for x in (stops, np.where(flags, stops, 0))]
    return bool(((starts[1:] < before[0]) & flags[1:] | (starts[1:] < before[1])).any())
