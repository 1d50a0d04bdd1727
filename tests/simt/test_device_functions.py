"""Device functions with explicit signatures convert arguments and results, as in a call of C."""

import math
from contextlib import nullcontext

import numba.cuda
import numpy as np
import pytest
from numba import float32, int32

from refopt import simt
from refopt.simt import cuda

GIVEN = ["float32(float32, int32)", float32(float32, int32), ["float32(float32, int32)"]]


def results(function, *args, dtype=np.float64):
    """What a device function returns, as a kernel stores it, watched and not."""

    def kernel(args, out):
        out[0] = function(*args)

    found = []
    for watch in (False, True):
        out = np.zeros(1, dtype)
        with simt.observe(watch=watch):
            cuda.jit(kernel)[1, 1](args, out)
        found.append(out[0])
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_arguments_and_results_are_converted(given):
    @cuda.jit(given, device=True)
    def scaled(x, n):
        return x * 1e-3 * n

    assert results(scaled, 1 / 3, 2.9) == np.float32(np.float64(np.float32(1 / 3)) * 1e-3 * 2)
    assert results(scaled, 1, np.int64(2**32 + 3)) == np.float32(np.float64(1) * 1e-3 * 3)


@cuda.jit("(float32[:], int8)", device=True)
def next_of(x, n):
    x[0] += n
    return x[n % 2]


@cuda.jit("int16(float32[:], int32, float32, boolean)", device=True)
def mixed(x, n, y, more):
    x[1] = y * n + next_of(x, n)
    return x[1] if more else -n


@pytest.mark.parametrize("n", [3, 200, -1, 2**32 + 5, 2.75, np.uint8(255), True], ids=str)
def test_signatures_hold_by_lanes_and_by_threads(n):

    @cuda.jit
    def kernel(x, n, out):
        i = cuda.grid(1)
        out[i] = mixed(x[i], i % 50, n, n) + mixed(x[i], n, 3, 0)

    def result(launch):
        x, out = np.arange(512, dtype=np.float32).reshape(256, 2), np.zeros(256)
        launch(x, n, out)
        return x.tobytes() + out.tobytes()

    assert simt.how(kernel[4, 64], np.ones((256, 2), np.float32), n, np.ones(256)).by == "lanes"
    by_lanes = result(kernel[4, 64])
    with simt.observe(watch=True, lenient=("float-range",)):
        assert result(kernel[4, 64]) == by_lanes


def test_the_signature_that_changes_least_is_taken():
    @cuda.jit(["int32(int32)", "float64(float64)"], device=True)
    def halved(x):
        return x / 2

    assert (results(halved, np.int32(3)), results(halved, 3.0), results(halved, np.float64(0.5))) == (1, 1.5, 0.25)


def test_results_keep_their_type():
    @cuda.jit("int8(int8)", device=True)
    def narrow(n):
        return n

    @cuda.jit
    def kernel(out):
        out[0], out[1] = abs(narrow(-5)), abs(narrow(-128))

    out = np.zeros(2)
    kernel[1, 1](out)
    assert out.tolist() == [5, -128]


def test_arrays_and_tuples():
    @cuda.jit("UniTuple(float32, 2)(float32[:], Tuple((int8, float64)))", device=True)
    def both(x, pair):
        return x[0] + pair[0], pair[1]

    @cuda.jit
    def kernel(x, out):
        out[0], out[1] = both(x, (300, 1 / 3))

    x, out = np.ones(2, np.float32), np.zeros(2)
    kernel[1, 1](x, out)
    assert out.tolist() == [45, np.float32(1 / 3)]
    place = r"both is compiled for other arguments than "
    square = np.ones((2, 2), np.float32)
    given = (np.ones(2), r"an array of 1 dimension \(float64\)"), (square, "an array of 2 dim"), (1.0, "a number")
    for wrong, got in given:
        with pytest.raises(simt.CompileError, match=place + got):
            kernel[1, 1](wrong, out)


@pytest.mark.parametrize("given", [(), (1, 2, 3), (1,), 1.0, np.ones(2)], ids=str)
@pytest.mark.parametrize("signature", ["float32(UniTuple(float32, 2))", float32(numba.types.UniTuple(float32, 2))])
def test_tuples_of_another_length_and_what_is_no_tuple(signature, given):
    @cuda.jit(signature, device=True)
    def total(pair):
        return pair[0] + pair[1]

    @cuda.jit
    def kernel(out):
        out[0] = total(given)

    with pytest.raises(simt.CompileError, match=r"total is compiled for other arguments than "):
        kernel[1, 1](np.zeros(1))


@numba.cuda.jit(device=True)
def of_numba(x):
    return numba.cuda.threadIdx.x + x


def test_those_of_numba_keep_their_signatures():
    class Compiled:
        signature = float32(int32)

    of_numba.overloads[(int32,)] = Compiled
    of_numba._can_compile = False

    def kernel(x):
        x[0] = of_numba(x[0])

    x = np.array([2.9])
    try:
        simt.run(kernel)[1, 1](x)
    finally:
        of_numba.overloads.clear()
        of_numba._can_compile = True
    assert x[0] == 2


@cuda.jit(device=True)
def factorial(k):
    if k < 2:
        return np.float32(1)
    return k * factorial(k - 1)


@cuda.jit(device=True)
def fill(x, k):
    if k > 0:
        fill(x, k - 1)
        x[k] = k


@pytest.mark.filterwarnings("error::refopt.simt.UntypedWarning")
def test_a_function_that_calls_itself_has_the_type_of_its_other_returns():
    """In which its result is computed: as float64, since the product of an int64 and a float32 is one."""

    @cuda.jit
    def kernel(x, k):
        fill(x, k)
        x[0] = factorial(21) / 3

    x = np.zeros(5)
    kernel[1, 1](x, 4)
    assert x.tolist() == [math.factorial(21) / 3, 1, 2, 3, 4]


@pytest.mark.filterwarnings("error::refopt.simt.UntypedWarning")
def test_functions_inside_take_what_they_capture_as_it_is_where_they_are_called():
    @cuda.jit
    def kernel(x, n):
        k = 3
        scaled = lambda a, b=n: a * k + b  # noqa: E731
        k = np.float32(2.5)

        def twice(a):
            return scaled(a) + scaled(a, 1)

        x[cuda.grid(1)] = twice(0.1)

    for watch in (None, False, True):
        x = np.zeros(256)
        with nullcontext() if watch is None else simt.observe(watch=watch):
            kernel[1, 256](x, 7)
        assert x.tolist() == [(0.1 * 2.5 + 7) + (0.1 * 2.5 + 1)] * 256
    assert simt.how(kernel[1, 256], x, 7).by == "lanes"
