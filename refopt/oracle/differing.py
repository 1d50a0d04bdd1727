"""Which elements of two arrays differ and by how much, also as text."""

from typing import Any

import numpy as np

from refopt.oracle.ulp import distance, same_bits


def equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which elements have the same bits, or are NaN in both."""
    if x.dtype.kind in "iub" or x.dtype.kind == "c":
        return x == y
    return same_bits(x, y)


def told(x: np.ndarray, y: np.ndarray, differ: np.ndarray, what: str) -> str:
    """The first element that differs, in decimal and in hexadecimal, and by how many units in the last place."""
    k = int(np.argmax(differ))
    one, other = np.ravel(x)[k], np.ravel(y)[k]
    text = f"element {k} of {x.size} ({int(differ.sum())} differ): expected {shown(one)}, {what}, got {shown(other)}"
    if x.dtype.kind not in "iub" and not (np.isnan(float(one)) or np.isnan(float(other))):
        text += f", {int(distance(one, other))} ULPs away"
    return text


def shown(x: Any) -> str:
    """A number in decimal, with its bits in hexadecimal."""
    value = float(x) if x.dtype.kind not in "iub" else int(x)
    return f"{value!r} (0x{x.tobytes()[::-1].hex()})"


def wide(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def largest(x: np.ndarray) -> float:
    """The largest absolute value of finite elements; 0 if there are none."""
    x = np.atleast_1d(x)
    finite = abs(x[np.isfinite(x)])
    return float(finite.max()) if finite.size else 0.0
