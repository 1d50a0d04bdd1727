"""Block and grid barriers, and the threads that do not reach them."""

import itertools
from contextlib import nullcontext

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda


@cuda.jit
def rotate(x):
    """Each element takes its right neighbour's value; wrong without the barrier."""
    t = cuda.threadIdx.x
    value = x[(t + 1) % cuda.blockDim.x]
    cuda.syncthreads()
    x[t] = value


def test_the_smaller_group_is_named():
    def body():
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
        else:
            cuda.syncthreads()

    with pytest.raises(simt.BarrierDivergence) as caught:
        cuda.jit(body)[1, 4]()
    assert caught.value.line == body.__code__.co_firstlineno + 4 and caught.value.thread == (3, 0, 0)


def test_the_largest_block():
    x = np.arange(1024)
    for _ in range(2):
        rotate[1, 1024](x)
    assert sorted(x) == list(range(1024)) and x[0] == 2


def test_barriers_with_a_predicate():
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x
        out[t, 0] = cuda.syncthreads_count(int(t % 3 == 0))
        out[t, 1] = cuda.syncthreads_and(int(t < 10))
        out[t, 2] = cuda.syncthreads_and(int(t < 9))
        out[t, 3] = cuda.syncthreads_or(int(t == 4))
        out[t, 4] = cuda.syncthreads_or(0)

    out = np.zeros((10, 5), np.int32)
    kernel[1, 10](out)
    assert (out == [4, 1, 0, 1, 0]).all()


BARRIERS = {
    "sync": lambda: cuda.syncthreads(), "count": lambda: cuda.syncthreads_count(1),
    "and": lambda: cuda.syncthreads_and(1), "or": lambda: cuda.syncthreads_or(1)}


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations_with_replacement(BARRIERS, 2)])
def test_warps_meet_at_barriers_of_one_kind_alone(one, other):
    first, second = (cuda.jit(device=True)(BARRIERS[name]) for name in (one, other))

    @cuda.jit
    def kernel():
        if cuda.threadIdx.x < 32:
            first()
        else:
            second()

    with nullcontext() if one == other else pytest.raises(simt.BarrierDivergence):
        kernel[1, 64]()


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
@pytest.mark.parametrize("strict", [(), "early-return"])
def test_threads_may_return_before_a_grid_barrier(schedule, strict):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        if i >= x.size:
            return
        grid = cuda.cg.this_grid()
        x[i] = i
        grid.sync()
        y[i] = x[x.size - 1 - i]

    x, y = np.zeros(5), np.zeros(5)
    with simt.observe(watch=True, schedule=schedule, strict=strict):
        if strict:
            with pytest.raises(simt.BarrierDivergence, match="3 threads of these blocks have ended already, all"):
                kernel[2, 4](x, y)
        else:
            kernel[2, 4](x, y)
            assert y.tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_grid_barrier_takes_the_first_thread_of_each_block(blocks):
    @cuda.jit
    def kernel(x):
        if cuda.grid(1) == x.size:
            return
        cuda.cg.this_grid().sync()

    with pytest.raises(simt.BarrierDivergence, match="1 thread of these blocks has ended already, by a return"):
        kernel[blocks, 2](np.zeros(2 * blocks - 2))


def test_threads_that_have_ended_are_counted():
    """Without a word of them if there are none."""

    @cuda.jit
    def kernel(x, first, last):
        t = cuda.threadIdx.x
        if t < first:
            cuda.syncthreads()
        elif t < last:
            return
        else:
            x[t] = 1

    for first, said in (20, "12 threads .* ended already, 10 of them by a"), (30, "2 threads .* none of them by a"):
        with pytest.raises(simt.BarrierDivergence, match=said):
            kernel[1, 32](np.zeros(32), first, 30)

    with pytest.raises(simt.BarrierDivergence) as caught:
        cuda.jit(other_branch)[1, 32]()
    assert "ended" not in str(caught.value)


def exit_early():
    if cuda.threadIdx.x != 1:
        cuda.syncthreads()


def other_branch():
    if cuda.threadIdx.x == 0:
        cuda.syncthreads()
    else:
        cuda.syncthreads()


def grid_without_a_block():
    if cuda.blockIdx.x:
        cuda.cg.this_grid().sync()


def grid_without_a_thread():
    grid = cuda.cg.this_grid()
    if cuda.threadIdx.x == 0:
        cuda.syncthreads()
    grid.sync()


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
@pytest.mark.parametrize("body", [exit_early, other_branch, grid_without_a_block, grid_without_a_thread])
def test_divergent_barriers_are_errors(body, schedule):
    kernel = cuda.jit(body)
    with pytest.raises(simt.BarrierDivergence) as caught, simt.observe(schedule=schedule):
        kernel[2, 4]()
    assert caught.value.kernel == body.__name__
    assert caught.value.filename == __file__
    assert caught.value.line in {line for *_, line in body.__code__.co_lines()}


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_a_return_may_stand_behind_its_condition(schedule):
    """On one line with it, or in a kernel without a file."""
    text = "def kernel(out):\n    t = cuda.threadIdx.x\n    if t >= 3: return\n    out[t] = cuda.syncthreads_count(1)\n"
    scope = {"cuda": cuda}
    exec(text, scope)

    def with_a_file(out):
        t = cuda.threadIdx.x
        if t >= 3: return  # noqa: E701
        out[t] = cuda.syncthreads_count(1)

    for body in (scope["kernel"], with_a_file):
        out = np.zeros(4, np.int32)
        with simt.observe(schedule=schedule):
            cuda.jit(body)[1, 4](out)
        assert out.tolist() == [3, 3, 3, 0]
