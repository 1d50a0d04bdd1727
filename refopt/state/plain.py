"""State dictionaries of refopt's own: made of arrays, checked against arrays, written into them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refopt import checks
from refopt.catalog import ROUTINES, Routine, Slot
from refopt.checks import Array
from refopt.dtypes import ITEM_SIZES, arithmetic, name_of

VERSION = 1
KEYS = "routine", "version", "hypers", "slots"


class HostMemory:
    """NumPy's arrays, in the terms of `refopt.gpu.transfer.Transfer`."""

    describe = staticmethod(checks.host_array)

    def read(self, value: np.ndarray, array: Array) -> np.ndarray:
        return value.copy(order="K")

    def write(self, value: np.ndarray, array: Array, host: np.ndarray) -> None:
        value[...] = host

    def finish(self) -> None:
        """Nothing is under way."""


def state_dict(
    routine: str, slots: Mapping[str, Any], hypers: Mapping[str, Any] | None = None, *, stream: Any = 0
) -> dict[str, Any]:
    """Host copies of what a step of a routine changes beside the parameters.

    Args:
        routine: a name of `refopt.catalog.ROUTINES`.
        slots: the routine's lists of arrays by name, as its functions take them, of NumPy or on a device;
            ``params`` among them, for their number and dtypes. Gradients may be left out.
        hypers: the hyperparameters and named choices to be kept with them.
        stream: for device arrays, the stream that the last step was on; it is waited for.

    Returns:
        The dictionary described in `refopt.state`.

    Raises:
        ValueError, TypeError: naming the argument and the index.
    """
    row = routine_of("state_dict", routine)
    lists = _lists(row, slots)
    memory = _memory(row, lists, stream)
    arrays = _described(row, lists, memory)
    kept = numbers_of(row, hypers or {}, len(lists["params"]), _reals(arrays))
    copies = {
        slot.name: [
            None if array is None else memory.read(value, array)
            for value, array in zip(lists[slot.name], arrays[slot.name], strict=True)
        ]
        for slot in saved_slots(row)
    }
    memory.finish()
    return {"routine": row.name, "version": VERSION, "hypers": kept, "slots": copies}


def load(
    saved: Mapping[str, Any],
    routine: str,
    slots: Mapping[str, Any],
    *,
    choices: Mapping[str, Any] | None = None,
    stream: Any = 0,
) -> dict[str, Any]:
    """Put a state dictionary back into arrays, in place.

    A plan over the arrays has to be told by ``refresh()``; ``Plan.load_state_dict`` does both.

    Args:
        saved: what `state_dict` or `from_torch` has returned.
        routine: the routine that the arrays are for.
        slots: its lists of arrays by name, of the shapes and dtypes that were saved; ``params`` among them,
            which are not written.
        choices: named choices, such as ``epsilon_at``, that the saved ones must agree with.
        stream: for device arrays, the stream that the next step will be on; it is waited for.

    Returns:
        The hyperparameters and named choices that were saved.

    Raises:
        ValueError, TypeError: naming the slot and the index; nothing has been modified then.
    """
    row = routine_of("load", routine)
    where = f"{row.merged_name}: state"
    theirs, given, kept = parse(saved, where)
    if theirs is not row:
        raise ValueError(f"{where}: routine: expected {row.name}, got {theirs.name}")
    lists = _lists(row, slots)
    memory = _memory(row, lists, stream)
    arrays = _described(row, lists, memory)
    count = len(lists["params"])
    hosts = {slot.name: _matched(where, slot, given[slot.name], arrays[slot.name], count) for slot in saved_slots(row)}
    kept = numbers_of(row, kept, count, _reals(arrays))
    for name, value in (choices or {}).items():
        if kept.get(name, value) != value:
            raise ValueError(f"{where}: {name}: expected {value}, as planned, got {kept[name]}")
    for name, values in hosts.items():
        for value, array, host in zip(lists[name], arrays[name], values, strict=True):
            if array is not None and host is not None:
                memory.write(value, array, host.reshape(array.shape))
    memory.finish()
    return kept


def routine_of(where: str, name: Any) -> Routine:
    """The row of the catalogue."""
    row = ROUTINES.get(name.removeprefix("merged_")) if isinstance(name, str) else None
    if row is None:
        raise ValueError(f"{where}: routine: expected one of {', '.join(ROUTINES)}, got {name!r}")
    return row


def saved_slots(routine: Routine) -> list[Slot]:
    """The slots of a state dictionary: all that a step writes but the parameters."""
    return [slot for slot in routine.slots if slot.written and slot.name != "params"]


def parse(saved: Any, where: str) -> tuple[Routine, dict[str, list], dict[str, Any]]:
    """The parts of a state dictionary: its routine, its slots with as many entries each, its hyperparameters."""
    if not isinstance(saved, Mapping) or any(key not in saved for key in KEYS):
        got = ", ".join(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
        raise TypeError(f"{where}: expected a dictionary with {', '.join(KEYS)}, got {got}")
    row = routine_of(where, saved["routine"])
    if saved["version"] != VERSION:
        raise ValueError(f"{where}: version: expected {VERSION}, got {saved['version']!r}")
    for key in ("hypers", "slots"):
        if not isinstance(saved[key], Mapping):
            raise TypeError(f"{where}: {key}: expected a dictionary, got {type(saved[key]).__name__}")
    names = [slot.name for slot in saved_slots(row)]
    if set(saved["slots"]) != set(names):
        raise ValueError(f"{where}: slots: expected {', '.join(names)}, got {', '.join(map(str, saved['slots']))}")
    slots: dict[str, list] = {}
    for slot in saved_slots(row):
        values = slots[slot.name] = list(saved["slots"][slot.name])
        count = len(slots[names[0]])
        if len(values) != count:
            raise ValueError(f"{where}: {slot.name}: expected {count} entries, as {names[0]} has, got {len(values)}")
        for i, value in enumerate(values):
            if value is None and not slot.optional:
                raise TypeError(f"{where}: {slot.name}[{i}]: expected an array, got None")
    return row, slots, dict(saved["hypers"])


def numbers_of(row: Routine, hypers: Mapping[str, Any], count: int, reals: set[type]) -> dict[str, Any]:
    """The hyperparameters and choices that are given, checked, each a number or a list of one per tensor."""
    stand_in = {hyper.name: 0.0 for hyper in row.hypers if hyper.default is None}
    regular = checks.check_hypers(row, stand_in | dict(hypers), count, reals)
    return {name: regular[name] for name in hypers}


def _lists(row: Routine, slots: Mapping[str, Any]) -> dict[str, list]:
    params = slots.get("params")
    if not isinstance(params, Sequence) or isinstance(params, str):
        raise TypeError(f"{row.merged_name}: params: expected a list of arrays, got {type(params).__name__}")
    lists = {"params": list(params)}
    for slot in saved_slots(row):
        values = slots.get(slot.name)
        if values is None and slot.optional:
            values = [None] * len(params)
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise TypeError(f"{row.merged_name}: {slot.name}: expected a list of arrays, got {type(values).__name__}")
        lists[slot.name] = list(values)
        if len(values) != len(params):
            expected = f"{len(params)} entries, as params has"
            raise ValueError(f"{row.merged_name}: {slot.name}: expected {expected}, got {len(values)}")
    return lists


def _memory(row: Routine, lists: dict[str, list], stream: Any) -> Any:
    """What reads and writes the arrays: the host if the first of them is NumPy's."""
    first = next((x for values in lists.values() for x in values if x is not None), None)
    if first is None or isinstance(first, np.ndarray):
        return HostMemory()
    from refopt.gpu.transfer import Transfer

    return Transfer(first, stream, row.merged_name)


def _described(row: Routine, lists: dict[str, list], memory: Any) -> dict[str, list[Array | None]]:
    def describe(value: Any, where: str) -> Array:
        array = memory.describe(value, where)
        if array.dtype not in ITEM_SIZES:
            raise TypeError(f"{where}: expected one of {', '.join(ITEM_SIZES)}, got {array.dtype}")
        if array.layout() is None:
            raise ValueError(f"{where}: expected a dense array, got strides {array.strides} for {array.shape}")
        return array

    return {
        name: [None if x is None else describe(x, f"{row.merged_name}: {name}[{i}]") for i, x in enumerate(values)]
        for name, values in lists.items()
    }


def _reals(arrays: dict[str, list[Array | None]]) -> set[type]:
    return {arithmetic(a.dtype) for a in arrays["params"] if a} or {np.float64}


def _matched(where: str, slot: Slot, given: list, arrays: list[Array | None], count: int) -> list[np.ndarray | None]:
    """The saved entries of a slot as arrays, each fit for the array that is to take it."""
    if len(given) != count:
        raise ValueError(f"{where}: {slot.name}: expected {count} entries, as params has, got {len(given)}")
    hosts = [None if value is None else _native(np.asarray(value)) for value in given]
    for i, (host, array) in enumerate(zip(hosts, arrays, strict=True)):
        expected = "None" if array is None else f"{array.dtype} of shape {array.shape}"
        got = "None" if host is None else f"{name_of(host.dtype)} of shape {host.shape}"
        one = slot.scalar and host is not None and array is not None and host.size == array.size == 1
        alike = got == expected or (one and name_of(host.dtype) == array.dtype)  # type: ignore[union-attr]
        if not alike:
            raise ValueError(f"{where}: {slot.name}[{i}]: expected {expected}, got {got}")
        if array is not None and not array.writable:
            raise ValueError(f"{where}: {slot.name}[{i}]: expected a writable array to load into, got a read-only one")
    return hosts


def _native(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
