"""A training step as a list of ops over named arrays, which passes rewrite and `bind` runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refopt.checks.arguments import flag, shown, whole
from refopt.program import dataflow, listing
from refopt.program.graph import Graph

WIDTH = 20, 10_000  # columns of a listing, at least and at most


@dataclass(frozen=True)
class Program(Graph):
    """The ops of startup and of every step. It is immutable; `replace` makes another one."""

    __hash__ = Graph.__hash__

    def check(self) -> None:
        """Check the program.

        Every input must be persistable, made at startup, or made by an earlier op; ops of known types must have the
        slots, shapes, dtypes and attributes that they need.

        Raises:
            ValueError, TypeError: naming the op by its index.
        """
        dataflow.check(self)

    def listing(self, width: int = 100, fold: bool = False) -> str:
        """The program as text.

        Args:
            width: the most columns.
            fold: whether to leave out most of a long run of like ops.
        """
        return listing.text(self, whole("listing: width", width, *WIDTH), flag("listing: fold", fold))

    def __str__(self) -> str:
        return self.listing()


def expect_program(where: str, value: Any) -> None:
    """Raise unless a function's argument ``program`` is a `Program`."""
    if not isinstance(value, Program):
        raise TypeError(f"{where}: program: expected a Program, got {shown(value)}")


def side_by_side(before: Program, after: Program, width: int = 120) -> str:
    """Two programs next to each other, long runs of like ops folded.

    Args:
        before, after: the programs.
        width: columns at most.
    """
    for name, value in (("before", before), ("after", after)):
        if not isinstance(value, Program):
            raise TypeError(f"side_by_side: {name}: expected a Program, got {shown(value)}")
    return listing.side_by_side(before, after, whole("side_by_side: width", width, *WIDTH))
