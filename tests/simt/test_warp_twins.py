"""Twins of instructions that a warp carries out together, vectors of shared memory, and copies that go on meanwhile."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, vectors


def _of_all(x, scale):
    """Each lane gets the sum over its warp, and the value of the lane opposite, scaled by its own number."""
    return np.repeat(x.sum(1, keepdims=True), 32, axis=1), x[:, ::-1] * scale


@simt.ptx_twin("float32", "float32", warp=_of_all)
def of_all(x, scale):
    return np.float32(x), np.float32(scale)


@simt.ptx_twin("int64", warp=lambda x: (x.max(1, keepdims=True) + 0 * x,))
def largest(x):
    return (x,)


@cuda.jit
def summed(x, sums, opposite):
    i = cuda.grid(1)
    sums[i], opposite[i] = of_all(x[i], i % 32)


@cuda.jit
def in_half_a_warp(x):
    i = cuda.grid(1)
    if i % 32 < 16:
        x[i] = largest(x[i])


def outcome(kernel, *arrays, blocks=1, threads=64, **observed):
    if observed:
        with simt.observe(**observed) as log:
            kernel[blocks, threads](*arrays)
        return log
    kernel[blocks, threads](*arrays)


@pytest.mark.parametrize("blocks", [1, 40])  # by threads, and by lanes
def test_all_lanes_of_a_warp_are_together(blocks):
    """Each warp by itself, in the order of its lanes; results are typed, one or several."""
    x = np.random.default_rng(0).integers(0, 9, 64 * blocks).astype(np.float32)
    sums, opposite = np.zeros_like(x), np.zeros_like(x)
    assert simt.how(summed[blocks, 64], x, sums, opposite).by == ("lanes" if blocks > 1 else "threads")
    for schedule in (None, "reverse", "random"):
        sums[:], opposite[:] = 0, 0
        outcome(summed, x, sums, opposite, blocks=blocks, **({"schedule": schedule} if schedule else {}))
        rows = x.reshape(-1, 32)
        assert (sums.reshape(-1, 32) == rows.sum(1, keepdims=True)).all()
        assert (opposite.reshape(-1, 32) == rows[:, ::-1] * np.arange(32)).all()


@pytest.mark.parametrize("threads", [64, 1024])
def test_lanes_that_have_ended_are_missed(threads):
    """By threads and by lanes, watched or not."""
    for observed in ({}, {"watch": True}):
        with pytest.raises(simt.BarrierDivergence, match=r"(?s)a warp operation is not reached by all.* have ended "
                                                         r"already.*in kernel in_half_a_warp at .*py:\d+"):
            outcome(in_half_a_warp, np.zeros(threads, np.int64), threads=threads, **observed)


def test_a_warp_of_fewer_threads_is_refused():
    x = np.zeros(72, np.int64)

    @cuda.jit
    def kernel(x):
        x[cuda.grid(1)] = largest(1)

    with pytest.raises(simt.BarrierDivergence, match=r"lanes 8 to 31 are missing: the warp has 8 threads"):
        kernel[1, 72](x)


def test_lanes_meet_in_one_call():
    """As those of a shuffle do."""

    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i % 2:
            x[i] = largest(i)
        else:
            x[i] = largest(2 * i)

    x = np.zeros(32, np.int64)
    with pytest.raises(simt.BarrierDivergence, match="rule shuffle-sites"), simt.observe(watch=True):
        kernel[1, 32](x)
    with simt.observe(watch=True, lenient="shuffle-sites"):
        kernel[1, 32](x)
    assert (x == 60).all()


def test_what_a_lane_brings_is_defined():
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        y = i
        if i < 16:
            y = cuda.shfl_down_sync(0xFFFF, i, 8)
        x[i] = largest(y)

    with pytest.raises(simt.UninitializedRead, match="largest takes the result of a shuffle"), simt.observe(watch=True):
        kernel[1, 32](np.zeros(32, np.int64))


@simt.ptx_twin("float32", "float32", warp=lambda *halves: halves)
def pair(array, index):
    return tuple(vectors.read_vector(array, index, 2))


def reader(sync=True, at=lambda i: 2 * i, size=64):
    at = cuda.jit(at, device=True)

    @cuda.jit
    def kernel(x):
        i = cuda.threadIdx.x
        tile = cuda.shared.array(size, np.float32)
        if i < 32:
            tile[i] = 10 * i
            tile[i + 32] = 10 * (i + 32)
            if sync:
                cuda.syncwarp()
            a, b = pair(tile, at(i))
            x[2 * i], x[2 * i + 1] = a, b

    return kernel


def test_vectors_are_read_from_shared_memory():
    """By threads and by lanes; as one access, so that no banks conflict."""
    x = np.zeros(64, np.float32)
    log = outcome(reader(), x, threads=32, profile=True)
    assert (x == 10 * np.arange(64)).all()
    loads = [(row.requests, row.conflicts) for row in log.profile.banks if row.kind == "load"]
    assert loads == [(1, 0)]
    outcome(reader(), x, threads=32, watch=True)

    @cuda.jit
    def many(x):
        tile, i = cuda.shared.array(64, np.float32), cuda.threadIdx.x
        tile[i] = i + cuda.blockIdx.x
        cuda.syncthreads()
        x[cuda.grid(1)] = pair(tile, i // 2 * 2)[1]

    y = np.zeros(64 * 40, np.float32)
    many[40, 64](y)
    assert simt.how(many[40, 64], y).by == "lanes"
    assert (y.reshape(40, 64) == np.arange(40)[:, None] + np.arange(64) // 2 * 2 + 1).all()


def test_a_collective_operation_orders_no_memory():
    with pytest.raises(simt.DataRace, match="shared array"):
        outcome(reader(sync=False), np.zeros(64, np.float32), threads=32, watch=True)


@pytest.mark.parametrize(("at", "error", "says"), [
    (lambda i: 2 * i + 1, simt.MisalignedAddress, "2 x float32 at index 1 .* not aligned to 8 bytes"),
    (lambda i: 2 * i + 34, simt.OutOfBounds, r"2 elements from index 64 are out of bounds .*shape \(64,\)"),
    (lambda i: 2 * i - 2, simt.OutOfBounds, "2 elements from index -2 are out of bounds")])
@pytest.mark.parametrize("blocks", [1, 40])
def test_vectors_outside_or_misaligned(at, error, says, blocks):
    x, kernel = np.zeros(64, np.float32), reader(at=cuda.jit(device=True)(at))
    for observed in ({}, {"watch": True}):
        with pytest.raises(error, match=says):
            outcome(kernel, x, blocks=blocks, threads=32, **observed)


def test_vectors_of_unwritten_memory():
    with pytest.raises(simt.UninitializedRead, match="shared array"):
        outcome(reader(size=128, at=lambda i: 2 * i + 64), np.zeros(64, np.float32), threads=32, watch=True)


# Asynchronous copies


@simt.ptx_twin(lanes=True)
def begin(array, index, address):
    vectors.copy_async(array, index, np.array(simt.memory.load(address, np.float32, 4)))


@simt.ptx_twin()
def commit():
    vectors.commit_copies()


@simt.ptx_twin()
def wait_for_all():
    vectors.wait_for_copies(0)


@simt.ptx_twin()
def wait_for_all_but_one():
    vectors.wait_for_copies(1)


WAITS = {"all": wait_for_all, "but one": wait_for_all_but_one, "none": commit}


def copier(wait, sync=True, late=False):
    """Two groups of copies of 16 bytes each; what a thread's neighbour sees of the two after a wait."""
    waited = WAITS[wait]

    @cuda.jit
    def kernel(address, out):
        i = cuda.threadIdx.x
        tile = cuda.shared.array(8 * 32, np.float32)
        if late:
            tile[4 * i] = 1
            cuda.syncthreads()
            out[i] = tile[4 * (31 - i)]
        begin(tile, 4 * i, address + 16 * i)
        commit()
        begin(tile, 128 + 4 * i, address + 16 * (32 + i))
        commit()
        waited()
        if sync:
            cuda.syncthreads()
        out[i], out[32 + i] = tile[4 * (31 - i)], tile[128 + 4 * (31 - i)]

    return kernel


def copied(kernel, **observed):
    source, out = cuda.to_device(np.arange(256, dtype=np.float32)), np.zeros(64, np.float32)
    outcome(kernel, source.__cuda_array_interface__["data"][0], out, threads=32, **observed)
    return out.reshape(2, 32)


def test_copies_are_there_when_they_have_been_waited_for():
    """All groups, or all but the latest; what is under way is no data."""
    expected = np.arange(256).reshape(2, 32, 4)[:, ::-1, 0]
    for observed in ({}, {"watch": True}):
        assert (copied(copier("all"), **observed) == expected).all()
        first, second = copied(copier("but one"), **observed)
        assert (first == expected[0]).all() and np.isnan(second).all()
        assert np.isnan(copied(copier("none"), **observed)).all()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("wait", WAITS)
def test_copies_by_lanes_are_those_by_threads(wait, late):
    source, outs = cuda.to_device(np.arange(256, dtype=np.float32)), [np.zeros(64, np.float32) for _ in range(2)]
    address, kernel = source.__cuda_array_interface__["data"][0], copier(wait, late=late)
    assert simt.how(kernel[40, 32], address, outs[0]).by == "lanes"
    kernel[40, 32](address, outs[0])
    with simt.observe():
        kernel[40, 32](address, outs[1])
    assert outs[0].tobytes() == outs[1].tobytes()


@pytest.mark.parametrize("part", [commit, wait_for_all])
def test_groups_of_some_lanes(part):
    """These run by threads: what the others have begun is theirs."""

    @cuda.jit
    def kernel(address, out):
        i = cuda.threadIdx.x
        tile = cuda.shared.array(128, np.float32)
        begin(tile, 4 * i, address + 16 * i)
        if i % 2:
            part()
        commit()
        if i % 2:
            wait_for_all()
        out[i] = tile[4 * i]

    source, out = cuda.to_device(np.arange(128, dtype=np.float32)), np.zeros(32, np.float32)
    for _ in range(2):
        kernel[40, 32](source.__cuda_array_interface__["data"][0], out)
        assert (out[1::2] == np.arange(4, 128, 8)).all() and np.isnan(out[::2]).all()
    assert simt.how(kernel[40, 32], 0, out).why.endswith("some lanes")


def test_a_copy_is_seen_by_its_thread_alone():
    """Others need a barrier after the wait, and before a copy into what they read."""
    with pytest.raises(simt.DataRace, match="shared array"):
        copied(copier("all", sync=False), watch=True)
    with pytest.raises(simt.DataRace, match="shared array"):
        copied(copier("all", late=True), watch=True)


@simt.ptx_twin("float32")
def doubled(array, index):
    vector = vectors.read_vector(array, index, 2)
    vector *= 2
    return vector[0]


def test_a_vector_that_is_read_is_a_copy():
    @cuda.jit
    def kernel(x):
        tile = cuda.shared.array(2, np.float32)
        tile[0] = tile[1] = 1
        x[0], x[1] = doubled(tile, 0), tile[0]

    for observed in ({}, {"watch": True}):
        x = np.zeros(2, np.float32)
        outcome(kernel, x, threads=1, **observed)
        assert x.tolist() == [2, 1]
