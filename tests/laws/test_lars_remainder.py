"""LARS with a 16-bit remainder in the place of a master."""

import re

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from refopt import cpu, gpu, simt
from refopt.catalog import LARS_MOMENTUM
from refopt.cpu.remainder import join, split_numbers
from refopt.gpu import tables
from refopt.gpu.lars.stored import round4_away
from refopt.gpu.target import cuda, kernel
from refopt.gpu.vectors import POLICIES
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import SMALL, remainders
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.lars import STEP, gate, make, ties
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import PlacedCase, kernels
from refopt.oracle.ulp import same_bits

forms = pytest.mark.parametrize("form", LARS_MOMENTUM.forms)
norms = pytest.mark.parametrize("norm_of", LARS_MOMENTUM.choices["norm_of"])
signatures = pytest.mark.parametrize("dtypes", remainders(), ids="-".join)


def with_masters(case):
    """The case with fp32 masters of the same exact parameters."""
    return case.replace(master_params=[join(p, r) for p, r in zip(case.params, case.master_params, strict=True)])


@pytest.mark.clause("N6", "N15")
@forms
@norms
@signatures
def test_around_a_chunk(machine, form, norm_of, dtypes, monkeypatch):
    """Full and partial rows of both halves, aligned and not, over the end of a chunk."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda element_bytes: 2)
    case = make([2049, 1023, 5], dtypes, steps=[STEP, STEP, STEP], norm_of=norm_of)
    for shifts in ((0,), (3, 1)):
        laws.same_bits_as_reference(kernels(form, machine, shifts), case)


@pytest.mark.clause("N6")
@pytest.mark.gpu
@forms
@norms
@signatures
def test_large_tensors(form, norm_of, dtypes):
    """Trees of more than one level of nodes."""
    case = make([2**22 - 1, 5, 2**21 + 3], dtypes, steps=[STEP, STEP, STEP], norm_of=norm_of)
    laws.same_bits_as_reference(kernels(form, gpu.device("gpu")), case)


@kernel()
def ROUND(x, out):
    i = 4 * cuda.grid(1)
    if i < x.size:
        y = round4_away((x[i], x[i + 1], x[i + 2], x[i + 3]))
        for k in range(4):
            out[i + k] = y[k]


@pytest.mark.clause("N15")
def test_rounding_is_that_of_split(machine):
    """As it is stored, and widened, for every upper half and lower ones around the tie."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    exact = (np.arange(2**16, dtype=np.uint32)[:: 1 if machine.name == "gpu" else 127, None] << 16 | lower).reshape(-1)
    exact = exact[: exact.size // 4 * 4].view(np.float32)
    out = machine.to_device(np.zeros_like(exact))
    machine.prepare(ROUND, -(-exact.size // 128), 32, (machine.to_device(exact), out))(machine.stream(0))
    machine.synchronize()
    assert same_bits(split_numbers(exact)[0].astype(np.float32), out.copy_to_host()).all()


@norms
def test_norm_is_of_what_was_asked_for(norm_of):
    """The first step is that of a master of the same exact value, whichever norm is asked for."""
    case = make(SMALL, remainders()[0], norm_of=norm_of)
    left, wide = reference(case), reference(with_masters(case))
    assert_same({"exact": wide["master_params"]}, {"exact": with_masters(case.replace(**left)).master_params}, "N15")
    other = reference(case.replace(choices=case.choices | {"norm_of": {"param": "master"}.get(norm_of, "param")}))
    assert any((x != y).any() for x, y in zip(left["velocities"], other["velocities"], strict=True))


@pytest.mark.clause("N15", "N1")
@norms
def test_ties(machine, norm_of):
    """At ties the stored parameter, and its norm, is not that of a master, whether carried over or not."""
    case = ties(remainders()[0], norm_of)
    left, wide = reference(case), reference(with_masters(case))
    same = np.array_equal(left["velocities"][0], wide["velocities"][0])
    assert same == (norm_of == "master")
    for form in LARS_MOMENTUM.forms:
        assert_same(left, kernels(form, machine)(case), "N4")


@pytest.mark.clause("N9")
@forms
def test_a_skipped_step_reads_and_writes_nothing(executor, form):
    """Both halves keep their bits."""
    given = {name: executor.to_device(value) for name, value in gate(0.3, 1.0).items()}
    placed = PlacedCase(executor, make([*SMALL, 2100], remainders()[0], norm_of="master"))
    step = placed.plan(form, **STEP, **given)
    step()
    before = placed.outcome()
    with simt.observe() as log:
        step()
    for x in (x for values in placed.slots.values() for x in values):
        assert (log.bytes_read(x), log.bytes_written(x)) == (0, 0)
    assert_same(placed.case.outcome(), before, "N9")


@forms
@norms
def test_no_races_and_nothing_out_of_bounds(executor, form, norm_of, monkeypatch):
    """Every form, watched."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda element_bytes: 2)
    placed = PlacedCase(executor, make([4100, 0, 1, 300], remainders()[0], norm_of=norm_of), [0, 1])
    step = placed.plan(form)
    with simt.observe(count=False, watch=True, schedule="random", seed=3):
        step(**STEP)
        step(**STEP)


@pytest.mark.parametrize(
    ("form", "norm_of", "expected"),
    [
        ("two_launches", "param", 3 * 2 + 2 * 2 + 2 * 4 + 2 * 2),
        ("two_launches", "master", 3 * 2 + 2 * 2 + 2 * 4 + 3 * 2),
        ("carried_norm", "param", 2 * 2 + 2 * 2 + 2 * 4 + 2 * 2),
        ("carried_norm", "master", 2 * 2 + 2 * 2 + 2 * 4 + 2 * 2),
    ],
)
def test_bytes_in_figures(form, norm_of, expected):
    """Bytes an element of parameters, gradients, velocities and remainders."""
    assert LARS_MOMENTUM.bytes(make([10], remainders()[0]).specs(), form, norm_of=norm_of) == 10 * expected


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_refused_beside_other_parameters(dtype):
    """A remainder belongs to bf16; nothing is modified."""
    case = make([3, 3], (dtype,) * 3).replace(master_params=[None, np.zeros(3, np.uint16)])
    before = case.copy()
    expected = {"float32": "no master for a float32 parameter", "float16": "float32"}[dtype]
    message = rf"^merged_lars_momentum: master_params\[1\]: expected {expected}, got uint16$"
    with pytest.raises(TypeError, match=message):
        cpu.merged_lars_momentum(case.params, case.grads, case.velocities, master_params=case.master_params, **STEP)
    assert_same(before.outcome(), case.outcome(), "nothing modified")


# What the compiler makes of it.


def ptx_of(form, dtypes, norm_of, monkeypatch):
    test_ptx = pytest.importorskip("gpu.test_ptx")
    made = test_ptx.kernels_of(make([5], dtypes, norm_of=norm_of), form, monkeypatch)
    return test_ptx, {name: test_ptx.exact_ptx(*kernel) for name, kernel in made.items()}


@pytest.mark.clause("N3")
@forms
@norms
def test_kernels_are_exact_and_vectorised(form, norm_of, monkeypatch):
    """Both halves by vectors, rounded as integers, nothing in local memory."""
    test_ptx, texts = ptx_of(form, remainders()[0], norm_of, monkeypatch)
    for name, ptx in texts.items():
        assert re.search(r"ld\.global\.(L2::cache_hint\.)?v2\.b32", ptx), name
        test_ptx.assert_not_spilled(ptx)
        assert "cvt.rn.bf16" not in ptx, name
    assert any("st.global.v2.b32" in ptx for ptx in texts.values())


@pytest.mark.parametrize(("norm_of", "kept"), [("param", 4), ("master", 6)])
def test_the_cache_is_asked_to_keep_all_that_is_read_again(norm_of, kept, monkeypatch):
    """Two vector loads of the gradient in a row, and of each half that is normed; four rows, if they are unrolled."""
    _, texts = ptx_of("two_launches", remainders()[0], norm_of, monkeypatch)
    ptx = texts["merged_lars_momentum_norms"]
    assert ptx.count("ld.global.L2::cache_hint") in (kept, 4 * kept)
    assert "ld.global.v2.b32" not in ptx
    assert f"{POLICIES['keep']:#x}" in ptx and f"{POLICIES['pass']:#x}" not in ptx
