"""What the compiler makes of the kernels, read off their PTX; no GPU is needed."""
# ruff: noqa: E402

import inspect
import re

import needs
import numpy as np
import pytest

needs.compiler()

from gpu import kept_ptx, test_ladder, test_ladder_norms
from refopt import gpu
from refopt.catalog import LARS_MOMENTUM, ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.codes import ROOTS, SIGNED
from refopt.gpu import exactness
from refopt.gpu.driver import signature_of
from refopt.gpu.exactness import instructions
from refopt.gpu.target import EXACT, spelled
from refopt.gpu.vectors import POLICIES
from refopt.oracle.exact import build
from refopt.oracle.exact.build import step_of
from refopt.oracle.exact.lars import make
from refopt.oracle.exact.placed import PlacedCase

STORAGE = {
    "fp32": ("float32", "float32", "float32"), "fp16 amp": ("float16", "float16", "float32", "float32"),
    "bf16": ("bfloat16", "bfloat16", "bfloat16"), "fp64": ("float64", "float64", "float64")}
OPTIONAL = ("moment2_max", "mean_grad")
VECTORED = {"float32": "v4.f32", "float16": "v2.b32", "bfloat16": "v2.b32", "float64": "v2.f64"}
VECTORS = {"fp32": "v4.f32", "fp16 amp": "v2.b32", "bf16": "v2.b32", "fp64": "v2.f64"}


def kernels_of(case, form, recorder):
    PlacedCase(recorder, case).plan(form, **step_of(case.routine))
    return recorder.kernels


def exact_ptx(made, signature, double=False, atomics=False):
    """The PTX of a kernel that computes, all of it exact in the arithmetic type; the lines that are not are named.

    ``atomics`` is whether it adds by atomics, which it then has to.
    """
    ptx = made.ptx(signature)
    ordered = [found for found in exactness.read(ptx, double) if "order" not in found.why]
    if ordered or atomics != bool(exactness.read(ptx, double)):
        pytest.fail("\n".join(map(str, made.inexact(*spelled(signature), double=double))))
    assert any(re.match(r"(add|sub|mul|div|sqrt|rcp)\.rn\.f(32|64)", op) for op in instructions(ptx))
    return ptx


def assert_not_spilled(ptx):
    """No value of a thread lies in memory for want of registers."""
    assert not [op for op in instructions(ptx) if op.startswith(("ld.local", "st.local"))]


@pytest.mark.clause("N3")
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("form", LARS_MOMENTUM.forms)
def test_kernels_are_exact_and_vectorised(form, storage, recorder, request):
    """No contraction, no approximation, no flushing, no stray double; 16-byte accesses; no spilled fp32."""
    kernels = kernels_of(make([5], STORAGE[storage]), form, recorder)
    assert kernels
    if kept_ptx.tested(request, kernels, always=storage == "fp32" and form == "two_launches"):
        return
    texts = {name: exact_ptx(*kernel, double=storage == "fp64") for name, kernel in kernels.items()}
    for name, ptx in texts.items():
        assert re.search(rf"ld\.global\.(L2::cache_hint\.)?{VECTORS[storage]}", ptx), name
        if storage == "fp32":
            assert_not_spilled(ptx)
    assert any(f"st.global.{VECTORS[storage]}" in ptx for ptx in texts.values())


FAMILY = [
    (routine, choices, optional)
    for routine in ROUTINES.values()
    if "merged" in routine.forms
    for choices in ({}, *({n: x} for n, values in routine.choices.items() if n != "rounding" for x in values[1:]))
    for optional in ((), *([name] for name in routine.states if name in OPTIONAL))]


# Beside LARS, an elementwise routine and one with norms are compiled in any case.
ALWAYS = "adam", "lamb"
FAMILY_AND_STORAGE = [(*row, storage) for row in FAMILY for storage in STORAGE]


@pytest.mark.clause("N3")
@pytest.mark.parametrize(
    ("routine", "choices", "optional", "storage"), FAMILY_AND_STORAGE,
    ids=lambda x: getattr(x, "name", None) or str(x or ""))
def test_kernels_of_every_routine_are_exact_and_vectorised(routine, choices, optional, storage, recorder, request):
    """The same for the rule of every routine, with each of its choices and optional states."""
    case = build.make(routine, [5], STORAGE[storage], optional=tuple(optional), **choices)
    kernels = kernels_of(case, "merged", recorder)
    computing = {name: kernel for name, kernel in kernels.items() if name not in ("fetch_scalars", "settle_scalars")}
    plain = storage == "fp32" and not (choices or optional)
    if kept_ptx.tested(request, computing, always=plain and routine.name in ALWAYS):
        return
    assert len(computing) == routine.forms["merged"].launches
    texts = {name: exact_ptx(*kernel, double=storage == "fp64") for name, kernel in computing.items()}
    for name, ptx in texts.items():
        assert re.search(r"ld\.global\.(L2::cache_hint\.)?v", ptx), name
        assert ("st.global.v" in ptx) == (name != "merged_novograd_norms"), name  # which writes scalars
        if storage == "fp32":
            assert_not_spilled(ptx)
    for access in ("ld", "st"):
        assert any(f"{access}.global.{VECTORS[storage]}" in ptx for ptx in texts.values())


@pytest.mark.clause("N3")
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtypes", build.remainders() + build.stochastic()[:1], ids="-".join)
def test_bf16_kernels_are_exact_and_vectorised(dtypes, rounding, recorder, request):
    """The same with remainders and with chance, whose random words are integers throughout."""
    case = build.make(ROUTINES["adamw"], [5], dtypes, rounding=rounding)
    kernels = kernels_of(case, "merged", recorder)
    if kept_ptx.tested(request, kernels):
        return
    ptx = exact_ptx(*kernels["merged_adamw"])
    assert "ld.global.v2.b32" in ptx and "st.global.v2.b32" in ptx
    draws = rounding == "stochastic" and "bfloat16" in (dtypes[2], None if dtypes[3:] else dtypes[0])
    assert ("mul.hi.u32" in ptx) == draws


@pytest.mark.clause("N3", "N21")
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_kernels_of_states_in_8_bits_are_exact(rounding, recorder, request):
    """But for what a test of inline PTX shows to be exact as a whole."""
    case = build.make(ROUTINES["adamw"], [5], rounding=rounding)
    kinds = {"moment1": SIGNED, "moment2": ROOTS}
    coded = {name: [kind.coded(x) for x in case.slots[name]] for name, kind in kinds.items()}
    kernels = kernels_of(case.replace(**coded), "merged", recorder)
    if kept_ptx.tested(request, kernels):
        return
    ptx = exact_ptx(*kernels["merged_adamw"])
    assert_not_spilled(ptx)
    assert exactness.read(ptx.replace(EXACT, "")) and ptx.count(EXACT) == 8  # of two halves, two moments, and tails


@pytest.mark.clause("N3")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_gradient_check_kernels_are_exact_and_vectorised(dtype, recorder, request):
    """The gradient check, and the joining of its sums."""
    gpu.gradient_check([recorder.to_device(np.ones(5, numpy_dtype(dtype)))])
    if kept_ptx.tested(request, recorder.kernels):
        return
    texts = {name: exact_ptx(*kernel, double=dtype == "float64") for name, kernel in recorder.kernels.items()}
    assert set(texts) == {"check_gradients", "finish_check"}
    assert re.search(r"ld\.global\.v[24]", texts["check_gradients"])


@pytest.mark.clause("N3", "N22")
@pytest.mark.parametrize(("dtype", "count"), [("float32", "global"), ("bfloat16", "row"), ("float64", "row")])
def test_lazy_kernels_are_exact_and_vectorised(dtype, count, recorder, request):
    """Sums, and the step; rows are marked by integers alone."""
    double = dtype == "float64"
    scalars = [np.ones(2 if count == "row" else 1, dtype if double else "float32")] * 2
    arrays = [np.ones((2, 3), numpy_dtype(dtype)) for _ in range(3)] + scalars
    params, *states = [[recorder.to_device(x)] for x in arrays]
    indices, values = (recorder.to_device(x) for x in (np.zeros(1, np.int64), arrays[0][:1]))
    gpu.lazy_plan("adamw", params, [indices], [values], *states, count=count)
    if kept_ptx.tested(request, recorder.kernels):
        return
    made, signature = recorder.kernels.pop("mark_rows")
    assert {"atom.global.max.s64"} <= {*instructions(made.ptx(signature))}
    ptx = exact_ptx(*recorder.kernels["merged_lazy_adamw"], double=double)
    assert f"ld.global.{VECTORED[dtype]}" in ptx and f"st.global.{VECTORED[dtype]}" in ptx
    assert_not_spilled(ptx)


@pytest.mark.clause("N3")
@pytest.mark.parametrize("scale", [1, 0.5])
@pytest.mark.parametrize("target", VECTORED)
@pytest.mark.parametrize("source", VECTORED)
def test_cast_kernels_are_exact_and_vectorised(source, target, scale, recorder, request):
    """One rounding of a product at most, none by way of fp32, and wide access; copies know no type."""
    arrays = [recorder.to_device(np.ones(5, numpy_dtype(dtype))) for dtype in (source, target)]
    gpu.cast_plan(arrays[:1], arrays[1:], scale=scale)
    if kept_ptx.tested(request, recorder.kernels, always=(source, target, scale) == ("float32", "float16", 0.5)):
        return
    (((name, (made, signature))),) = recorder.kernels.items()
    ptx = made.ptx(signature)
    if scale == 1:
        assert not [op for op in instructions(ptx) if re.match(r"(add|sub|mul|div|fma)\..*f(16|32|64)", op)]
    else:
        exact_ptx(made, signature, double="float64" in (source, target))
    moves = source == target and scale == 1
    assert name == ("merged_move" if moves else "merged_cast")
    wide = ["v2.f64"] * 2 if moves else [VECTORED[source], VECTORED[target]]
    assert f"ld.global.{wide[0]}" in ptx and f"st.global.{wide[1]}" in ptx
    assert_not_spilled(ptx)
    twice = source == "float64" and target in ("float16", "bfloat16")
    assert ("cvt.rz.f32.f64" in ptx, "cvt.rn.f32.f64" in ptx) == (twice, source == "float64" and target == "float32")


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_copies_of_each_size_are_vectorised(dtype, recorder, request):
    """Moved 16 bytes at a time, and where they do not lie so, by element."""
    gpu.cast_plan(*([recorder.to_device(np.ones(5, dtype))] for _ in range(2)))
    if kept_ptx.tested(request, recorder.kernels):
        return
    ((made, signature),) = recorder.kernels.values()
    ptx = made.ptx(signature)
    single = {"int8": "u8", "int16": "b16", "int32": "b32", "int64": "b64"}[dtype]
    for access in ("ld", "st"):
        assert f"{access}.global.v2.f64" in ptx and f"{access}.global.{single}" in ptx, access


@pytest.mark.clause("N3")
def test_loss_scale_kernel_is_exact(recorder):
    """And its PTX is of the capability asked for."""
    gpu.loss_scaling(*(recorder.to_device(np.ones(1, x)) for x in (np.float32, np.float32, np.int32, np.int32)))
    ((made, signature),) = recorder.kernels.values()
    assert ".target sm_90" in exact_ptx(made, signature) and ".target sm_80" in made.ptx(signature, (8, 0))


@pytest.mark.parametrize(("storage", "instruction"), [("fp16 amp", "cvt.rn.f16.f32"), ("bf16", "cvt.rn.bf16.f32")])
def test_rounding_stores_are_instructions_of_their_own(storage, instruction, recorder, request):
    """fp16 and bf16 are rounded to nearest even in hardware."""
    kernels = kernels_of(make([5], STORAGE[storage]), "separate", recorder)
    if kept_ptx.tested(request, kernels):
        return
    ((made, signature),) = kernels.values()
    assert instruction in made.ptx(signature)


@pytest.mark.parametrize(
    ("storage", "norm_of", "kept", "passed"),
    [("fp32", "param", 16, 0), ("fp16 amp", "param", 8, 8), ("fp16 amp", "master", 16, 0), ("fp64", "param", 0, 0)])
def test_the_cache_is_asked_to_keep_what_is_read_again(storage, norm_of, kept, passed, recorder, request):
    """Eight vector loads of p and of g in a tile; the update does not read a parameter that has a master."""
    kernels = kernels_of(make([5], STORAGE[storage], norm_of=norm_of), "two_launches", recorder)
    if kept_ptx.tested(request, kernels):
        return
    made, signature = kernels["merged_lars_momentum_norms"]
    ptx = made.ptx(signature)
    assert [ptx.count(f"{policy:#x}") for policy in (POLICIES["keep"], POLICIES["pass"])] == [kept, passed]
    assert ptx.count("ld.global.L2::cache_hint") == kept + passed


# The ladders, whose rungs are written by hand.


def kernels_of_launches(launches):
    return {launch.kernel.name: (launch.kernel, signature_of(launch.args)) for launch in launches}


@pytest.mark.clause("N3")
@pytest.mark.parametrize("rung", test_ladder.ALL)
def test_what_is_exact_of_a_ladder(rung, executor, request):
    """All rungs but two kinds: plain Numba's contraction, and sums by atomics, at the lines that speak of them."""
    launches = test_ladder.launches_of(rung, executor)
    assert launches
    if kept_ptx.tested(request, kernels_of_launches(launches)):
        return
    found = [x for launch in launches for x in launch.kernel.inexact(*launch.args)]
    expected = {"adam_0": "beta", "norm_0": "atomic.add", "norm_1": "atomic.add"}
    assert bool(found) == (rung in expected)
    if found:
        assert any(expected[rung] in x.text for x in found)


@pytest.mark.parametrize(("name", "rung"), test_ladder_norms.RUNGS)
def test_rungs_with_norms_are_exact(name, rung, executor, request):
    """No product and sum in one rounding, no double, no spilled register; 16-byte access where the file says so."""
    ladder = test_ladder_norms.LADDERS[name]
    launches = ladder.launches(rung, test_ladder.placed(executor, ladder.lists([5])))
    for launch in launches:
        arrays = [x for x in launch.args if hasattr(x, "strides")]  # which the compiler takes to be in C order
        assert all(x.strides == np.empty(x.shape, x.dtype).strides for x in arrays)
    kernels = kernels_of_launches(launches)
    assert len(kernels) == len(launches) == (2 if rung[-1] == "4" else 3)
    if kept_ptx.tested(request, kernels):
        return
    texts = []
    for made, signature in kernels.values():
        atomics = rung[-1] == "1" and "cuda.atomic.add" in inspect.getsource(made.function)
        texts.append(exact_ptx(made, signature, atomics=atomics))
        assert_not_spilled(texts[-1])
    wide = rung[-1] in "34"
    assert any("ld.global.v4.f32" in ptx for ptx in texts) == any("st.global.v4.f32" in ptx for ptx in texts) == wide
