"""N15: a bf16 parameter with a 16-bit remainder is an exact parameter, and a step on it is that of its master (N1)."""

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from laws.marks import each, few
from laws.routines import ALL, LARS
from refopt.checks.dtypes import ITEM_SIZES, REMAINDERS
from refopt.cpu.remainder import join, split
from refopt.gpu.arrays import describer
from refopt.gpu.kernels import kernel
from refopt.gpu.remainder import JOINED
from refopt.gpu.target import cuda
from refopt.oracle.exact.build import make, remainders
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.lars import ties
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, kernels
from refopt.oracle.ulp import same_bits

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N15")
HALVES = np.arange(2**16)


def patterns(upper, lower):
    """fp32 values of every combination of halves."""
    upper, lower = (np.asarray(x, np.uint32) for x in (upper, lower))
    return (upper[:, None] << 16 | lower).reshape(-1).view(np.float32)


def assert_inverse(exact):
    """Numbers are what they were, and NaN is one."""
    param, remainder = split(exact)
    assert (param.dtype, remainder.dtype) == (bfloat16, np.uint16)
    expected = np.where(np.isnan(exact), np.uint32(0x7FC00000), exact.view(np.uint32))
    assert join(param, remainder).tobytes() == expected.tobytes()


def of_lower_halves(test):
    """The test is of every upper half with drawn lower ones, those around the tie in any case."""
    for lower in ([0, 1, 0x7FFF], [0x8000, 0x8001, 0xFFFF]):
        test = example(lower=lower)(test)
    return few(4, lower=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=3))(test)


@given(upper=st.integers(0, 2**16 - 1))
@example(upper=0x7F7F)  # the largest
@example(upper=0x7F80)  # infinity, and NaN
@example(upper=0xFFFF)
def test_split_and_join_are_inverse_for_every_lower_half(upper):
    """For upper halves of every kind."""
    assert_inverse(patterns([upper], HALVES))


@of_lower_halves
def test_split_and_join_are_inverse_and_the_parameter_is_nearest(lower):
    """For every upper half; the parameter is rounded to nearest, ties away from zero, and a NaN stays NaN."""
    x = patterns(HALVES, lower)
    assert_inverse(x)
    param = split(x)[0].astype(np.float32)
    tie = (x.view(np.uint32) & 0xFFFF) == 0x8000
    ordinary = np.isfinite(x) & ~tie
    assert same_bits(param[ordinary], x[ordinary].astype(bfloat16).astype(np.float32)).all()
    assert (abs(param) > abs(x))[tie & np.isfinite(x)].all()
    assert (np.isnan(param) == np.isnan(x)).all()


@pytest.mark.slow
@pytest.mark.parametrize("sixteenth", range(16))
def test_split_and_join_are_inverse_on_all_patterns(sixteenth):
    """On all 2**32 patterns."""
    for part in range(16 * sixteenth, 16 * (sixteenth + 1)):
        assert_inverse(np.arange(part << 24, (part + 1) << 24, dtype=np.uint32).view(np.float32))


def every(machine, lower):
    """Every upper half with some lower ones; on the executor one in 127."""
    x = patterns(HALVES[:: 1 if machine.name == "gpu" else 127], lower)
    return x[: x.size // 4 * 4]


@few(4, upper=st.integers(0, 2**16 - 1))
@example(upper=0x7F7F)
@example(upper=0x7FFF)
def test_an_8_bit_remainder_keeps_24_bits(upper):
    """The value rounded to nearest, ties to even, in 24 bits; splitting it again gives the same parts."""
    x = patterns([upper], HALVES)
    kept = join(*split(x, "int8"))
    assert (kept.view(np.uint32) & 0xFF == 0).all() and join(*split(kept, "int8")).tobytes() == kept.tobytes()
    number = np.isfinite(x) & np.isfinite(kept)
    near = np.rint(x[number].astype(float) / (unit := np.ldexp(1.0, np.maximum(np.frexp(x[number])[1], -125) - 16)))
    assert (kept[number] == near * unit).all() and (np.isnan(kept) == np.isnan(x)).all()


@cache
def through(dtype, many):
    """A kernel that loads exact values, one or four at a time, keeps them, and stores them elsewhere."""
    ways, size = JOINED[dtype], ITEM_SIZES[dtype]
    load, store = (ways.load, ways.store) if many == 1 else (ways.load4, ways.store4)

    @kernel()
    def run(p, r, q, s, x, count):
        i = cuda.grid(1) * many
        if i < count:
            values = load(p + 2 * i, r + size * i)
            store(q + 2 * i, s + size * i, values)
            if many == 1:
                x[i] = values
            else:
                for k in range(many):
                    x[i + k] = values[k]

    return run


@pytest.mark.parametrize("many", [1, 4])
@pytest.mark.parametrize("dtype", REMAINDERS)
@of_lower_halves
def test_intrinsics_match_the_reference(machine, dtype, many, lower):
    """Kernels load and store the values that `join` and `split` give."""
    halves = split(every(machine, lower), dtype)
    wide = join(*halves)
    inputs = [Placed(machine, x) for x in halves]
    outputs = [Placed(machine, np.zeros_like(x)) for x in halves]
    values = machine.to_device(np.zeros(wide.size, np.float32))
    addresses = [describer(machine.name)(x.array, "x").address for x in (*inputs, *outputs)]
    machine.prepare(through(dtype, many), -(-wide.size // 32), 32, (*addresses, values, wide.size))(machine.stream(0))
    machine.synchronize()
    assert values.copy_to_host().tobytes() == wide.tobytes()
    assert [x.read().tobytes() for x in outputs] == [x.tobytes() for x in halves]


@cache
def rounding(dtype):
    round4 = JOINED[dtype].round4

    @kernel()
    def run(x, out):
        i = 4 * cuda.grid(1)
        if i < x.size:
            y = round4((x[i], x[i + 1], x[i + 2], x[i + 3]))
            for k in range(4):
                out[i + k] = y[k]

    return run


@pytest.mark.parametrize("dtype", REMAINDERS)
@of_lower_halves
def test_norms_round_as_split_does(machine, dtype, lower):
    """Norms use the stored parameter, widened."""
    exact = every(machine, lower)
    out = machine.to_device(np.zeros_like(exact))
    machine.prepare(rounding(dtype), -(-exact.size // 128), 32, (machine.to_device(exact), out))(machine.stream(0))
    machine.synchronize()
    assert same_bits(split(exact, dtype)[0].astype(np.float32), out.copy_to_host()).all()


@each(*ALL)
@few(4, params=st.lists(st.sampled_from([*range(0x7F81, 0x8000), *range(0xFF81, 0x10000)]), min_size=1, max_size=9),
     dtype=st.sampled_from(REMAINDERS))
def test_a_step_stores_one_nan(machine, routine, params, dtype):
    """Whichever NaN the arithmetic gives, the stored pattern is 0x7fc00000."""
    case = make(routine, [len(params)], ("bfloat16", "bfloat16", "float32", dtype))
    case.params[0][...] = np.array(params, np.uint16).view(bfloat16)
    for outcome in (reference(case), kernels(routine.merged_form, machine)(case)):
        assert (outcome["params"][0].view(np.uint16) == 0x7FC0).all() and (outcome["master_params"][0] == 0).all()


@pytest.mark.clause("N1")
@pytest.mark.parametrize("norm_of", LARS[0].choices["norm_of"])
@each(*LARS)
def test_ties_round_otherwise_than_with_a_master(machine, routine, norm_of):
    """At ties, the stored parameter and its norm differ from a master's, whether the norm is carried over or not."""
    case = ties(remainders()[0], norm_of)
    wide_case = case.replace(master_params=[join(p, r) for p, r in zip(case.params, case.master_params, strict=True)])
    left, wide = reference(case), reference(wide_case)
    assert np.array_equal(left["velocities"][0], wide["velocities"][0]) == (norm_of == "master")
    for form, dtypes in itertools.product(routine.forms, remainders()):
        case = ties(dtypes, norm_of)
        assert_same(reference(case), kernels(form, machine)(case), "N4")
