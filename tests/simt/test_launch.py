"""Launch configurations, indices, arguments, decorators, and that an error leaves the executor usable."""

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refopt import simt
from refopt.simt import cuda, memory

extents = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


@cuda.jit
def nothing():
    pass


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


@settings(deadline=None)
@given(extents, extents)
def test_every_thread_runs_once_with_its_indices(grid, block):
    seen = []

    @cuda.jit
    def kernel():
        note()

    @simt.ptx_twin()
    def note():
        assert str(cuda.threadIdx) == str(tuple(cuda.threadIdx))
        assert cuda.gridsize(3) == tuple(g * b for g, b in zip(cuda.gridDim, cuda.blockDim, strict=True))
        seen.append((tuple(cuda.blockIdx), tuple(cuda.threadIdx), cuda.grid(3)))

    kernel[grid, block]()
    whole_grid, whole_block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
    expected = {
        (b, t, tuple(bi * n + ti for bi, n, ti in zip(b, whole_block, t, strict=True)))
        for b in np.ndindex(*whole_grid)
        for t in np.ndindex(*whole_block)}
    assert len(seen) == len(expected) and set(seen) == expected


@pytest.mark.parametrize("configuration", [
    (1, 1025), (1, (32, 33)), (0, 1), (1, 0), (1, (1, 1, 65)), ((1, 65536), 1), (2**31, 1), (1, 1, 0, 227 * 1024 + 1),
    (1, 1, 0, -1), (1,), 1, (1, 1, 0, 0, 0), (1, 1.5), (1, (1, 1, 1, 1))])
def test_configurations_that_cuda_refuses(configuration):
    with pytest.raises(simt.LaunchError):
        nothing[configuration]()


@pytest.mark.parametrize("configuration", [
    (1, 1024), (1, (1024, 1)), (1, (1, 1, 64)), ((1, 65535, 65535), 1), (2**31 - 1, 1), (1, 1, 0, 227 * 1024)])
def test_the_largest_configurations_that_cuda_takes(configuration):
    """They are not launched."""
    assert nothing[configuration]


def test_a_kernel_needs_a_configuration_and_its_arguments():
    with pytest.raises(simt.LaunchError, match="launch configuration"):
        nothing()
    with pytest.raises(simt.LaunchError, match="takes 0 arguments, not 1"):
        nothing[1, 1](3)


def test_decorator_spellings():
    @cuda.jit(device=True, inline=True)
    def plus_one(x):
        return x + 1

    def body(x):
        x[0] = plus_one(x[0])

    for kernel in (cuda.jit(body), cuda.jit(fastmath=False)(body), cuda.jit(body, lto=False),
                   cuda.jit("void(float32[:])")(body), cuda.jit()(body)):
        x = np.zeros(1, np.float32)
        kernel[1, 1](x)
        assert x[0] == 1 and kernel.py_func is body and kernel.__name__ == "body"
    assert cuda.jit(plus_one, device=True) is plus_one


def test_scalar_arguments():
    types = []

    @simt.ptx_twin()
    def note(*values):
        types.extend(map(type, values))

    @cuda.jit
    def kernel(a, b, c, d, e, pair):
        note(a, b, c, d, e, *pair)
        pair[1][0] = 5

    kernel[1, 1](np.uint64(3), np.float32(1), 2.0, np.bool_(True), np.int64(3), (np.int32(1), last := np.zeros(1)))
    assert last[0] == 5 and types == [np.uint64, np.float32, np.float64, bool, int, np.int32, np.ndarray]


def test_extensions_prepare_arguments():
    """The last one first; what they leave to be done is done after the launch."""
    seen = []

    class Extension:
        def __init__(self, factor):
            self.factor = factor

        def prepare_args(self, kind, value, stream, retr):
            retr.append(lambda: seen.append(self.factor))
            return kind, value * self.factor + stream.handle + 1

    given = [Extension(2), Extension(3)]

    @cuda.jit(extensions=given)
    def kernel(x):
        note(x)

    given.clear()

    note = simt.ptx_twin()(lambda x: seen.append(x))
    kernel[1, 1](5)
    assert seen == [(5 * 3 + 1) * 2 + 1, 3, 2]


def test_arithmetic_warnings_are_silent_in_kernels(recwarn):
    @cuda.jit
    def kernel(x):
        x[0] = np.float32(3e38) * np.float32(10) / np.float32(0)
        cuda.syncthreads()
        x[1] = np.float32(3e38) * np.float32(10)

    x = np.zeros(2, np.float32)
    kernel[1, 2](x)
    assert np.isinf(x).all() and not recwarn.list


def test_after_an_error_threads_are_unwound_and_launches_work():
    unwound = []

    @simt.ptx_twin()
    def work():
        try:
            if cuda.threadIdx.x == 5:
                raise ValueError
            cuda.syncthreads()
        finally:
            unwound.append(cuda.threadIdx)

    @cuda.jit
    def kernel():
        work()

    with pytest.raises(ValueError):
        kernel[1, 8]()
    assert len(unwound) == 6
    with pytest.raises(simt.LaunchError, match="inside a kernel only"):
        cuda.syncthreads()
    with pytest.raises(simt.LaunchError, match="inside a kernel only"):
        _ = cuda.threadIdx.x
    assert str(cuda.threadIdx) == "(unset outside kernels)"
    x = np.ones(8)
    double[1, 8](x)
    assert (x == 2).all()


def test_no_launch_from_a_kernel():
    @cuda.jit
    def kernel():
        nothing[1, 1]()

    with pytest.raises(simt.LaunchError, match="from a kernel"):
        kernel[1, 1]()


def test_arrays_are_freed_without_the_garbage_collector():
    @cuda.jit
    def kernel(x):
        cuda.syncthreads()
        x[cuda.threadIdx.x] = 0

    gc.collect()
    gc.disable()
    try:
        before = memory.live_bytes()
        for watch in (False, True):
            with simt.observe(watch=watch):
                kernel[1, 4](np.zeros(4))
            assert memory.live_bytes() == before
    finally:
        gc.enable()
