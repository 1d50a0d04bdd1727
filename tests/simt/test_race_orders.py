"""Races that only a detector finds that remembers every access, and every order: each beside its ordered twin."""

import itertools
import operator

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from refopt.simt.machine import atomics
from simt.cases import is_race
from simt.test_races import race, zeros

# Lanes of one warp, which meet by masks. What a lane does is one of these, on bytes 0 to 7 of x.


def read(nbytes, at):
    kind = np.dtype(f"u{nbytes}")
    return cuda.jit(device=True)(lambda x: x.view(kind)[at // nbytes])


def write(nbytes, at):
    kind = np.dtype(f"u{nbytes}")

    @cuda.jit(device=True)
    def store(x):
        x.view(kind)[at // nbytes] = 1

    return store


def add(nbytes, at):
    """Of a byte, too, which no GPU has."""
    kind = np.dtype(f"u{nbytes}")
    return simt.ptx_twin()(lambda x: atomics._update(x.view(kind), at // nbytes, 1, operator.add, {kind.name}))


def lanes(*steps):
    """A kernel of lanes: a step is what some lane does, or a mask of lanes that meet."""

    def body(x):
        for step in steps:
            if isinstance(step, int):
                if step >> cuda.laneid & 1:
                    cuda.syncwarp(step)
            elif step[0] == cuda.laneid:
                step[1](x)

    return body


WIDE, NARROW = (8, 0), (1, 3)
KINDS = {"read": read, "write": write, "add": add}
CONFLICTING = [pair for pair in itertools.product(KINDS, repeat=2) if "write" in pair or set(pair) == {"read", "add"}]


@pytest.mark.parametrize(("first", "second"), CONFLICTING, ids="-".join)
@pytest.mark.parametrize(("of_first", "of_second"), [(WIDE, NARROW), (NARROW, WIDE), (NARROW, NARROW)])
def test_two_widths_on_one_byte(first, second, of_first, of_second):
    """Whichever comes first, and however many bytes it has of which the other takes one."""
    one, other = KINDS[first](*of_first), KINDS[second](*of_second)
    assert race(lanes((0, one), (1, other)), zeros(8, np.uint8)) is True
    assert race(lanes((0, one), 0b11, (1, other)), zeros(8, np.uint8)) is False


def test_bytes_beside_each_other():
    for one, other in itertools.product(KINDS.values(), repeat=2):
        assert race(lanes((0, one(2, 2)), (1, other(1, 1))), zeros(8, np.uint8)) is False


@pytest.mark.parametrize("kind", ["read", "add"])
@pytest.mark.parametrize("at", [0, 2, 7])
@pytest.mark.parametrize("met", range(8))
def test_every_part_of_a_split_has_all_accesses_of_the_whole(kind, at, met):
    """Three lanes access a word, a fourth splits it at byte 2, a fifth overwrites a byte: it has to have met each."""
    body = lanes(
        *((lane, KINDS[kind](8, 0)) for lane in range(3)), (3, KINDS[kind](1, 2)), 0b11000 | met, (4, write(1, at)))
    assert race(body, zeros(8, np.uint8), block=5) is (met != 0b111)


@pytest.mark.parametrize("splitter", ["read", "write", "add"])
@pytest.mark.parametrize("at", [0, 2, 7])
@pytest.mark.parametrize(("met", "orders"), [(0b100, ()), (0b101, (0, 7)), (0b110, (0, 2, 7))])
def test_every_part_of_a_split_has_the_writer_of_the_whole(splitter, at, met, orders):
    """Lane 0 writes a word, lane 1 has met it and splits the word at byte 2, lane 2 overwrites a byte."""
    body = lanes((0, write(8, 0)), 0b011, (1, KINDS[splitter](1, 2)), met, (2, write(1, at)))
    assert race(body, zeros(8, np.uint8), block=3) is (at not in orders)


@pytest.mark.parametrize("kind", ["read", "add"])
@pytest.mark.parametrize("met", range(8))
def test_a_writer_after_several(kind, met):
    """Three lanes read, or add to, an element that a fourth overwrites: it has to have met each of them."""
    body = lanes(*((lane, KINDS[kind](4, 0)) for lane in range(3)), 0b1000 | met, (3, write(4, 0)))
    assert race(body, zeros(1, np.uint32), block=4) is (met != 0b111)


@pytest.mark.parametrize("later", ["read", "add"])
@pytest.mark.parametrize("earlier", KINDS)
def test_an_ordered_access_hides_none_before_it(earlier, later):
    """Lane 1 has met lane 0, lane 2 has not: it races with lane 0 if the kinds conflict, whatever lane 1 does."""
    for between in KINDS:
        if between == "write":
            continue
        body = lanes((0, KINDS[earlier](4, 0)), 0b11, (1, KINDS[between](4, 0)), (2, KINDS[later](4, 0)))
        pairs = (earlier, later), (between, later)
        assert race(body, zeros(1, np.uint32), block=3) is any(pair in CONFLICTING for pair in pairs)


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_an_own_access_is_ordered(first, second):
    """What a thread did itself, an atomic as the first access too, is no race with what it does next."""
    body = lanes((0, KINDS[first](4, 0)), (0, KINDS[second](4, 0)), (0, KINDS[first](1, 1)))
    assert race(body, zeros(1, np.uint32)) is False


def test_what_comes_after_a_meeting_is_not_ordered_by_it():
    """An epoch ends when threads meet."""
    for one, other in CONFLICTING:
        assert race(lanes(0b11, (0, KINDS[one](4, 0)), (1, KINDS[other](4, 0)), 0b11), zeros(1, np.uint32)) is True


@pytest.mark.parametrize(("writer", "meetings", "reader", "found"), [
    (0, (0b011, 0b110), 2, False), (0, (0b110, 0b011), 2, True), (0, (0b101, 0b110), 2, False), (0, (0b011,), 2, True),
    (0, (0b110,), 2, True), (2, (0b011, 0b110), 0, True), (2, (0b110, 0b011), 0, False)])
def test_meetings_in_a_row(writer, meetings, reader, found):
    """Directly or through lane 1, in the right order: who met another before that met a third knows nothing of it."""
    assert race(lanes((writer, write(4, 0)), *meetings, (reader, read(4, 0))), zeros(1, np.uint32), block=3) is found


# Everyone with everyone.

ORDERS = {
    "syncthreads": (cuda.syncthreads, 1), "syncthreads_count": (lambda: cuda.syncthreads_count(1), 1),
    "syncthreads_and": (lambda: cuda.syncthreads_and(1), 1), "syncthreads_or": (lambda: cuda.syncthreads_or(0), 1),
    "syncwarp": (cuda.syncwarp, 1), "shfl": (lambda: cuda.shfl_sync(-1, 0, 3), 1),
    "shfl_up": (lambda: cuda.shfl_up_sync(-1, 0, 1), 1), "shfl_down": (lambda: cuda.shfl_down_sync(-1, 0, 1), 1),
    "shfl_xor": (lambda: cuda.shfl_xor_sync(-1, 0, 1), 1), "all": (lambda: cuda.all_sync(-1, 1), 1),
    "any": (lambda: cuda.any_sync(-1, 0), 1), "eq": (lambda: cuda.eq_sync(-1, 1), 1),
    "ballot": (lambda: cuda.ballot_sync(-1, 1), 1), "match_any": (lambda: cuda.match_any_sync(-1, 1), 1),
    "match_all": (lambda: cuda.match_all_sync(-1, 1), 1), "grid": (lambda: cuda.cg.this_grid().sync(), 3)}


@pytest.mark.parametrize("name", ORDERS)
def test_all_threads_know_all(name):
    """Each thread writes an element, then reads all: every one of the pairs is ordered, in both directions."""
    order, blocks = ORDERS[name]
    order = cuda.jit(device=True)(order)

    def body(x):
        x[cuda.grid(1)] = 1
        order()
        for i in range(x.size):
            x[i]

    def too_late(x):
        order()
        x[cuda.grid(1)] = 1
        for i in range(x.size):
            x[i]

    size = 6 * blocks
    if name.startswith(("shfl", "all", "any", "eq", "ballot", "match")):  # unless told otherwise these order no memory
        assert race(body, zeros(size), grid=blocks, block=6) is True
    assert race(body, zeros(size), grid=blocks, block=6, lenient="warp-order") is False
    assert race(too_late, zeros(size), grid=blocks, block=6) is True


@pytest.mark.parametrize("writer", range(4))
@pytest.mark.parametrize("mask", range(1, 16))
def test_lanes_that_a_mask_leaves_out(writer, mask):
    """One lane writes and another reads: ordered if the mask has both."""
    for reader in {0, 3} - {writer}:
        body = lanes((writer, write(4, 0)), mask, (reader, read(4, 0)))
        assert race(body, zeros(1, np.uint32), block=4) is not (mask >> writer & mask >> reader & 1 == 1)


# Kernels one after another.


@cuda.jit
def reads(x):
    x[cuda.threadIdx.x]


@cuda.jit
def writes(x):
    x[cuda.threadIdx.x] = 1


@cuda.jit
def adds(x):
    cuda.atomic.add(x, cuda.threadIdx.x, 1)


def found(work):
    """Whether work on an array and four streams is found to race."""
    x = cuda.to_device(np.zeros(4, np.int32))
    cuda.synchronize()
    return is_race(work, x, *(cuda.stream() for _ in range(4)))


def wait(later, *earlier):
    """Let a stream wait for what others have by now."""
    for stream in earlier:
        event = cuda.event()
        event.record(stream)
        event.wait(later)


def launching(kernel):
    return lambda x, stream: kernel[1, 4, stream](x)


ACCESSES = {
    "read": (launching(reads), "read"), "write": (launching(writes), "write"), "add": (launching(adds), "add"),
    "to the host": (lambda x, stream: x.copy_to_host(stream=stream), "read"),
    "to the device": (lambda x, stream: x.copy_to_device(np.ones(4, np.int32), stream=stream), "write"),
    "to another array": (lambda x, stream: cuda.device_array(4, np.int32).copy_to_device(x, stream=stream), "read"),
    "from another array": (lambda x, stream: x.copy_to_device(cuda.device_array(4, np.int32), stream=stream), "write")}


RACING = [
    lambda x, one, other, a, b: (one(x, a), other(x, b)),
    lambda x, one, other, a, b: (one(x, a), wait(a, b), other(x, b))]
ORDERED = {
    "on one stream": lambda x, one, other, a, b: (one(x, a), other(x, a)),
    "behind an event": lambda x, one, other, a, b: (one(x, a), wait(b, a), other(x, b)),
    "behind the host": lambda x, one, other, a, b: (one(x, a), a.synchronize(), other(x, b)),
    "first on the default stream": lambda x, one, other, a, b: (one(x, 0), other(x, b)),
    "then on the default stream": lambda x, one, other, a, b: (one(x, a), other(x, 0))}


@pytest.mark.parametrize("first", ACCESSES)
@pytest.mark.parametrize("second", ACCESSES)
def test_kernels_and_copies_are_accesses(first, second):
    """On two streams they race if one of them writes; on one, behind an event, or the host's waiting, they do not."""
    (one, kind), (other, then) = ACCESSES[first], ACCESSES[second]
    for steps in RACING:
        assert found(lambda x, a, b, *_, steps=steps: steps(x, one, other, a, b)) is ((kind, then) in CONFLICTING)
    for name, steps in ORDERED.items():
        assert found(lambda x, a, b, *_, steps=steps: steps(x, one, other, a, b)) is False, name


@pytest.mark.parametrize("readers", [["read"] * 3, ["to the host"] * 3, ["read", "to another array", "to the host"]])
@pytest.mark.parametrize("writer", ["write", "add", "to the device", "from another array"])
@pytest.mark.parametrize("waits", range(8))
def test_a_writer_after_readers_on_several_streams(readers, writer, waits):
    """Each of them has to be waited for, not the last, or the first, alone."""

    def work(x, a, b, c, d):
        for name, stream in zip(readers, (a, b, c), strict=True):
            ACCESSES[name][0](x, stream)
        wait(d, *(stream for k, stream in enumerate((a, b, c)) if waits >> k & 1))
        ACCESSES[writer][0](x, d)

    assert found(work) is (waits != 0b111)
