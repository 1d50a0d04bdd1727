"""Arguments of a case: copied, put on a device, and compared byte for byte. Lists of arrays may be among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from refopt import gpu


def is_array(value: Any) -> bool:
    """Whether a value is an array, and no number: a number of NumPy's has no axes."""
    return getattr(value, "ndim", 0) > 0


def copied(args: Any) -> Any:
    """A copy of arguments of NumPy's."""
    return _each(args, np.copy)


def on_device(args: Any) -> Any:
    """The arguments with their arrays on the device in force."""
    return _each(args, gpu.to_device)


def on_host(args: Any) -> Any:
    """The arguments with copies of their arrays in NumPy."""
    return _each(args, lambda array: array.copy_to_host())


def _each(value: Any, function: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_each(x, function) for x in value)
    return function(value) if is_array(value) else value


def arrays(args: Any, names: Any) -> Iterator[tuple[str, Any]]:
    """The arrays among arguments, each with its name; one of a list has its number as well."""
    for name, value in zip(names, args, strict=True):
        if isinstance(value, list | tuple):
            yield from arrays(value, [f"{name}[{k}]" for k in range(len(value))])
        elif is_array(value):
            yield name, value


class Difference(NamedTuple):
    """The first element of an array that is not the expected one, bit for bit; how many are wrong, and of how many."""

    name: str
    at: tuple[int, ...]
    expected: Any
    got: Any
    wrong: int
    total: int

    @property
    def element(self) -> str:
        """The element as one writes it."""
        return f"{self.name}[{', '.join(map(str, self.at))}]"

    def values(self) -> tuple[str, str]:
        """Both values; where they look the same, and differ in their bits alone, the bits as well."""
        expected, got = str(self.expected), str(self.got)
        if expected == got:
            return tuple(f"{x} (bits {x.tobytes()[::-1].hex()})" for x in (self.expected, self.got))  # type: ignore
        return expected, got

    @property
    def is_rounding(self) -> bool:
        """Whether the values are so close that their roundings alone may be others."""
        return bool(0 < abs(self.expected - self.got) <= 1e-5 * abs(self.expected))


def difference(name: str, expected: np.ndarray, got: np.ndarray) -> Difference | None:
    """The first difference between two arrays; NaN is equal to any NaN, and 0 is not -0."""
    bits = np.dtype(f"u{expected.dtype.itemsize}")
    wrong = np.ascontiguousarray(expected).view(bits) != np.ascontiguousarray(got).view(bits)
    if expected.dtype.kind == "f":
        wrong &= ~(np.isnan(expected) & np.isnan(got))
    if not wrong.any():
        return None
    index = tuple(int(k) for k in np.argwhere(wrong)[0])
    return Difference(name, index, expected[index], got[index], int(wrong.sum()), wrong.size)
