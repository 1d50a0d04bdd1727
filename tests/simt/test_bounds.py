"""Indices outside arrays."""

import functools
from collections import namedtuple
from contextlib import nullcontext

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda

INDICES = {
    "past the end": lambda x: x[3, 0], "before the start": lambda x: x[-4, 0], "second": lambda x: x[0, 4],
    "row": lambda x: x[3], "row, then column": lambda x: x[2][4], "in a view": lambda x: x[1:][2, 0],
    "written": lambda x: x.__setitem__((0, 5), 1), "atomic": lambda x: cuda.atomic.add(x, (0, 4), 1),
    "reshaped": lambda x: x.reshape(12)[12], "transposed": lambda x: x.T[0, 3]}


OBSERVE = pytest.mark.parametrize("observe", [None, {"count": True}, {"watch": True, "count": False}])


def error_of(access, kind, observe):
    """What ends a kernel whose second thread accesses an array so."""

    access = simt.ptx_twin()(access)

    def body(x):
        cuda.syncthreads()
        if cuda.threadIdx.x == 1:
            access(x)

    x = cuda.to_device(np.zeros((3, 4), np.float32))
    with pytest.raises(kind) as caught, simt.observe(**observe) if observe else nullcontext():
        cuda.jit(body)[2, 2](x)
    return caught.value


@OBSERVE
@pytest.mark.parametrize("access", INDICES.values(), ids=INDICES)
def test_out_of_bounds(access, observe):
    error = error_of(access, simt.OutOfBounds, observe)
    assert (error.kernel, error.filename, error.line) == ("body", __file__, access.__code__.co_firstlineno)
    assert (error.block, error.thread) == ((0, 0, 0), (1, 0, 0))
    if observe:
        assert error.array == "x" and error.index is not None and "float32" in str(error)


def raises(error):
    raise error


OWN = {
    "a tuple": (lambda x: (1, 2)[2], IndexError, "tuple index out of range"),
    "a list": (lambda x: [][0], IndexError, "list index out of range"),
    "raised by the kernel": (lambda x: raises(IndexError("no such rule")), IndexError, "no such rule"),
    "raised in the words of NumPy": (
        lambda x: raises(IndexError("index 3 is out of bounds for axis 0 with size 3")), IndexError, "index 3 is out"),
    "a scalar": (lambda x: x[0, 0][0], IndexError, "invalid index to scalar variable"),
    "an index that is none": (lambda x: x["a"], IndexError, "only integers, slices"),
    "a key": (lambda x: {}[0], KeyError, "0")}


@OBSERVE
@pytest.mark.parametrize("what", OWN)
def test_errors_of_other_things_are_what_they_are(what, observe):
    """A tuple, a list or text that is too short is no access to memory; the note says which thread it was."""
    access, kind, message = OWN[what]
    error = error_of(access, kind, observe)
    assert type(error) is kind and message in str(error)
    assert "in kernel body" in error.__notes__[0] and "thread (1, 0, 0)" in error.__notes__[0]
    cuda.jit(lambda x: None)[1, 1](np.zeros(1))


def test_arrays_in_tuples_are_named():
    """By their place, in tuples of tuples too, whose names of parts stay."""
    pair = namedtuple("pair", "first second")

    @cuda.jit
    def kernel(both):
        both.second[1][2] = both.first[0]

    for size, name in ((0, "both[0]"), (1, "both[1][1]")):
        with pytest.raises(simt.OutOfBounds) as caught, simt.observe():
            kernel[1, 1](pair(np.zeros(size), (np.zeros(3), np.zeros(2))))
        assert caught.value.array == name


def test_an_array_may_have_no_name_on_the_line():
    def over_lines(x):
        x[
            5
        ] = 1

    get = simt.ptx_twin()(lambda x: functools.partial(x.__getitem__, 5)())
    for kernel in (over_lines, lambda x: get(x)):
        with pytest.raises(simt.OutOfBounds, match="index 5 is out of bounds") as caught:
            cuda.jit(kernel)[1, 1](np.zeros(3))
        assert (caught.value.array, caught.value.index) == (None, 5)


@pytest.mark.parametrize("watch", [False, True])
def test_negative_indices_wrap_as_in_numba(watch):
    @cuda.jit
    def kernel(x):
        x[-1] = x[-3] + 1
        x[1:][-2] += 5

    x = cuda.to_device(np.arange(3))
    with simt.observe(watch=watch) as log:
        kernel[1, 1](x)
    assert x.copy_to_host().tolist() == [0, 6, 1]
    assert [log.bytes_written(x[i : i + 1]) for i in range(3)] == [0, 8, 8]


def test_a_record_that_is_watched_is_shown():
    shown = []
    show = simt.ptx_twin()(lambda x: shown.append(repr(x[0])))

    def kernel(x):
        show(x)

    with simt.observe(watch=True):
        cuda.jit(kernel)[1, 1](cuda.to_device(np.array([(1, 2)], [("a", np.int32), ("b", np.int32)])))
    assert "(1, 2)" in shown[0]


@pytest.mark.parametrize("watch", [False, True])
def test_arguments_are_aligned(watch):
    """A GPU loads elements whole; fields of records that are packed it loads byte by byte. No elements are aligned."""
    data = cuda.to_device(np.arange(72, dtype=np.uint8))
    packed = np.dtype([("a", np.uint8), ("b", np.int32)])

    @cuda.jit
    def first(x, y):
        y[0] = x[0]

    with simt.observe(watch=watch):
        for dtype in (np.int16, np.int32, np.float64, np.complex64):
            alignment = np.dtype(dtype).alignment
            for offset in range(9):
                x = data[offset : offset + 64].view(dtype)
                y = np.zeros(1, dtype)
                if offset % alignment == 0:
                    first[1, 1](x, y)
                    assert y[0] == x.copy_to_host()[0]
                    continue
                words = rf"argument x: {np.dtype(dtype)} at .* not a multiple of {alignment}\n  in host code"
                with pytest.raises(simt.MisalignedAddress, match=words):
                    first[1, 1](x, y)
        first[1, 1](data[1:61].view(packed)["a"], np.zeros(1, np.uint8))
        cuda.jit(lambda x, y: None)[1, 1](data[1:61].view(packed), data[1:5].view(np.int32)[:0])
