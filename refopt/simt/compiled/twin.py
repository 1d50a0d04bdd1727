"""Functions that emulate inline PTX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..base.arguments import shown
from ..base.scalars import SCALARS
from ..machine import warps

_Function = TypeVar("_Function", bound=Callable)


def ptx_twin(
    *types: str, lanes: Callable | bool = False, warp: Callable | None = None
) -> Callable[[_Function], _Function]:
    """Mark a function as the twin of inline PTX: it runs unchanged, so its arithmetic is NumPy's.

    Args:
        types: the scalar types of the results, such as "float32": several for a tuple, none if it returns nothing.
        lanes: the function for arrays with an element for each lane, or True if the function itself handles those.
            Kernels can run by lanes only if the twins that they call have this. Values that all lanes share are passed
            as scalars, unless the function returns nothing.
        warp: for an instruction that the 32 lanes of a warp execute together, such as ``mma.sync``. The function then
            returns a tuple of the lane's inputs, and all lanes wait for each other. ``warp`` takes an array of shape
            (warps, 32) for each input, and returns such arrays, one for each result of a lane. Lanes that have ended,
            or wait elsewhere, are reported.

    Raises:
        ValueError: for a name that is not a scalar type.
    """
    for n, name in enumerate(types):
        if name not in SCALARS:
            raise ValueError(f"ptx_twin: types[{n}]: expected one of {', '.join(SCALARS)}, got {shown(name)}")

    def mark(function: _Function) -> _Function:
        if warp is not None:
            function = _together(function, warp)
        function.__simt_types__ = types  # type: ignore[attr-defined]
        function.__simt_lanes__ = (function if lanes is True else lanes) or None  # type: ignore[attr-defined]
        return function

    return mark


def _together(function: Any, exchange: Callable) -> Any:
    """A twin at each call of which the lanes of a warp meet."""
    meet = warps.collective(function.__name__, exchange)
    function.__simt_warp__ = exchange

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return meet(function(*args))

    return call
