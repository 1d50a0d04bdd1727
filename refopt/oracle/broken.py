"""Exceptions for laws that do not hold, or that cannot be checked; and requirements without a bound."""

import re
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.oracle.bound import storage
from refopt.oracle.exact.cases import Case, Outcome, memory


class Skipped(Exception):
    """The subject does not take something. ``lacks``: it has no argument for it, so nobody could request it."""

    def __init__(self, text: str, lacks: bool = False) -> None:
        super().__init__(text)
        self.lacks = lacks


class Broken(Exception):
    """A law does not hold. ``ratio`` is the error over the bound, if a bound was exceeded.

    ``kind`` is empty for wrong numbers, which a formula may explain.
    """

    kind = ""

    def __init__(self, text: str, ratio: float | None = None, where: "Where | None" = None) -> None:
        super().__init__(text)
        self.ratio, self.where = ratio, where


class Misconduct(Broken):
    """A failure other than a wrong number: an error, another shape or dtype, something written that must stay."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The text without its numbers, which depend on the case."""
        return re.sub(r"0x[\da-f]+|\d[\d, ]*", "#", str(self))


class Caused(Broken):
    """Wrong numbers whose cause a law knows."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(f"{cause}: {text}")
        self.kind = cause


class Crashed(Misconduct):
    """A step has ended its process, or has not returned. The law's remaining cases are not tried."""


class Where(NamedTuple):
    """A wrong element: its slot, tensor and index in memory order, the expected value, and the actual one."""

    slot: str
    tensor: int
    element: int
    expected: float
    error: float
    got: float
    wrong: np.ndarray  # which elements of the tensor


def at_first(slot: str, tensor: int, wrong: np.ndarray, expected: np.ndarray, got: np.ndarray, why: str = "") -> Broken:
    """A `Broken` for a tensor's first wrong element, in memory order: the expected value, ``why``, the actual one."""
    k = int(np.argmax(wrong))
    one, other = float(expected[k]), float(got[k])
    text = f"{slot}[{tensor}], element {k} of {wrong.size}: expected {one!r}{why}, got {other!r}"
    return Broken(text, None, Where(slot, tensor, k, one, 0.0, other, wrong))


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
