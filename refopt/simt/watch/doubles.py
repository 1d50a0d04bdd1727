"""Where a kernel of fp32 computes in fp64, which on most GPUs has a fraction of the throughput."""

from __future__ import annotations

import linecache
from typing import NamedTuple

from ..base.errors import LaunchError, Place
from ..compiled import Compiled


class Double(NamedTuple):
    """A line on which a kernel that has no fp64 array computes in fp64.

    Attributes:
        kernel: its name.
        filename, line: of the operation, which may be in a device function.
        operands: their types, such as "float32 and float64"; a Python float is a float64, an int an int64.
    """

    kernel: str
    filename: str
    line: int
    operands: str

    @property
    def text(self) -> str:
        """The line of Python, if it can be read."""
        return linecache.getline(self.filename, self.line).strip()

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}: {self.text} ({self.operands})"


def doubles_of(kernel: str, args: tuple, typed: Compiled) -> list[Double]:
    """The lines of a kernel that compute in fp64, in order; empty if an argument is an fp64 array.

    Operations are classified by the types of their operands. A compiler may still use fp32 where the result is the
    same: a comparison with a constant that is exact in fp32, for example, does not count.
    """
    if any(getattr(arg, "ndim", 0) > 0 and arg.dtype == "float64" for arg in args):
        return []
    return sorted(Double(kernel, *double) for double in typed.doubles)


def check(doubles: list[Double]) -> None:
    """Refuse a kernel that computes in fp64."""
    if doubles:
        first = doubles[0]
        lines = "\n  ".join(map(str, doubles))
        raise LaunchError(
            f"kernel {first.kernel} has no fp64 array but computes in fp64:\n  {lines}",
            Place(first.kernel, first.filename, first.line, None, None),
        )
