"""N19: what of a parameter is a matrix, what its norm is, and which of it and its transpose is iterated."""

import math
from itertools import accumulate, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from refopt import cpu
from refopt.catalog import KNOWN
from refopt.cpu.muon import COEFFICIENTS, normalized, orthogonalized
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.exact.strategies import nasty_floats
from refopt.oracle.ulp import same_bits

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N19")
dtypes = pytest.mark.parametrize("dtype", [bfloat16, *map(np.dtype, ("f2", "f4", "f8"))],
                                 ids=["bfloat16", "float16", "float32", "float64"])
SEEDS = st.integers(0, 2**32 - 3)
NUMBERS = dict(lr=0.1, mu=0.5, iterations=2)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stepped(p, g, v, **named):
    """The parameter and the velocity after a step on copies, whose memory has the same order."""
    p, g, v = (np.copy(x, order="K") for x in (p, g, v))
    cpu.muon(p, g, v, **NUMBERS | named)
    return p, v


def arrays(shape, seed=1):
    return [draw(seed + k, *shape) for k in range(3)]


def same(xs, ys):
    for x, y in zip(xs, ys, strict=True):
        assert x.shape == y.shape and x.tobytes() == y.tobytes()


def parts(sizes):
    """The parts of an axis."""
    return [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]


AXES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple) | st.builds(
    lambda size, count: (size,) * count, st.integers(1, 6), st.integers(1, 3))


def cut(sizes):
    """How `Blocks` has the parts of an axis: as their number if they are equal."""
    return len(sizes) if len({*sizes}) == 1 else sizes


@given(rows=AXES, columns=AXES, adjust_lr=st.sampled_from(KNOWN["muon"].choices["adjust_lr"]), seed=SEEDS)
def test_a_block_is_a_separate_matrix(rows, columns, adjust_lr, seed):
    """Norm, iterations and ratio equal those of a parameter that consists of the block alone."""
    together = arrays((sum(rows), sum(columns)), seed)
    whole = stepped(*together, blocks=cpu.Blocks(cut(rows), cut(columns)), adjust_lr=adjust_lr)
    for part in product(parts(rows), parts(columns)):
        alone = stepped(*(np.ascontiguousarray(x[part]) for x in together), adjust_lr=adjust_lr)
        same([np.ascontiguousarray(x[part]) for x in whole], alone)


@given(lead=st.lists(st.integers(1, 3), max_size=2), rows=AXES, columns=AXES, seed=SEEDS)
def test_experts_are_matrices(lead, rows, columns, seed):
    """One per index of the axes before the last two; each is cut like a matrix."""
    blocks = cpu.Blocks(cut(rows), cut(columns))
    experts = arrays((*lead, sum(rows), sum(columns)), seed)
    whole = stepped(*experts, blocks=blocks._replace(of="experts"))
    for index in np.ndindex(*lead):
        same([x[index] for x in whole], stepped(*(x[index] for x in experts), blocks=blocks))


@given(rows=AXES, shape=st.tuples(*[st.integers(1, 4)] * 3), seed=SEEDS)
@example((1,) * 5, (1, 1, 1), 0)  # an axis of one element has any stride
def test_convolutions_are_matrices(rows, shape, seed):
    """One row per output channel, with its elements in memory order, channels first or last."""
    count, columns = sum(rows), math.prod(shape)
    kernel, blocks = arrays((count, *shape), seed), cpu.Blocks(cut(rows), columns, "convolution")
    matrices = blocks._replace(of="matrix")
    same([x.reshape(count, columns) for x in stepped(*kernel, blocks=blocks)],
         stepped(*(x.reshape(count, columns) for x in kernel), blocks=matrices))
    last = [np.ascontiguousarray(x.transpose(0, 2, 3, 1)) for x in kernel]
    got = stepped(*(x.transpose(0, 3, 1, 2) for x in last), blocks=blocks)
    same([x.transpose(0, 2, 3, 1).reshape(count, columns) for x in got],
         stepped(*(x.reshape(count, columns) for x in last), blocks=matrices))


@pytest.mark.parametrize("shape", [(0, 3, 2), (4, 0, 2)])
def test_convolutions_of_no_elements(shape):
    """A step changes nothing."""
    assert [x.shape for x in stepped(*arrays(shape), blocks=cpu.Blocks(of="convolution"))] == [shape] * 2


@pytest.mark.clause("N6")
@given(shape=st.tuples(st.integers(1, 60), st.integers(1, 70)), seed=SEEDS)
def test_the_norm_is_a_sum_in_memory_order(shape, seed):
    """N6 adds a matrix's squares in memory order: by rows or by columns, whichever are contiguous."""
    u = draw(seed, shape[0], 2 * shape[1])[:, shape[1] :]
    for placed in (u, np.ascontiguousarray(u), np.asfortranarray(u)):
        dense = np.copy(placed, order="K")
        norm = np.sqrt(sum_of_squares(dense.ravel(order="K")))
        same([normalized(placed, epsilon=np.float32(0), compute="float32")], [u / norm])


@pytest.mark.clause("N5", "N12")
@given(matrix=hnp.arrays(np.float32, (1, 2), elements=nasty_floats("float32").map(float)),
       epsilon=st.floats(0, 8, width=32))
@example(np.array([[3.0, 4.0]], np.float32), 5.0)
@example(np.array([[np.nan, 4.0]], np.float32), 1.0)
@example(np.array([[3e30, 4e30]], np.float32), 1.0)
def test_a_norm_is_at_least_epsilon(matrix, epsilon):
    """The larger of norm and epsilon; a NaN stays."""
    epsilon = np.float32(epsilon)
    with np.errstate(all="ignore"):
        norm = np.sqrt(matrix[0, 0] * matrix[0, 0] + matrix[0, 1] * matrix[0, 1])
        expected = matrix / (epsilon if norm < epsilon else norm)
        assert same_bits(normalized(matrix, epsilon=epsilon, compute="float32"), expected).all()


@pytest.mark.clause("N12")
@given(rows=AXES, columns=AXES, value=st.sampled_from([np.nan, np.inf, -np.inf]),
       at=st.tuples(*[st.integers(0, 17)] * 2))
def test_non_finite_values_stay_in_their_matrix(rows, columns, value, at):
    """Its whole block becomes NaN, and no other block."""
    p, g, v = arrays((sum(rows), sum(columns)))
    blocks = cpu.Blocks(cut(rows), cut(columns))
    expected, (i, k) = stepped(p, g, v, blocks=blocks)[0], (at[0] % len(p), at[1] % p.shape[1])
    g[i, k] = value
    got = stepped(p, g, v, blocks=blocks)[0]
    for row, column in product(parts(rows), parts(columns)):
        if row.start <= i < row.stop and column.start <= k < column.stop:
            assert np.isnan(got[row, column]).all()
        else:
            same([got[row, column]], [expected[row, column]])


@dtypes
@given(rows=st.integers(1, 12), more=st.integers(1, 30), seed=SEEDS)
def test_tall_matrices_are_iterated_transposed(dtype, rows, more, seed):
    """The result is the wide matrix's, transposed."""
    x = (draw(seed, rows, rows + more) / 16).astype(dtype)
    same([orthogonalized(x.T, [COEFFICIENTS] * 2)], [np.ascontiguousarray(orthogonalized(x, [COEFFICIENTS] * 2).T)])


@given(shape=st.tuples(*[st.integers(0, 33)] * 2), seed=SEEDS)
@example((5, 0), 0)
@example((1, 9), 0)
@example((17, 33), 0)
def test_a_step_of_the_transposed_parameter(shape, seed):
    """It equals the parameter's step, transposed, if memory is the same: norms are summed in memory order."""
    plain = [x.T for x in stepped(*arrays(shape, seed), adjust_lr="match_rms_adamw")]
    same(stepped(*(x.T for x in arrays(shape, seed)), adjust_lr="match_rms_adamw"), plain)


@dtypes
@given(rows=st.permutations(range(16)), power=st.integers(-6, 6), seed=SEEDS)
def test_signs_powers_of_two_and_up_to_sixteen_rows(dtype, rows, power, seed):
    """Flipped signs, factors of a power of two, and permutations of up to sixteen rows change no other bit."""
    u, one = draw(seed, 16, 50), dict(epsilon=np.float32(1e-7), compute=np.dtype(dtype).name)
    x = normalized(u, **one)
    same([normalized(u * np.float32(2.0**power), **one)], [x])
    after = orthogonalized(x, [COEFFICIENTS] * 3)
    assert (orthogonalized(-x, [COEFFICIENTS] * 3) == -after).all()
    if x.itemsize == 2:
        same([orthogonalized(x[rows], [COEFFICIENTS] * 3)], [after[rows]])
