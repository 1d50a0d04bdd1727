"""Requirements without a bound: shape and dtype, and parameters rounded from masters."""

from typing import Any

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.oracle.bound import storage
from refopt.oracle.broken import Misconduct, at_first
from refopt.oracle.exact.cases import Case, Outcome, memory


def require_alike(where: str, x: Any, known: tuple[Any, Any] | None) -> None:
    """Raise `Misconduct` unless an array has its known shape and dtype, or is absent as before."""
    if known is not None and x is not None and (x.shape, x.dtype) != known:
        expected = f"an array of {known[1]} of shape {known[0]}"
        raise Misconduct(f"{where}: expected {expected}, got one of {x.dtype} of shape {x.shape}")
    if (known is None) != (x is None):
        raise Misconduct(f"{where}: expected {'None' if known is None else 'an array'}, got {kind_of(x)}")


def require_rounded(case: Case, got: Outcome, i: int) -> None:
    """Raise `Broken` unless a parameter with a master is the master, rounded once to nearest even."""
    master = got.get("master_params", [None] * len(case))[i]
    if master is None or storage.is_remainder(master):
        return
    param, exact = (memory(x) for x in (got["params"][i], master))
    rounded = storage.stored(exact, param.dtype)
    off = ~(param.astype(rounded.dtype) == rounded) & ~np.isnan(rounded)
    if off.any():
        raise at_first("params", i, off, rounded, param, f", master_params[{i}] rounded to {param.dtype}")
