"""refopt's state dictionaries: made from arrays, checked against arrays, and written into them."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from refopt import checks
from refopt.catalog import KNOWN, Routine, Slot
from refopt.checks import Array
from refopt.checks.arguments import chosen, listed, mapped, shown, whole
from refopt.checks.dtypes import name_of
from refopt.state.saved import check_values, saved_array

VERSION = 1
KEYS = "routine", "version", "hypers", "slots"


class Memory(Protocol):
    """Reads and writes arrays in their memory: `HostMemory`, or `refopt.gpu.Transfer`."""

    def describe(self, value: Any, where: str) -> Array: ...

    def read(self, value: Any, array: Array) -> np.ndarray:
        """A host copy in the same order of axes."""

    def write(self, value: Any, array: Array, host: np.ndarray) -> None:
        """Overwrite the array with one of the same shape and dtype."""


class HostMemory:
    """NumPy arrays."""

    describe = staticmethod(checks.host_array)

    def read(self, value: np.ndarray, array: Array) -> np.ndarray:
        return value.copy(order="K")

    def write(self, value: np.ndarray, array: Array, host: np.ndarray) -> None:
        value[...] = host


def state_dict(
    routine: str, slots: Mapping[str, Any], hypers: Mapping[str, Any] | None = None, *, memory: Memory | None = None
) -> dict[str, Any]:
    """Host copies of what a step of a routine changes other than the parameters.

    Args:
        routine: a name of `refopt.catalog.KNOWN`.
        slots: the routine's lists of arrays by name, as its functions take them, including ``params``. Gradients may be
            left out, and are ignored.
        hypers: the hyperparameters and named choices to store with them.
        memory: where the arrays are: by default NumPy's; `refopt.gpu.Transfer` for those on a device.

    Returns:
        The dictionary described in `refopt.state`.

    Raises:
        ValueError, TypeError: naming the argument and the index.
    """
    row = routine_of("state_dict", routine)
    lists = _lists(row, slots)
    memory = memory or HostMemory()
    numbers = mapped(f"{row.merged_name}: hypers", {} if hypers is None else hypers)
    call = _checked(row, lists, numbers, memory, read_only=True)
    copies = {
        slot.name: [
            None if array is None else memory.read(value, array)
            for value, array in zip(call.slots[slot.name], call.arrays[slot.name], strict=True)
        ]
        for slot in saved_slots(row)
    }
    return {"routine": row.name, "version": VERSION, "hypers": _kept(call, numbers), "slots": copies}


def load(
    saved: Mapping[str, Any], routine: str | Routine, slots: Mapping[str, Any], *,
    choices: Mapping[str, Any] | None = None, memory: Memory | None = None,
) -> dict[str, Any]:
    """Load a state dictionary into arrays, in place.

    For a plan over the arrays, call ``refresh()`` afterwards; ``Plan.load_state_dict`` does both.

    Args:
        saved: a result of `state_dict` or `from_torch`.
        routine: the routine that the arrays are for.
        slots: its lists of arrays by name, with the saved shapes and dtypes, including ``params``, which are not
            written.
        choices: named choices, such as ``epsilon_at``, that the saved ones must agree with.
        memory: where the arrays are: by default NumPy's; `refopt.gpu.Transfer` for those on a device.

    Returns:
        The saved hyperparameters and named choices.

    Raises:
        ValueError, TypeError: naming the slot and the index: a step would not take the arrays, or the saved value has
            another shape or dtype, or cannot result from a step, such as a power of beta of 1 or more; then nothing has
            been modified.
    """
    row = routine if isinstance(routine, Routine) else routine_of("load", routine)
    where = f"{row.merged_name}: state"
    _, hosts, numbers = parse(saved, where, row)
    lists = _lists(row, slots)
    memory = memory or HostMemory()
    call = _checked(row, lists, numbers, memory)
    kept = _kept(call, numbers)
    for slot in saved_slots(row):
        _match(where, row, slot, hosts[slot.name], call.arrays[slot.name], kept)
    for name, value in mapped(f"{row.merged_name}: choices", {} if choices is None else choices, row.choices).items():
        planned = chosen(f"{row.merged_name}: choices: {name}", value, row.choices[name])
        if kept.get(name, planned) != planned:
            raise ValueError(f"{where}: {name}: expected {planned}, as planned, got {kept[name]}")
    if isinstance(memory, HostMemory):
        _set_apart(hosts, call)
    for slot in saved_slots(row):
        for value, array, host in zip(call.slots[slot.name], call.arrays[slot.name], hosts[slot.name], strict=True):
            if array is not None and host is not None:
                memory.write(value, array, host.reshape(array.shape))
    return kept


def routine_of(where: str, name: Any) -> Routine:
    """The row of a name."""
    row = KNOWN.get(name.removeprefix("merged_")) if isinstance(name, str) else None
    if row is None:
        raise ValueError(f"{where}: routine: expected one of {', '.join(KNOWN)}, got {shown(name)}")
    return row


def saved_slots(routine: Routine) -> list[Slot]:
    """The slots of a state dictionary: all that a step writes except the parameters."""
    return [slot for slot in routine.slots if slot.written and slot.name != "params"]


def parse(
    saved: Any, where: str, expected: Routine | None = None
) -> tuple[Routine, dict[str, list[np.ndarray | None]], dict[str, Any]]:
    """The parts of a state dictionary: its routine, its slots with as many entries each, its hyperparameters."""
    whole_of = mapped(where, saved, KEYS, KEYS)
    row = routine_of(where, whole_of["routine"])
    if expected and expected.name != row.name:
        raise ValueError(f"{where}: routine: expected {expected.name}, got {row.name}")
    if whole(f"{where}: version", whole_of["version"]) != VERSION:
        raise ValueError(f"{where}: version: expected {VERSION}, got {shown(whole_of['version'])}")
    hypers = mapped(f"{where}: hypers", whole_of["hypers"])
    names = [slot.name for slot in saved_slots(row)]
    entries = mapped(f"{where}: slots", whole_of["slots"], names, names)
    slots: dict[str, list] = {}
    for slot in saved_slots(expected or row):
        values = listed(f"{where}: {slot.name}", entries[slot.name])
        count = len(slots[names[0]]) if slots else len(values)
        if len(values) != count:
            raise ValueError(f"{where}: {slot.name}: expected {count} entries, as {names[0]} has, got {len(values)}")
        slots[slot.name] = []
        for i, value in enumerate(values):
            if value is None and not slot.optional:
                raise TypeError(f"{where}: {slot.name}[{i}]: expected an array, got None")
            array = None if value is None else saved_array(f"{where}: {slot.name}[{i}]", slot, value)
            slots[slot.name].append(array)
    return row, slots, hypers


def _lists(row: Routine, slots: Any) -> dict[str, Any]:
    """The given slots without gradients, which are not part of a state."""
    lists = mapped(f"{row.merged_name}: slots", slots, row.slot_names)
    params = listed(f"{row.merged_name}: params", lists.get("params"))
    return {name: lists.get(name) for name in row.slot_names} | {"grads": [None] * len(params)}


def _checked(
    row: Routine, lists: dict[str, Any], numbers: dict[str, Any], memory: Memory, *, read_only: bool = False
) -> checks.Call:
    """The arrays and numbers, checked as in a step; numbers may be missing."""

    def describe(value: Any, where: str) -> Array:
        array = memory.describe(value, where)
        return array._replace(writable=True) if read_only else array

    stand_in = {hyper.name: 0.0 for hyper in row.hypers if hyper.default is None}
    return checks.check(row, lists, stand_in | numbers, describe)


def _kept(call: checks.Call, numbers: dict[str, Any]) -> dict[str, Any]:
    """The given hyperparameters and choices, each a number or a list of one per tensor."""
    return {name: call.hypers[name] for name in numbers}


def _match(
    where: str, row: Routine, slot: Slot, hosts: list, arrays: list[Array | None], numbers: dict[str, Any]
) -> None:
    """Refuse saved entries of a slot that do not fit the arrays."""
    if len(hosts) != len(arrays):
        raise ValueError(f"{where}: {slot.name}: expected {len(arrays)} entries, as params has, got {len(hosts)}")
    for i, (host, array) in enumerate(zip(hosts, arrays, strict=True)):
        expected = "None" if array is None else f"{array.dtype} of shape {array.shape}"
        got = "None" if host is None else f"{name_of(host.dtype)} of shape {host.shape}"
        scalar = slot.scalar and host is not None and array is not None and name_of(host.dtype) == array.dtype
        if got != expected and not scalar:
            raise ValueError(f"{where}: {slot.name}[{i}]: expected {expected}, got {got}")
        if host is not None:
            check_values(f"{where}: {slot.name}[{i}]", row, slot, host, numbers)


def _set_apart(lists: dict[str, list], call: checks.Call) -> None:
    """Copy saved arrays that share memory with written ones, so that no write changes one that is read later."""
    spans = sorted(array.span for name in lists for array in call.arrays[name] if array is not None and array.size)
    starts = [start for start, _ in spans]  # the spans are disjoint, so their ends are sorted, too
    for values in lists.values():
        for i, host in enumerate(values):
            if host is not None and host.size:
                low, high = np.lib.array_utils.byte_bounds(host)
                below = bisect_left(starts, high) - 1
                if below >= 0 and spans[below][1] > low:
                    values[i] = host.copy()
