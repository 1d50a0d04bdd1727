"""NorMuon: its formula, rows of zeros, blocks, states by row, and what is refused."""

import numpy as np
import pytest

from cpu.test_muon import by_svd
from refopt import cpu
from refopt.cpu.blocks import Blocks

pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.clause("N20")
NUMBERS = dict(lr=0.1, compute="float64", iterations=3)
TALL, WIDE = (7, 3), (4, 1500)


def drawn(shape, seed=0):
    return np.random.default_rng(seed).standard_normal((3, *shape))


def by_neuron(p, g, v, w, *, lr, beta2=0.95, eps=1e-8, weight_decay=0.1, adjust_lr="original", **named):
    """The formula in its authors' words, after an orthogonal update by singular values."""
    moved, v = by_svd(0 * p, g, v, lr=1.0, weight_decay=0.0, adjust_lr="none", **named)
    o = -moved
    w = beta2 * w + (1 - beta2) * np.mean(o**2, axis=-1, keepdims=True)
    n = o / (np.sqrt(w) + eps)
    n = n * np.linalg.norm(o) / np.linalg.norm(n)
    ratio = max(1, len(p) / p.shape[1]) ** 0.5 if adjust_lr == "original" else 0.2 * max(p.shape) ** 0.5
    return p * (1 - lr * weight_decay) - lr * ratio * n, v, w


@pytest.mark.parametrize("named", [
    {}, {"beta2": 0.5}, {"beta2": 0.0}, {"row_epsilon": 0.25}, {"weight_decay": 0.0},
    {"adjust_lr": "match_rms_adamw", "use_nesterov": False}, {"average": False, "mu": 0.5}], ids=str)
@pytest.mark.parametrize("shape", [TALL, WIDE, (5, 5), (1, 6), (6, 1)])
def test_the_formula(shape, named):
    """In fp64, three steps; rows are those of the matrix, also if there are more of them than columns."""
    p, _, v = drawn(shape)
    w, theirs = np.zeros((shape[0], 1)), {"eps" if k == "row_epsilon" else k: x for k, x in named.items()}
    expected = p, v, w
    for seed in range(3):
        g = drawn(shape, seed)[1] * np.arange(1, shape[0] + 1)[:, None]
        expected = by_neuron(expected[0], g, *expected[1:], lr=0.1, iterations=3, **theirs)
        cpu.normuon(p, g, v, w, **NUMBERS | named)
    for got, want in zip((p, v, w), expected, strict=True):
        assert np.allclose(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("row_epsilon", [0.0, 1e-8])
@pytest.mark.parametrize("rows", [[1], [0, 1, 2, 3]], ids=str)
def test_rows_of_zeros_only_decay(rows, row_epsilon):
    """A row without gradients, or all of them: no NaN, and their averages shrink."""
    p, g, v = drawn((4, 6)).astype(np.float32)
    g[rows], v[rows], w = 0, 0, np.zeros((4, 1), np.float32)
    for step in range(2):
        before = p.copy()
        cpu.normuon(p, g, v, w, lr=0.5, weight_decay=0.25, row_epsilon=row_epsilon)
        others = [i for i in range(4) if i not in rows]
        assert np.array_equal(p[rows], before[rows] * np.float32(0.875)) and (p[others] != before[others]).all()
        assert np.isfinite(p).all() and (w[rows] == 0).all() and (w[others] > 0).all(), step
    w[:] = 1
    cpu.normuon(p, g, v, w, lr=0.5, beta2=0.25, row_epsilon=row_epsilon)
    assert (w[rows] == 0.25).all()


@pytest.mark.parametrize(("shape", "blocks"), [
    ((6, 8), Blocks(rows=(2, 4))), ((6, 8), Blocks(columns=(3, 5))), ((6, 8), Blocks(rows=3, columns=2)),
    ((2, 3, 6, 4), Blocks(of="experts", columns=2)), ((4, 3, 2, 2), Blocks(of="convolution"))], ids=str)
def test_each_block_has_its_own_rows(shape, blocks):
    """And updates them as a parameter of its own."""
    p, g, v = drawn(shape)
    w = np.random.default_rng(1).random(blocks.row_shape(shape))
    parts = list(pieces(blocks, p, g, v, w))
    whole = [x.copy() for x in (p, g, v, w)]
    cpu.normuon(*whole, **NUMBERS, blocks=blocks)
    for alone, after in zip(parts, pieces(blocks, *whole), strict=True):
        cpu.normuon(*alone, **NUMBERS)
        assert all(np.array_equal(x, y) for x, y in zip(alone[:1] + alone[2:], after[:1] + after[2:], strict=True))


def pieces(blocks, p, g, v, w):
    """The matrices of arrays, copied, each with its rows."""
    flat = (len(p), -1) if blocks.of == "convolution" else p.shape
    p, g, v = (x.reshape(flat) for x in (p, g, v))
    ends = [np.cumsum([0, *(sizes if isinstance(sizes, tuple) else [n // sizes] * sizes)])
            for sizes, n in zip(blocks[:2], p.shape[-2:], strict=True)]
    for index in np.ndindex(p.shape[:-2]):
        for a, b in zip(ends[0], ends[0][1:], strict=False):
            for k, (c, d) in enumerate(zip(ends[1], ends[1][1:], strict=False)):
                yield [x[index][a:b, c:d].copy() for x in (p, g, v)] + [w[index][a:b, k : k + 1].copy()]


ONES = np.ones((4, 6), np.float32)


@pytest.mark.parametrize(("message", "rows", "named"), [
    ("row_moment: expected shape (4, 1), a number for each row of each matrix of param, got (6, 1)",
     np.zeros((6, 1), np.float32), {}),
    ("row_moment: expected shape (4, 2), a number", np.zeros((4, 1), np.float32), {"blocks": Blocks(columns=2)}),
    ("row_moment: expected float32, got float64", np.zeros((4, 1)), {}),
    ("row_moment: expected a C-contiguous array, got strides (8, 4)", np.zeros((4, 2), np.float32)[:, :1], {}),
    ("beta2: expected a finite float32 at least 0 and below 1, got 1", np.zeros((4, 1), np.float32), {"beta2": 1.0})])
def test_what_is_refused(message, rows, named):
    arrays = [ONES.copy() for _ in range(3)]
    with pytest.raises((TypeError, ValueError)) as caught:
        cpu.normuon(*arrays, rows, lr=0.1, **named)
    assert str(caught.value).startswith(f"normuon: {message}")
    assert all((x == 1).all() for x in arrays)
