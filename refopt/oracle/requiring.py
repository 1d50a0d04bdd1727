"""Requirements without a bound: shape and dtype, equal bits, parameters rounded from masters."""

from typing import Any

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.oracle.bound import storage
from refopt.oracle.broken import Broken, Misconduct, Where, at_first
from refopt.oracle.exact.cases import Case, Outcome, memory
from refopt.oracle.ulp import same_bits


def require_alike(where: str, x: Any, known: tuple[Any, Any] | None) -> None:
    """Raise `Misconduct` unless an array has its known shape and dtype, or is absent as before."""
    if known is not None and x is not None and (x.shape, x.dtype) != known:
        expected = f"an array of {known[1]} of shape {known[0]}"
        raise Misconduct(f"{where}: expected {expected}, got one of {x.dtype} of shape {x.shape}")
    if (known is None) != (x is None):
        raise Misconduct(f"{where}: expected {'None' if known is None else 'an array'}, got {kind_of(x)}")


def require_same(expected: Outcome, got: Outcome, what: str, first: int = 0) -> None:
    """Raise `Broken` unless two outcomes agree bit for bit. ``first`` is the index of their first tensor."""
    for name in expected.keys() & got.keys():
        for i, (x, y) in enumerate(zip(expected[name], got[name], strict=True)):
            if x is None or y is None:
                continue
            one, other = memory(np.asarray(x)), memory(np.asarray(y))
            differ = ~same_bits(one, other)
            if differ.any():
                k = int(np.argmax(differ))
                numbers = float(one[k]), float(other[k])
                at = f"{name}[{first + i}], element {k} of {one.size}"
                text = f"{at}: expected the same bits, {what}, got {numbers[0]!r} and {numbers[1]!r}"
                raise Broken(text, None, Where(name, first + i, k, numbers[0], 0.0, numbers[1], differ))


def require_rounded(case: Case, got: Outcome, i: int) -> None:
    """Raise `Broken` unless a parameter with a master is the master, rounded once to nearest even."""
    master = got.get("master_params", [None] * len(case))[i]
    if master is None or master.dtype == np.uint16:
        return
    param, exact = (memory(x) for x in (got["params"][i], master))
    rounded = storage.stored(exact, param.dtype)
    off = ~(param.astype(rounded.dtype) == rounded) & ~np.isnan(rounded)
    if off.any():
        raise at_first("params", i, off, rounded, param, f", master_params[{i}] rounded to {param.dtype}")
