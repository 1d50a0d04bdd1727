"""N19: what of a parameter is a matrix, what its norm is, and which of it and its transpose is iterated."""

import numpy as np
import pytest

from refopt import cpu
from refopt.cpu.muon import COEFFICIENTS, normalized, orthogonalized
from refopt.cpu.reduce import sum_of_squares

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N19")
dtypes = pytest.mark.parametrize("dtype", [bfloat16, *map(np.dtype, ("f2", "f4", "f8"))],
                                 ids=["bfloat16", "float16", "float32", "float64"])
NUMBERS = dict(lr=0.1, mu=0.5, iterations=2)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stepped(p, g, v, **named):
    """The parameter and the velocity after a step on copies, whose memory has the same order."""
    p, g, v = (np.copy(x, order="K") for x in (p, g, v))
    cpu.muon(p, g, v, **NUMBERS | named)
    return p, v


def arrays(*shape):
    return [draw(seed, *shape) for seed in (1, 2, 3)]


def same(xs, ys):
    for x, y in zip(xs, ys, strict=True):
        assert x.shape == y.shape and x.tobytes() == y.tobytes()


CUTS = {"rows": (cpu.Blocks(rows=3), [np.s_[:4], np.s_[4:8], np.s_[8:]]),
        "qkv": (cpu.Blocks(rows=(8, 2, 2)), [np.s_[:8], np.s_[8:10], np.s_[10:]]),
        "columns": (cpu.Blocks(columns=5), [np.s_[:, 2 * k : 2 * k + 2] for k in range(5)]),
        "both": (cpu.Blocks(rows=2, columns=(3, 7)),
                 [np.s_[:6, :3], np.s_[:6, 3:], np.s_[6:, :3], np.s_[6:, 3:]])}


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw", "spectral_unclamped", "none"])
def test_a_block_is_a_matrix_by_itself(kind, adjust_lr):
    """Norm, iterations and ratio are those of a parameter that has its rows and columns alone."""
    blocks, parts = CUTS[kind]
    whole = stepped(*arrays(12, 10), blocks=blocks, adjust_lr=adjust_lr)
    for part in parts:
        alone = stepped(*(np.ascontiguousarray(x[part]) for x in arrays(12, 10)), adjust_lr=adjust_lr)
        same([np.ascontiguousarray(x[part]) for x in whole], alone)
    assert (whole[0] != stepped(*arrays(12, 10), adjust_lr=adjust_lr)[0]).any()


@pytest.mark.parametrize("kind", CUTS)
def test_experts_are_matrices(kind):
    """One for each index of the axes before the last two, and each is cut as a matrix is."""
    blocks, _ = CUTS[kind]
    whole = stepped(*arrays(2, 3, 12, 10), blocks=blocks._replace(of="experts"))
    for index in np.ndindex(2, 3):
        same([x[index] for x in whole], stepped(*(x[index] for x in arrays(2, 3, 12, 10)), blocks=blocks))
    flat = cpu.Blocks(of="experts")
    same(stepped(*arrays(5, 7), blocks=flat), stepped(*arrays(5, 7)))


def test_convolutions_are_matrices():
    """A row for each output channel, whose columns are its elements in memory order, channels first or last."""
    kernel, convolution = arrays(6, 4, 3, 3), cpu.Blocks(of="convolution")
    first = stepped(*kernel, blocks=convolution)
    same([x.reshape(6, 36) for x in first], stepped(*(x.reshape(6, 36) for x in kernel)))
    last = [np.ascontiguousarray(x.transpose(0, 2, 3, 1)) for x in kernel]
    got = stepped(*(x.transpose(0, 3, 1, 2) for x in last), blocks=convolution)
    same([x.transpose(0, 2, 3, 1).reshape(6, 36) for x in got], stepped(*(x.reshape(6, 36) for x in last)))
    same([x.reshape(6, 36) for x in stepped(*kernel, blocks=convolution._replace(rows=2, columns=4))],
         stepped(*(x.reshape(6, 36) for x in kernel), blocks=cpu.Blocks(rows=2, columns=4)))
    for shape in ((0, 3, 2), (4, 0, 2)):
        assert [x.shape for x in stepped(*arrays(*shape), blocks=convolution)] == [shape] * 2
    narrow = [draw(seed, 1, 1, 5).transpose(2, 0, 1) for seed in range(3)]  # an axis of one element has any stride
    matrix = [draw(seed, 5, 1) for seed in range(3)]
    cpu.muon(*narrow, **NUMBERS, blocks=convolution)
    cpu.muon(*matrix, **NUMBERS)
    same([x.reshape(5, 1) for x in narrow], matrix)


@pytest.mark.clause("N6")
def test_the_norm_is_a_sum_in_memory_order():
    """That of N6 over a matrix's elements: by rows where rows lie side by side, by columns where columns do."""
    def norm(x):
        return np.sqrt(sum_of_squares(x.ravel(order="K")))

    u = next(x for x in (draw(seed, 60, 70) for seed in range(20)) if norm(x) != norm(np.asfortranarray(x)))
    for placed in (u, np.asfortranarray(u)):
        same([normalized(placed, epsilon=np.float32(0), compute="float32").ravel()], [(u / norm(placed)).ravel()])
    block = draw(5, 60, 140)[:, 70:]
    alone = np.ascontiguousarray(block)
    same([normalized(block, epsilon=np.float32(0), compute="float32")], [alone / norm(alone)])


@pytest.mark.clause("N5", "N12")
def test_a_norm_is_at_least_epsilon():
    """The larger of both; a NaN stays, and a matrix of zeros stays zero."""
    one = np.array([[3.0, 4.0]], np.float32)
    for epsilon, divisor in ((0, 5), (4.5, 5), (5, 5), (10, 10)):
        same([normalized(one, epsilon=np.float32(epsilon), compute="float32")], [one / np.float32(divisor)])
    with np.errstate(all="ignore"):
        beside_nan = np.array([[np.nan, 4.0]], np.float32)
        assert np.isnan(normalized(beside_nan, epsilon=np.float32(1), compute="float32")).all()
        assert (normalized(one * np.float32(1e30), epsilon=np.float32(1), compute="float32") == 0).all()
    p, g, v = arrays(3, 4)
    same([stepped(p, g * 0, v * 0, weight_decay=0.0)[0]], [p])


@pytest.mark.clause("N12")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_matrix(value):
    """All of that block becomes NaN, and no other does."""
    p, g, v = arrays(8, 6)
    g[1, 2] = value
    expected = stepped(*arrays(8, 6), blocks=cpu.Blocks(rows=2))[0]
    got = stepped(p, g, v, blocks=cpu.Blocks(rows=2))[0]
    assert np.isnan(got[:4]).all()
    same([got[4:]], [expected[4:]])


@dtypes
def test_of_a_tall_matrix_the_transpose_is_iterated(dtype):
    """The result is that of the wide one, transposed; of a square one it need not be."""
    x = (draw(6, 7, 40) / 16).astype(dtype)
    same([orthogonalized(x.T, [COEFFICIENTS] * 2)], [np.ascontiguousarray(orthogonalized(x, [COEFFICIENTS] * 2).T)])
    wide = draw(7, 18, 18).astype(dtype)
    assert (orthogonalized(wide.T, [COEFFICIENTS]) != orthogonalized(wide, [COEFFICIENTS]).T).any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (17, 33), (33, 17), (5, 0), (0, 5)])
def test_a_step_of_the_transposed_parameter(shape):
    """It is the step of the parameter, transposed, if memory is the same: norms are sums in that order."""
    plain = [x.T for x in stepped(*arrays(*shape), adjust_lr="match_rms_adamw")]
    same(stepped(*(x.T for x in arrays(*shape)), adjust_lr="match_rms_adamw"), plain)
    assert stepped(*arrays(*shape))[0].shape == shape


@dtypes
def test_signs_powers_of_two_and_up_to_sixteen_rows(dtype):
    """Turned signs, powers of two before the norm, and permutations of up to sixteen rows change no other bit."""
    u = draw(8, 16, 50)
    x = normalized(u, epsilon=np.float32(1e-7), compute=np.dtype(dtype).name)
    same([normalized(u * 64, epsilon=np.float32(1e-7), compute=np.dtype(dtype).name)], [x])
    after = orthogonalized(x, [COEFFICIENTS] * 3)
    assert (orthogonalized(-x, [COEFFICIENTS] * 3) == -after).all()
    if x.itemsize == 2:
        rows = np.random.default_rng(9).permutation(16)
        same([orthogonalized(x[rows], [COEFFICIENTS] * 3)], [after[rows]])
