"""Checks of saved values: NumPy arrays, with dtypes and values that steps can write."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refopt.catalog import Routine, Slot
from refopt.checks.arguments import kind_of, shown
from refopt.checks.arrays import PLAIN
from refopt.checks.dtypes import CODED, GROUP, REMAINDERS, SIZES, arithmetic_name, name_of
from refopt.state.steps import BASES


def saved_array(where: str, slot: Slot, value: Any) -> np.ndarray:
    """An array of a state dictionary in native byte order, with one element if the slot holds scalars."""
    if type(value) not in PLAIN:
        raise TypeError(f"{where}: expected a NumPy array, got {kind_of(value)}")
    stored = [*REMAINDERS] if slot.name == "master_params" else ["uint8"] if slot.like_param else []
    dtypes = ["float32", "float64"] if slot.scalar else [*SIZES, *stored]
    if name_of(value.dtype) not in dtypes:
        raise TypeError(f"{where}: expected one of {', '.join(dtypes)}, got {name_of(value.dtype)}")
    if slot.scalar and value.size != 1:
        raise ValueError(f"{where}: expected one element, got shape {value.shape}")
    return native(value)


def host_of(where: str, value: Any) -> Any:
    """A tensor of PyTorch's as a NumPy array, in fp32 from bf16; any other value unchanged.

    Raises:
        TypeError: NumPy cannot read the tensor: sparse, nested or quantized, a subclass, or without memory of its own.
    """
    if not hasattr(value, "detach"):
        return value
    try:
        host = value.detach().cpu()
        if host.numel() and not (host.data_ptr() or host._is_zerotensor()):
            raise TypeError("it has no memory of its own")
        return (host.float() if name_of(host.dtype) == "bfloat16" else host).numpy(force=True)
    except (RuntimeError, TypeError) as error:
        raise TypeError(f"{where}: expected a dense tensor, got {kind_of(value)}: {shown(str(error))}") from None


def native(array: np.ndarray) -> np.ndarray:
    """The array, or a copy of it in the byte order of this machine."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def check_alike(where: str, row: Routine, i: int, arrays: Mapping[str, np.ndarray | None]) -> type[np.generic]:
    """Refuse inconsistent states of one tensor; returns the arithmetic type.

    All must have the same shape, and the parameter's dtype or its arithmetic type (numerics, N1).
    """
    shape, narrow, real = None, None, None
    for slot in row.slots:
        array = arrays.get(slot.name)
        if array is None:
            continue
        label, dtype = f"{where}: {slot.name}[{i}]", name_of(array.dtype)
        if dtype == "uint8":
            raise TypeError(f"{label}: expected floats, as PyTorch's states are, got a state in 8 bits")
        if slot.like_param:
            if shape is not None and array.shape != shape[1]:
                raise ValueError(f"{label}: expected shape {shape[1]}, as {shape[0]} has, got {array.shape}")
            shape = slot.name, array.shape
            if dtype == arithmetic_name(dtype):
                pass
            elif narrow is not None and dtype != narrow[1]:
                raise TypeError(f"{label}: expected {narrow[1]}, as {narrow[0]} has, or float32, got {dtype}")
            else:
                narrow = slot.name, dtype
        if real is not None and arithmetic_name(dtype) != real[1]:
            raise TypeError(f"{label}: expected a state of arithmetic in {real[1]}, as {real[0]} is, got {dtype}")
        real = slot.name, arithmetic_name(dtype)
    return np.float64 if real is None or real[1] == "float64" else np.float32


def check_values(where: str, row: Routine, slot: Slot, array: np.ndarray, numbers: Mapping[str, Any]) -> None:
    """Refuse values that steps cannot produce.

    By the catalogue, squares, lengths and powers are not below 0, nor are scales of states in 8 bits. A power stays
    below the bound of its base, and is never NaN; values computed from gradients may be.

    Args:
        where: function, slot and index, for the error.
        row, slot: the routine and its slot.
        array: the saved array.
        numbers: the saved hyperparameters, if any.
    """
    if array.dtype == np.uint8:  # in 8 bits, with a scale for each group
        array = array.reshape(-1, CODED)[:, GROUP:].copy().view(np.float32)
    elif slot.signed:
        return
    least, below, most = 0.0, np.inf, np.inf
    made_of_numbers = slot.name in BASES or (slot.scalar and slot.name != "second_moment")  # a squared norm
    for hyper in row.hypers:
        if slot.name in BASES and hyper.name == BASES[slot.name]:
            below = hyper.below
        if slot.name in ("momentum_decay_pow", "mu_product") and hyper.name == "decay_base":
            most = 1.0 if np.max(numbers.get(hyper.name, hyper.default)) <= 1 else np.inf
    with np.errstate(invalid="ignore"):
        wrong = (array < least) | (array > most)
        if made_of_numbers:
            wrong |= ~np.isfinite(array) | (array >= below)
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), array.shape)
        place = "" if slot.scalar else f" at {tuple(map(int, at))}"
        expected = "a finite number at least 0" if made_of_numbers else "no value below 0"
        bounds = {"below": below, "at most": most}
        expected += "".join(f" and {word} {bound:.10g}" for word, bound in bounds.items() if bound < np.inf)
        raise ValueError(f"{where}: expected {expected}, got {shown(array[at].item())}{place}")
