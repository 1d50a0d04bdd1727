"""Device memory that nobody has written: what counts as writing it, and what is known across launches."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, memory
from refopt.simt.memory.buffers import Buffer
from refopt.simt.memory.initialized import blank


@cuda.jit
def read(x, i):
    x[i]


@cuda.jit
def write(x, i):
    x[i] = 1


@cuda.jit
def write_at(address):
    memory.store(address, np.float32, (1,))


@cuda.jit
def write_at_entry(table):
    memory.store(int(table[0]), np.float32, (1,))


def unwritten(x):
    """The indices of a one-dimensional array that may not be read."""
    refused = []
    for i in range(x.size):
        try:
            with simt.observe(watch=True):
                read[1, 1](x, i)
        except simt.UninitializedRead as error:
            assert error.line == read.py_func.__code__.co_firstlineno + 2 and error.kernel == "read"
            refused.append(i)
    return refused


def fresh(n=4):
    return cuda.device_array(n, np.float32)


def ones(n):
    return np.ones(n, np.float32)


def half_fresh():
    x = fresh()
    x[1:3].copy_to_device(ones(2))
    return x


def observed_launch(x, **options):
    with simt.observe(**options):
        write[1, 1](x, 2)


LEFT = {
    "part": (lambda x: x[:2].copy_to_device(ones(2)), [2, 3]),
    "every second": (lambda x: x[::2].copy_to_device(ones(2)), [1, 3]),
    "whole": (lambda x: x.copy_to_device(ones(4)), []), "an element": (lambda x: x.__setitem__(3, 1), [0, 1, 2]),
    "from fresh memory": (lambda x: x.copy_to_device(fresh()), [0, 1, 2, 3]),
    "from memory that is fresh in part": (lambda x: x.copy_to_device(half_fresh()), [0, 3]),
    "from every second element": (lambda x: x[:2].copy_to_device(half_fresh()[::2]), [0, 2, 3]),
    "from written memory": (lambda x: x[1:].copy_to_device(cuda.to_device(ones(3))), [0]),
    "written, then from fresh memory": (
        lambda x: (x[:3].copy_to_device(ones(3)), x[1:].copy_to_device(fresh()[1:])), [1, 2, 3]),
    "a watched launch": (lambda x: observed_launch(x, watch=True), [0, 1, 3]),
    "another launch": (lambda x: write[1, 1](fresh(), 0), [0, 1, 2, 3])}
UNKNOWN = {
    "a launch": lambda x: write[1, 1](x, 2), "a counted launch": lambda x: observed_launch(x, count=True),
    "a launch with its address": lambda x: write_at[1, 1](x.address + 4),
    "a launch with a table of addresses": lambda x: write_at_entry[1, 1](np.array([x.address], np.int64)),
    "a launch with unsigned addresses": lambda x: write_at_entry[1, 1](np.array([x.address], np.uint64))}


@pytest.mark.parametrize(("write_to", "left"), LEFT.values(), ids=LEFT)
def test_what_has_been_written_is_known(write_to, left):
    x = fresh()
    assert unwritten(x) == [0, 1, 2, 3]
    write_to(x)
    assert unwritten(x) == left


@pytest.mark.parametrize("write_to", UNKNOWN.values(), ids=UNKNOWN)
def test_what_was_not_watched_counts_as_written(write_to):
    """A launch that may have written somewhere is believed to have written everywhere."""
    x = fresh()
    write_to(x)
    assert unwritten(x) == []


@pytest.mark.parametrize("write_to", [*UNKNOWN.values(), LEFT["a watched launch"][0]])
def test_what_comes_after_is_known_again(write_to):
    write_to(fresh())
    assert unwritten(fresh()) == [0, 1, 2, 3]


def test_the_bytes_between_fields_count_as_written():
    """In any number of bytes."""
    buffer = Buffer(27)
    buffer.dtype = np.dtype([("a", np.int8), ("b", np.float32)], align=True)
    assert [*blank(buffer)] == [0, 1, 1, 1, 0, 0, 0, 0] * 3 + [0] * 3


def test_views_share_what_is_known():
    x = fresh()
    x[:2].copy_to_device(ones(2))
    assert unwritten(x.view(np.int16)) == [4, 5, 6, 7] and unwritten(x[1:]) == [1, 2]
    assert unwritten(cuda.device_array_like(x)) == [0, 1, 2, 3] and unwritten(cuda.to_device(np.ones(2))) == []


def test_local_arrays_are_watched_one_by_one():
    @cuda.jit
    def kernel(out, upto):
        mine = cuda.local.array((2, 3), np.float32)
        for i in range(upto):
            mine[i // 3, i % 3] = i
        mine[0, :2] = 7
        out[0] = mine[1, 2] + mine.sum()

    out = np.zeros(1, np.float32)
    with simt.observe(watch=True):
        kernel[1, 1](out, 6)
    assert out[0] == 5 + 14 + 2 + 3 + 4 + 5
    for upto in (0, 5):
        with pytest.raises(simt.UninitializedRead, match="local array mine") as caught, simt.observe(watch=True):
            kernel[1, 1](out, upto)
        assert caught.value.thread == (0, 0, 0)
    with simt.observe(watch=True, lenient="uninitialized"):
        kernel[1, 1](out, 0)
