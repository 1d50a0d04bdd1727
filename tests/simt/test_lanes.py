"""Launches by lanes: the bits, errors and memory are those of threads; what does not run so says why."""

import contextlib
import gc
import math
import subprocess
import sys

import numpy as np
import pytest

from refopt import gpu, simt
from refopt.catalog import ROUTINES
from refopt.catalog.data import DTYPES, make_case, offered, slot_dtype, unavailable
from refopt.catalog.workloads import Parameter, Workload
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle import ulp
from refopt.oracle.exact.cases import arguments
from refopt.simt import cuda, memory
from refopt.simt.lanes import run as lanes
from refopt.simt.lanes import values

FULL = 0xFFFFFFFF
# Rows that are whole and that are not, a tensor of several chunks, and one of no whole row.
WORKLOAD = Workload("lanes", tuple(Parameter(f"x{n}", (n,)) for n in (3, 700, 256, 1)), "")
EVERY = [
    (name, dtype, form)
    for name, routine in ROUTINES.items()
    for dtype in DTYPES
    if offered(routine, dtype)
    for form in (routine.forms if name == "lars_momentum" else [routine.merged_form])
]


def by_threads(work, *args):
    """What work gives, all of whose launches run by threads."""
    least, lanes.LEAST = lanes.LEAST, 2**62
    try:
        return work(*args)
    finally:
        lanes.LEAST = least


def stepped(case, form):
    """The bits of all arrays after the steps of a case."""
    bits = {name: [gpu.to_device(ulp.bits(x)) for x in values] for name, values in case.slots.items() if values}
    dtypes = {slot.name: numpy_dtype(slot_dtype(slot, case.dtype)) for slot in case.routine.slots}
    slots = {name: [x.view(dtypes[name]) for x in bits[name]] if name in bits else None for name in case.slots}
    positional, named = arguments(case.routine, slots)
    plan = gpu.plan(case.routine.name, *positional, **named, form=form, **case.choices, **case.hypers[0])
    for numbers in case.hypers:
        plan.step(**numbers)
    return {name: [x.copy_to_host().tobytes() for x in values] for name, values in bits.items()}


def often(name, dtype, form):
    """Every form in fp32; other storage of one routine of each kind, but fp16, which goes the way of bf16."""
    kinds = {"adamw": "merged", "lamb": "merged", "lars_momentum": "two_launches"}
    return dtype == "fp32" or (kinds.get(name) == form and not dtype.startswith("fp16"))


@pytest.mark.parametrize(("name", "dtype", "form"), [
    pytest.param(*of, marks=[pytest.mark.slow] * (not often(*of)), id="-".join(of)) for of in EVERY])
def test_every_routine_has_the_bits_of_threads(name, dtype, form, by_lanes, executor):
    if why := unavailable(dtype, ROUTINES[name]):
        pytest.skip(why)
    case = make_case(ROUTINES[name], WORKLOAD, dtype, 2)
    got = stepped(case, form)
    assert by_lanes == []
    assert got == by_threads(stepped, case, form)


DTYPES_OF_CASTS = "float16", "float32", "float64"


def cast():
    """Casts and copies between all dtypes, some of them of arrays at odd addresses."""
    pairs = [(a, b) for a in DTYPES_OF_CASTS for b in DTYPES_OF_CASTS]
    sources = [gpu.to_device(normal(700 + k).astype(a))[k % 3 :] for k, (a, _) in enumerate(pairs)]
    targets = [gpu.to_device(np.zeros(701 + k, b))[1 + k % 3 :] for k, (_, b) in enumerate(pairs)]
    gpu.merged_cast(sources, targets)
    gpu.merged_cast(sources, [gpu.to_device(np.zeros(x.size, x.dtype)) for x in sources], scale=0.3)
    return targets


def check():
    """A check of gradients, of which one is not finite, and what follows from it."""
    scale, odd = gpu.to_device(np.array([8], np.float32)), normal(40)
    odd[7] = np.inf
    clipped = [gpu.to_device(normal(n)) for n in (3, 700, 9000)]
    checks = [gpu.gradient_check(clipped, loss_scale=scale, max_norm=1.0),
              gpu.gradient_check([gpu.to_device(odd)], loss_scale=scale)]
    for each in checks:
        each()
    steps = [gpu.to_device(np.ones(1, np.int32)) for _ in range(2)]
    gpu.update_loss_scaling(checks[1].found_inf, scale, *steps)
    results = [array for each in checks for array in (each.grad_factor, each.found_inf, each.grad_norm)]
    return [*clipped, *results, scale, *steps]


def coalesce():
    """One buffer of several tensors."""
    return [gpu.coalesce_tensor([gpu.to_device(normal(n)) for n in (3, 700, 256)], copy_data=True).buffer]


def normal(count):
    return np.random.default_rng(count).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("work", [cast, check, coalesce])
def test_the_other_kernels_run_by_lanes(work, by_lanes, executor):
    got = [x.copy_to_host().tobytes() for x in work()]
    assert by_lanes == []
    assert got == [x.copy_to_host().tobytes() for x in by_threads(work)] and by_lanes


def words(count, dtype=np.uint32, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, count).astype(dtype)


def arithmetic(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        a, b = x[i], y[i]
        out[i, 0], out[i, 1], out[i, 2] = a + b, a - b, a * b
        out[i, 3], out[i, 4] = a // b, a % b
        out[i, 5], out[i, 6] = a << b, a >> b
        out[i, 7], out[i, 8] = max(a, b), min(a, b)
        out[i, 9] = -a if a > b else abs(b)
        out[i, 10] = (a > 5 and b > 5) + (a < 5 or b > 7)
        out[i, 11] = cuda.popc(a) + cuda.clz(b) + (b + (b := a))


def floats(x, y, out):
    i = cuda.grid(1)
    a, b = x[i], y[i]
    out[i, 0], out[i, 1], out[i, 2] = a / b, max(a, b), min(b, a)
    out[i, 3], out[i, 4] = np.int32(a), np.uint8(b)
    out[i, 5], out[i, 6] = a // b, a % b
    out[i, 7], out[i, 8] = np.float32(a) ** 2, np.float16(a)
    out[i, 9], out[i, 10] = np.int64(b), math.sqrt(abs(a))
    out[i, 11], out[i, 12], out[i, 13] = np.int8(a), np.uint16(b), max(a, b, 1.0)


SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3e38, -2.5, 7.5, 65520.0, -129.0, 2.0**63]


@pytest.mark.parametrize("a", [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("b", [np.int16, np.int64, np.uint64])
def test_integers(a, b, by_lanes):
    x, y = words(100, a, 1), words(100, b, 2) % b(90)
    x[:4], y[:4] = np.iinfo(a).min, (0, 1, 63, 64)
    y[4:8] = -y[4:8]
    y[0], x[9], y[9] = 0, np.iinfo(a).min, np.iinfo(b).max if b is np.uint64 else -1
    both_are([x, y], np.zeros((100, 12), np.int64), arithmetic, by_lanes)


@pytest.mark.parametrize("a", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("b", [np.float16, np.float32, np.float64])
@pytest.mark.filterwarnings("ignore:overflow")
def test_floats(a, b, by_lanes):
    x, y = np.meshgrid(SPECIAL, SPECIAL)
    both_are([x.ravel().astype(a), y.ravel().astype(b)], np.zeros((144, 14)), floats, by_lanes)


@pytest.mark.parametrize("order", ["C", "F"])
def test_atomics_on_arrays_of_any_order(order):
    @cuda.jit
    def count(x):
        cuda.atomic.add(x, (cuda.grid(1) % 2, cuda.grid(1) % 3), 1)

    x = np.zeros((2, 3), np.int32, order=order)
    count[9, 256](x)
    assert (x == 384).all()


def both_are(args, out, body, by_lanes, grid=None, block=16, dynamic=0):
    """A kernel leaves the same bits by lanes, where it runs wholly, and by threads."""
    kernel, results = cuda.jit(body), []
    by_lanes.clear()
    grid = grid or -(-len(args[0]) // block)
    for way in (lambda launch, *given: launch(*given), by_threads):
        given = [x.copy() if isinstance(x, np.ndarray) else x for x in (*args, out)]
        way(kernel[grid, block, 0, dynamic], *given)
        if not results:
            assert by_lanes == []
        results.append([x.tobytes() for x in given if isinstance(x, np.ndarray)])
    assert results[0] == results[1]


@cuda.jit(device=True)
def search(x, out):
    """Loops of different lengths, with a break, a continue, an else and a return in them."""
    i = cuda.grid(1)
    n, total = x[i] % 40, 0
    for j in range(n):
        if j == 30:
            break
        if j % 3 == 1:
            continue
        total += j
    else:
        total += 1000
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        total += 1
        if total > 1040:
            out[i] = -total
            return
    out[i] = total


@cuda.jit(device=True)
def first_of(x, start, *, by=7):
    for j in range(start, x.size):
        if x[j] % by == 0:
            return j
    return -1


def nested(x, out):
    i = cuda.grid(1)
    at = first_of(x, i)
    if at >= 0 and x[at] % 2:
        if x[i] % 5 == 0:
            return
        out[i] = at
    out[i] += 3 if i % 2 else x[i - 1 if i else 0] % 11


def in_shared_memory(x, out):
    part, own = cuda.shared.array((2, 64), np.int32), cuda.local.array(3, np.int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for k in range(3):
        own[k] = x[i] >> k
    part[0, t], part[1, t] = own[2], own[t % 3]
    cuda.syncthreads()
    if cuda.blockIdx.x % 2:
        step = cuda.blockDim.x // 2
        while step:
            if t < step:
                part[0, t] += part[0, t + step]
            cuda.syncthreads()
            step //= 2
    out[i] = part[0, 0] + part[1, cuda.blockDim.x - 1 - t]


def in_dynamic_memory(x, out):
    some = cuda.shared.array(0, np.int32)
    some[cuda.threadIdx.x] = x[cuda.grid(1)]
    cuda.syncthreads()
    positive = cuda.syncthreads_count(int(some[0] > 0))
    out[cuda.grid(1)] = some[63 - cuda.threadIdx.x] + positive + cuda.syncthreads_or(x[0])
    out[cuda.grid(1)] += 1000 * cuda.syncthreads_and(int(x[cuda.grid(1)] > 0))


def with_warps(x, out):
    i = cuda.grid(1)
    v = x[i]
    v = v + cuda.shfl_xor_sync(FULL, v, 5) - cuda.shfl_down_sync(FULL, v, 3) + cuda.shfl_up_sync(FULL, v, 30)
    v = v + cuda.shfl_sync(FULL, v, 33)
    out[i] = v + cuda.ballot_sync(FULL, v % 2) + cuda.any_sync(FULL, v == 3) - cuda.all_sync(FULL, v > 3) + cuda.laneid
    out[i] += 2 * cuda.eq_sync(FULL, i < 0) + 4 * cuda.eq_sync(FULL, v) + 8 * cuda.eq_sync(FULL, i % 64 < 40)
    out[i] += 16 * cuda.any_sync(FULL, i % 64 == 40) + 32 * cuda.all_sync(FULL, i % 64 < 40)


def with_atomics(x, out):
    i = cuda.grid(1)
    slot = cuda.atomic.add(out, 0, 1)
    out[slot + 1] = x[i]
    cuda.atomic.max(out, 130, x[i])
    cuda.atomic.xor(out, 131, i)
    if i % 2:
        cuda.atomic.sub(out, 132, x[i] % 9)
    cuda.atomic.min(out, 133, x[i])
    cuda.atomic.or_(out, 134, x[i] & 0x0F0F)
    cuda.atomic.and_(x, 0, i | -256)


def with_counters(x, out):
    i = cuda.grid(1)
    cuda.atomic.inc(out, 0, i % 50)
    out[3 + i] = 100 * cuda.atomic.exch(out, 2, i) + cuda.atomic.dec(out, 1, 5 * i % 7)


def from_the_end_of_a_tuple(x, out):
    i = cuda.grid(1)
    out[i] = (i + 1, 2 * i, i + 3)[i % 3 - 2]


def half_a_warp(x, out):
    i = cuda.grid(1)
    if i % 32 >= 16:
        return
    out[i] = cuda.shfl_down_sync(FULL, x[i], 1)


def a_warp_and_a_half(x, out):
    out[cuda.grid(1)] = cuda.shfl_down_sync(FULL, x[cuda.grid(1)], 1)


def halves_of_two_warps(x, out):
    i = cuda.grid(1)
    if i % 64 < 16 or i % 64 >= 48:
        return
    out[i] = cuda.shfl_down_sync(FULL, x[i], 8)


@pytest.mark.parametrize("body", [search, nested, in_shared_memory, with_warps])
def test_kernels(body, by_lanes):
    both_are([words(128, np.int32) >> 8], np.zeros(128, np.int64), body, by_lanes, 2, 64)


def test_atomics_are_in_the_order_of_the_threads(by_lanes):
    both_are([words(128, np.int32) >> 8], np.zeros(140, np.int32), with_atomics, by_lanes, 2, 64)
    both_are([words(128)], np.zeros(131, np.uint32), with_counters, by_lanes, 2, 64)


def test_dynamic_shared_memory(by_lanes):
    both_are([words(128, np.int32) >> 8], np.zeros(128, np.int32), in_dynamic_memory, by_lanes, 2, 64, 256)
    both_are([words(128, np.float32)], np.zeros(128, np.int32), of_two_types, by_lanes, 2, 64, 256)
    both_are([], np.zeros(4, np.int64), lengths, by_lanes, 2, 2, 20)


def lengths(out):
    wide, narrow = cuda.shared.array(0, np.float64), cuda.shared.array(0, np.float32)
    out[cuda.grid(1)] = 10 * len(wide) + len(narrow)


def of_two_types(x, out):
    numbers, bits = cuda.shared.array(0, np.float32), cuda.shared.array(0, np.int32)
    numbers[cuda.threadIdx.x] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = bits[63 - cuda.threadIdx.x]


@pytest.mark.parametrize(("body", "block"), [
    (half_a_warp, 64), (halves_of_two_warps, 64), (a_warp_and_a_half, 48), (from_the_end_of_a_tuple, 64)])
def test_what_lanes_cannot_do_threads_do(body, block, by_lanes):
    """A shuffle in part of a warp, and indices below 0."""
    x, got, expected = words(128, np.int32), np.zeros(128, np.int32), np.zeros(128, np.int32)
    cuda.jit(body)[2, block](x, got)
    by_threads(cuda.jit(body)[2, block], x, expected)
    assert by_lanes == [body.__name__] * 2 and got.tobytes() == expected.tobytes()


def test_batches(by_lanes, monkeypatch):
    monkeypatch.setattr(lanes, "MOST", 96)  # two blocks, and one at the end
    both_are([words(120, np.int32) >> 8], np.zeros(140, np.int32), with_atomics, by_lanes, 3, 40)
    both_are([words(250, np.int32) >> 8], np.zeros(250, np.int64), search_within, by_lanes, 7, 40)
    both_are([words(128)], np.zeros(256, np.int64), over_the_grid, by_lanes, 4, 32)


@cuda.jit(device=True)
def all_meet():
    grid = cuda.cg.this_grid()
    grid.sync()


def over_the_grid(x, out):
    i = cuda.grid(1)
    out[i] = x[i]
    all_meet()
    out[128 + i] = out[127 - i]


def search_within(x, out):
    if cuda.grid(1) < x.size:
        search(x, out)


def outside(x):
    i = cuda.grid(1)
    x[0] += 1
    cuda.syncthreads()
    x[i + (i == 70) * 1000] = 5


def stray(address):
    memory.store(address + 4 * cuda.grid(1), np.int32, (1,))


def stray_vector(address):
    memory.load(address + 16 * (cuda.grid(1) % 16), np.float32, 4)


def skipped(x):
    if cuda.threadIdx.x < 40:
        cuda.syncthreads()
    x[0] = 1


def skipped_by_a_block(x):
    grid = cuda.cg.this_grid()
    if cuda.blockIdx.x:
        grid.sync()
    x[cuda.grid(1)] = 1


def not_stepping(x):
    for _ in range(0, 3, cuda.grid(1) % 4):
        x[cuda.grid(1)] += 1


def counting(x):
    cuda.atomic.add(x, 0, 1)
    if cuda.grid(1) == 100:
        raise ValueError("no")


@pytest.mark.parametrize(("body", "given"), [
    *((body, lambda x: x) for body in (outside, skipped, skipped_by_a_block, not_stepping, counting)),
    (stray, lambda x: x.address + 4 * 28), (stray, lambda x: x.address + 2),
    (stray_vector, lambda x: x.address + 4)])
def test_errors_are_those_of_threads(body, given, by_lanes):
    kernel, found, x = cuda.jit(body), [], cuda.to_device(np.zeros(128, np.int32))
    for way in (lambda launch, *args: launch(*args), by_threads):
        x[:] = 0
        with pytest.raises((simt.SimtError, ValueError)) as error:
            way(kernel[2, 64], given(x))
        notes = getattr(error.value, "__notes__", None)
        found.append((type(error.value), str(error.value), notes, x.copy_to_host().tobytes()))
    assert found[0] == found[1] and by_lanes == [body.__name__] * 2


def test_stores_at_one_address_are_in_the_order_of_the_threads(by_lanes):
    @cuda.jit
    def last(x, address):
        x[1] = cuda.grid(1)
        memory.store(address, np.int32, (cuda.grid(1),))

    x = cuda.to_device(np.zeros(2, np.int32))
    last[2, 64](x, x.address)
    assert x.copy_to_host().tolist() == [127, 127] and by_lanes == []


WITHOUT_GREENLET = """
import importlib.machinery, sys
class Blocked(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, *args):
        return None if name.partition(".")[0] == "greenlet" else super().find_spec(name, *args)
sys.meta_path[:] = [Blocked if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
import numpy as np
from refopt import gpu, simt
with gpu.use("executor"):
    params, grads, velocities = ([gpu.to_device(np.ones(300, np.float32))] for _ in range(3))
    gpu.plan("momentum", params, grads, velocities)(lr=0.1, mu=0.9)
print(params[0].copy_to_host()[299])
@simt.cuda.jit
def swap(x):
    simt.cuda.atomic.compare_and_swap(x, 0, 1)
swap[1, 1](np.zeros(1, np.int32))
"""


def test_lanes_need_no_greenlet(tmp_path):
    (file := tmp_path / "without.py").write_text(WITHOUT_GREENLET)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert done.stdout == "0.81\n" and "kernel swap runs by threads, which needs greenlet" in done.stderr


def test_a_device_function_that_is_replaced(by_lanes, monkeypatch):
    for kernel in (cuda.jit(lambda x: plus(x)), cuda.jit(lambda x: passing_on(x))):
        x = np.zeros(1, np.int64)
        kernel[1, 1](x)
        with monkeypatch.context() as patch:
            patch.setitem(globals(), "plus", minus)
            kernel[1, 1](x)
        assert x[0] == 4


@cuda.jit(device=True)
def plus(x):
    x[0] += 5


@cuda.jit(device=True)
def passing_on(x):
    plus(x)


@cuda.jit(device=True)
def minus(x):
    x[0] -= 1


def test_a_launch_that_is_over_keeps_no_memory(monkeypatch):
    """Whoever keeps the launch, such as an error's traceback."""
    kept, run = [], lanes.Run.__call__
    monkeypatch.setattr(lanes.Run, "__call__", lambda self, *args: (kept.append(self), run(self, *args))[1])
    x, others = cuda.to_device(np.zeros(4096, np.float32)), [cuda.to_device(np.zeros(8)) for _ in range(20)]

    @cuda.jit
    def fill(x):
        x[cuda.grid(1)] = 1

    for _ in range(2):
        fill[32, 128](x)
    assert simt.how(fill[32, 128], x).by == "lanes"
    gc.collect()
    before = memory.live_allocations()
    assert kept
    others.clear()
    gc.collect()
    assert memory.live_allocations() == before - 20


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_exact_functions_of_math_are_one_operation_of_all_lanes(dtype, monkeypatch):
    """With the bits of threads, for negative numbers and NaN as well."""
    def refuse(function):
        raise AssertionError(f"{function} lane by lane")

    monkeypatch.setattr(values, "each", refuse)

    @simt.cuda.jit
    def all_of_them(x, out):
        i = simt.cuda.grid(1)
        if i < x.size:
            out[0, i] = math.sqrt(x[i])
            out[1, i] = math.fabs(x[i])
            out[2, i] = math.floor(x[i]) + math.ceil(x[i]) + math.trunc(x[i])

    given = np.array([0, 2, 3.5, -1.5, 1e-30, 7] if dtype != np.int64 else [0, 2, 7], dtype)
    x, found = np.repeat(np.append(given, [np.nan] if dtype != np.int64 else [9]).astype(dtype), 40), []
    launch, out = all_of_them[-(-x.size // 128), 128], np.zeros((3, x.size))
    for by_lanes in (True, False):
        out[...] = 0
        with contextlib.nullcontext() if by_lanes else simt.observe():
            launch(x, out)
        found.append(out.tobytes())
    assert str(simt.how(launch, x, out)) == "by lanes" and found[0] == found[1]
