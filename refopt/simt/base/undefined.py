"""An undefined value: shuffled from a lane that does not take part, or unassigned on some path. It may not be stored.

Such values are common in correct kernels: in a reduction over 16 lanes, the upper ones add values that nobody uses. So
computing with one is no error; storing the result, indexing with it and voting on it are. It behaves as the caller's
own value, and what is computed from it is undefined too (see `lifted`). A comparison with one is true:
`if other > mine: mine = other` assigns it, as might happen on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import Place, UninitializedRead
from .places import here, report


class Undefined(np.lib.mixins.NDArrayOperatorsMixin):
    """A stand-in for a value that does not exist."""

    __slots__ = ("place", "rule", "value", "why")

    def __init__(self, value: Any, why: str, place: Place, rule: str = "shuffle-lanes") -> None:
        self.value = type(value)(True) if isinstance(value, bool | np.bool_) else value
        self.why, self.place, self.rule = why, place, rule

    dtype = property(lambda self: np.asarray(self.value).dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        values = [one.value if isinstance(one, Undefined) else one for one in inputs]
        options.pop("out", None)  # from an in-place operator
        return Undefined(getattr(ufunc, method)(*values, **options), self.why, self.place, self.rule)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self.__index__()  # NumPy converts an index to an array
        return np.asarray(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        refuse(self, "an index or a range that", "is")
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __round__(self, digits: Any = None) -> Any:
        return self.through(lambda value: round(value, digits))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        part = getattr(self.value, name)
        if callable(part):
            return lambda *args: self.through(lambda _: part(*args))
        return self.through(lambda _: part)

    def through(self, convert: Callable[[Any], Any]) -> Undefined:
        """The converted value, undefined as well."""
        return Undefined(convert(self.value), self.why, self.place, self.rule)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Undefined({self.value!r}: {self.why})"


def refuse(values: Any, what: str, does: str = "stores") -> None:
    """Report an UninitializedRead if one of the values about to be used is undefined."""
    for value in values if isinstance(values, tuple | list) else (values,):
        if type(value) is Undefined:
            source = "the result of a shuffle" if value.rule == "shuffle-lanes" else "a value"
            at = f"{value.place.filename}:{value.place.line}"
            why = f"{what} {does} {source} at {at}, where {value.why} (rule {value.rule})"
            report(UninitializedRead(why, here()))
