"""What the race detector remembers of each byte, piece by piece: cells, how they are split, clocks."""

import itertools

import numpy as np
import pytest

from refopt.simt import cuda
from refopt.simt.clocks import ThreadClock, join, merge, publish
from refopt.simt.races import Access, Cell, Detector, Shadow

KINDS = "read", "write", "atomic"
CONFLICTS = {  # what an access of a kind must be ordered after
    "read": {"write", "atomic"},
    "write": {"write", "read", "atomic"},
    "atomic": {"write", "read"},
}


def launch(stream=None):
    return (stream or cuda.stream()).enqueue("kernel")


def access(kind, rank, operation, epoch=1, block=0):
    return Access(kind, operation, block, rank, epoch, None, (block, 0, 0), (rank, 0, 0))


def cell_of(*accesses):
    cell = Cell()
    for one in accesses:
        cell.record(one)
    return cell


# Cells.


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_the_first_access_is_remembered(first, second):
    """Whatever its kind: it is what the next one must be ordered after, if the two conflict."""
    one = access(first, 0, launch())
    assert cell_of(one).conflicts(second) == [one] * (first in CONFLICTS[second])


@pytest.mark.parametrize("kinds", [*itertools.product(KINDS, repeat=3)], ids="-".join)
def test_what_later_accesses_leave(kinds):
    """Of accesses by different threads, all since the last write are remembered, and that write; no other."""
    operation = launch()
    accesses = [access(kind, rank, operation) for rank, kind in enumerate(kinds)]
    last = max((i for i, kind in enumerate(kinds) if kind == "write"), default=0)
    for kind in KINDS:
        expected = [one for one in accesses[last:] if one.kind in CONFLICTS[kind]]
        assert sorted(cell_of(*accesses).conflicts(kind), key=accesses.index) == expected


@pytest.mark.parametrize("kind", ["read", "atomic"])
def test_one_access_of_each_thread(kind):
    """A thread's later access stands for its earlier ones; threads of other blocks, of the same rank, are others."""
    operation = launch()
    kept = [access(kind, 1, operation, epoch=7), access(kind, 2, operation), access(kind, 1, operation, block=1)]
    cell = cell_of(access(kind, 1, operation, epoch=5), *kept)
    assert set(cell.conflicts("write")) == set(kept)


@pytest.mark.parametrize("kind", ["read", "atomic"])
def test_accesses_of_earlier_launches(kind):
    """Those of a launch that is waited for are forgotten, whichever of its threads; those of any other stay."""
    a, b = cuda.stream(), cuda.stream()
    early = [access(kind, rank, operation) for operation in [launch(a)] for rank in range(3)]
    beside = access(kind, 0, launch(b))
    late = [access(kind, rank, operation) for operation in [launch(a)] for rank in range(2)]
    assert set(cell_of(*early, beside, *late).conflicts("write")) == {beside, *late}


def test_a_cell_is_copied_not_shared():
    """What is recorded in one part is not in the other."""
    operation = launch()
    write, read, atomic = (access(kind, rank, operation) for rank, kind in enumerate(("write", "read", "atomic")))
    first = cell_of(write, read, atomic)
    second = Cell(first)
    assert set(second.conflicts("write")) == {write, read, atomic}
    more = [access("read", 5, operation), access("atomic", 6, operation)]
    for one in more:
        second.record(one)
    assert set(first.conflicts("write")) == {write, read, atomic}
    second.record(access("write", 7, operation))
    assert set(first.conflicts("write")) == {write, read, atomic}


# Shadows: cells of as many bytes as accesses allow.


def shadow_of(*ranges):
    """A shadow with cells for some ranges, each with a writer, two readers and an atomic; and what is in them."""
    shadow, operation = Shadow(Detector()), launch()
    for number, (offset, nbytes) in enumerate(ranges):
        for rank, kind in enumerate(("write", "read", "read", "atomic")):
            for cell in shadow.at(offset, nbytes):
                cell.record(access(kind, 10 * number + rank, operation))
    return shadow


def ranks(cell):
    return sorted(one.rank for one in cell.conflicts("write"))


@pytest.mark.parametrize(
    ("offset", "nbytes", "width", "count"),
    [(0, 8, 8, 1), (8, 8, 8, 1), (0, 4, 4, 1), (4, 4, 4, 1), (6, 2, 2, 1), (3, 1, 1, 1), (4, 8, 4, 2), (2, 12, 2, 6)],
)
def test_a_split_forgets_nothing(offset, nbytes, width, count):
    """Each part of a cell has its writer, every reader and every atomic; cells beside are split as well."""
    shadow = shadow_of((0, 8), (8, 8))
    found = shadow.at(offset, nbytes)
    assert shadow.width == width and len(found) == count and len({id(cell) for cell in found}) == count
    for k, cell in enumerate(found):
        expected = [0, 1, 2, 3] if offset + k * width < 8 else [10, 11, 12, 13]
        assert ranks(cell) == expected
    for at in range(0, 16, width):
        assert ranks(shadow.at(at, width)[0]) == ([0, 1, 2, 3] if at < 8 else [10, 11, 12, 13])
    assert len(shadow.cells) == 16 // width


def test_splits_follow_each_other():
    """8 bytes to 4, 2 and 1; what was recorded in between stays with its bytes."""
    shadow, operation = shadow_of((0, 8)), launch()
    for rank, (offset, nbytes) in enumerate([(4, 4), (2, 2), (7, 1)], start=20):
        for cell in shadow.at(offset, nbytes):
            cell.record(access("read", rank, operation))
    everywhere = [0, 1, 2, 3]
    expected = [everywhere] * 2 + [[*everywhere, 21]] * 2 + [[*everywhere, 20]] * 3 + [[*everywhere, 20, 22]]
    assert [ranks(shadow.at(at, 1)[0]) for at in range(8)] == expected
    shadow.at(0, 4)[1].record(access("write", 30, operation))
    assert [ranks(shadow.at(at, 1)[0]) for at in range(3)] == [everywhere, [30], [*everywhere, 21]]


def test_bytes_that_nobody_accessed_have_no_past():
    shadow = shadow_of((8, 4))
    assert [cell.conflicts("write") for cell in shadow.at(0, 8)] == [[], []]
    assert [ranks(cell) for cell in shadow.at(8, 8)] == [[0, 1, 2, 3], []]


# Clocks.


def threads(count, block=0):
    return [ThreadClock(block, rank, count) for rank in range(count)]


def known(clock, other):
    """Whether what the other did before it last published is known, and what it did since."""
    return clock.knows(other.block, other.rank, other.epoch - 1), clock.knows(other.block, other.rank, other.epoch)


def test_who_has_met_knows_the_other_both_ways():
    """What each did before is known to all, what each does afterwards to itself alone."""
    clocks = threads(4)
    assert not any(a.knows(b.block, b.rank, 1) for a, b in itertools.permutations(clocks, 2))
    join(clocks)
    assert all(known(a, b) == (True, False) for a, b in itertools.permutations(clocks, 2))
    assert all(a.knows(a.block, a.rank, a.epoch) for a in clocks)


@pytest.mark.parametrize("who", [c for n in (1, 2, 3) for c in itertools.combinations(range(4), n)], ids=str)
def test_who_has_not_met_knows_nothing(who):
    """Some of the threads meet: each pair of them knows each other, no other pair does."""
    clocks = threads(4)
    join([clocks[rank] for rank in who])
    for a, b in itertools.permutations(range(4), 2):
        assert clocks[a].knows(0, b, 1) == (a in who and b in who)


def test_what_is_known_is_passed_on_and_not_back():
    """0 meets 1, 1 meets 2: 2 knows 0, and 0 does not know 2."""
    a, b, c = threads(3)
    join([a, b])
    join([b, c])
    assert known(c, a) == (True, False) and c.knows(0, 1, 2) and not a.knows(0, 1, 2) and not a.knows(0, 2, 1)
    join([a, b])
    assert a.knows(0, 2, 1) and not a.knows(0, 2, 2)


def test_blocks_are_told_apart():
    """Threads of one rank in two blocks; meeting, all know of both blocks."""
    here, there = threads(2, block=0), threads(3, block=5)
    join(here)
    assert not here[0].knows(5, 1, 1) and here[0].knows(0, 1, 1)
    join([*here, *there])
    assert all(a.knows(b.block, b.rank, 1) for a in here + there for b in here + there)
    assert here[0].knows(0, 1, 2) and not here[0].knows(5, 1, 2)


def test_merging_takes_the_most_of_each():
    views = [{0: np.array([1, 5])}, {0: np.array([4, 2]), 3: np.array([7])}, {}]
    merged = merge(views)
    assert {block: vector.tolist() for block, vector in merged.items()} == {0: [4, 5], 3: [7]}
    assert views[0][0].tolist() == [1, 5] and merge([]) == {} and merge([views[1], views[1]]) is views[1]


def test_publishing_changes_no_view_that_others_have():
    a, b = threads(2)
    join([a, b])
    before = a.view[0].tolist()
    publish([b])
    assert a.view[0].tolist() == before and a.view is b.view and (a.epoch, b.epoch) == (2, 3)


@pytest.mark.parametrize("device", [True, False])
@pytest.mark.parametrize("other_block", [True, False])
@pytest.mark.parametrize(("release", "acquire"), [*itertools.product([True, False], repeat=2)])
def test_a_fence_an_atomic_and_a_fence(device, other_block, release, acquire):
    """Both fences are needed, and those of a block reach threads of that block alone. Nothing goes back."""
    first, second, location = threads(2)[0], threads(2, block=int(other_block))[1], {}
    if release:
        first.fence(device)
    first.atomic(location)
    second.atomic(location)
    assert not second.knows(0, 0, 1)
    if acquire:
        second.fence(device)
    assert second.knows(0, 0, 1) == (release and acquire and (device or not other_block))
    assert not second.knows(0, 0, 2) and not first.knows(second.block, 1, 1)


def test_what_came_before_an_atomic_alone_is_released():
    """What a thread does between its fence and its atomic is not; the order of atomics counts."""
    first, second, location = threads(1)[0], threads(1, block=1)[0], {}
    second.atomic(location)
    first.fence(True)
    first.atomic(location)
    second.fence(True)
    assert not second.knows(0, 0, 1)
    second.atomic(location)
    second.fence(True)
    assert second.knows(0, 0, 1) and not second.knows(0, 0, 2)


def test_an_atomic_gathers_what_several_have_released():
    """A counter that three threads add to passes on what all of them did."""
    several, reader, location = threads(3), threads(1, block=1)[0], {}
    for clock in several:
        clock.fence(True)
        clock.atomic(location)
    reader.atomic(location)
    reader.fence(True)
    assert all(reader.knows(0, rank, 1) for rank in range(3))
