"""What the race detector keeps of a launch for those after it, and what fences release and acquire."""

import itertools

import pytest

from refopt.simt import cuda
from refopt.simt.watch.cells import Access, Cell, unordered
from refopt.simt.watch.clocks import KEY_BITS, ThreadClock, join, publish, share

KINDS = "read", "write", "atomic"


def launch(stream=None):
    return (stream or cuda.stream()).enqueue("kernel")


def access(rank, epoch=1, block=0):
    return Access(block << KEY_BITS | rank, epoch, None)


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


def test_a_cell_is_copied_not_shared():
    """What is recorded in one part is not in the other."""
    first = Cell()
    for _ in range(2):
        first.enter(launch())
        for rank, kind in enumerate(("write", "read", "atomic")):
            record(first, kind, access(rank))
    first.same = {7: access(7)}
    second = Cell(first)
    assert [second.write, second.reads, second.atomics, second.same] == [
        first.write, first.reads, first.atomics, first.same]
    assert len(first.pending) == 3 and (second.pending, second.older) == (first.pending, first.older)
    second.reads[5] = second.atomics[6] = second.same[8] = access(5)
    assert (set(first.reads), set(first.atomics), set(first.same)) == ({1}, {2}, {7})
    second.enter(launch())
    assert len(first.older) == 3 < len(second.older) and first.write == access(0)


def test_the_nearest_access_is_one_of_the_same_block():
    """Even if one of the block before has a number that is nearer."""
    clock = ThreadClock(1, 0, 600)
    accesses = [access(599, block=0), access(520, block=1), access(500, block=1), access(3, block=2)]
    found = unordered(clock, accesses)
    assert [divmod(one.key, 1 << KEY_BITS) for one in found] == [(1, 500), (1, 520), (0, 599), (2, 3)]


# Clocks.


def threads(count, block=0):
    return [ThreadClock(block, rank, count) for rank in range(count)]


def knows(clock, block, rank, epoch):
    return clock.knows(block << KEY_BITS | rank, epoch)


def test_publishing_changes_no_view_that_others_have():
    a, b = threads(2)
    join([a, b])
    before = a.view[0].tolist()
    publish([b])
    assert a.view[0].tolist() == before and a.view is b.view and (a.epoch, b.epoch) == (2, 3)


@pytest.mark.parametrize(("device", "acquired"), [*itertools.product([True, False], repeat=2)])
@pytest.mark.parametrize("other_block", [True, False])
@pytest.mark.parametrize(("release", "acquire"), [*itertools.product([True, False], repeat=2)])
def test_a_fence_an_atomic_and_a_fence(device, acquired, other_block, release, acquire):
    """Both fences are needed, and those of a block reach threads of that block alone. Nothing goes back."""
    first, second, location = threads(2)[0], threads(2, block=int(other_block))[1], {}
    if release:
        first.fence(device)
    first.atomic(location)
    second.atomic(location)
    assert not knows(second, 0, 0, 1)
    if acquire:
        second.fence(acquired)
    assert knows(second, 0, 0, 1) == (release and acquire and ((device and acquired) or not other_block))
    assert not knows(second, 0, 0, 2) and not knows(first, second.block, 1, 1)


def test_what_came_before_an_atomic_alone_is_released():
    """What a thread does between its fence and its atomic is not; the order of atomics counts."""
    first, second, location = threads(1)[0], threads(1, block=1)[0], {}
    second.atomic(location)
    first.fence(True)
    first.atomic(location)
    second.fence(True)
    assert not knows(second, 0, 0, 1)
    second.atomic(location)
    second.fence(True)
    assert knows(second, 0, 0, 1) and not knows(second, 0, 0, 2)


def test_a_fence_acquires_from_all_locations():
    first, second, reader = threads(1)[0], threads(1, block=1)[0], threads(1, block=2)[0]
    for writer in (first, second):
        writer.fence(True)
        writer.atomic(location := {})
        reader.atomic(location)
    reader.fence(True)
    assert knows(reader, 0, 0, 1) and knows(reader, 1, 0, 1)


def test_those_who_have_met_release_what_any_has_fenced():
    """But not what one of them fences later."""
    (a, b), reader, location = threads(2), threads(1, block=1)[0], {}
    a.fence(True)
    b.fence(True)
    share([a, b])
    join([a, b])
    b.fence(True)
    a.atomic(location)
    reader.atomic(location)
    reader.fence(True)
    assert knows(reader, 0, 0, 1) and knows(reader, 0, 1, 1) and not knows(reader, 0, 1, 2)
