"""Products on tensor cores: the kernel's bits are the reference's, on the executor and on a GPU."""

import inspect
import re
import tempfile
from pathlib import Path

import needs
import numpy as np
import pytest

from gpu import kept_ptx
from refopt import cpu, gpu, simt
from refopt.gpu import cuda, matmul
from refopt.gpu.target import signature_of
from refopt.gpu.tensor_core import MMA, begin_copy16, end_group, ldmatrix4, ldmatrix4_transposed, wait_but

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N17")
DTYPES = {"bfloat16": np.dtype(bfloat16), "float16": np.dtype(np.float16)}
SHAPES = {"executor": [(1, 1, 1), (17, 33, 5), (70, 66, 35), (24, 72, 40)],  # of the last, rows are 16-byte ones
          "gpu": [(1, 1, 1), (1, 300, 7), (17, 33, 5), (64, 64, 32), (70, 130, 95), (300, 500, 700), (304, 504, 704),
                  (8, 8, 8), (512, 512, 512)]}
transposes = pytest.mark.parametrize(("a_transposed", "b_transposed"), [(0, 0), (0, 1), (1, 0), (1, 1)])


def draw(shape, dtype, spread, seed):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)).astype(dtype)


def there(machine, x, transposed=False):
    return machine.to_device(np.ascontiguousarray(x.T if transposed else x).view(np.uint16).reshape(-1))


def prepared(machine, a, b, a_transposed=False, b_transposed=False):
    (m, k), n = a.shape, b.shape[1]
    out = machine.to_device(np.full(m * n, np.nan, np.float32))
    arrays = there(machine, a, a_transposed), there(machine, b, b_transposed), out
    return matmul.launch(*arrays, (m, n, k), a.dtype.name, bool(a_transposed), bool(b_transposed)), out


def product(machine, a, b, *transposed, **observed):
    launch, out = prepared(machine, a, b, *transposed)
    if observed:
        with simt.observe(**observed):
            launch()
    else:
        launch()
    machine.synchronize()
    return out.copy_to_host().reshape(a.shape[0], b.shape[1])


def same(x, y):
    assert x.shape == y.shape and (x.view(np.uint32) == y.view(np.uint32)).all()


@transposes
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_the_kernel_has_the_bits_of_the_reference(machine, dtype, a_transposed, b_transposed):
    """For matrices of any size, given as they are or as their transposes, of like and of different exponents."""
    for i, (m, n, k) in enumerate(SHAPES[machine.name]):
        for spread in (0, 4)[: 1 + (machine.name == "gpu" or i == 2)]:
            a, b = draw((m, k), DTYPES[dtype], spread, 1), draw((k, n), DTYPES[dtype], spread, 2)
            same(product(machine, a, b, a_transposed, b_transposed), cpu.matmul(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_cancels_or_underflows(machine, dtype):
    """Infinities, NaN, zeros of both signs, subnormal numbers, products that overflow, sums that cancel."""
    kind, extreme = DTYPES[dtype], [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3e4, -3e4, 2.0**-14, 6e-8, -6e-8]
    if dtype == "bfloat16":
        extreme += [1e38, -1e38, 1e-38, 1e-40, -1e-40]
    rng = np.random.default_rng(3)
    for finite in (False, True):
        values = np.array([x for x in extreme if np.isfinite(x) or not finite], np.float32).astype(kind)
        a, b = rng.choice(values, (20, 40)), rng.choice(values, (40, 20))
        same(product(machine, a, b), cpu.matmul(a, b))
    a, b = draw((20, 64), kind, 3, 4), draw((64, 20), kind, 3, 5)
    a[:, 32:], b[32:] = -a[:, :32], b[:32]
    same(product(machine, a, b), cpu.matmul(a, b))
    tiny = 2.0**-66 if dtype == "bfloat16" else 2.0**-20
    a, b = draw((64, 64), np.float64, 1, 6) * tiny, draw((64, 64), np.float64, 1, 7) * tiny
    same(product(machine, a.astype(kind), b.astype(kind)), cpu.matmul(a.astype(kind), b.astype(kind)))


def test_x_times_its_transpose_reads_x_alone(machine):
    """And is symmetric in every bit."""
    x = draw((50, 70), bfloat16, 2, 8)
    out = machine.to_device(np.zeros(50 * 50, np.float32))
    one = there(machine, x)
    matmul.launch(one, one, out, (50, 50, 70), "bfloat16", False, True)()
    machine.synchronize()
    square = out.copy_to_host().reshape(50, 50)
    same(square, square.T.copy())
    same(square, cpu.matmul(x, x.T))


def test_it_runs_by_threads_by_lanes_and_watched():
    """With equal bits; no read of shared memory meets a bank twice."""
    machine = gpu.device("executor")
    for k in (35, 136):  # the latter in stages
        a, b = draw((66, k), bfloat16, 1, 9), draw((k, 24), bfloat16, 1, 10)
        launch, _ = prepared(machine, a, b)
        expected = cpu.matmul(a, b)
        for _ in range(5):  # by lanes once it pays
            same(product(machine, a, b), expected)
        assert simt.how(launch.kernel.executor[launch.grid, launch.block], *launch.args).by == "lanes"
    a, b = a[:20, :20], b[:20, :20]
    same(product(machine, a, b, watch=True), cpu.matmul(a, b))
    launch, _ = prepared(machine, a, b)
    with simt.observe(profile=True) as log:
        launch()
    loads = [row for row in log.profile.banks if row.kind == "load"]
    assert len(loads) == 2 and all(row.wavefronts == 4 * row.requests and row.conflicts == 0 for row in loads)


def test_rows_of_16_bytes_are_copied_asynchronously():
    """Where all rows and both addresses are multiples; stages are neither read too early nor overwritten too early."""
    machine = gpu.device("executor")
    a, b = draw((16, 104), bfloat16, 1, 11), draw((104, 24), bfloat16, 1, 12)
    assert prepared(machine, a, b)[0].kernel is matmul.kernel("bfloat16", False, False, "float32", True)
    same(product(machine, a, b, watch=True), cpu.matmul(a, b))
    same(product(machine, a, b, True, True), cpu.matmul(a, b))
    assert prepared(machine, a[:, :102], b[:102])[0].kernel is matmul.kernel("bfloat16", False, False, "float32", False)
    x = machine.to_device(np.concatenate([np.zeros(1, "u2"), a.view("u2").reshape(-1)]))
    shifted = machine.view(x, 1, (a.size,), (2,))
    out = machine.to_device(np.zeros(16 * 16, np.float32))
    launch = matmul.launch(shifted, shifted, out, (16, 16, 104), "bfloat16", False, True)
    assert launch.kernel is matmul.kernel("bfloat16", False, True, "float32", False)
    launch()
    same(out.copy_to_host().reshape(16, 16), cpu.matmul(a, a.T))


def changed(before, after):
    """The staged kernel, with another line in its source."""
    source = inspect.getsource(matmul)
    assert source.count(before) == 1
    scope = {"__name__": "changed"}
    file = Path(tempfile.mkdtemp()) / "changed.py"
    file.write_text(source.replace(before, after))
    exec(compile(file.read_text(), str(file), "exec"), scope)
    return scope["kernel"]("bfloat16", False, False, "float32", True)


@pytest.mark.parametrize(("before", "after"), [
    ("            wait_but_one()\n", ""), ("wait_but(STAGES - 2)", "wait_but(STAGES - 1)"),
    ("            wait_but_one()\n            cuda.syncthreads()\n", "            wait_but_one()\n"),
    ("ahead // STEP % STAGES", "stage")], ids=["no wait", "a group too few", "no barrier", "the tile in use"])
def test_stages_that_are_out_of_step_are_found(before, after):
    """A wait or a barrier that is missing, a group too few, a copy into the tile that is multiplied."""
    machine = gpu.device("executor")
    a, b = draw((16, 104), bfloat16, 1, 11), draw((104, 24), bfloat16, 1, 12)
    launch, out = prepared(machine, a, b)
    try:
        with simt.observe(watch=True):
            launch._replace(kernel=changed(before, after))()
    except simt.DataRace:
        return
    assert (out.copy_to_host().reshape(16, 24) != cpu.matmul(a, b)).any()


# The instructions by themselves


@cuda.jit
def transported(x, plain, transposed):
    tile, i = cuda.shared.array(256, np.uint16, alignment=16), cuda.threadIdx.x
    for k in range(8):
        tile[8 * i + k] = x[8 * i + k]
    cuda.syncthreads()
    words, turned = ldmatrix4(tile, 8 * i), ldmatrix4_transposed(tile, 8 * i)
    for k in range(4):
        plain[4 * i + k], transposed[4 * i + k] = words[k], turned[k]


def test_ldmatrix_gives_each_lane_two_numbers_of_each_matrix(machine):
    """Lane 4 g + t gets row g, columns 2t and 2t + 1; of the transposed matrix with ``.trans``."""
    x = np.arange(256, dtype=np.uint16) * 257
    plain, transposed = (machine.to_device(np.zeros(128, np.uint32)) for _ in range(2))
    transported[1, 32](machine.to_device(x), plain, transposed)
    machine.synchronize()
    matrices = x.reshape(4, 8, 8).astype(np.uint32)
    for got, want in ((plain, matrices), (transposed, matrices.swapaxes(1, 2))):
        words = got.copy_to_host().reshape(32, 4)
        for lane, i in np.ndindex(32, 4):
            g, t = lane // 4, lane % 4
            assert words[lane, i] == want[i, g, 2 * t] | want[i, g, 2 * t + 1] << 16


@pytest.mark.parametrize("dtype", DTYPES)
def test_mma_takes_fragments_as_the_table_says(machine, dtype):
    """With matrices of one 1, each element of A, B and C is where the docstring has it; of all 512."""
    mma, one = MMA[dtype], int(np.ones(1, DTYPES[dtype]).view(np.uint16)[0])

    @cuda.jit
    def kernel(a, b, c, d):
        i, at = cuda.threadIdx.x, cuda.blockIdx.x * 32 + cuda.threadIdx.x
        new = mma((a[at, 0], a[at, 1], a[at, 2], a[at, 3], b[at, 0], b[at, 1]), (c[i, 0], c[i, 1], c[i, 2], c[i, 3]))
        for k in range(4):
            d[at, k] = new[k]

    numbers = np.arange(128, dtype=np.float32).reshape(32, 4)  # C, lane by lane
    lanes = np.arange(32)
    g, t = lanes // 4, lanes % 4
    rows, columns = np.stack([g, g, g + 8, g + 8], 1), np.stack([2 * t, 2 * t + 1] * 2, 1)
    c = np.zeros((16, 8), np.float32)
    c[rows, columns] = numbers
    # Block (k, n): A has a 1 in each row r and column (r + k) % 16, and B one in row k' for each column.
    a, b, expected = [], [], []
    for shift in (0, 3, 8, 11):
        left, right = np.zeros((16, 16), np.uint16), np.zeros((16, 8), np.uint16)
        left[np.arange(16), (np.arange(16) + shift) % 16] = one
        right[(5 * np.arange(8) + shift) % 16, np.arange(8)] = one
        pairs = [(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)]
        a.append(np.stack([left[r, s] | left[r, s + 1].astype(np.uint32) << 16 for r, s in pairs], 1))
        b.append(np.stack([right[s, g] | right[s + 1, g].astype(np.uint32) << 16 for s in (2 * t, 2 * t + 8)], 1))
        ones = (left > 0).astype(np.float32) @ (right > 0).astype(np.float32)
        expected.append((c + ones)[rows, columns])
    d = machine.to_device(np.zeros((128, 4), np.float32))
    kernel[4, 32](machine.to_device(np.concatenate(a)), machine.to_device(np.concatenate(b)),
                  machine.to_device(numbers), d)
    machine.synchronize()
    assert (d.copy_to_host() == np.concatenate(expected)).all()


wait_but_1, wait_but_0 = wait_but(1), wait_but(0)


@cuda.jit
def carried(at, count, out):
    """16 bytes for each thread, in two groups; the bytes beyond ``count`` elements are filled up with zeros."""
    tile, i = cuda.shared.array(512, np.uint16, alignment=16), cuda.threadIdx.x
    for group in range(2):
        first = 256 * group + 8 * i
        begin_copy16(tile, first, at + 2 * first, 2 * max(0, min(8, count - first)))
        end_group()
    wait_but_1()
    cuda.syncthreads()
    for k in range(8):
        out[8 * i + k] = tile[8 * (31 - i) + k]
    wait_but_0()
    cuda.syncthreads()
    for k in range(8):
        out[256 + 8 * i + k] = tile[256 + 8 * (31 - i) + k]


@pytest.mark.parametrize("blocks", [1, 40])  # all alike; on the executor by threads, and by lanes
@pytest.mark.parametrize("count", [512, 304, 301, 0])
def test_copies_arrive_after_their_wait(machine, count, blocks):
    x = machine.to_device(np.arange(1, 1 + max(count, 1), dtype=np.uint16))  # where nothing is copied, nothing is read
    out = machine.to_device(np.zeros(512, np.uint16))
    carried[blocks, 32](cuda.address(x), count, out)
    machine.synchronize()
    expected = np.where(np.arange(512) < count, np.arange(1, 513), 0).reshape(2, 32, 8)[:, ::-1]
    assert (out.copy_to_host() == expected.reshape(-1)).all()


# What the compiler makes of it, and what is refused


@pytest.mark.parametrize(("transposed", "k"), [(0, 8), (1, 8), (0, 3), (1, 3)])
def test_ptx(transposed, k, request):
    """Sixteen products for each step of 32, fragments by ldmatrix, no local memory."""
    needs.compiler()
    machine, one = gpu.device("executor"), np.ones((k, k), bfloat16)
    x, out = there(machine, one), machine.to_device(np.zeros(k * k, np.uint16))
    launch = matmul.launch(x, x, out, (k, k, k), "bfloat16", transposed, transposed)
    signature = signature_of(launch.args)
    if kept_ptx.tested(request, {launch.kernel.name: (launch.kernel, signature)}):
        return
    ptx = launch.kernel.ptx(signature)
    assert len(re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32", ptx)) == 16
    for way in ("", ".trans"):
        assert f"ldmatrix.sync.aligned.m8n8.x4{way}.shared.b16" in ptx
    assert ("cp.async.cg.shared.global [" in ptx) == (k == 8)
    assert ".local" not in ptx


def test_other_tensor_cores_are_refused():
    """Their sums have not been measured."""
    machine = gpu.device("executor")
    refused = pytest.raises(ValueError, match=r"^tensor_core: capability: expected .* measured, \(9, 0\), got \(7, 5\)")
    with simt.claim("T4"), refused:
        prepared(machine, np.ones((3, 3), bfloat16), np.ones((3, 3), bfloat16))
    launch, _ = prepared(machine, np.ones((3, 3), bfloat16), np.ones((3, 3), bfloat16))
    with pytest.raises(RuntimeError, match=r"mma_bfloat16: expected compute capability 9\.0 or later"):
        launch.kernel.ptx(signature_of(launch.args), (8, 0))


def test_what_is_no_product_is_refused():
    machine = gpu.device("executor")
    a, b, out = (machine.to_device(np.zeros(n, kind)) for n, kind in ((6, "u2"), (12, "u2"), (8, "f4")))
    for message, *args in [
            ("a: expected 9 elements of uint16, for shape (3, 4, 3), got shape (6,)", a, (3, 4, 3), "float16"),
            ("b: expected 8 elements of uint16, for shape (3, 4, 2), got shape (12,)", out, (3, 4, 2), "float16"),
            ("out: expected 8 elements of float32 or uint16, for shape (2, 4, 3), got", a, (2, 4, 3), "float16"),
            ("dtype: expected one of bfloat16, float16, got 'float32'", out, (2, 4, 3), "float32")]:
        with pytest.raises((ValueError, TypeError), match=f"^matmul: {re.escape(message)}"):
            matmul.launch(a, b, *args)


def test_nothing_is_a_product_too():
    """Of no k, zeros; of no rows, nothing."""
    machine = gpu.device("executor")
    for m, n, k in ((3, 8, 0), (3, 5, 0), (0, 5, 8), (3, 0, 8)):
        got = product(machine, np.ones((m, k), bfloat16), np.ones((k, n), bfloat16))
        same(got, np.zeros((m, n), np.float32))
