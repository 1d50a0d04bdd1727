"""bf16 with a 16-bit remainder, and stochastic rounding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.cpu.remainder import join, split, split_numbers
from refopt.cpu.stochastic import dither, philox, random16
from refopt.gpu import remainder
from refopt.gpu.arrays import describer
from refopt.gpu.philox import dither4_high, dither4_low, random4
from refopt.gpu.target import cuda, kernel
from refopt.oracle.exact.build import SMALL, make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, kernels

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

WITH_REMAINDERS = [routine for routine in ROUTINES.values() if routine.remainders]
BY_CHANCE = [routine for routine in ROUTINES.values() if "rounding" in routine.choices]
routines = pytest.mark.parametrize("routine", WITH_REMAINDERS, ids=lambda routine: routine.name)
# An upper half of each kind: zeros, subnormal, ordinary, the largest, infinities, NaN of either sort.
UPPER = np.array([0, 0x8000, 1, 0x8001, 0x3F80, 0xC2F7, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0x7FFF, 0xFFFF])


def patterns(upper, lower):
    """fp32 values of every combination of halves."""
    upper, lower = (np.asarray(x, np.uint32) for x in (upper, lower))
    return (upper[:, None] << 16 | lower).reshape(-1).view(np.float32)


def assert_inverse(exact):
    param, remainder = split(exact)
    assert (param.dtype, remainder.dtype) == (bfloat16, np.uint16)
    assert join(param, remainder).tobytes() == exact.tobytes()


@pytest.mark.clause("N15")
def test_split_and_join_are_inverse_where_halves_turn():
    """Every lower half of upper halves of each kind, and every upper half with lower ones around the tie."""
    assert_inverse(patterns(UPPER, np.arange(2**16)))
    assert_inverse(patterns(np.arange(2**16), [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]))


@pytest.mark.clause("N15")
@pytest.mark.slow
@pytest.mark.parametrize("sixteenth", range(16))
def test_split_and_join_are_inverse_on_all_patterns(sixteenth):
    """All 2**32."""
    for part in range(16 * sixteenth, 16 * (sixteenth + 1)):
        assert_inverse(np.arange(part << 24, (part + 1) << 24, dtype=np.uint32).view(np.float32))


@pytest.mark.clause("N15")
def test_parameter_is_nearest():
    """The parameter is rounded to nearest, ties away from zero, and NaN is NaN."""
    x = patterns(np.arange(2**16), [0, 1, 0x7FFF, 0x8001, 0xFFFF])
    finite = np.isfinite(x)
    assert (split(x[finite])[0].view(np.uint16) == x[finite].astype(bfloat16).view(np.uint16)).all()
    ties = patterns(np.arange(0x7F80), [0x8000])
    assert (split(ties)[0].astype(np.float32) > ties).all()
    assert (split(-ties)[0].astype(np.float32) < -ties).all()
    quiet = patterns(np.r_[0x7FC0:0x8000, 0xFFC0:0x10000], [0, 0x8000, 0xFFFF])
    assert np.isnan(split(quiet)[0].astype(np.float32)).all()


@pytest.mark.clause("N15")
@pytest.mark.parametrize("name", ["load_joined", "load4_joined"])
def test_intrinsics_are_the_reference(machine, name):
    """What the kernels load and store, on every kind of pattern, is what `split` and `join` give."""
    many = 4 if "4" in name else 1
    load, store = getattr(remainder, name), getattr(remainder, name.replace("load", "store"))

    @kernel()
    def through(p, r, q, s, x, count):
        i = cuda.grid(1) * many
        if i < count:
            values = load(p + 2 * i, r + 2 * i)
            store(q + 2 * i, s + 2 * i, values)
            if many == 1:
                x[i] = values
            else:
                for k in range(many):
                    x[i + k] = values[k]

    wide = patterns(UPPER, [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    halves, stored = split(wide), split_numbers(wide)
    inputs = [Placed(machine, x) for x in halves]
    outputs = [Placed(machine, np.zeros_like(x)) for x in halves]
    values = machine.to_device(np.zeros(wide.size, np.float32))
    addresses = [describer(machine.name)(x.array, "x").address for x in (*inputs, *outputs)]
    machine.prepare(through, -(-wide.size // 32), 32, (*addresses, values, wide.size))(machine.stream(0))
    machine.synchronize()
    assert values.copy_to_host().tobytes() == wide.tobytes()
    assert [x.read().tobytes() for x in outputs] == [x.tobytes() for x in stored]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_is_philox(counter, key, words):
    """The known answers of Random123."""
    assert tuple(philox(np.array(counter, np.uint32)[:, None], key)[:, 0]) == words


@pytest.mark.clause("N16")
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


@pytest.mark.clause("N16")
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


@pytest.mark.clause("N16")
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


@pytest.mark.clause("N15")
@routines
def test_a_step_stores_one_nan(machine, routine):
    """Whichever NaN the arithmetic makes, the pattern stored is 0x7fc00000."""
    case = make(routine, [4], ("bfloat16", "bfloat16", "float32", "uint16"))
    case.params[0][...] = np.array([0x7F81, 0xFFC1, 0x7FFF, 0xFFFF], np.uint16).view(bfloat16)
    for outcome in (reference(case), kernels(routine.merged_form, machine)(case)):
        assert (outcome["params"][0].view(np.uint16) == 0x7FC0).all()
        assert (outcome["master_params"][0] == 0).all()


@pytest.mark.clause("N15")
@routines
def test_remainder_is_a_master(machine, routine):
    """With remainders the exact parameters are those that masters of the same values come to.

    A norm has to be that of the exact parameters: the stored ones differ at ties.
    """
    dtypes = ("bfloat16", "bfloat16", "float32")
    steps = [step_of(routine), step_of(routine, lr=0.2)]
    norm = {"norm_of": "master"} if "norm_of" in routine.choices else {}
    case = make(routine, SMALL, (*dtypes, "uint16"), steps=steps, **norm)
    masters = [join(p, r) for p, r in zip(case.params, case.lists()["master_params"], strict=True)]
    wide = reference(case.replace(master_params=masters))
    for form in routine.forms:
        halves = kernels(form, machine)(case)
        joined = [join(p, r) for p, r in zip(halves["params"], halves["master_params"], strict=True)]
        assert_same({"exact": wide["master_params"]}, {"exact": joined}, "N15")


@pytest.mark.clause("N16")
@pytest.mark.parametrize("routine", BY_CHANCE, ids=lambda routine: routine.name)
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
    assert (nearest == nearest[0]).all()
    assert 0 < (chance != nearest).sum() < count


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (dict(seed=-1), ValueError, "seed: expected a whole number at least 0 and below 16777216, got -1"),
        (dict(seed=2**24), ValueError, "seed: expected a whole number"),
        (dict(seed=0.5), ValueError, "seed: expected a whole number"),
        (dict(rounding="up"), ValueError, "rounding: expected one of nearest, stochastic, got 'up'"),
        (dict(remainder="float32"), TypeError, r"master_params\[0\]: expected no master for a float32 parameter"),
        (dict(remainder="float16"), TypeError, r"master_params\[0\]: expected float32, got uint16"),
    ],
)
def test_bad_arguments(change, error, text):
    """A seed that is none, and a remainder of a parameter that has none; nothing is modified."""
    change = dict(change)
    dtype = change.pop("remainder", "bfloat16")
    case = make(ROUTINES["sgd"], [3], (dtype, "float32", "float32"))
    before = [x.copy() for x in case.params]
    masters = [np.zeros(3, np.uint16)] if dtype != "bfloat16" else None
    with pytest.raises(error, match=text):
        cpu.merged_sgd(case.params, case.grads, lr=0.1, master_params=masters, **change)
    assert all((x == y).all() for x, y in zip(before, case.params, strict=True))
