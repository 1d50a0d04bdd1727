"""Checks of the operations around a step: the gradient check and the loss scale."""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.checks.arguments import listed, number, whole
from refopt.checks.arrays import Array, check_dense, check_one, refuse_overlaps
from refopt.checks.dtypes import SIZES


def check_gradient_list(
    grads: Any, loss_scale: Any, max_norm: Any, epsilon: Any, describe: Callable[[Any, str], Array]
) -> list[Array | None]:
    """Check the arguments of ``check_gradients``; raises, or describes the gradients."""
    name = "check_gradients"
    entries = listed(f"{name}: grads", grads)
    arrays = [None if g is None else describe(g, f"{name}: grads[{i}]") for i, g in enumerate(entries)]
    for i, array in enumerate(arrays):
        if array is None:
            continue
        if array.dtype not in SIZES:
            raise TypeError(f"{name}: grads[{i}]: expected one of {', '.join(SIZES)}, got {array.dtype}")
        check_dense(f"{name}: grads[{i}]", array)
    if loss_scale is not None:
        check_one(f"{name}: loss_scale", describe(loss_scale, f"{name}: loss_scale"), ["float32"])
    number(f"{name}: max_norm", max_norm, 0)
    number(f"{name}: epsilon", epsilon, 0, real=norm_type(arrays))
    return arrays


def norm_type(arrays: list[Array | None]) -> type:
    """The type in which gradients are checked and their norm computed: fp64 if one of them is fp64."""
    return np.float64 if any(a and a.dtype == "float64" for a in arrays) else np.float32


def check_loss_scaling(arrays: list[Any], describe: Callable[[Any, str], Array], **numbers: Any) -> dict[str, Any]:
    """Check the arguments of ``update_loss_scaling``; raises, or returns the numbers, with ratios in fp32."""
    name = "update_loss_scaling"
    dtypes = {"found_inf": "float32", "loss_scale": "float32", "good_steps": "int32", "bad_steps": "int32"}
    described = {key: describe(array, f"{name}: {key}") for key, array in zip(dtypes, arrays, strict=True)}
    for key, dtype in dtypes.items():
        check_one(f"{name}: {key}", described[key], [dtype], written=key != "found_inf")
    refuse_overlaps(name, ((*array.span, key != "found_inf", key) for key, array in described.items()))
    checked: dict[str, Any] = {}
    for key in ("incr_every_n_steps", "decr_every_n_nan_or_inf"):
        checked[key] = whole(f"{name}: {key}", numbers[key], 1, 2**31 - 1)  # the largest value of a counter
    real = np.float32
    checked["incr_ratio"] = real(number(f"{name}: incr_ratio", numbers["incr_ratio"], 1, real=real))
    checked["decr_ratio"] = real(number(f"{name}: decr_ratio", numbers["decr_ratio"], most=1, above=0, real=real))
    return checked
