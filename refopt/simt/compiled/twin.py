"""Functions that stand for inline PTX."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..base.arguments import shown
from ..base.scalars import SCALARS

_Function = TypeVar("_Function", bound=Callable)


def ptx_twin(*types: str, lanes: Callable | bool = False) -> Callable[[_Function], _Function]:
    """Mark a function as the twin of inline PTX: it runs as it is, so its arithmetic is NumPy's.

    Args:
        types: the scalar types of what it returns, such as "float32": several for a tuple, none if it returns nothing.
        lanes: the same for arrays, an element for each lane, or True if the function is that itself. With another form
            kernels that call it run by lanes. What all lanes have in common it is given as a scalar, unless it returns
            nothing.

    Raises:
        ValueError: one is no scalar type.
    """
    for n, name in enumerate(types):
        if name not in SCALARS:
            raise ValueError(f"ptx_twin: types[{n}]: expected one of {', '.join(SCALARS)}, got {shown(name)}")

    def mark(function: _Function) -> _Function:
        function.__simt_types__ = types  # type: ignore[attr-defined]
        function.__simt_lanes__ = (function if lanes is True else lanes) or None  # type: ignore[attr-defined]
        return function

    return mark
