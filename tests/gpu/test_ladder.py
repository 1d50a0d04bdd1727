"""The ladders of refopt.gpu.ladder: every rung has the reference's bits, but for those that say otherwise."""

import contextlib
import json
import types
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ladder
from benchmarks.record import RESULTS
from refopt import cpu, simt
from refopt.gpu import timing
from refopt.gpu.ladder import adam, bench, coalesce, global_norm
from refopt.gpu.machine import Properties

SIZES = {"executor": [1, 0, 5, 300, 1500, 64, 1027], "gpu": [1, 0, 5, 300, 70001, 64, 1027, 2**20 + 3]}


def normal(seed, sizes, size_of=lambda x: x):
    rng = np.random.default_rng(seed)
    return [size_of(rng.standard_normal(n)).astype(np.float32) for n in sizes]


def placed(machine, lists, shift=0):
    """Copies on a machine, some elements off an aligned address."""

    def one(x):
        whole = machine.to_device(np.concatenate([np.zeros(shift, x.dtype), x]))
        return machine.view(whole, shift, x.shape, x.strides)

    return [list(map(one, column)) for column in lists]


def back(lists):
    return [[x.copy_to_host() for x in column] for column in lists]


def same(one, other):
    return all(x.tobytes() == y.tobytes() for a, b in zip(one, other, strict=True) for x, y in zip(a, b, strict=True))


NUMBERS = tuple(map(np.float32, (0.1, 0.9, 0.999, 1e-8, 0.9**3, 0.999**3)))


def adam_lists(sizes):
    return [normal(0, sizes), normal(1, sizes), normal(2, sizes), normal(3, sizes, np.square)]


def adam_reference(params, grads, moment1, moment2):
    lr, beta1, beta2, epsilon, *powers = NUMBERS
    scalars = [[np.full(1, x, np.float32) for _ in params] for x in powers]
    numbers = dict(lr=float(lr), beta1=float(beta1), beta2=float(beta2), epsilon=float(epsilon))
    cpu.merged_adam(params, grads, moment1, moment2, *scalars, **numbers)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("rung", adam.RUNGS)
def test_adam(rung, machine, shift):
    """A contracted product changes bits on a GPU; the executor never contracts."""
    lists = adam_lists(SIZES[machine.name])
    device = placed(machine, lists, shift)
    for launch in adam.RUNGS[rung](*device, NUMBERS):
        launch()
    got = back(device)
    adam_reference(*lists)
    if rung == "adam_0" and machine.name == "gpu":
        assert not same(lists, got)
        for x, y in zip(lists[0], got[0], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    else:
        assert same(lists, got)


@pytest.mark.parametrize("name", [*ladder.NAMES, ladder.PRODUCTS])
def test_tables_are_those_of_the_record(name):
    record = json.loads((RESULTS / "ladder-h200.json").read_text())
    source, rows = ladder.path_of(name).read_text(), record["ladders"][name]
    assert ladder.with_table(source, ladder.table(record, name)) == source
    module, peers = ladder.module_of(name), ["production"]
    if name == ladder.PRODUCTS:
        peers = [*module.HOPPER, "torch.matmul, fp32", "torch.matmul, bf16"]
    assert {row["rung"] for row in rows} == {*module.RUNGS, *peers}


# The global norm.

CLIP = np.float32(2.5), np.float32(1e-6)  # the largest norm, and what is added to it


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("rung", global_norm.RUNGS)
def test_global_norm(rung, machine, shift):
    """Sums by atomics are within n roundings; all others have the reference's bits, and a second step the same."""
    grads = normal(1, SIZES[machine.name])
    (device,) = placed(machine, [grads], shift)
    out = machine.to_device(np.zeros(2, np.float32))
    launches = global_norm.RUNGS[rung](device, out, CLIP)
    expected = cpu.check_gradients(grads, max_norm=float(CLIP[0]), epsilon=float(CLIP[1]))
    for _ in range(2):
        for launch in launches:
            launch()
        norm, factor = out.copy_to_host()
        if rung in ("norm_0", "norm_1"):
            exact = np.sqrt(sum((x.astype(np.float64) ** 2).sum() for x in grads))
            bound = sum(x.size for x in grads) * 2.0**-24
            assert abs(norm - exact) <= bound * exact and abs(factor - CLIP[0] / (exact + CLIP[1])) <= 2 * bound
        else:
            assert (norm, factor) == (expected.grad_norm[0], expected.grad_factor[0])


def test_global_norm_without_clipping(executor):
    """A norm that is small enough leaves the gradients as they are, and tensors without elements count as 0."""
    for rung in global_norm.RUNGS.values():
        out = executor.to_device(np.zeros(2, np.float32))
        (device,) = placed(executor, [[np.zeros(0, np.float32), np.full(3, 0.25, np.float32)]])
        for launch in rung(device, out, CLIP):
            launch()
        assert out.copy_to_host()[1] == 1


# Coalescing.


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("rung", coalesce.RUNGS)
def test_coalesce(rung, machine, shift):
    """Every element is where its tensor lies, rounded once; nothing is written between tensors."""
    grads, scale = normal(1, SIZES[machine.name]), np.float32(0.37)
    offsets = coalesce.offsets_of([g.size for g in grads])
    expected = np.full(offsets[-1], 7, np.float16)
    parts = [expected[start : start + g.size] for start, g in zip(offsets, grads, strict=False)]
    buffer = machine.to_device(expected)
    (device,) = placed(machine, [grads], shift)
    for launch in coalesce.RUNGS[rung](device, buffer, scale):
        launch()
    cpu.merged_cast(grads, parts, scale=float(scale))
    assert buffer.copy_to_host().tobytes() == expected.tobytes()


@pytest.mark.parametrize(("rung", "size", "blocks"), [
    ("adam_0", 1024, 4), ("adam_1", 1025, 5), ("adam_2", 1024, 4), ("adam_2", 300_000, 8 * 132),
    ("gather_0", 1025, 5)])
def test_blocks_of_256_threads(rung, size, blocks, executor):
    """As many as cover a tensor; of a loop over a grid at most eight for each multiprocessor."""
    (launch,) = launches_of(rung, executor, size)
    assert (launch.grid, launch.block) == (blocks, 256)


@pytest.mark.parametrize(("source", "target", "allowed"), [(0, 0, 1), (1, 0, 0), (2, 0, 0), (0, 2, 0), (4, 4, 1)])
def test_chunks_say_whether_vectors_are_allowed(source, target, allowed, executor):
    """Where a source is at a multiple of 16 bytes and its target of 8; shifts are elements."""
    (grads,) = placed(executor, [[np.zeros(5000, np.float32)]], source)
    ((buffer,),) = placed(executor, [[np.zeros(5120, np.float16)]], target)
    chunks = coalesce.table_of_chunks(grads, buffer).copy_to_host()
    assert chunks[:, coalesce.ALIGNED].tolist() == [allowed] * 3


ALL = (*adam.RUNGS, *global_norm.RUNGS, *coalesce.RUNGS)


def launches_of(rung, executor, size=300):
    """The launches of a rung over one tensor."""
    grads = normal(1, [size])
    if rung in adam.RUNGS:
        return adam.RUNGS[rung](*placed(executor, adam_lists([size])), NUMBERS)
    if rung in global_norm.RUNGS:
        out = executor.to_device(np.zeros(2, np.float32))
        return global_norm.RUNGS[rung](*placed(executor, [grads]), out, CLIP)
    buffer = executor.to_device(np.zeros(coalesce.offsets_of([size])[-1], np.float16))
    return coalesce.RUNGS[rung](*placed(executor, [grads]), buffer, np.float32(0.37))


CALLS = "cuda.syncthreads()", "cuda.threadfence()"


def without(text, call):
    """A text once for each of its calls of something, without that one."""
    parts = text.split(call)
    return [call.join(parts[:k]) + "None" + call.join(parts[k:]) for k in range(1, len(parts))]


def executed(module, text):
    """The module that it would be by another text."""
    changed = types.ModuleType(module.__name__)
    exec(compile(text, module.__file__, "exec"), vars(changed))
    return changed


@pytest.mark.parametrize("call", [None, *(pytest.param(call, marks=pytest.mark.slow) for call in CALLS)])
def test_every_barrier_and_fence_of_the_norm_is_needed(call, executor):
    """Without any one of them, the race is seen; with all, there is none."""
    text = Path(global_norm.__file__).read_text()
    for one in without(text, call) if call else [text]:
        module = executed(global_norm, one)
        (device,) = placed(executor, [normal(1, [5, 8200])])
        out = executor.to_device(np.zeros(2, np.float32))
        with (pytest.raises(simt.DataRace) if call else contextlib.nullcontext(),
              simt.observe(count=False, watch=True, strict="both-fences")):
            for rung in list(module.RUNGS.values())[1:]:
                for launch in rung(device, out, CLIP):
                    launch()


# What `python -m refopt.gpu.ladder.adam` prints.


def test_a_ladder_runs_checks_and_times_itself(monkeypatch, capsys):
    """A row for each rung and one for production; a rung whose bits should be the reference's fails."""
    monkeypatch.setattr(bench, "SCALED", 8)
    assert bench.run("coalesce") == 0
    _, head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["version", "launches", "elements", "that", "differ", "ms"]
    names = [line.split()[0] for line in lines]
    assert names == [*coalesce.RUNGS, "production"] and all(line.split()[2] == "0" for line in lines[:-1])
    monkeypatch.setitem(coalesce.RUNGS, "gather_3", lambda *args: [])
    assert bench.run("coalesce") == 1 and capsys.readouterr().out.splitlines()[-2].split()[2] != "0"


@pytest.fixture
def told(monkeypatch, capsys):
    """What a ladder prints and returns if so many elements differ, and each rung takes 4 ms and production 2."""
    def run(name, differ=(), machine="executor"):
        tensors = [types.SimpleNamespace(elements=n) for n in (3, 5)]
        model = types.SimpleNamespace(tensors=tensors, scaled=lambda size: types.SimpleNamespace(tensors=tensors))
        rows = [("production", 1, None, 2.0)] * (name != "matmul")
        here = types.SimpleNamespace(name=machine, properties=Properties("a GPU", (9, 0), 132, 50 << 20))
        for owner, what, value in ((bench.workloads, "load", lambda name: model), (bench.gpu, "device", lambda: here),
                                   (timing, "copy_milliseconds", lambda nbytes: 1.0),
                                   (bench, "rows", lambda _, rungs: [(x, 2, 1234 * (x in differ), 4.0) for x in rungs]
                                    + rows)):
            monkeypatch.setattr(owner, what, value)
        monkeypatch.setitem(bench.SHAPES, "gpu", [(8, 8)])
        status = bench.run(name)
        return status, capsys.readouterr().out.splitlines()

    return run


def test_what_a_ladder_says_of_itself(told):
    """Sums by atomics may differ; on a GPU times are compared with a copy's and with production's."""
    status, (head, _, *lines) = told("global_norm", ["norm_0", "norm_1"])
    assert status == 0 and head == "global_norm on the executor, on this CPU: 2 tensors, 8 elements"
    assert lines[0].split() == ["norm_0", "2", "1,234", "4.000"] and lines[-1].split() == ["production", "1", "2.000"]
    assert told("global_norm", ["norm_2"])[0] == 1
    _, (head, columns, *lines) = told("adam", machine="gpu")
    assert head == "adam on a GPU: 2 tensors, 8 elements" and columns.endswith("% of a copy  % of production")
    assert [line.split()[-2:] for line in lines[-2:]] == [["25%", "50%"], ["50%", "100%"]]


@pytest.mark.parametrize(("machine", "more"), [("executor", []), ("gpu", ["matmul_8"])])
def test_products_of_fp32_come_before_those_of_bf16(told, machine, more):
    """With Hopper's on a GPU that is one."""
    pytest.importorskip("ml_dtypes")
    _, (head, _, *lines) = told("matmul", machine=machine)
    assert head.endswith(": products of matrices")
    assert [line.split()[0] for line in lines] == [f"matmul_{k}" for k in range(8)] + more


def test_bytes_of_a_ladders_step():
    """By element, as its file says."""
    moved = {"adam": 28, "lars": 28, "lamb": 40, "global_norm": 4, "coalesce": 6}
    assert {name: bench.bench_of(name, [3, 5]).bytes for name in moved} == {x: 8 * n for x, n in moved.items()}


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x != "lars")) for x in (
    "adam", "lars", "lamb", "global_norm", "matmul")])
def test_rungs_are_compared_with_the_reference(name):
    pytest.importorskip("ml_dtypes")
    module = ladder.module_of(name)
    for dtype in ("float32", "bfloat16") if name == ladder.PRODUCTS else ("float32",):
        rungs = {x: of for x, of in module.RUNGS.items()
                 if name != ladder.PRODUCTS or (x in module.PLAIN) == (dtype == "float32")}
        for rung, launches, wrong, ms in bench.rows(bench.bench_of(name, [5, 1100], dtype), rungs):
            assert rung in getattr(module, "OTHER_BITS", ()) or not wrong, rung
            assert launches and ms > 0


def test_a_copy_reads_and_writes_half_of_the_bytes_each(executor):
    with simt.observe(count=()) as log:
        timing.copy_milliseconds(101)
        timing.copy_milliseconds(0)
    assert [copy.nbytes for copy in log.copies] == [50, 1]


def test_a_time_on_a_gpu_is_that_between_the_ends_of_two_calls(monkeypatch):
    """The median of as many as are asked for, without what the calls before them took."""
    took = iter([50.0, 40.0, 1.0, 7.0, 2.0, 90.0])
    now = [0.0]

    class Event:
        def record(self, stream):
            self.at = now[0]

        def elapsed_time(self, other):
            return other.at - self.at

    def call():
        now[0] += next(took)

    machine = types.SimpleNamespace(name="gpu", new_event=lambda timing: Event(), synchronize=lambda: None)
    monkeypatch.setattr(timing, "device", lambda: machine)
    assert timing.milliseconds(call, repeats=3, warmup=2) == 2.0 and [*took] == [90.0]


def test_a_time_on_the_executor_is_that_of_one_call(executor, monkeypatch):
    now, called = iter([2.0, 2.25]), []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
    assert timing.milliseconds(lambda: called.append(0)) == 250 and called == [0]
