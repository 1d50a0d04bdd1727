"""N16: by chance a step rounds to a neighbour in bf16, by words of Philox that every backend draws alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws.marks import each, of, pairs
from laws.routines import ALL
from refopt.cpu.stochastic import dither, philox, random16
from refopt.gpu.kernels import kernel
from refopt.gpu.philox import dither4_high, dither4_low, random4
from refopt.gpu.target import cuda
from refopt.oracle.exact.build import make, step_of, stochastic
from refopt.oracle.exact.laws import reference, same_bits_as_reference
from refopt.oracle.exact.placed import kernels

pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.clause("N16")
BY_CHANCE = tuple(routine for routine in ALL if "rounding" in routine.choices)


@pytest.mark.clause("N4")
@pytest.mark.parametrize("dtypes", stochastic(), ids="-".join)
@of([pytest.param(*row, marks=[pytest.mark.slow] * (row[1] == "separate")) for row in pairs(BY_CHANCE)])
def test_every_backend_draws_the_same_bits(machine, routine, form, dtypes):
    """Two steps of two seeds, masters and parameters with a remainder rounded as always."""
    steps = [step_of(routine, seed=seed) for seed in (1, 2**24 - 1)]
    case = make(routine, [3, 0, 260, 1025], dtypes, steps=steps, rounding="stochastic")
    same_bits_as_reference(kernels(form, machine), case)


@given(seed=st.integers(0, 2**24 - 1), pair=st.integers(0, 3), quad=st.integers(0, 2**40))
def test_device_words_are_philox(machine, seed, pair, quad):
    """The device draws the words that the reference draws."""

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


def test_chance_is_in_proportion():
    """A value a quarter of the way up goes up a quarter of the time; the mean is the value."""
    count = 2**18
    x = np.full(count, 1 + 2**-9, np.float32)  # bf16 has 1 and 1 + 2**-7
    up = dither(x, random16(count, 3, 0)) > x
    assert set(np.unique(dither(x, random16(count, 3, 0)))) == {np.float32(1), np.float32(1 + 2**-7)}
    assert abs(up.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / count)
    neighbours = np.corrcoef(up[:-1], up[1:])[0, 1]
    others = np.corrcoef(up, dither(x, random16(count, 3, 1)) > x)[0, 1]
    seeds = np.corrcoef(up, dither(x, random16(count, 4, 0)) > x)[0, 1]
    assert max(map(abs, (neighbours, others, seeds))) < 5 / np.sqrt(count)


@given(values=st.lists(st.floats(width=32), min_size=1, max_size=20), seed=st.integers(0, 2**24 - 1))
def test_chance_gives_a_neighbour(values, seed):
    """What bf16 has stays, inf and NaN too; all else becomes a neighbour in bf16."""
    x = np.array(values, np.float32)
    y = dither(x, random16(x.size, seed, 0))
    down = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    up = ((x.view(np.uint32) & 0xFFFF0000).astype(np.uint64) + 0x10000).astype(np.uint32).view(np.float32)
    for a, b, low, high in zip(x, y, down, up, strict=True):
        if np.isfinite(a):
            assert b == a if a == low else b in (low, high)
        else:
            assert b == a or np.isnan(a)


@each(*BY_CHANCE)
def test_a_small_step_is_not_lost(machine, routine):
    """A change below half of what bf16 resolves moves the mean of many equal parameters all the same."""
    count = 4096
    case = make(routine, [count], ("bfloat16",) * 3, steps=[], rounding="stochastic")
    case.params[0][...] = 1
    case.grads[0][...] = 1
    for name in routine.states:
        if case.slots[name]:
            case.slots[name][0][...] = 1
    step = step_of(routine, lr=2.0**-12)
    nearest = reference(case.replace(steps=[step], choices={}))["params"][0]
    chance = kernels("merged", machine)(case.replace(steps=[step]))["params"][0]
    assert (nearest == nearest[0]).all() and 0 < (chance != nearest).sum() < count


@pytest.mark.parametrize(("counter", "key", "words"),
                         [((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
                          ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
                          ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
                           (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1))])
def test_philox_is_philox(counter, key, words):
    """The known answers of Random123."""
    assert tuple(philox(np.array(counter, np.uint32)[:, None], key)[:, 0]) == words
