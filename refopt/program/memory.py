"""Checks whether an array that ops of a bound program change shares memory with another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from refopt.checks import Array
from refopt.checks.arrays import refuse_overlaps
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program.backends import Backend
from refopt.program.graph import Graph

Held = Mapping[str, Any]


def refuse_shared(
    where: str, graph: Graph, arrays: Mapping[str, Any], backend: Backend, held: Held | None = None,
    brought: Held | None = None,
) -> None:
    """Raise if an array that ops change shares memory with another one; names of unknown variables are ignored.

    Arrays ``held`` are kept unless ``arrays`` replaces them; startup has moved some of the arrays that the caller has
    ``brought`` into buffers.
    """
    now = {} if held is None else held
    described = {
        name: backend.describe(x, f"{where}: arrays: {name!r}") for name, x in arrays.items() if name in graph.vars
    }
    kept = {name: backend.describe(x, name) for name, x in now.items()}
    fresh = {name: array for name, array in described.items() if name not in kept or array != kept[name]}
    others = {name: array for name, array in _roots(graph, kept).items() if name not in fresh}
    left = {
        name: backend.describe(x, name) for name, x in (brought or {}).items()
        if x is not now.get(name) and name not in arrays
    }
    refuse_overlaps(where, _spans(graph, {"": fresh, " as it is now": others, " as it was given": left}))


def _roots(graph: Graph, kept: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays that the program does not make parts of others: neither blocks nor views of a buffer."""
    buffers = {name: kept[name] for name in graph.views if name in kept}
    return {
        name: array for name, array in kept.items()
        if name not in graph.whole_of and not _within(array, buffers.get(graph.buffer_of.get(name, "")))
    }


def _within(array: Array, buffer: Array | None) -> bool:
    if buffer is None:
        return False
    start, stop = buffer.span
    return start <= array.address < stop


def _spans(graph: Graph, groups: Mapping[str, Mapping[str, Array]]) -> Iterator[tuple[int, int, bool, str]]:
    changed = {*graph.writers, *(cell for op in graph.startup for x in op.writes for cell in graph.memory(x))}
    for note, arrays in groups.items():
        for name, array in arrays.items():
            if array.size and array.dtype in ITEM_SIZES:  # other dtypes are refused later
                written = not changed.isdisjoint((name, *graph.memory(name)))
                yield *array.span, written, f"arrays: {name!r}{note}"
