"""The sum that everything else is held to: the tile tree of docs/numerics.md."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from refopt.cpu.reduce import LANES, TILE, sum_of_squares, tree_sum

pytestmark = pytest.mark.clause("N6")

reals = st.sampled_from([np.float32, np.float64])
floats32 = st.floats(0, 1e6, width=32)


def flat(max_size, elements=floats32):
    return reals.flatmap(lambda real: hnp.arrays(real, st.integers(0, max_size), elements=elements))


def by_recursion(values):
    """The tree by its definition: the first half is the largest power of two below the size."""
    if len(values) == 0:
        return np.float32(0)
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    return by_recursion(values[:half]) + by_recursion(values[half:])


def by_loops(values):
    """The sum of squares by its definition, an element at a time."""
    tiles = []
    for start in range(0, len(values), TILE):
        lanes = [values.dtype.type(0)] * LANES
        for i, x in enumerate(values[start : start + TILE]):
            lanes[i % LANES] = lanes[i % LANES] + x * x
        tiles.append(by_recursion(lanes))
    return by_recursion(tiles)


def noise(size, real=np.float32):
    return np.random.default_rng(size).normal(size=size).astype(real)


@given(flat(70))
def test_tree_is_the_recursive_definition(values):
    """Neighbours are joined first; a missing neighbour adds +0."""
    assert tree_sum(values) == by_recursion(values) and tree_sum(values).dtype == values.dtype


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=3, max_side=9), elements=floats32))
def test_tree_takes_the_last_axis(values):
    rows = values.reshape(-1, values.shape[-1])
    expected = np.array([tree_sum(row) for row in rows]).reshape(values.shape[:-1])
    assert (tree_sum(values) == expected).all()


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 1023, 1024, 1025, 2049, 5000])
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_sum_of_squares_is_its_definition(size, real):
    """Lanes in index order, then the tree of lanes, then the tree of tiles."""
    values = noise(size, real)
    assert sum_of_squares(values) == by_loops(values) and sum_of_squares(values).dtype == real


@pytest.mark.clause("N12")
@pytest.mark.parametrize(("value", "expected"), [(np.inf, np.inf), (-np.inf, np.inf), (np.nan, np.nan), (1e30, np.inf)])
def test_non_finite(value, expected):
    """An inf or an overflow makes the sum inf, a NaN makes it NaN."""
    values = noise(3000)
    values[1500] = value
    with np.errstate(over="ignore"):
        assert np.array_equal(sum_of_squares(values), expected, equal_nan=True)
