"""N16: by chance a step rounds to a neighbour in bf16, by words of Philox that every backend draws alike."""

import numpy as np
import pytest
from evidence import philox as published
from hypothesis import assume, example, given
from hypothesis import strategies as st

from laws.marks import few, of, pairs
from laws.routines import ALL
from refopt.cpu.stochastic import dither, philox, random16
from refopt.gpu.kernels import kernel
from refopt.gpu.philox import dither4_high, dither4_low, random4
from refopt.gpu.target import cuda
from refopt.oracle.exact.build import stochastic
from refopt.oracle.exact.laws import same_bits_as_reference
from refopt.oracle.exact.placed import kernels
from refopt.oracle.exact.strategies import cases

pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.clause("N16")
BY_CHANCE = tuple(routine for routine in ALL if "rounding" in routine.choices)


@pytest.mark.clause("N4")
@of([pytest.param(*row, marks=[pytest.mark.slow] * (row[1] == "separate")) for row in pairs(BY_CHANCE)])
@few(4, data=st.data())
def test_every_backend_draws_the_same_bits(machine, routine, form, data):
    """For any seeds; masters, and parameters with a remainder, are rounded as always."""
    kinds = st.sampled_from([(*dtypes, None)[:4] for dtypes in stochastic()])
    case = data.draw(cases(routine, 1, 3, kinds, rounding="stochastic"))
    same_bits_as_reference(kernels(form, machine), case)


@given(seed=st.integers(0, 2**24 - 1), pair=st.integers(0, 3), quad=st.integers(0, 2**40))
def test_device_words_are_philox(machine, seed, pair, quad):
    """The device draws the same words as the reference."""

    out = machine.to_device(np.zeros(8, np.float32))
    x = np.array([1.0, -3.14159, 1e-40, 3.4e38], np.float32)
    machine.prepare(DRAW, 1, 32, (machine.to_device(x), out, quad, pair, seed))(machine.stream(0))
    machine.synchronize()
    counter = np.array([[quad & 0xFFFFFFFF], [quad >> 32], [pair], [0]], np.uint32)
    words = philox(counter, (seed, 0))[:, 0]
    expected = np.r_[dither(x, words & 0xFFFF), dither(x, words >> 16)]
    assert out.copy_to_host().tobytes() == expected.tobytes()


@kernel()
def DRAW(x, out, quad, pair, seed):
    if cuda.grid(1) == 0:
        words = random4(quad, pair, seed)
        values = x[0], x[1], x[2], x[3]
        low, high = dither4_low(values, words), dither4_high(values, words)
        for k in range(4):
            out[k], out[4 + k] = low[k], high[k]


@few(4, upper=st.integers(0, 2**9 - 1), lower=st.integers(0, 2**16 - 1))
@example(254, 1)  # the largest exponent
@example(256, 2**15)  # negative subnormal numbers
def test_the_share_of_words_that_round_up_is_the_distance(upper, lower):
    """For every mantissa of one sign and exponent, over all 2**16 words: the mean is the value."""
    assume(upper % 256 < 255)
    x = (np.arange(upper << 7, upper + 1 << 7, dtype=np.uint32) << 16 | np.uint32(lower)).view(np.float32)
    y = dither(np.repeat(x, 2**16), np.tile(np.arange(2**16, dtype=np.uint32), 128)).reshape(128, 2**16)
    down = (x.view(np.uint32) & 0xFFFF0000)[:, None]
    went_up = y.view(np.uint32) == down + 0x10000
    assert (went_up.sum(1) == lower).all() and (went_up | (y.view(np.uint32) == down)).all()


def test_words_are_independent():
    """Words of neighbours, other arrays and other seeds, for a number that rounds up a quarter of the time."""
    count = 2**18
    x = np.full(count, 1 + 2**-9, np.float32)  # bf16 has 1 and 1 + 2**-7
    up = dither(x, random16(count, 3, 0)) > x
    assert abs(up.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / count)
    neighbours = np.corrcoef(up[:-1], up[1:])[0, 1]
    others = np.corrcoef(up, dither(x, random16(count, 3, 1)) > x)[0, 1]
    seeds = np.corrcoef(up, dither(x, random16(count, 4, 0)) > x)[0, 1]
    assert max(map(abs, (neighbours, others, seeds))) < 5 / np.sqrt(count)


@given(lower=st.integers(0, 2**16 - 1), seed=st.integers(0, 2**24 - 1))
@example(0, 0)
def test_bf16_numbers_do_not_change(lower, seed):
    """For every upper half: bf16 numbers, inf and NaN do not change."""
    x = (np.arange(2**16, dtype=np.uint32) << 16 | np.uint32(lower)).view(np.float32)
    y, there = dither(x, random16(x.size, seed, 0)), x.view(np.uint32) & 0xFFFF == 0
    assert (y[there & ~np.isnan(x)] == x[there & ~np.isnan(x)]).all() and np.isnan(y[np.isnan(x)]).all()


@pytest.mark.parametrize(("counter", "key", "words"),
                         [((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
                          ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
                          ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
                           (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1))])
def test_philox_gives_its_known_answers(counter, key, words):
    """The known-answer tests of Random123 pass."""
    assert tuple(philox(np.array(counter, np.uint32)[:, None], key)[:, 0]) == published.philox(counter, key) == words
