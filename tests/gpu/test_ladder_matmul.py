"""The ladder of products: bits of the reference in two kinds, what each rung fetches, and barriers that are needed."""

import contextlib
import re
from pathlib import Path

import needs
import numpy as np
import pytest

from gpu.test_ladder import executed, same, without
from refopt import cpu, simt
from refopt.gpu import matmul as kernels
from refopt.gpu import products
from refopt.gpu.ladder import matmul
from refopt.gpu.runtime import device
from refopt.gpu.target import signature_of

bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)

pytestmark = pytest.mark.clause("N17")
MERGED = "matmul_6", "matmul_7"
SHAPES = {"executor": [(1, 1), (17, 33), (70, 35), (24, 72)],
          "gpu": [(1, 1), (17, 33), (300, 99), (1, 500), (130, 520)]}
OF_EIGHT = {"executor": [(8, 8), (72, 136)], "gpu": [(8, 8), (72, 136), (512, 1024), (520, 64)]}


def dtype_of(rung):
    return np.dtype(np.float32) if rung in matmul.PLAIN else bfloat16


def bits_of(rung):
    return np.float32 if rung in matmul.PLAIN else np.uint16


def drawn(shapes, dtype):
    """Numbers of different sizes, of which many products cancel, so that a sum in another order has other bits."""
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape)).astype(dtype) for shape in shapes]


def placed(machine, rung, xs):
    """The arguments of a rung's launches."""
    bits = bits_of(rung)
    arrays = [machine.to_device(x.view(bits).reshape(-1)) for x in xs]
    outs = [machine.to_device(np.full(len(x) ** 2, 0x7FFF, np.uint16).astype(bits)) for x in xs]
    return arrays, outs, tuple(x.shape for x in xs)


def arguments(machine, rung, shapes):
    """The same of drawn matrices."""
    return placed(machine, rung, drawn(shapes, dtype_of(rung)))


def squared(machine, rung, xs, module=matmul):
    """What a rung makes of matrices, and the launches."""
    arrays, outs, shapes = placed(machine, rung, xs)
    launches = (module.RUNGS | module.HOPPER)[rung](arrays, outs, shapes)
    for launch in launches:
        launch()
    machine.synchronize()
    results = zip(xs, outs, strict=True)
    return [out.copy_to_host().view(x.dtype).reshape(len(x), len(x)) for x, out in results], launches


def expected(xs):
    return [cpu.matmul(x, x.T).astype(x.dtype) for x in xs]


OFTEN = "matmul_0", "matmul_1", "matmul_2", "matmul_3", "matmul_7"  # the others are production, and tested as such


@pytest.mark.parametrize("rung", [
    pytest.param(rung, marks=[pytest.mark.slow] * (rung not in OFTEN)) for rung in matmul.RUNGS])
def test_bits(rung, machine):
    """Those of a sequence of fp32, or of tensor cores; in as many launches as the file says."""
    xs = drawn([*([] if rung in MERGED else SHAPES[machine.name]), *OF_EIGHT[machine.name]], dtype_of(rung))
    want = expected(xs)
    assert not same([want], [expected([x[:, ::-1] for x in xs])])  # the order of k is seen
    got, launches = squared(machine, rung, xs)
    assert same([want], [got])
    assert len(launches) == (1 if rung == "matmul_7" else len(xs))


@pytest.mark.gpu
def test_warpgroups_have_the_bits_of_the_other_rungs():
    """Of matrices that fill tiles, and of such as do not."""
    xs = drawn([(8, 8), (72, 136), (512, 1024), (520, 64), (128, 128)], bfloat16)
    got, launches = squared(device("gpu"), "matmul_8", xs)
    assert same([expected(xs)], [got]) and len(launches) == 1


def test_both_kinds_differ_in_their_sums():
    """A tensor core does not round each of its additions as fp32 does."""
    (x,) = drawn([(64, 128)], bfloat16)
    wide = x.astype(np.float32)
    assert (cpu.matmul(x, x.T) != cpu.matmul(wide, wide.T)).mean() > 0.1


@pytest.mark.parametrize("rung", matmul.RUNGS)
def test_nothing_is_a_product_too(rung, executor):
    """No matrices, and some of no rows or of no columns."""
    assert matmul.RUNGS[rung]([], [], ()) == []
    xs = [np.zeros(shape, dtype_of(rung)) for shape in ((0, 8), (8, 0))]
    assert same([squared(executor, rung, xs)[0]], [[np.zeros((n, n), dtype_of(rung)) for n in (0, 8)]])


def test_the_last_rungs_are_production(executor):
    """Their kernels are those of `refopt.gpu`, and none is a copy."""
    xs = drawn([(16, 24)], bfloat16)
    made = {rung: squared(executor, rung, xs)[1][0].kernel for rung in list(matmul.RUNGS)[4:]}
    assert made["matmul_4"] is kernels.kernel("bfloat16", False, True, "bfloat16", False)
    assert made["matmul_5"] is kernels.kernel("bfloat16", False, True, "bfloat16", True)
    assert made["matmul_6"] is made["matmul_7"] is products.merged("bfloat16", True, True, False)


@pytest.mark.parametrize(("shift", "stages"), [(0, True), (1, False), (4, False), (8, True)])
def test_stages_are_for_matrices_at_multiples_of_16_bytes(shift, stages, executor):
    x = executor.view(executor.to_device(np.zeros(72, np.uint16)), shift, (64,), (2,))
    (launch,) = matmul.launches_5([x], [executor.to_device(np.zeros(64, np.uint16))], [(8, 8)])
    assert launch.kernel is kernels.kernel("bfloat16", False, True, "bfloat16", stages)


@pytest.mark.parametrize("rung", MERGED)
def test_sizes_of_other_than_eight_are_refused(rung, executor):
    args = arguments(executor, rung, [(8, 12)] if rung == "matmul_6" else [(8, 8), (12, 8)])
    index, shape = (0, "(8, 12)") if rung == "matmul_6" else (1, "(12, 8)")
    refusal = re.escape(f"tables: shapes[{index}]: expected multiples of eight, got {shape}")
    with pytest.raises(ValueError, match=refusal):
        matmul.RUNGS[rung](*args)


# What the file says of traffic. Of a matrix of m x k: reads of X by each rung, in elements.
def reads(m, k):
    return {"matmul_0": 2 * m * m * k, "matmul_1": 2 * m * m * k // 32, "matmul_2": 2 * m * m * k // 64,
            "matmul_3": m * m * k * (1 / 8 + 1 / 16), "matmul_4": 2 * m * m * k // 64, "matmul_5": 2 * m * m * k // 64,
            "matmul_6": 2 * m * m * k // 64, "matmul_7": 2 * m * m * k // 64}


@pytest.mark.parametrize("rung", [
    pytest.param(rung, marks=[pytest.mark.slow] * (rung != "matmul_1")) for rung in matmul.RUNGS])
def test_how_often_a_number_is_fetched(rung, executor):
    """In full; below the diagonal alone where tiles are mirrored."""
    m, k = (64, 32) if rung in matmul.PLAIN else (128, 32)
    args = arguments(executor, rung, [(m, k)])
    with simt.observe() as log:
        for launch in matmul.RUNGS[rung](*args):
            launch()
    share = 3 / 4 if rung in MERGED else 1  # three of four tiles
    assert log.bytes_read(args[0][0]) == share * reads(m, k)[rung] * dtype_of(rung).itemsize


@pytest.mark.parametrize(("rung", "shape"), [
    ("matmul_0", (32, 8)), pytest.param("matmul_1", (32, 32), marks=pytest.mark.slow),
    pytest.param("matmul_2", (64, 16), marks=pytest.mark.slow)])
def test_sectors_and_banks(rung, shape, executor):
    """matmul_0 fetches 33 sectors for two numbers of each lane; others use whole ones, and each lane its own bank."""
    args = arguments(executor, rung, [shape])
    with simt.observe(profile=True) as log:
        for launch in matmul.RUNGS[rung](*args):
            launch()
    loads = [row for row in log.profile.sectors if row.kind == "load"]
    if rung == "matmul_0":
        assert [row.sectors / row.requests for row in loads] == [33 / 2]
    else:
        assert loads and all(row.sectors == row.least for row in loads)
        assert len(log.profile.banks) == 4 and not any(row.conflicts for row in log.profile.banks)


CALL = "cuda.syncthreads()"


@pytest.mark.slow
@pytest.mark.parametrize("count", [None, *range(4)])
def test_every_barrier_is_needed(count, executor):
    """Without any one of them, the race is seen; with all, there is none."""
    text = Path(matmul.__file__).read_text()
    changed = without(text, CALL)
    assert len(changed) == 4
    module = executed(matmul, text if count is None else changed[count])
    rung = f"matmul_{1 + (count or 0) // 2}"
    with (contextlib.nullcontext() if count is None else pytest.raises(simt.DataRace),
          simt.observe(count=False, watch=True)):
        for each in (matmul.PLAIN[1:] if count is None else [rung]):
            squared(executor, each, drawn([(20, 34)], np.float32), module)


@pytest.mark.parametrize("rung", [
    pytest.param(rung, marks=[pytest.mark.slow] * (rung != "matmul_2")) for rung in list(matmul.RUNGS)[:4]])
def test_ptx(rung, executor):
    """Products and sums of the plain rungs are two operations; what is to be in registers is there."""
    needs.compiler()
    (launch,) = matmul.RUNGS[rung](*arguments(executor, rung, [(8, 8)]))
    if rung in matmul.PLAIN:
        assert not launch.kernel.inexact(*launch.args)
    ptx = launch.kernel.ptx(signature_of(launch.args))
    assert ".local" not in ptx and ("mma.sync" in ptx) == (rung == "matmul_3") == ("mul.rn.f32" not in ptx)
