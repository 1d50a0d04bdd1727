"""What memory the arrays of a bound program have: whether one that ops change shares it with another."""

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
    """Raise if an array that ops change shares memory with another one; names of no variable are left out.

    What is ``held`` stays behind its name unless ``arrays`` has another for it; some of what the caller has
    ``brought`` startup has moved into buffers.
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
    """Arrays that are no parts of others by the program: no blocks, and no views of a buffer."""
    buffers = {name: kept[name] for name in graph.views if name in kept}
    return {
        name: array for name, array in kept.items()
        if name not in graph.whole_of and not _within(array, buffers.get(graph.buffer_of.get(name, "")))
    }


def _within(array: Array, buffer: Array | None) -> bool:
    if buffer is None:
        return False
    start, stop = _span(buffer)
    return start <= array.address < stop


def _span(array: Array) -> tuple[int, int]:
    return array.address, array.address + array.size * ITEM_SIZES[array.dtype]


def _spans(graph: Graph, groups: Mapping[str, Mapping[str, Array]]) -> Iterator[tuple[int, int, bool, str]]:
    changed = {*graph.writers, *(cell for op in graph.startup for x in op.writes for cell in graph.memory(x))}
    for note, arrays in groups.items():
        for name, array in arrays.items():
            if array.size and array.dtype in ITEM_SIZES:  # other dtypes are refused later on
                written = not changed.isdisjoint((name, *graph.memory(name)))
                yield *_span(array), written, f"arrays: {name!r}{note}"
