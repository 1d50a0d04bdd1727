"""What the race detector remembers of each byte, piece by piece: cells, how they are split, clocks."""

import itertools

import numpy as np
import pytest

from refopt.simt import cuda
from refopt.simt.rules import DEFAULT
from refopt.simt.watch.cells import Access, Cell, Shadow, unordered
from refopt.simt.watch.clocks import KEY_BITS, ThreadClock, join, merge, publish, share
from refopt.simt.watch.races import Detector

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


# Cells.


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


# Shadows: cells of as many bytes as accesses allow.


def shadow_of(*ranges):
    """A shadow with cells for some ranges, each with a writer, two readers and an atomic; and what is in them."""
    shadow = Shadow(Detector(DEFAULT, lambda error: None))
    for number, (offset, nbytes) in enumerate(ranges):
        for rank, kind in enumerate(("write", "read", "read", "atomic")):
            for cell in shadow.at(offset, nbytes):
                record(cell, kind, access(10 * number + rank))
    return shadow


def ranks(cell):
    accesses = [*([cell.write] if cell.write else []), *cell.reads.values(), *cell.atomics.values()]
    return sorted(one.key for one in accesses)


@pytest.mark.parametrize(("offset", "nbytes", "width", "count"), [
    (0, 8, 8, 1), (8, 8, 8, 1), (0, 4, 4, 1), (4, 4, 4, 1), (6, 2, 2, 1), (3, 1, 1, 1), (4, 8, 4, 2), (2, 12, 2, 6)])
def test_a_split_forgets_nothing(offset, nbytes, width, count):
    """Each part of a cell has its writer, every reader and every atomic; cells beside are split as well."""
    shadow = shadow_of((0, 8), (8, 8))
    found = shadow.at(offset, nbytes)
    assert shadow.width == width and len(found) == count and len({id(cell) for cell in found}) == count
    for k, cell in enumerate(found):
        assert ranks(cell) == ([0, 1, 2, 3] if offset + k * width < 8 else [10, 11, 12, 13])
    for at in range(0, 16, width):
        assert ranks(shadow.at(at, width)[0]) == ([0, 1, 2, 3] if at < 8 else [10, 11, 12, 13])
    assert len(shadow.cells) == 16 // width


def test_splits_follow_each_other():
    """8 bytes to 4, 2 and 1; what was recorded in between stays with its bytes."""
    shadow = shadow_of((0, 8))
    for rank, (offset, nbytes) in enumerate([(4, 4), (2, 2), (7, 1)], start=20):
        for cell in shadow.at(offset, nbytes):
            record(cell, "read", access(rank))
    everywhere = [0, 1, 2, 3]
    expected = [everywhere] * 2 + [[*everywhere, 21]] * 2 + [[*everywhere, 20]] * 3 + [[*everywhere, 20, 22]]
    assert [ranks(shadow.at(at, 1)[0]) for at in range(8)] == expected
    record(shadow.at(0, 4)[1], "write", access(30))
    assert [ranks(shadow.at(at, 1)[0]) for at in range(3)] == [everywhere, [30], [*everywhere, 21]]


def test_bytes_that_nobody_accessed_have_no_past():
    shadow = shadow_of((8, 4))
    assert [ranks(cell) for cell in shadow.at(0, 8)] == [[], []]
    assert [ranks(cell) for cell in shadow.at(8, 8)] == [[0, 1, 2, 3], []]


# Clocks.


def threads(count, block=0):
    return [ThreadClock(block, rank, count) for rank in range(count)]


def knows(clock, block, rank, epoch):
    return clock.knows(block << KEY_BITS | rank, epoch)


@pytest.mark.parametrize("who", [c for n in (1, 2, 3, 4) for c in itertools.combinations(range(4), n)], ids=str)
def test_those_who_have_met_know_each_other(who):
    """Some of the threads meet: each pair of them knows what the other did before, no other pair does."""
    clocks = threads(4)
    join([clocks[rank] for rank in who])
    for a, b in itertools.permutations(range(4), 2):
        assert knows(clocks[a], 0, b, 1) == (a in who and b in who) and not knows(clocks[a], 0, b, 2)
        assert knows(clocks[a], 0, a, 1 + (a in who))


def test_blocks_are_told_apart():
    """Threads of one rank in two blocks; meeting, all know of both blocks."""
    here, there = threads(2, block=0), threads(3, block=5)
    join(here)
    assert not knows(here[0], 5, 1, 1) and knows(here[0], 0, 1, 1)
    join([*here, *there])
    assert all(knows(a, b.block, b.rank, 1) for a in here + there for b in here + there)
    assert knows(here[0], 0, 1, 2) and not knows(here[0], 5, 1, 2)


def test_merging_takes_the_most_of_each():
    views = [{0: np.array([1, 5])}, {0: np.array([4, 2]), 3: np.array([7])}, {}]
    assert {block: vector.tolist() for block, vector in merge(views).items()} == {0: [4, 5], 3: [7]}
    assert views[0][0].tolist() == [1, 5] and merge([]) == {} and merge([views[1], views[1]]) is views[1]


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
