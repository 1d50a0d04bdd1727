"""Random numbers in kernels: those of Numba's generator, from the same seeds."""

import numba.cuda.random
import numpy as np
import pytest
from numba import cuda
from numba.cuda.random import xoroshiro128p_uniform_float32

from refopt import simt
from refopt.simt.machine import xoroshiro

REAL = numba.cuda.random
SEEDS = [0, 1, 42, 2**63 + 5, -7]


def states_of_numba(n, seed, start=0):
    states = np.empty(n, REAL.xoroshiro128p_dtype)
    REAL.init_xoroshiro128p_states_cpu(states, np.uint64(seed % 2**64), start)
    return states


@pytest.mark.parametrize("seed", SEEDS)
def test_states(seed):
    assert (xoroshiro.create_xoroshiro128p_states(5, seed).copy_to_host() == states_of_numba(5, seed)).all()
    later = xoroshiro.create_xoroshiro128p_states(2, seed, 3).copy_to_host()
    assert (later == states_of_numba(2, seed, 3)).all() and (later == states_of_numba(5, seed)[3:]).all()
    with simt.observe() as log:
        xoroshiro.create_xoroshiro128p_states(1, seed, stream=(stream := simt.cuda.stream()))
    assert [copy.stream for copy in log.copies] == [stream]


@pytest.mark.parametrize("name", ["next", "uniform_float32", "uniform_float64", "normal_float32", "normal_float64"])
def test_numbers(name):
    name = f"xoroshiro128p_{name}"
    ours, theirs = getattr(xoroshiro, name), getattr(REAL, name)
    states, expected = xoroshiro.create_xoroshiro128p_states(2, 9), states_of_numba(2, 9)

    @simt.cuda.jit
    def kernel(states, out):
        i = simt.cuda.grid(1)
        for n in range(4):
            out[i, n] = ours(states, i)

    dtype = np.uint64 if "next" in name else name[-7:]
    out = np.zeros((2, 4), dtype)
    with simt.observe(watch=True):
        kernel[1, 2](states, out)
    wanted = np.array([[theirs(expected, i) for _ in range(4)] for i in range(2)], dtype)
    assert (states.copy_to_host() == expected).all()
    if "normal" in name:  # the logarithm and the cosine are the C library's there
        np.testing.assert_allclose(out, wanted, rtol=1e-5)
    else:
        assert out.tolist() == wanted.tolist()


def test_jumps_and_seeds_in_a_kernel():
    states, expected = xoroshiro.create_xoroshiro128p_states(2, 1), states_of_numba(3, 1)

    @simt.cuda.jit
    def kernel(states):
        xoroshiro.init_xoroshiro128p_state(states, 0, 1)
        xoroshiro.xoroshiro128p_jump(states, 1)

    kernel[1, 1](states)
    assert (states.copy_to_host() == expected[[0, 2]]).all()


def test_two_threads_with_one_generator_race():
    states = xoroshiro.create_xoroshiro128p_states(1, 1)

    @simt.cuda.jit
    def kernel(states, out):
        out[simt.cuda.grid(1)] = xoroshiro.xoroshiro128p_next(states, 0)

    race = r"of states .*\n.*write in kernel kernel at .*test_xoroshiro.py"
    with simt.observe(watch=True), pytest.raises(simt.DataRace, match=race):
        kernel[1, 2](states, np.zeros(2))


@cuda.jit
def inside(states, out):
    out[cuda.grid(1)] = xoroshiro128p_uniform_float32(states, cuda.grid(1))


def test_kernels_of_numba():
    states, expected = xoroshiro.create_xoroshiro128p_states(3, 4), states_of_numba(3, 4)
    out = np.zeros(3, np.float32)
    simt.run(inside)[1, 3](states, out)
    assert out.tolist() == [float(xoroshiro128p_uniform_float32(expected, i)) for i in range(3)]
    with simt.replace_numba():
        from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_dtype

        assert create_xoroshiro128p_states(2, 4).dtype == xoroshiro128p_dtype
