"""The functions that code for lanes calls: generated ones, and those of Python, NumPy and the executor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..base import conversions
from ..base.conversions import wrapped
from ..compiled import functions, operators
from ..machine import half
from . import device, flow, places, values
from .typed import Refused

_HELPERS = {function.__name__: function for function in (
    flow.branch, flow.loop, flow.each_of, values.pick, values.both, values.any_of, values.opposite, device.get,
    device.put, device.failed, device.of_all, device.of_warps, device.atomic, device.shared_array, device.local_array,
)}
# Functions for which NumPy's arrays and scalars give the same bits.
_EXACT = {
    np.add, np.subtract, np.multiply, np.divide, np.sqrt, np.abs, np.fabs, np.negative, np.floor, np.ceil, np.trunc,
    np.rint, np.isnan, np.isinf, np.isfinite, np.signbit, np.copysign, np.fmax, np.fmin, np.maximum, np.minimum,
}
_OF_VALUES: dict[Any, Callable | None] = {
    **dict.fromkeys(_EXACT), **device.PLAIN, tuple: tuple, zip: zip, len: places.length, wrapped: values.wrap,
    range: values.lane_range, abs: np.abs, operators.complex_of: None, int: partial(values.cast, "int64"),
    **{function: partial(values.extreme, function is max, ()) for function in (max, min)},
}
_SCALARS = tuple(module.__name__ for module in (functions, operators, conversions, half))


class Form:
    """A function for lanes.

    Attributes:
        name, result: its name in the source, and the kind of its result.
        waits: whether it executes atomics or fences.
        cooperative: whether it waits for other blocks.
        pure: whether it neither reads memory nor has effects.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.result: Any = None
        self.waits, self.cooperative, self.pure = False, False, True


class Program:
    """The source of a kernel and the functions that it calls, and the objects that it uses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = dict(_HELPERS)
        self.known: dict[int, str] = {}
        self.count = 0

    def name(self, label: str) -> str:
        """A new name."""
        self.count += 1
        return f"{label}{self.count}"

    def function(self, name: str, parameters: list[str], lines: list[str]) -> None:
        """Add a function for lanes."""
        self.lines += [f"def {name}({', '.join(['L', *parameters])}):", *(f"    {line}" for line in lines)]

    def constant(self, value: Any) -> str:
        """The source for an object."""
        if value is None or type(value) in (int, bool, str):
            return repr(value)
        if isinstance(value, np.ndarray) or hasattr(value, "buffer"):
            raise Refused("it captures an array")
        if id(value) not in self.known:
            self.known[id(value)] = name = self.name("k")
            self.names[name] = value
        return self.known[id(value)]


def is_fence(function: Any) -> bool:
    """Whether a function is a fence of `cuda`, or a PTX twin without operands: a fence or a hint."""
    twin = getattr(function, "__simt_types__", None) == () and not getattr(function, "__simt_lanes__", None)
    return twin or getattr(function, "__name__", "") in device.FENCES


def of_values(function: Any) -> Callable:
    """The form of a function that takes only values.

    Raises:
        Refused: the function has no form.
    """
    if function in _OF_VALUES:
        return _OF_VALUES[function] or function
    if isinstance(function, type) and issubclass(function, np.generic):
        return partial(values.cast, np.dtype(function).name)
    if (form := values.of_scalars(function)) is not None:
        return form
    if getattr(function, "ufunc", None) in _EXACT:  # a function of `math`, which accepts arrays unchanged
        return function
    known = str(getattr(function, "__module__", "")).startswith(_SCALARS) and function is not functions.printed
    if known or isinstance(function, np.ufunc):
        return values.each(function)
    raise Refused(f"a call of {getattr(function, '__name__', function)}")
