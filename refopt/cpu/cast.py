"""Casts and copies of any number of tensors, between parameters, masters and buffers of mixed precision.

::

    target = scale * source        evaluated in fp64 if either side is fp64, else in fp32

The source widens exactly, the product is rounded once, and so is the stored value. If ``scale`` is the number 1,
nothing is multiplied; if both sides also have one dtype, the cast moves data and keeps every bit, NaN payloads
included (numerics, N4).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refopt import checks


def rule(x, scale):
    """The scaled value."""
    return scale * x


def to_odd(x: np.ndarray) -> np.ndarray:
    """fp64 as fp32, rounded to odd: to the neighbour whose last bit is set, unless fp32 has the exact value.

    A value that is then rounded to nearest even in a 16-bit type is rounded as if only once: the last bit tells on
    which side of half-way it was.
    """
    near = x.astype(np.float32)
    beyond = np.abs(near.astype(np.float64)) > np.abs(x)
    toward_zero = np.where(beyond, np.nextafter(near, np.float32(0)), near)
    inexact = near.astype(np.float64) != x
    return (toward_zero.view(np.uint32) | inexact).view(np.float32)


def rounded(x: np.ndarray, dtype: Any) -> np.ndarray:
    """fp32 or fp64 in a storage dtype, rounded once to nearest even."""
    if x.dtype == np.float64 and np.dtype(dtype).itemsize == 2:
        x = to_odd(x)  # NumPy converts fp64 to bfloat16 only by rounding twice
    return x.astype(dtype)


def merged_cast(
    sources: Sequence[np.ndarray | None], targets: Sequence[np.ndarray | None], *, scale: Any = 1.0
) -> None:
    """Copy every tensor of a list to another, optionally in another dtype and multiplied by a number.

    Args:
        sources: P arrays of any shapes, each dense in memory: fp32, fp64, fp16 or bf16 in any mixture, or bool or
            integers. ``None`` skips an entry.
        targets: P arrays of the same shapes and axis orders, which are written. A target may be its source, which
            is then scaled in place; it must share no memory with any other. Integers and bool keep their dtype,
            floats may become any float. ``None`` where sources has ``None``.
        scale: a finite number, rounded once to the arithmetic type; or an fp32 or fp64 array of one element with
            any value, rounded likewise. Integers and bool take only the number 1.

    Raises:
        ValueError, TypeError: the message names argument and index; nothing has been modified then.
    """
    checks.require_subnormals()
    bound(checks.check_cast(sources, targets, scale, checks.host_array), sources, targets, scale)()


def bound(call: checks.Cast, sources: Sequence[Any], targets: Sequence[Any], scale: Any) -> Callable[[], None]:
    """A function that makes a checked cast at every call."""
    number = isinstance(call.scale, float)
    plain = number and call.scale == 1
    moved: list[tuple[Any, Any]] = []  # pairs copied bit for bit
    computed: list[tuple[Any, Any, Any]] = []
    for pair, *ends in zip(call.pairs, sources, targets, strict=True):
        if pair:
            source, target = (np.asarray(checks.flat(array)) for array in ends)
            if plain and source.dtype == target.dtype:
                moved.append((source.view(f"u{source.itemsize}"), target.view(f"u{source.itemsize}")))
            else:
                computed.append((source, target, checks.cast_type(source.dtype.name, target.dtype.name)))

    def run() -> None:
        for source, target in moved:
            target[...] = source
        if computed:
            factor = call.scale if number else scale.reshape(-1)[0]
            with np.errstate(all="ignore"):
                for source, target, real in computed:
                    x = source.astype(real)
                    target[...] = rounded(x if plain else rule(x, real(factor)), target.dtype)

    return run
