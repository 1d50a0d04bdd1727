"""Products of many matrices in one launch: the bits of `cpu.matmul`, half of the tiles where they are symmetric."""

import json
import re
import types
from pathlib import Path

import needs
import numpy as np
import pytest

from benchmarks.records import compiler
from gpu import kept_ptx
from refopt import cpu
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.muon import COEFFICIENTS
from refopt.gpu import cuda, notes, plain_products, products, warpgroup_products
from refopt.gpu.matmul import THREADS, TILE
from refopt.gpu.muon import iterations
from refopt.gpu.muon.matrices import Matrix, Workspace
from refopt.gpu.products import Product, padded, tiles

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N17")


def test_products_of_all_matrices_are_one_launch(machine):
    """X X^T or X^T X, by half the tiles; sizes and tiles of all kinds."""
    xs = [np.random.default_rng(k).standard_normal(shape).astype(bfloat16)
          for k, shape in enumerate([(1, 1), (1, 5), (5, 1), (17, 33), (70, 66)])]
    rows, inputs, outs = [], [], []
    for x in xs:
        small, large = sorted(x.shape)
        whole = np.zeros([padded(size) for size in x.shape], bfloat16)
        whole[: len(x), : x.shape[1]] = x
        inputs.append(machine.to_device(whole.view(np.uint16)))
        outs.append(machine.to_device(np.zeros((padded(small), padded(small)), np.uint16)))
        at = cuda.address(inputs[-1])
        rows.append(Product(at, at, cuda.address(outs[-1]), 0, small, small, large, x.shape[0] > x.shape[1]))
    table, zero = tiles(rows, True, TILE, TILE), np.float32(0)
    assert len(table) == len(xs) + 2
    tables = machine.to_device(table), machine.to_device(np.array(rows, np.int64))
    products.merged("bfloat16", True, True, False)[len(table), THREADS](*tables, zero, zero)
    machine.synchronize()
    for x, out in zip(xs, outs, strict=True):
        x = x if x.shape[0] <= x.shape[1] else x.T
        got, want = out.copy_to_host(), np.zeros(out.shape, np.uint16)
        want[: len(x), : len(x)] = cpu.matmul(x, x.T).astype(bfloat16).view(np.uint16)
        assert (got == want).all()


def test_symmetric_products_take_half_of_the_tiles():
    """Those on the diagonal and below, the longest sums first."""
    rows = [Product(0, 0, 0, 0, 200, 200, 64), Product(0, 0, 0, 0, 65, 65, 640)]
    assert len(tiles(rows, False, 64, 64)) == 16 + 4 and len(tiles(rows, False, 64, 256)) == 4 + 2
    half = tiles(rows, True, 64, 64)
    assert len(half) == 10 + 3 and (half[:, 1] >= half[:, 2]).all() and (half[:3, 0] == 1).all()


SIZES = [(1, 1), (1, 40), (40, 1), (17, 33), (33, 17), (130, 260), (260, 130), (129, 129), (300, 1000), (1000, 300),
         (648, 328), (512, 512)]


@pytest.mark.parametrize("machine", [pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("of", ["numbers", "patterns"])
def test_warpgroups_have_the_bits_of_warps(machine, monkeypatch, dtype, of):
    """In all that an iteration stores, padding included: of matrices of all sizes, and of any patterns of bits."""
    matrices = [Matrix(i, 0, *shape, shape[1], 1, *shape, shape[0] <= shape[1]) for i, shape in enumerate(SIZES)]
    gram = [i % 2 > 0 for i in range(len(matrices))]
    work, rng = Workspace(machine, matrices, dtype, np.float32, gram), np.random.default_rng(0)
    if not work.mapped:
        pytest.skip(f"{machine.properties} has no warpgroups")
    whole = work.memory.copy_to_host()
    base = cuda.address(work.memory)
    for i, m in enumerate(matrices):
        at = (work.places["x", i] - base) // 2
        x = rng.standard_normal((m.outer, m.inner)) / m.inner**0.5
        x = x.astype(numpy_dtype(dtype)).view(np.uint16) if of == "numbers" else rng.integers(0, 1 << 16, x.shape)
        rows = whole[at : at + m.outer * padded(m.inner)].reshape(m.outer, -1)
        rows[:, : m.inner] = x
    found, triples = [], np.array([COEFFICIENTS] * 3, np.float32)
    monkeypatch.setattr(iterations, "are_large", lambda _: True)
    for mapped in (False, True):
        monkeypatch.setattr(work, "mapped", mapped)
        work.memory.copy_to_device(whole)
        for launch in iterations.launches(machine, work, iterations.stages(triples, (2,))[0], dtype):
            launch(0)
        machine.synchronize()
        found.append(work.memory.copy_to_host())
    assert (found[0] == found[1]).all() and (found[0] != whole).mean() > 0.5


def test_the_executor_says_that_it_has_no_warpgroups(executor):
    """And other GPUs than Hopper's do, before anything is compiled."""
    kernel = warpgroup_products.merged("bfloat16", True, True, False)
    tables = executor.to_device(np.zeros((1, 3), np.int64)), executor.to_device(np.ones((1, 8), np.int64))
    with pytest.raises(RuntimeError, match="init_barrier runs only on GPUs of compute capability"):
        kernel[1, warpgroup_products.THREADS](*tables, np.float32(0), np.float32(0))
    later = executor.properties._replace(capability=(10, 0))
    with pytest.raises(RuntimeError, match=r"expected compute capability 9\.0, got .* 10\.0"):
        kernel.require(later)


TESTED = Path(__file__).with_name("warpgroups.json")  # digests of the PTX that was tested on a GPU
KINDS = {"x x^T": (True, True, False), "b A + c A A": (False, True, True), "a x + B x": (False, False, True),
         "Q x": (False, False, False)}


@pytest.mark.parametrize("kind", KINDS)
def test_warpgroups_multiply_as_registers_allow(kind, request):
    """Instructions of Hopper's, 64 of k at a time; sums in registers; stages that fit into shared memory.

    Only a GPU runs them, so their PTX has to be what was tested there: after a change, test there, and then here with
    REFOPT_PTX=write.
    """
    needs.compiler()
    square, symmetric, adds = KINDS[kind]
    width, rows = (128, 0) if symmetric else (256, 1)
    kernel = warpgroup_products.merged("bfloat16", square, symmetric, adds)
    assert kernel.dynamic_shared == {True: 229472, False: 213056}[symmetric] <= 227 * 1024
    signature = "int64[2]", "int64[2]", "float32", "float32"
    if kept_ptx.tested(request, {kernel.name: (kernel, signature)}):
        return
    ptx = kernel.ptx(signature)
    assert ".target sm_90a" in ptx
    multiply = rf"wgmma\.mma_async\.sync\.aligned\.m64n{width}k16\.f32\.bf16\.bf16 [^;]*, 1, 1, 1, (\d), (\d);"
    along = [("1", "1")] * 4 * square
    for columns in (width, 64):  # all of a tile, and what a warpgroup needs on the diagonal or at the edge
        found = re.findall(multiply.replace(f"n{width}k", f"n{columns}k"), ptx)
        assert sorted(found) == [("0", str(rows))] * 4 + along
    # Both numbers of a pair are alpha x + beta c, each operation rounded for itself.
    operations = [width, width // 2, 0] if adds else [0, 0, 0]
    assert [ptx.count(f"{what}.rn.f32") for what in ("mul", "add", "fma")] == operations
    assert ".local" not in ptx
    tested = json.loads(TESTED.read_text())
    if kept_ptx.WRITES:
        tested |= {"compiler": compiler(), kind: notes.digest(ptx)}
        TESTED.write_text(json.dumps(tested, indent=1) + "\n")
    elif tested["compiler"] == compiler():
        assert tested[kind] == notes.digest(ptx), "other PTX than was tested on a GPU"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plain_products_are_exact_and_in_registers(dtype, request):
    """A multiplication and an addition for each element and k, each rounded; no local memory."""
    needs.compiler()
    kernel = plain_products.merged(dtype, True, True, False)
    signature = "int64[2]", "int64[2]", f"{dtype}[1]"
    if kept_ptx.tested(request, {kernel.name: (kernel, signature)}):
        return
    ptx = kernel.ptx(signature)
    of, sums, steps = dtype[-2:], plain_products.SUMS, plain_products.STEP
    counts = [ptx.count(f"{what}.rn.f{of}") for what in ("mul", "add", "fma")]
    assert counts[0] == counts[1] > 0 and counts[0] % sums == 0 and counts[0] <= sums * steps and not counts[2]
    assert ".local" not in ptx


def test_large_tiles_are_for_lists_that_fill_them():
    """By elements: a few large matrices weigh more than many small ones; a side that is short fills none."""
    def products_of(*sizes):
        return [Product(0, 0, 0, 0, m, n, 64) for m, n in sizes]

    assert iterations.are_large(products_of((256, 200), *[(100, 100)] * 5))
    assert not iterations.are_large(products_of((256, 200), *[(100, 100)] * 6))
    assert not iterations.are_large(products_of((128, 4000))) and not iterations.are_large([])


def test_an_iteration_has_a_block_for_each_tile(executor, monkeypatch):
    """Half of them for the two squares; the tables of the next iteration have x at its other place."""
    grids, tables = [], []
    monkeypatch.setattr(type(executor), "prepare", lambda self, kernel, grid, block, args, mode: (
        grids.append(grid), tables.append(args[1].copy_to_host().tolist())))
    work = Workspace(executor, [Matrix(0, 0, 130, 70, 70, 1, 130, 70, False)], "float16", np.float32, [False])
    every, _ = iterations.stages(np.ones((2, 3), np.float32), None)
    [*iterations.launches(executor, work, every, "float16")]
    assert grids == [3, 3, 6] * 2 and tables[1] == tables[4]
    assert tables[2][0][2] == tables[3][0][0] != tables[0][0][0] == tables[5][0][2]


class OnDevice:
    """An array of a GPU, as far as its description goes."""

    def __init__(self, address, shape, dtype):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": np.dtype(dtype).str,
                                         "strides": None, "version": 3}


def test_tensor_maps_are_made_where_they_are_asked_for():
    """Of x at both of its places and of its squares, with the sizes that these have."""
    asked = []

    def tensor_maps(addresses, sizes):
        asked.append((addresses, sizes))
        return OnDevice(1 << 20, (len(sizes), 16), np.uint64)

    machine = types.SimpleNamespace(
        name="gpu", warpgroups=True, tensor_maps=tensor_maps,
        empty=lambda shape, dtype: OnDevice(1 << 12, shape, dtype),
        to_device=lambda array: OnDevice(1 << 16, array.shape, array.dtype))
    matrices = [Matrix(0, 0, 130, 70, 70, 1, 130, 70, False), Matrix(1, 0, 8, 9, 9, 1, 8, 9, True)]
    work = Workspace(machine, matrices, "bfloat16", np.float32, [False, True])
    assert work.mapped and not asked and not Workspace(machine, matrices, "float32", np.float32, [False] * 2).mapped
    every = [stage.operations for stage in iterations.stages(np.ones((2, 3), np.float32), ())[0]]
    pairs = [(work.products(of), work.products(of, mapped=True)) for of in every]
    ((addresses, sizes),) = asked
    number = {at: (1 << 20) + 128 * i for i, at in enumerate(addresses)}
    assert sizes == [(130, 70, 72), (8, 9, 16)] * 2 + [(70, 70, 72), (8, 8, 8)] * 2 + [(8, 8, 8)] * 3
    for plain, mapped in pairs:
        for x, y in zip(plain, mapped, strict=True):
            assert y == x._replace(a=number[x.a], b=number[x.b], out=number[x.out], added=number.get(x.added, 0))
