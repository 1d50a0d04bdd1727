"""Indices outside arrays."""

from contextlib import nullcontext

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda

INDICES = {
    "past the end": lambda x: x[3, 0],
    "before the start": lambda x: x[-4, 0],
    "second": lambda x: x[0, 4],
    "row": lambda x: x[3],
    "row, then column": lambda x: x[2][4],
    "in a view": lambda x: x[1:][2, 0],
    "written": lambda x: x.__setitem__((0, 5), 1),
    "atomic": lambda x: cuda.atomic.add(x, (0, 4), 1),
    "reshaped": lambda x: x.reshape(12)[12],
    "transposed": lambda x: x.T[0, 3],
}


@pytest.mark.parametrize("observe", [None, {"count": True}, {"watch": True, "count": False}])
@pytest.mark.parametrize("access", INDICES.values(), ids=INDICES)
def test_out_of_bounds(access, observe):
    def body(x):
        cuda.syncthreads()
        if cuda.threadIdx.x == 1:
            access(x)

    x = cuda.to_device(np.zeros((3, 4), np.float32))
    with pytest.raises(simt.OutOfBounds) as caught, simt.observe(**observe) if observe else nullcontext():
        cuda.jit(body)[2, 2](x)
    error = caught.value
    assert (error.kernel, error.filename, error.line) == ("body", __file__, access.__code__.co_firstlineno)
    assert (error.block, error.thread) == ((0, 0, 0), (1, 0, 0))
    if observe:
        assert error.array == "x" and error.index is not None and "float32" in str(error)


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


def test_observed_arrays_look_like_arrays():
    def body(x, out):
        out[0] = len(x) + x.size + x.ndim + x.strides[0] + x.shape[1] + x.nbytes + x.itemsize
        assert x.dtype == np.float32 and x.ravel().shape == (6,) and x.T.shape == (3, 2)
        out[1:3] = 7
        out[3:] = out[0:3]
        out[np.int64(1)] = x[np.int32(1)][np.uint8(2)]
        assert type(x[0, 0]) is np.float32

    results = []
    for watch in (None, False, True):
        out = np.zeros(6)
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        with nullcontext() if watch is None else simt.observe(watch=watch):
            cuda.jit(body)[1, 1](x, out)
        results.append(out.tolist())
    assert results[0] == results[1] == results[2]
