"""What kernels capture: constants, as in Numba, wherever they are named."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda

TABLE = np.arange(4, dtype=np.float32)


def from_the_module(out):
    out[cuda.threadIdx.x] = TABLE[cuda.threadIdx.x]


@cuda.jit(device=True)
def of_a_helper(i, *, plus=0):
    return TABLE[i] + plus


def through_a_helper(out):
    out[cuda.threadIdx.x] = of_a_helper(cuda.threadIdx.x)


def closing_over(table):
    def kernel(out):
        out[cuda.threadIdx.x] = table[cuda.threadIdx.x]

    return kernel


def in_a_lambda(out):
    out[cuda.threadIdx.x] = (lambda i: TABLE[i])(cuda.threadIdx.x)


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize("make", [
    lambda: from_the_module, lambda: through_a_helper, lambda: closing_over(TABLE), lambda: in_a_lambda])
def test_arrays_are_frozen_at_the_first_launch(make, watch):
    kernel = cuda.jit(make())
    before = TABLE.copy()
    try:
        first, second = np.zeros(4), np.zeros(4)
        with simt.observe(watch=watch):
            kernel[1, 4](first)
            TABLE[:] = -1
            kernel[1, 4](second)
    finally:
        TABLE[:] = before
    assert first.tolist() == second.tolist() == before.tolist()


def test_arrays_of_a_kernel_that_shuffles_are_frozen_once():
    """It runs as another copy where it is watched."""
    table = np.arange(32, dtype=np.float32)

    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = cuda.shfl_sync(-1, table[cuda.threadIdx.x], 1)

    plain, watched = np.zeros(32, np.float32), np.zeros(32, np.float32)
    kernel[1, 32](plain)
    table[:] = -1
    with simt.observe(watch=True):
        kernel[1, 32](watched)
    assert plain.tolist() == watched.tolist() == [1] * 32


ON_DEVICE = cuda.to_device(np.zeros(4, np.float32))


def of_the_module(racing):
    ON_DEVICE[0 if racing else cuda.threadIdx.x] = cuda.threadIdx.x


def of_the_closure(x):
    def kernel(racing):
        x[0 if racing else cuda.threadIdx.x] = cuda.threadIdx.x

    return kernel


@pytest.mark.parametrize(("kernel", "name"), [(of_the_module, "ON_DEVICE"), (of_the_closure(ON_DEVICE), "x")])
def test_device_arrays_that_are_captured_are_arguments(kernel, name):
    """They are live, counted and watched, by the name that the kernel has for them."""
    with simt.observe(watch=True) as log:
        cuda.jit(kernel)[1, 4](False)
    assert ON_DEVICE.copy_to_host().tolist() == [0, 1, 2, 3] and log.bytes_written(ON_DEVICE) == 16
    cuda.jit(kernel)[1, 2](False)
    with pytest.raises(simt.DataRace) as caught, simt.observe(watch=True):
        cuda.jit(kernel)[1, 4](True)
    assert caught.value.array == name


def test_a_variable_that_is_not_assigned_yet_is_no_array():
    x = cuda.to_device(np.zeros(2, np.float32))

    def kernel(ahead):
        x[0] = TABLE[1]
        if ahead:
            x[1] = later

    with pytest.raises(simt.CompileError, match="later is not defined"):
        cuda.jit(kernel)[1, 1](False)
    later = 2
    cuda.jit(kernel)[1, 1](True)
    assert x.copy_to_host().tolist() == [1, later]


def test_kernels_without_captures_are_not_copied():
    """What they find in their module later is what they see, as far as it is no array."""
    seen = []

    def kernel():
        step()

    step = simt.ptx_twin()(lambda: seen.append(1))
    launched = cuda.jit(kernel)
    launched[1, 1]()
    step = simt.ptx_twin()(lambda: seen.append(2))
    launched[1, 1]()
    assert seen == [1, 2]
