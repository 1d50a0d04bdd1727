"""Kernels of one's own, from the public parts alone: the page's, an average in other dtypes, and a clip of norms."""

import gc
import re
from types import SimpleNamespace

import needs
import numpy as np
import pytest

from benchmarks.record import ROOT
from refopt import gpu, simt
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.reduce import tile_sums, tree_sum
from refopt.gpu import cuda, exactness, parts
from refopt.gpu.exactness import instructions
from refopt.gpu.ladder import global_norm
from refopt.gpu.target import argument_spelled

PAGE = ROOT / "docs" / "own-kernels.md"
CHECKED = "## Is it exact?"  # from here on the page needs a compiler
SIZES = [1, 0, 5, 300, 1500, 64, 4099]
ONE = np.float32(1)


def run(page, folder):
    """Run the Python of a page as a file, each line where it is on the page."""
    lines, inside = [], False
    for line in page.splitlines():
        inside = (inside and line != "```") or line == "```python"
        lines.append(line if inside and line != "```python" else "")
    path = folder / PAGE.name
    path.write_text("\n".join(lines))
    exec(compile(path.read_text(), str(path), "exec"), {})


@pytest.mark.filterwarnings("error::refopt.simt.UntypedWarning")
def test_the_page_runs(machine, capsys, tmp_path):
    text, before, _ = PAGE.read_text().partition(CHECKED)
    assert before and text.count("```python") == 5
    run(text.replace('gpu.use("executor")', f'gpu.use("{machine.name}")'), tmp_path)
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("error::refopt.simt.UntypedWarning")
def test_what_the_page_prints(capsys, tmp_path):
    needs.compiler()
    page = PAGE.read_text()
    run(page, tmp_path)
    (said,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert capsys.readouterr().out == said


def test_what_the_page_calls_public():
    """All of it is there, and no other name of the parts."""
    rows = dict(re.findall(r"(?m)^\| `([\w.]+)` \| (.*) \|$", PAGE.read_text()))
    modules = {"refopt.gpu.cuda": cuda, "refopt.gpu.parts": parts, "refopt.gpu.exactness": exactness, "refopt.gpu": gpu}
    for name, module in modules.items():
        for public in re.findall(r"`(\w+)`", rows[name]):
            assert hasattr(module, public), public
    named = set(re.findall(r"`(\w+)`", rows["refopt.gpu.parts"]))
    columns = {name for name in parts.__all__ if name.isupper()}
    assert set(parts.__all__) - named - columns == {"Access", "Launch"}


# An average of parameters in any dtypes.


@parts.device_function
def blend(average, param, decay):
    return decay * average + (ONE - decay) * param


def average_of(*dtypes):
    """The kernel for averages and parameters of two dtypes."""
    (load, store), load_param = parts.access(dtypes[0]), parts.access(dtypes[1]).load

    @parts.rows
    @parts.device_function
    def update(addresses, tensor, i, stop, whole, decay):
        x = cuda.local.array((2, 8), np.float32)
        load(addresses[0, tensor], i, stop, whole, x, 0)
        load_param(addresses[1, tensor], i, stop, whole, x, 1)
        for e in range(8):
            x[0, e] = blend(x[0, e], x[1, e], decay)
        store(addresses[0, tensor], i, stop, whole, x, 0)

    @cuda.jit(launch_bounds=(64, 16))
    def ema(addresses, chunks, decay):
        update(addresses, chunks, cuda.blockIdx.x, decay)

    return ema


def shifted(machine, x, shift):
    """A copy on a machine, some elements off an aligned address."""
    whole = machine.to_device(np.concatenate([np.zeros(shift, x.dtype), x]))
    return machine.view(whole, shift, x.shape, x.strides)


def random(seed, dtype, sizes=SIZES):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n).astype(numpy_dtype(dtype)) for n in sizes]


DTYPES = [("float32", "float32"), ("float32", "bfloat16"), ("float16", "float16"), ("bfloat16", "float32")]


@pytest.mark.parametrize("shifts", [(0, 0), (1, 1), (0, 1)], ids=str)
@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
def test_an_average_has_the_bits_of_numpy(dtypes, shifts, machine):
    """Widened to fp32, two products and a sum, rounded when it is stored; every tensor whole, nothing beside it."""
    lists = [random(k, dtype) for k, dtype in enumerate(dtypes)]
    device = [[shifted(machine, x, shift) for x in xs] for xs, shift in zip(lists, shifts, strict=True)]
    decay = np.float32(0.75)
    table = parts.Table(*device)
    assert table.dtypes == dtypes
    step = table.launch(average_of(*dtypes), decay)
    for run in (step, step.prepared() if machine.name == "gpu" else step):
        run(0)
        for average, param in zip(*lists, strict=True):
            average[...] = decay * average.astype(np.float32) + (ONE - decay) * param.astype(np.float32)
    for xs, ys in zip(device, lists, strict=True):
        assert [x.copy_to_host().tobytes() for x in xs] == [y.tobytes() for y in ys]


@pytest.mark.parametrize("dtypes", [DTYPES[1], *(pytest.param(x, marks=pytest.mark.slow) for x in DTYPES[::2])],
                         ids="-".join)
def test_an_average_is_exact_and_vectorised(dtypes, executor):
    needs.compiler()
    table = parts.Table(*([executor.to_device(x) for x in random(k, dtype)] for k, dtype in enumerate(dtypes)))
    step = table.launch(average_of(*dtypes), np.float32(0.75))
    assert step.kernel.inexact(*step.args) == []
    ptx = step.kernel.ptx([argument_spelled("", arg) for arg in step.args])
    wide = ["v4.f32" if dtype == "float32" else "v2.b32" for dtype in dtypes]
    assert f"st.global.{wide[0]}" in ptx and all(f"ld.global.{x}" in ptx for x in wide)
    assert not [op for op in instructions(ptx) if op.startswith(("ld.local", "st.local"))]


def test_tensors_in_another_order_of_axes(executor):
    """Elements are taken as they lie in memory."""
    x, y = (np.asfortranarray(random(k, "float32", [6])[0].reshape(2, 3)) for k in (0, 1))
    device = [[executor.to_device(x)], [executor.to_device(y)]]
    parts.Table(*device).launch(average_of("float32", "float32"), np.float32(0.5))()
    assert np.array_equal(device[0][0].copy_to_host(), np.float32(0.5) * x + np.float32(0.5) * y)


@pytest.mark.parametrize(("dtype", "shift", "aligned"), [
    ("float16", 4, 1), ("float16", 2, 0), ("float32", 4, 1), ("float32", 2, 0), ("float64", 2, 1), ("float64", 1, 0)])
def test_tensors_are_aligned_to_four_elements_or_16_bytes(dtype, shift, aligned, executor):
    table = parts.Table([ones(executor, 8)], [shifted(executor, np.ones(8, dtype), shift)])
    assert table.chunks.copy_to_host()[:, parts.ALIGNED].tolist() == [aligned]


def test_a_prepared_launch_keeps_its_arrays(monkeypatch):
    """The machine is given grid, block, arguments and mode; what it has prepared holds on to the table."""
    given = []

    class Machine:
        def prepare(self, *what):
            given.append(what)
            return lambda stream: None

    monkeypatch.setattr(cuda, "device", lambda name: Machine())
    table = object()
    launch = cuda.Launch(twice, 3, 64, (1, 2), "cooperative", table)
    assert launch.prepared().keep is table and given == [(twice, 3, 64, (1, 2), "cooperative")]
    launch._replace(grid=0).prepared()(0)
    assert len(given) == 1


def test_addresses_alone_are_of_the_machine_in_force(monkeypatch):
    """As no argument says where it is."""
    ran = []
    monkeypatch.setattr(cuda, "device", lambda name: SimpleNamespace(name=name or "gpu"))
    monkeypatch.setattr(cuda.Launch, "prepared", lambda launch: ran.append)
    cuda.Launch(twice, 3, 64, (1, 2))(5)
    assert ran == [5]


def test_no_elements(executor):
    for lists in ([[], []], [[executor.to_device(np.ones(0, np.float32))]] * 2):
        table = parts.Table(*lists)
        launch = table.launch(average_of("float32", "float32"), np.float32(0.5))
        assert table.count == launch.grid == 0
        launch()


def test_a_launch_keeps_its_arrays(executor):
    """Which it finds by address; nobody else may have them any more."""
    xs, ys = ([executor.to_device(np.full(300, x, np.float32))] for x in (1, 3))
    step, first = parts.Table(xs, ys).launch(average_of("float32", "float32"), np.float32(0.5)), xs[0]
    xs.clear()
    ys.clear()
    gc.collect()
    stream = simt.cuda.stream()
    with simt.observe(count=()) as log:
        step(stream)
    assert (first.copy_to_host() == 2).all() and [launch.stream for launch in log.launches] == [stream]


# A clip of the norm of each tensor, in one launch whose blocks wait for each other.

LOAD, STORE = parts.access("float32")
ZERO = np.float32(0)
climb = parts.joiner(np.float32).climb


@parts.device_function
def squares(x, first, stop, aligned):
    """The sum of the squares of a tile, by a warp."""
    i, s = first + 4 * (cuda.threadIdx.x % 32), cuda.local.array((2, 8), np.float32)
    for e in range(8):
        s[0, e] = ZERO
    for row in range(parts.rows_of(first, stop)):
        LOAD(x, i + parts.ROW * row, stop, aligned and first + parts.ROW * (row + 1) <= stop, s, 1)
        for e in range(8):
            s[0, e] += s[1, e] * s[1, e]
    return parts.lane_tree(s, 0)


@parts.rows
@parts.device_function
def scale(addresses, tensor, i, stop, whole, factor):
    x = cuda.local.array((1, 8), np.float32)
    LOAD(addresses[0, tensor], i, stop, whole, x, 0)
    for e in range(8):
        x[0, e] = factor * x[0, e]
    STORE(addresses[0, tensor], i, stop, whole, x, 0)


@cuda.jit(launch_bounds=(128, 4))
def clip(addresses, chunks, nodes, counters, sums, roots, most):
    grid = cuda.cg.this_grid()
    warp, warps, lane = cuda.threadIdx.x // 32, cuda.blockDim.x // 32, cuda.threadIdx.x % 32
    for c in range(cuda.blockIdx.x, chunks.shape[0], cuda.gridDim.x):
        tensor, start, stop = chunks[c, parts.TENSOR], chunks[c, parts.START], chunks[c, parts.STOP]
        for first in range(start + warp * parts.TILE, stop, warps * parts.TILE):
            s = squares(addresses[0, tensor], first, stop, chunks[c, parts.ALIGNED])
            if lane < 2:  # the tree has two rows of sums; here they are the same
                sums[lane, chunks[c, parts.SLOT] + (first - start) // parts.TILE] = s
        node = chunks[c, parts.NODE]
        closes, s = climb(node, nodes[node, parts.ARRIVALS], nodes, counters, sums)
        if closes and cuda.threadIdx.x == 0:
            roots[tensor] = s
    grid.sync()
    for c in range(cuda.blockIdx.x, chunks.shape[0], cuda.gridDim.x):
        norm = parts.sqrt(roots[chunks[c, parts.TENSOR]])
        if norm > most:
            scale(addresses, chunks, c, most / norm)


def clip_of(machine, params, most, **how):
    table = parts.Table(params)
    sums = machine.to_device(np.zeros((2, max(1, table.slots)), np.float32))
    roots = machine.to_device(np.zeros(len(params), np.float32))
    return table.launch(clip, table.nodes, table.counters, sums, roots, most, **how)


def test_a_clip_has_the_bits_of_numpy(machine):
    """Sums by the tree of tiles; a second launch finds the counters as the first did."""
    most = np.float32(8)
    arrays = random(3, "float32", [*SIZES, 3 * 4096 + 7])
    params = [machine.to_device(x) for x in arrays]
    step = clip_of(machine, params, most, cooperative=True)
    assert step.mode == "cooperative" and 0 < step.grid <= parts.Table(params).count
    for most_now in (most, np.float32(2)):
        step._replace(args=(*step.args[:-1], most_now))()
        for x in arrays:
            norm = np.sqrt(tree_sum(tile_sums(x * x)))
            if norm > most_now:
                x *= most_now / norm
    assert [x.copy_to_host().tobytes() for x in params] == [x.tobytes() for x in arrays]
    assert any(np.linalg.norm(x) > 1.9 for x in arrays)


def test_a_cooperative_launch_has_no_more_blocks_than_are_resident(executor):
    params = [executor.to_device(np.ones(100_000, np.float32))]
    assert clip_of(executor, params, ONE, cooperative=True).grid == 4 < clip_of(executor, params, ONE).grid
    assert clip_of(executor, [ones(executor, 3)], ONE, cooperative=True).grid == 1


def test_a_cooperative_launch_of_many_elements_has_blocks_enough_to_run_by_lanes(executor):
    many = executor.to_device(np.ones(6_000_000, np.float32))
    assert clip_of(executor, [many], ONE, cooperative=True).grid == 256


# What is refused.


def ones(executor, shape, dtype="float32", order="C"):
    return executor.to_device(np.ones(shape, numpy_dtype(dtype), order))


def test_tables_that_are_refused(executor):
    one, other = ones(executor, (2, 3)), ones(executor, (2, 3))
    gaps = executor.view(ones(executor, 8), 0, (2, 3), (16, 4))
    for lists, error, said in [
        ([], TypeError, r"^Table: lists: expected at least one list of arrays, got none$"),
        ([one], TypeError, r"^Table: lists\[0\]: expected a list of arrays, got DeviceArray$"),
        ([[one], []], ValueError, r"^Table: lists\[1\]: expected 1 arrays, as in lists\[0\], got 0$"),
        ([[one], [np.ones((2, 3))]], TypeError, r"^Table: lists\[1\]\[0\]: expected a device array, got a NumPy"),
        ([[one, ones(executor, 3, "float16")]], TypeError, r"^Table: lists\[0\]\[1\]: expected float32, got float16$"),
        ([[one, one], [ones(executor, (2, 3), "float16"), one]], TypeError,
         r"^Table: lists\[1\]\[1\]: expected float16, got float32$"),
        ([[ones(executor, 3, "int32")]], TypeError, r"^Table: lists\[0\]\[0\]: expected .*float64, got int32$"),
        ([[one], [ones(executor, (3, 2))]], ValueError, r"^Table: lists\[1\]\[0\]: expected shape \(2, 3\)"),
        ([[one], [ones(executor, (2, 3), order="F")]], ValueError, r"^Table: lists\[1\]\[0\]: expected .*order"),
        ([[one], [gaps]], ValueError, r"^Table: lists\[1\]\[0\]: expected a dense array"),
    ]:
        with pytest.raises(error, match=said):
            parts.Table(*lists)
    powers = ((tiles, f"a power of two, got {tiles}") for tiles in (3, 6))
    for tiles, said in (*powers, (0, "an integer from 1 to 1024, got 0")):
        with pytest.raises(ValueError, match=rf"^Table: tiles: expected {said}$"):
            parts.Table([one], [other], tiles=tiles)


def test_launches_that_are_refused(executor):
    """A number of Python's would be fp64 on a GPU, and not on the executor."""
    table, kernel = parts.Table([ones(executor, 3)], [ones(executor, 3)]), average_of("float32", "float32")
    for bad, shown in ((0.5, "0.5"), (None, "None"), (np.float64(1), r"np.float64\(1.0\)")):
        said = rf"^launch: args\[0\]: expected an array, an int or np.float32, got {shown}$"
        with pytest.raises(TypeError, match=said):
            table.launch(kernel, bad)
    with pytest.raises(TypeError, match=r"^launch: args: expected 1, as ema takes, got 2$"):
        table.launch(kernel, ONE, ONE)
    with pytest.raises(TypeError, match=r"^launch: kernel: expected one of refopt.gpu.cuda.jit, got function$"):
        table.launch(blend, ONE)
    for block, said in ((48, "a multiple of 32, got 48"), (96, "an integer from 32 to 64, got 96")):
        with pytest.raises(ValueError, match=rf"^launch: block: expected {said}$"):
            table.launch(kernel, ONE, block=block)
    assert table.launch(kernel, ONE).block == 64 and table.launch(kernel, ONE, block=32).block == 32
    assert clip_of(executor, [ones(executor, 3)], ONE).block == 128
    assert parts.Table([ones(executor, 3)]).launch(twice_all).block == 64
    with pytest.raises(TypeError, match=r"^launch: cooperative: expected True or False, got 1$"):
        table.launch(kernel, ONE, cooperative=1)


def test_a_launch_of_ones_own_refuses_a_double(executor):
    x = ones(executor, 3)
    with pytest.raises(TypeError, match=r"^twice: args\[1\]: expected an array, an int or np.float32, got 2.0$"):
        twice[1, 32](x, 2.0)
    twice[1, 32](x, np.float32(2))
    assert x.copy_to_host().tolist() == [2, 1, 1]


@cuda.jit
def twice_all(addresses, chunks):
    scale(addresses, chunks, cuda.blockIdx.x, np.float32(2))


@cuda.jit
def twice(x, factor):
    if cuda.grid(1) == 0:
        x[0] = factor * x[0]


def test_parts_that_are_refused():
    for dtype in ("int32", np.float32):
        with pytest.raises(ValueError, match=r"^access: dtype: expected one of float16, bfloat16, float32, float64"):
            parts.access(dtype)
    with pytest.raises(ValueError, match=r"^access: real: expected np.float32 or np.float64, no narrower than float64"):
        parts.access("float64")
    assert parts.access("float64", np.float64) and parts.access("float16", np.float64)


# The decorator, and the machine.


def test_device_functions_and_launch_bounds(executor):
    """In Numba's spelling; a device function of the parts is the same."""

    @cuda.jit(device=True)
    def tripled(x):
        return x + x + x

    assert tripled(ONE) == 3 and not isinstance(tripled, cuda.Kernel)

    @cuda.jit(launch_bounds=(64, 12))
    def triple(x):
        x[cuda.threadIdx.x] = tripled(x[cuda.threadIdx.x])

    x = executor.to_device(np.array([2], np.float32))
    triple[1, 1](x)
    assert x.copy_to_host() == 6 and triple.launch_bounds == (64, 12)


@cuda.jit(dynamic_shared=256)
def turned(x):
    tile, i = cuda.shared.array(0, np.float32), cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    x[i] = tile[63 - i]


def test_a_launch_gives_a_kernel_its_dynamic_shared_memory(machine):
    x = machine.to_device(np.arange(64, dtype=np.float32))
    turned[1, 64](x)
    assert x.copy_to_host().tolist() == [*range(63, -1, -1)]


def test_what_a_device_function_is_not_given():
    for name, value in (("contract", True), ("launch_bounds", (64, 12))):
        said = re.escape(f"jit: {name}: expected none for a device function, since its kernel has it, got {value!r}")
        with pytest.raises(TypeError, match=f"^{said}$"):
            cuda.jit(device=True, **{name: value})
    cuda.jit(device=True, contract=False, launch_bounds=None)


def test_the_machine_of_an_array(executor):
    """A grid of eight blocks for each multiprocessor; a device that kernels are not compiled for is refused."""
    grads = [executor.to_device(np.ones(10**5, np.float32))]
    x = grads[0]
    assert cuda.multiprocessors(x) == 132
    with simt.claim("T4"):
        assert cuda.multiprocessors(x) == 40
        launch, _ = global_norm.launches_0(grads, executor.to_device(np.zeros(2, np.float32)), (ONE, ONE))
        assert launch.grid == 320
    with simt.claim(capability=(7, 0)), pytest.raises(RuntimeError, match=r"expected compute capability 7\.5 or later"):
        twice[1, 1](x, ONE)
    assert x.copy_to_host()[0] == 1
