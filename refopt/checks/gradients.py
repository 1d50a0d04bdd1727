"""What goes on around a step: the scan of the gradients and the loss scale."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refopt.checks.arrays import Array, check_dense, check_one
from refopt.dtypes import SIZES


def check_gradients(
    grads: Any, loss_scale: Any, max_norm: Any, epsilon: Any, describe: Callable[[Any, str], Array]
) -> list[Array | None]:
    """Check the arguments of ``scan_gradients``; raises, or describes the gradients."""
    name = "scan_gradients"
    if not isinstance(grads, Sequence) or isinstance(grads, str):
        raise TypeError(f"{name}: grads: expected a list of arrays, got {type(grads).__name__}")
    arrays = [None if g is None else describe(g, f"{name}: grads[{i}]") for i, g in enumerate(grads)]
    for i, array in enumerate(arrays):
        if array is None:
            continue
        if array.dtype not in SIZES:
            raise TypeError(f"{name}: grads[{i}]: expected one of {', '.join(SIZES)}, got {array.dtype}")
        check_dense(f"{name}: grads[{i}]", array)
    if loss_scale is not None:
        check_one(f"{name}: loss_scale", describe(loss_scale, f"{name}: loss_scale"), ["float32"])
    for key, value in (("max_norm", max_norm), ("epsilon", epsilon)):
        if not isinstance(value, int | float | np.number) or isinstance(value, bool) or not value >= 0:
            raise ValueError(f"{name}: {key}: expected a number of at least 0, got {value!r}")
    return arrays


def scan_type(arrays: list[Array | None]) -> type:
    """The type that gradients are scanned in: fp64 if one of them is fp64."""
    return np.float64 if any(a and a.dtype == "float64" for a in arrays) else np.float32


def check_loss_scaling(arrays: list[Any], describe: Callable[[Any, str], Array], **numbers: Any) -> dict[str, Any]:
    """Check the arguments of ``update_loss_scaling``; raises, or returns the numbers, ratios in fp32."""
    name = "update_loss_scaling"
    kinds = {"found_inf": "float32", "loss_scale": "float32", "good_steps": "int32", "bad_steps": "int32"}
    for (key, dtype), array in zip(kinds.items(), arrays, strict=True):
        where = f"{name}: {key}"
        check_one(where, describe(array, where), [dtype], written=key != "found_inf")
    for key in ("incr_every_n_steps", "decr_every_n_nan_or_inf"):
        if not isinstance(numbers[key], int | np.integer) or isinstance(numbers[key], bool) or numbers[key] < 1:
            raise ValueError(f"{name}: {key}: expected an integer of at least 1, got {numbers[key]!r}")
    for key, low, high in (("incr_ratio", 1, math.inf), ("decr_ratio", 0, 1)):
        value = numbers[key]
        if not isinstance(value, int | float | np.number) or not low <= value <= high or value in (0, math.inf):
            raise ValueError(f"{name}: {key}: expected a number from {low} to {high}, got {value!r}")
    return {key: int(value) if "every" in key else np.float32(value) for key, value in numbers.items()}
