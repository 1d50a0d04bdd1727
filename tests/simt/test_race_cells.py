"""What is left of a launch in a cell of the race detector, for the launches after it."""

import itertools

import pytest

from refopt.simt import cuda
from refopt.simt.watch.cells import Access, Cell

KINDS = "read", "write", "atomic"


def launch(stream=None):
    return (stream or cuda.stream()).enqueue("kernel")


def access(rank):
    return Access(rank, 1, None)


def record(cell, kind, one):
    """What the detector does with an access that is ordered after all it conflicts with."""
    if kind == "write":
        cell.write, cell.reads, cell.atomics = one, {}, {}
    else:
        (cell.reads if kind == "read" else cell.atomics)[one.key] = one


@pytest.mark.parametrize("kinds", [*itertools.product(KINDS, repeat=3)], ids="-".join)
def test_what_a_launch_leaves(kinds):
    """One access of each kind since the last write, and that write, for a launch that does not wait; else nothing."""
    a, b = cuda.stream(), cuda.stream()
    cell = Cell()
    cell.enter(launch(a))
    for rank, kind in enumerate(kinds):
        record(cell, kind, access(rank))
    last = max((i for i, kind in enumerate(kinds) if kind == "write"), default=0)
    cell.enter(launch(a))
    assert cell.pending == [] and (cell.write, cell.reads, cell.atomics) == (None, {}, {})
    cell.enter(launch(b))
    assert {past.kind for past in cell.pending} == set(kinds[last:]) and len(cell.pending) == len(set(kinds[last:]))


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("waits", [True, False])
def test_a_later_launch_stands_for_an_earlier_one(first, second, waits):
    """If it waited for it, and what must be ordered after the one must be after the other."""
    a, b = cuda.stream(), cuda.stream()
    cell = Cell()
    for kind, stream in ((first, a), (second, a if waits else b)):
        cell.enter(launch(stream))
        record(cell, kind, access(0))
    cell.enter(launch())
    kept = [first, second] if not waits or second not in ("write", first) else [second]
    assert [past.kind for past in cell.pending] == kept
