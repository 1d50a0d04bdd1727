"""Checks of a whole call of a merged routine."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import listed
from refopt.checks.arrays import Array, check_by_row, check_coded, check_like, check_one, refuse_overlaps
from refopt.checks.dtypes import REMAINDERS, SIZES, arithmetic, arithmetic_name, widens
from refopt.checks.numbers import check_hypers
from refopt.checks.rows import Routine, Spec


class Call(NamedTuple):
    """A checked call: the arrays by slot, the indices of tensors with a gradient, and the hyperparameters."""

    routine: Routine
    slots: dict[str, list]
    arrays: dict[str, list[Array | None]]
    active: list[int]
    hypers: dict[str, Any]
    shared: dict[str, Array]

    def hyper_of(self, i: int) -> dict[str, Any]:
        """The hyperparameters of tensor ``i``, each a single value."""
        return {name: value[i] if isinstance(value, list) else value for name, value in self.hypers.items()}

    def reals(self) -> set[type]:
        """The arithmetic types in which hyperparameters must be representable."""
        return _reals(self.arrays)

    def spec(self, i: int) -> Spec:
        """The size and dtypes of tensor ``i``."""
        arrays = [self.arrays[slot][i] for slot in self.routine.slot_names]
        return Spec(arrays[0].size, tuple(a and a.dtype for a in arrays))  # type: ignore[union-attr]


def check(
    routine: Routine, slots: dict[str, Any], hypers: dict[str, Any], describe: Callable[[Any, str], Array],
    shared: dict[str, Any] | None = None,
) -> Call:
    """Check a call of the merged routine as a whole; raises, or returns the normalized call.

    ``shared`` holds one-element arrays that apply to all tensors, or ``None``.
    """
    name = routine.merged_name
    lists = _lists(name, routine, slots)
    arrays = {
        slot: [None if x is None else describe(x, f"{name}: {slot}[{i}]") for i, x in enumerate(values)]
        for slot, values in lists.items()
    }
    count = len(lists["params"])
    for i in range(count):
        _check_tensor(name, routine, arrays, i)
    common = {key: describe(x, f"{name}: {key}") for key, x in (shared or {}).items() if x is not None}
    exact = ["float64"] if _reals(arrays) == {np.float64} else []
    for key, one in common.items():
        check_one(f"{name}: {key}", one, ["float32", *(exact if key == "grad_factor" else [])])
    refuse_overlaps(name, _spans(routine, arrays, common))
    regular = check_hypers(routine, hypers, count, _reals(arrays))
    active = [i for i in range(count) if arrays["grads"][i] is not None]
    return Call(routine, lists, arrays, active, regular, common)


def _reals(arrays: dict[str, list[Array | None]]) -> set[type]:
    return {arithmetic(a.dtype) for a in arrays["params"] if a} or {np.float64}


def _lists(name: str, routine: Routine, slots: dict[str, Any]) -> dict[str, list]:
    lists: dict[str, list] = {}
    for slot in routine.slots:
        value = slots[slot.name]
        if value is None and slot.optional:
            value = [None] * len(lists["params"])
        lists[slot.name] = listed(f"{name}: {slot.name}", value)
        expected, got = len(lists["params"]), len(lists[slot.name])
        if got != expected:
            raise ValueError(f"{name}: {slot.name}: expected {expected} entries, as params has, got {got}")
        for i, entry in enumerate(lists[slot.name]):
            if entry is None and not slot.optional and slot.name != "grads":
                raise TypeError(f"{name}: {slot.name}[{i}]: expected an array, got None")
    return lists


def _check_tensor(name: str, routine: Routine, arrays: dict[str, list[Array | None]], i: int) -> None:
    param = arrays["params"][i]
    assert param is not None
    if param.dtype not in SIZES:
        raise TypeError(f"{name}: params[{i}]: expected one of {', '.join(SIZES)}, got {param.dtype}")
    real = arithmetic(param.dtype)
    for slot in routine.slots:
        array = arrays[slot.name][i]
        if array is None:
            continue
        where = f"{name}: {slot.name}[{i}]"
        if slot.scalar:
            check_one(where, array, [arithmetic_name(param.dtype)], written=True)
            continue
        if slot.by_row:
            check_by_row(where, array, arithmetic_name(param.dtype))
            continue
        _check_dtype(where, slot.name, array.dtype, param.dtype, real, coded=routine.elementwise)
        if array.dtype == "uint8":
            check_coded(where, array, param.size)
        else:
            check_like(where, array, param, f"params[{i}]", written=slot.written)


def _check_dtype(where: str, slot: str, dtype: str, param: str, real: type, coded: bool) -> None:
    exact = arithmetic_name(param)
    if slot == "grads":
        if not widens(dtype, real):
            raise TypeError(f"{where}: expected a dtype that widens to {exact}, got {dtype}")
    elif slot == "master_params":
        both = [exact, *REMAINDERS] if param == "bfloat16" else [exact]
        if dtype not in both or param == exact:
            expected = f"no master for a {param} parameter" if param == exact else " or ".join(both)
            raise TypeError(f"{where}: expected {expected}, got {dtype}")
    elif dtype not in (stored := [exact, param, *["bfloat16", *["uint8"] * coded] * (real is np.float32)]):
        raise TypeError(f"{where}: expected {' or '.join(dict.fromkeys(stored))}, got {dtype}")


def _spans(
    routine: Routine, arrays: dict[str, list[Array | None]], shared: dict[str, Array]
) -> Iterator[tuple[int, int, bool, str]]:
    """For `refuse_overlaps`; gradients are not written, so they may share memory with each other."""
    for label, one in shared.items():
        yield *one.span, False, label
    for slot in routine.slots:
        for i, array in enumerate(arrays[slot.name]):
            if array and array.size:
                yield *array.span, slot.written, f"{slot.name}[{i}]"
