"""The laws of LARS, on the reference and on every form of the kernels, with the clauses of docs/numerics.md."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refopt import cpu, gpu, simt
from refopt.catalog import LARS_MOMENTUM
from refopt.cpu.reduce import TILE
from refopt.gpu import runtime, tables
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import SIGNATURES, SMALL
from refopt.oracle.exact.cases import arguments, assert_same
from refopt.oracle.exact.lars import STEP, make
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import PlacedCase, kernels
from refopt.oracle.exact.strategies import cases, storage
from refopt.oracle.ulp import same_bits

FORMS = list(LARS_MOMENTUM.forms)
forms = pytest.mark.parametrize("form", FORMS)
implementations = pytest.mark.parametrize("form", ["reference", *FORMS])
signatures = pytest.mark.parametrize("dtypes", SIGNATURES, ids="-".join)


def implementation(form, machine):
    return reference if form == "reference" else kernels(form, machine)


# Bits.


@pytest.mark.clause("N3", "N6")
@forms
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_norm_of_a_master_that_is_not_there(machine, form, dtype):
    """It is that of the parameter as it is stored, in the next step, too."""
    case = make([300, 2047], (dtype, dtype, "float32"), steps=[STEP] * 3, norm_of="master")
    laws.same_bits_as_reference(kernels(form, machine), case)


@pytest.mark.clause("N3", "N4", "N6")
@forms
@given(case=cases(LARS_MOMENTUM))
@settings(max_examples=settings().max_examples * 2)
def test_kernel_is_reference(machine, form, case):
    """The kernels leave the bits that the reference leaves, in every form, for every list of tensors."""
    laws.same_bits_as_reference(kernels(form, machine), case)


@pytest.mark.clause("N6")
@forms
@given(case=cases(LARS_MOMENTUM, max_tensors=4), shifts=st.lists(st.integers(0, 9), min_size=1, max_size=4))
@settings(max_examples=max(settings().max_examples // 2, 10))
def test_misaligned_tensors(machine, form, case, shifts):
    """Where a tensor lies in memory changes no bit, and nothing next to it is written."""
    laws.same_bits_as_reference(kernels(form, machine, shifts), case)


@forms
@pytest.mark.parametrize("count", [0, 1, 59, 60, 61, 150, 200, 205])
def test_any_number_of_tensors(machine, form, count):
    """There is no limit on the number of tensors: upstream's were 60, 150 and 200."""
    laws.same_bits_as_reference(kernels(form, machine), make([1 + i % 5 for i in range(count)]))


@forms
def test_a_thousand_tensors(machine, form):
    """A thousand tensors, some of no elements, in one list."""
    laws.same_bits_as_reference(kernels(form, machine), make([i % 3 for i in range(1000)]))


@forms
@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1, 0], [0, 1], [1, 0, 1], [5, 0, 0, 3]], ids=str)
def test_tensors_without_elements(machine, form, sizes):
    """A tensor of no elements may stand anywhere in a list; sizes=[1, 0] has broken four libraries."""
    laws.same_bits_as_reference(kernels(form, machine), make(sizes, steps=[STEP, STEP]))


@pytest.mark.clause("N6")
@forms
@signatures
@pytest.mark.parametrize("size", [8191, 8192, 8193, 3 * 8192])
def test_around_a_chunk(machine, form, dtypes, size):
    """Chunks begin and end without a trace."""
    laws.same_bits_as_reference(kernels(form, machine), make([size], dtypes, steps=[STEP, STEP]))


@pytest.mark.clause("N6")
@pytest.mark.gpu
@forms
@signatures
@pytest.mark.parametrize("sizes", [[2**20 + 1, 5, 2**20], [2**22], [2**22 - 1, 2**21 + 3]], ids=str)
def test_large_tensors(form, dtypes, sizes):
    """Trees of more than one level of nodes."""
    laws.same_bits_as_reference(kernels(form, gpu.device("gpu")), make(sizes, dtypes, steps=[STEP, STEP]))


# One list or many, one partition or another.


@pytest.mark.clause("N11")
@implementations
@given(case=cases(LARS_MOMENTUM, max_tensors=4))
@settings(max_examples=max(settings().max_examples // 2, 10))
def test_merged_is_one_at_a_time(machine, form, case):
    """Merging changes no bit: each tensor comes out as it does alone."""
    laws.merged_is_one_at_a_time(implementation(form, machine), case)


@pytest.mark.clause("N11")
@implementations
@given(case=cases(LARS_MOMENTUM, max_tensors=5))
@settings(max_examples=max(settings().max_examples // 2, 10))
def test_order_of_tensors(machine, form, case):
    """The order of the tensors changes no bit."""
    laws.order_is_free(implementation(form, machine), case)


@pytest.mark.parametrize("dtypes", SIGNATURES, ids="-".join)
def test_single_tensor_calls(machine, dtypes):
    """``lars_momentum`` of a tensor is ``merged_lars_momentum`` of a list of one, on both sides."""
    case = make([300], dtypes)
    expected = reference(case)
    host, placed = case.copy(), PlacedCase(machine, case)
    for module, on in ((cpu, host), (gpu, placed)):
        master = None if on.master_params is None else on.master_params[0]
        arrays = on.params[0], on.grads[0], on.velocities[0]
        module.lars_momentum(*arrays, master_param=master, **STEP)
        assert_same(expected, on.outcome(), "one tensor")


@forms
def test_merged_function_is_a_plan_of_one_step(machine, form):
    """``gpu.merged_lars_momentum`` gives the bits of a plan's step."""
    case = make(SMALL, SIGNATURES[2], norm_of="master")
    placed = PlacedCase(machine, case)
    positional, named = arguments(LARS_MOMENTUM, placed.slots)
    gpu.merged_lars_momentum(*positional, **named, form=form, **STEP, **case.choices)
    assert_same(reference(case), placed.outcome(), "N4")


@pytest.mark.clause("N11")
@forms
@pytest.mark.parametrize("tiles", [2, 4, 16])
def test_chunk_size(executor, form, tiles, monkeypatch):
    """How tensors are cut into chunks changes no bit."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda element_bytes: tiles)
    case = make([9000, 1, 2048, 20_000], steps=[STEP, STEP])
    with simt.observe(count=()) as log:  # launches, and no bytes
        got = kernels(form, executor)(case)
    assert_same(reference(case), got, "N11, chunks")
    if form in ("two_launches", "carried_norm"):
        assert log.launches[0].grid[0] == sum(-(-p.size // (tiles * TILE)) for p in case.params)


class Shaped(runtime.Executor):
    """The executor with other blocks, and other grids for cooperative launches."""

    def __init__(self, block, grid):
        self.block, self.grid = block, grid

    def resident(self, kernel, block, args):
        return self.grid

    def prepare(self, kernel, grid, block, args, *how):
        return lambda stream: kernel.executor[grid, self.block, stream](*args)


@pytest.mark.clause("N11")
@forms
@pytest.mark.parametrize(("block", "grid"), [(32, 1), (64, 3), (128, 2), (256, 7)])
def test_block_and_grid(form, block, grid, monkeypatch):
    """Block size and grid size change no bit."""
    machine = Shaped(block, grid)
    monkeypatch.setattr(runtime, "_executor", lambda: machine)
    case = make([9000, 1, 2048, 1025], steps=[STEP, STEP])
    laws.same_bits_as_reference(kernels(form, machine), case)


@pytest.mark.clause("N11")
@forms
@pytest.mark.parametrize(("schedule", "seed"), [("reverse", 0), ("random", 1), ("random", 2)])
def test_schedule(executor, form, schedule, seed):
    """The order in which blocks and threads run changes no bit."""
    case = make([17_000, 1, 2049, 300], steps=[STEP, STEP])
    expected = reference(case)
    with simt.observe(count=False, schedule=schedule, seed=seed):
        got = kernels(form, executor)(case)
    assert_same(expected, got, "N11, schedule")


# Launches, bytes, races: what the executor sees.


@forms
@given(case=cases(LARS_MOMENTUM, large=False))
@settings(max_examples=max(settings().max_examples // 2, 10))
def test_launches(executor, form, case):
    """The launches of a step are as many as the catalogue says; for a list without elements there are none."""
    placed = PlacedCase(executor, case)
    step = placed.plan(form)
    for hyper in case.steps:
        with simt.observe(count=()) as log:
            step(**hyper)
        assert len(log.launches) == step.launches == LARS_MOMENTUM.launches(case.specs(), form)


@pytest.mark.parametrize(
    ("form", "expected"), [("separate", 5), ("cooperative", 2), ("two_launches", 4), ("carried_norm", 4)]
)
def test_launches_in_figures(executor, form, expected):
    """Six tensors, one of them empty, of two dtype signatures."""
    one, other = make([5, 0, 7], SIGNATURES[0]), make([3, 1, 1], SIGNATURES[2])
    case = one.replace(**{name: values + other.slots[name] for name, values in one.lists().items()})
    placed = PlacedCase(executor, case)
    with simt.observe(count=()) as log:
        placed.plan(form)(**STEP)
    assert len(log.launches) == expected


@forms
@given(dtypes=storage(remainders=True), norm_of=st.sampled_from(["param", "master"]), shift=st.integers(0, 1))
@settings(max_examples=max(settings().max_examples // 4, 10))
def test_bytes(executor, form, dtypes, norm_of, shift):
    """A step reads and writes of every array what the catalogue says, to the byte."""
    dtypes = tuple(d for d in dtypes if d)
    case = make([1500, 0, 3, 1024], dtypes, steps=[STEP, STEP], norm_of=norm_of)
    placed = PlacedCase(executor, case, [shift])
    step = placed.plan(form)
    for k in range(3):
        with simt.observe(count=[x for arrays in placed.slots.values() for x in arrays or ()]) as log:
            step(**STEP)
        # The first step has no norm to carry on, and reads the parameters for it.
        rung = LARS_MOMENTUM.forms["two_launches" if k == 0 else form]
        moved = 0
        passes = LARS_MOMENTUM.traffic(rung, case.specs()[0].dtypes, norm_of=norm_of)
        for slot, arrays in placed.slots.items():
            for array in arrays or []:
                read, written = log.bytes_read(array), log.bytes_written(array)
                assert read + written == passes[slot] * array.nbytes, slot
                assert written == (0 if slot == "grads" else array.nbytes), slot
                moved += read + written
        if k:
            assert moved == step.bytes
            assert moved == LARS_MOMENTUM.bytes(case.specs(), form, norm_of=norm_of)


@pytest.mark.parametrize(
    ("form", "dtypes", "expected"),
    [
        ("two_launches", SIGNATURES[0], 28),
        ("carried_norm", SIGNATURES[0], 24),
        ("cooperative", SIGNATURES[2], 2 + 2 + 2 * 2 + 8 + 8),
        ("separate", SIGNATURES[1], 3 * 8 + 2 * 4 + 2 * 8),
    ],
)
def test_bytes_in_figures(form, dtypes, expected):
    """Bytes an element, counted by hand."""
    assert LARS_MOMENTUM.bytes(make([10], dtypes).specs(), form) == 10 * expected


@forms
@signatures
def test_no_races_and_nothing_out_of_bounds(executor, form, dtypes, monkeypatch):
    """Every form, watched: no data race, no access outside an array, no shared memory read before it is written."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda element_bytes: 2)
    case = make([4100, 0, 1, 300], dtypes)
    placed = PlacedCase(executor, case, [0, 1])
    step = placed.plan(form)
    for schedule, steps in (("forward", 1), ("random", 2)):
        with simt.observe(count=False, watch=True, schedule=schedule, seed=3):
            for _ in range(steps):
                step(**STEP)


def merged_norms(rows):
    """Upstream's merged LARS in small: a partial sum of each block, a grid barrier, and every block reads them all.

    ``rows`` scratch rows take turns from tensor to tensor.
    """
    cuda = simt.cuda

    @cuda.jit
    def kernel(tensors, scratch, norms):
        grid = cuda.cg.this_grid()
        block = cuda.blockIdx.x
        for i in range(tensors.shape[0]):
            scratch[i % rows, block] = tensors[i, block] * tensors[i, block]
            grid.sync()
            total = np.float32(0)
            for other in range(cuda.gridDim.x):
                total += scratch[i % rows, other]
            if block == 0:
                norms[i] = total

    return kernel


@pytest.mark.parametrize(("rows", "found"), [(1, True), (2, False)])
def test_race_of_the_original_merged_kernel(rows, found):
    """One scratch row with one grid barrier per tensor is a write-after-read race; two rows in turn are none."""
    cuda = simt.cuda
    tensors, norms = cuda.to_device(np.ones((4, 3), np.float32)), cuda.to_device(np.zeros(4, np.float32))
    scratch = cuda.to_device(np.zeros((rows, 3), np.float32))
    with simt.observe(count=False, watch=True):
        if found:
            with pytest.raises(simt.DataRace, match="scratch"):
                merged_norms(rows)[3, 1](tensors, scratch, norms)
        else:
            merged_norms(rows)[3, 1](tensors, scratch, norms)
            assert norms.copy_to_host().tolist() == [3] * 4


# Which local learning rate, and what inf and NaN do.

LR, RATIO, ZERO, NAN = "lr", "ratio", "0", "nan"


def assert_rate(case, got, rate):
    """The outcome of one tensor is that of the rule with a given local learning rate, worked out in float64."""
    p, g, v = (x[0].astype(np.float64) for x in (case.params, case.grads, case.velocities))
    (h,) = case.steps
    with np.errstate(all="ignore"):
        g = h["rescale_grad"] * g
        wd, p_norm, g_norm = h["lars_weight_decay"], math.sqrt(sum(p * p)), math.sqrt(sum(g * g))
        ratio = h["lr"] * h["lars_coeff"] * p_norm / (g_norm + wd * p_norm + h["epsilon"]) if rate == RATIO else None
        local = {LR: h["lr"], RATIO: ratio, ZERO: 0.0, NAN: math.nan}[rate]
        v = h["mu"] * v + local * (g + wd * p)
        for slot, expected in (("params", p - v), ("velocities", v)):
            np.testing.assert_allclose(got[slot][0].astype(np.float64), expected, rtol=1e-5, err_msg=slot)


CORNERS = [
    # p zero, g zero, wd, by norms, by decay, by decay and norms
    (False, False, 0.3, RATIO, RATIO, RATIO),
    (False, False, 0.0, RATIO, LR, LR),
    (True, False, 0.3, LR, ZERO, LR),
    (True, False, 0.0, LR, LR, LR),
    (False, True, 0.3, LR, RATIO, LR),
    (False, True, 0.0, LR, LR, LR),
    (True, True, 0.3, LR, NAN, LR),  # 0 / 0: epsilon is 0 here
    (True, True, 0.0, LR, LR, LR),
]


@implementations
@pytest.mark.parametrize(("k", "adapt"), list(enumerate(LARS_MOMENTUM.choices["adapt"])))
@pytest.mark.parametrize("corner", CORNERS, ids=lambda c: f"p{int(not c[0])}g{int(not c[1])}wd{c[2]}")
def test_where_the_ratio_applies(machine, form, k, adapt, corner):
    """All corner cells of the condition, in each of its three versions."""
    p_zero, g_zero, wd, *rates = corner
    case = make([6], steps=[STEP | dict(lars_weight_decay=wd, epsilon=0.0)], adapt=adapt)
    case.params[0][...] *= not p_zero
    case.grads[0][...] *= not g_zero
    assert_rate(case, implementation(form, machine)(case), rates[k])


NON_FINITE = [
    # slot, elements, value, wd, by norms, by decay, by decay and norms
    ("grads", 2, np.inf, 0.3, ZERO, ZERO, ZERO),  # the tensor stands still, but 0 * inf is NaN
    ("grads", 2, -np.inf, 0.0, ZERO, LR, LR),
    ("grads", 2, np.nan, 0.3, LR, NAN, LR),  # NaN > 0 is false
    ("grads", 2, np.nan, 0.0, LR, LR, LR),
    ("params", 2, np.inf, 0.3, NAN, NAN, NAN),  # inf / inf
    ("params", 2, np.inf, 0.0, NAN, LR, LR),  # 0 * inf in the denominator
    ("params", 2, np.nan, 0.3, LR, NAN, LR),
    ("velocities", 2, np.inf, 0.3, RATIO, RATIO, RATIO),
    ("velocities", 2, np.nan, 0.3, RATIO, RATIO, RATIO),
    ("grads", slice(None), 1e25, 0.3, ZERO, ZERO, ZERO),  # finite, but its square is not
    ("params", slice(None), 1e25, 0.3, NAN, NAN, NAN),
    ("grads", slice(None), 1e-30, 0.3, LR, RATIO, LR),  # not zero, but its square is
    ("params", slice(None), 1e-30, 0.3, LR, ZERO, LR),
]


@pytest.mark.clause("N12")
@implementations
@pytest.mark.parametrize(("k", "adapt"), list(enumerate(LARS_MOMENTUM.choices["adapt"])))
@pytest.mark.parametrize("row", NON_FINITE, ids=lambda r: f"{r[0]}-{r[2]}-wd{r[3]}")
def test_non_finite_values(machine, form, k, adapt, row):
    """Which local learning rate comes of an inf, a NaN or an overflow, and which elements it reaches."""
    slot, where, value, wd, *rates = row
    case = make([6], steps=[STEP | dict(lars_weight_decay=wd, epsilon=0.0)], adapt=adapt)
    getattr(case, slot)[0][where] = value
    assert_rate(case, implementation(form, machine)(case), rates[k])


@pytest.mark.clause("N12")
@implementations
def test_non_finite_stays_in_its_tensor(machine, form):
    """A tensor that becomes NaN leaves the others of the list as they would be without it."""
    case = make([5, 2000, 3])
    clean = implementation(form, machine)(case)
    case.params[1][7] = np.inf
    got = implementation(form, machine)(case)
    for slot, arrays in got.items():
        assert slot == "master_params" or np.isnan(arrays[1]).all()
        for i in (0, 2):
            assert_same({slot: [clean[slot][i]]}, {slot: [arrays[i]]}, "N12")


@implementations
def test_none_leaves_everything_alone(machine, form):
    """A gradient of ``None`` skips its tensor: parameter, velocity and master keep their bits."""
    case = make(SMALL, SIGNATURES[2], steps=[STEP, STEP])
    case.grads[0] = case.grads[4] = None
    got = implementation(form, machine)(case)
    for slot, arrays in case.outcome().items():
        for i in (0, 4):
            assert arrays[i].tobytes() == got[slot][i].tobytes()
        assert arrays[3].tobytes() != got[slot][3].tobytes()


# A tensor beyond 2**31 elements.


@pytest.mark.clause("N3", "N6")
@pytest.mark.gpu
@pytest.mark.slow
def test_more_elements_than_an_int32_counts():
    """Offsets are 64 bits wide throughout."""
    from numba import cuda

    size = 2**31 + 1025
    p, g, v = (cuda.device_array(size, np.float32) for _ in range(3))

    @cuda.jit
    def fill(p, g, v):
        for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
            p[i] = np.float32(i % 7 - 3) / np.float32(4)
            g[i] = np.float32(i % 5 + 1) / np.float32(8)
            v[i] = np.float32(0)

    fill[4096, 256](p, g, v)
    lr, coeff = 0.5, 0.75
    gpu.merged_lars_momentum([p], [g], [v], lr=lr, mu=0.0, lars_coeff=coeff, lars_weight_decay=0.0)

    def squares(values):
        counts = [size // len(values) + (k < size % len(values)) for k in range(len(values))]
        return sum(n * x * x for n, x in zip(counts, values, strict=True))

    p_norm = math.sqrt(squares([(k - 3) / 4 for k in range(7)]))
    rate = lr * coeff * p_norm / math.sqrt(squares([(k + 1) / 8 for k in range(5)]))
    local = v[0:1].copy_to_host()[0] * np.float32(8)  # g[0] is 1/8, and the product is exact
    assert local == pytest.approx(rate, rel=1e-5)
    for start in (0, 2**30, 2**31 - 512, 2**31, size - 1024):
        i = np.arange(start, start + 1024 if start + 1024 <= size else size)
        gradient, before = np.float32(i % 5 + 1) / np.float32(8), np.float32(i % 7 - 3) / np.float32(4)
        velocity = np.float32(local) * gradient
        assert same_bits(v[start : start + i.size].copy_to_host(), velocity).all()
        assert same_bits(p[start : start + i.size].copy_to_host(), before - velocity).all()
