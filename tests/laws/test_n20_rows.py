"""N20: the rows of NorMuon: each is divided by the root of its average of squares, and the matrix keeps its norm."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from laws.marks import few
from refopt import cpu, gpu
from refopt.cpu.normuon import factors

pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.clause("N20")
SIDES = st.integers(1, 9)
SEEDS = st.integers(0, 99)


def lists(shapes, seed, zeros=()):
    """Parameters, gradients, velocities and averages of rows; ``zeros`` are rows whose gradients are 0."""
    rng = np.random.default_rng(seed)
    every = [[rng.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(3)]
    for k in range(1, 3):
        for x in every[k]:
            x[[row for row in zeros if row < len(x)]] = 0
    return [*every, [abs(rng.standard_normal((rows, 1))).astype(np.float32) for rows, _ in shapes]]


@pytest.mark.clause("N4")
@few(4, shapes=st.lists(st.tuples(SIDES, SIDES), max_size=3), seed=SEEDS, zeros=st.sets(st.integers(0, 3)),
     restarts=st.sampled_from([None, ()]))
@example([(3, 5), (1, 1)], 0, {0, 1}, None)
def test_rows_match_the_reference(machine, shapes, seed, zeros, restarts):
    """For lists of any shapes, with rows of zeros, with and without Gram matrices."""
    host, numbers = lists(shapes, seed, zeros), {"lr": 0.1, "iterations": 1, "restarts": restarts}
    there = [[machine.to_device(x) for x in xs] for xs in host]
    gpu.merged_normuon(*there, **numbers)
    cpu.merged_normuon(*host, **numbers)
    for slot in (0, 2, 3):
        for x, y in zip(host[slot], there[slot], strict=True):
            assert x.tobytes() == y.copy_to_host().tobytes()


@given(rows=SIDES, columns=SIDES, seed=SEEDS, beta2=st.floats(0, 0.9375, width=32), zero=st.integers(0, 9))
@example(1, 1, 0, 0.5, 0)
def test_the_matrix_keeps_its_norm(rows, columns, seed, beta2, zero):
    """Averages move towards the mean square, in any order of rows; a row of zeros has factor 0."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((rows, columns)).astype(np.float32), rng.random(rows).astype(np.float32)
    x[zero:zero + 1] = 0
    numbers = {"beta2": np.float32(beta2), "row_epsilon": np.float32(0)}
    with np.errstate(all="ignore"):
        averages, factor = factors(x, w, **numbers)
        backwards = factors(x[::-1].copy(), w[::-1].copy(), **numbers)
    means = (x.astype(np.float64) ** 2).mean(1)
    assert np.allclose(averages, beta2 * w + (1 - beta2) * means, rtol=1e-5)
    assert backwards[0][::-1].tobytes() == averages.tobytes()
    assert (factor[means == 0] == 0).all() and np.isfinite(factor).all()
    assert np.isclose(np.linalg.norm(factor[:, None] * x), np.linalg.norm(x), rtol=1e-5)
