"""N15: a bf16 parameter with a 16-bit remainder is an exact parameter, and a step on it is that of its master."""

import numpy as np
import pytest

from laws.marks import each, of, pairs
from laws.routines import ALL, LARS
from refopt.cpu.remainder import join, split, split_numbers
from refopt.gpu import remainder, tables
from refopt.gpu.arrays import describer
from refopt.gpu.kernels import kernel
from refopt.gpu.target import cuda
from refopt.oracle.exact.build import SMALL, make, remainders, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.lars import ties
from refopt.oracle.exact.laws import reference, same_bits_as_reference
from refopt.oracle.exact.placed import Placed, kernels
from refopt.oracle.ulp import same_bits

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N15")
routines = each(*ALL)
norms = pytest.mark.parametrize("norm_of", LARS[0].choices["norm_of"])
TWO = [remainders()[0], *(pytest.param(x, marks=pytest.mark.slow) for x in remainders()[1:])]
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


def test_split_and_join_are_inverse_where_halves_turn():
    """Every lower half of upper halves of each kind, and every upper half with lower ones around the tie."""
    assert_inverse(patterns(UPPER, np.arange(2**16)))
    assert_inverse(patterns(np.arange(2**16), [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]))


@pytest.mark.slow
@pytest.mark.parametrize("sixteenth", range(16))
def test_split_and_join_are_inverse_on_all_patterns(sixteenth):
    """All 2**32."""
    for part in range(16 * sixteenth, 16 * (sixteenth + 1)):
        assert_inverse(np.arange(part << 24, (part + 1) << 24, dtype=np.uint32).view(np.float32))


def test_parameter_is_nearest():
    """The parameter is rounded to nearest, ties away from zero, and NaN is NaN."""
    x = patterns(np.arange(2**16), [0, 1, 0x7FFF, 0x8001, 0xFFFF])
    finite = np.isfinite(x)
    assert (split(x[finite])[0].view(np.uint16) == x[finite].astype(bfloat16).view(np.uint16)).all()
    ties = patterns(np.arange(0x7F80), [0x8000])
    assert (split(ties)[0].astype(np.float32) > ties).all() and (split(-ties)[0].astype(np.float32) < -ties).all()
    quiet = patterns(np.r_[0x7FC0:0x8000, 0xFFC0:0x10000], [0, 0x8000, 0xFFFF])
    assert np.isnan(split(quiet)[0].astype(np.float32)).all()


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


@routines
def test_a_step_stores_one_nan(machine, routine):
    """Whichever NaN the arithmetic makes, the pattern stored is 0x7fc00000."""
    case = make(routine, [4], ("bfloat16", "bfloat16", "float32", "uint16"))
    case.params[0][...] = np.array([0x7F81, 0xFFC1, 0x7FFF, 0xFFFF], np.uint16).view(bfloat16)
    for outcome in (reference(case), kernels(routine.merged_form, machine)(case)):
        assert (outcome["params"][0].view(np.uint16) == 0x7FC0).all() and (outcome["master_params"][0] == 0).all()


@routines
def test_a_remainder_comes_to_what_a_master_does(machine, routine):
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


# Norms of parameters with remainders.


def with_masters(case):
    """The case with fp32 masters of the same exact parameters."""
    return case.replace(master_params=[join(p, r) for p, r in zip(case.params, case.master_params, strict=True)])


@pytest.mark.clause("N6")
@pytest.mark.parametrize("dtypes", TWO, ids="-".join)
@norms
@of([pytest.param(*row, marks=[pytest.mark.slow] * (row[1] in ("separate", "cooperative"))) for row in pairs(LARS)])
def test_both_halves_end_with_their_chunk_without_a_trace(machine, routine, form, norm_of, dtypes, monkeypatch):
    """Full and partial rows of both halves, aligned and not, over the end of a chunk."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda *_: 2)
    case = make(routine, [2049, 1023, 5], dtypes, steps=[step_of(routine)] * 3, norm_of=norm_of)
    for shifts in ((0,), (3, 1)):
        same_bits_as_reference(kernels(form, machine, shifts), case)


@kernel()
def ROUND(x, out):
    i = 4 * cuda.grid(1)
    if i < x.size:
        y = remainder.round4_away((x[i], x[i + 1], x[i + 2], x[i + 3]))
        for k in range(4):
            out[i + k] = y[k]


def test_norms_round_as_split_does(machine):
    """As it is stored, and widened, for every upper half and lower ones around the tie."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    exact = (np.arange(2**16, dtype=np.uint32)[:: 1 if machine.name == "gpu" else 127, None] << 16 | lower).reshape(-1)
    exact = exact[: exact.size // 4 * 4].view(np.float32)
    out = machine.to_device(np.zeros_like(exact))
    machine.prepare(ROUND, -(-exact.size // 128), 32, (machine.to_device(exact), out))(machine.stream(0))
    machine.synchronize()
    assert same_bits(split_numbers(exact)[0].astype(np.float32), out.copy_to_host()).all()


@norms
@each(*LARS)
def test_the_norm_is_of_what_was_asked_for(routine, norm_of):
    """The first step is that of a master of the same exact value, whichever norm is asked for."""
    case = make(routine, SMALL, remainders()[0], norm_of=norm_of)
    left, wide = reference(case), reference(with_masters(case))
    assert_same({"exact": wide["master_params"]}, {"exact": with_masters(case.replace(**left)).master_params}, "N15")
    other = reference(case.replace(choices=case.choices | {"norm_of": {"param": "master"}.get(norm_of, "param")}))
    assert any((x != y).any() for x, y in zip(left["velocities"], other["velocities"], strict=True))


@pytest.mark.clause("N1")
@norms
@each(*LARS)
def test_at_ties_the_parameter_is_none_of_a_master(machine, routine, norm_of):
    """At ties the stored parameter, and its norm, is not that of a master, whether carried over or not."""
    case = ties(remainders()[0], norm_of)
    left, wide = reference(case), reference(with_masters(case))
    assert np.array_equal(left["velocities"][0], wide["velocities"][0]) == (norm_of == "master")
    for form in routine.forms:
        assert_same(left, kernels(form, machine)(case), "N4")
