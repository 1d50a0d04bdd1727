"""Shared, local and constant arrays."""

from contextlib import nullcontext

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda


def run(body, threads=4, blocks=1, dynamic=0, dtype=np.float32, width=1, observe=None):
    """What each thread leaves in its row of an output array."""
    out = np.zeros((blocks * threads, width), dtype)
    with nullcontext() if observe is None else simt.observe(**observe):
        cuda.jit(body)[blocks, threads, 0, dynamic](out)
    return out


OBSERVED = pytest.mark.parametrize("observe", [None, {"count": True}, {"watch": True}])


@OBSERVED
def test_one_array_per_call_site_and_block(observe):
    @cuda.jit(device=True)
    def scratch():
        return cuda.shared.array(4, np.int32)

    def body(out):
        t = cuda.threadIdx.x
        a, b = cuda.shared.array(4, np.int32), cuda.shared.array(4, np.int32)
        for _ in range(2):
            c = cuda.shared.array(shape=(2, 2), dtype="int32")
            c[t // 2, t % 2] = 100 + t
        d = scratch()
        a[t], b[t], d[t] = t, 10 + t, 1000 * cuda.blockIdx.x + t
        cuda.syncthreads()
        n = (t + 1) % 4
        e = scratch()
        out[cuda.grid(1), 0], out[cuda.grid(1), 1], out[cuda.grid(1), 2] = a[n], b[n], c[n // 2, n % 2]
        out[cuda.grid(1), 3] = e[n]

    expected = [[n, 10 + n, 100 + n, 1000 * block + n] for block in range(2) for n in (1, 2, 3, 0)]
    assert run(body, 4, 2, dtype=np.int32, width=4, observe=observe).tolist() == expected


@OBSERVED
def test_dynamic_arrays_alias(observe):
    def body(out):
        t = cuda.threadIdx.x
        floats, ints = cuda.shared.array(0, np.float32), cuda.shared.array(0, np.int32)
        assert len(floats) == len(ints) == 4
        floats[t] = t
        cuda.syncthreads()
        out[t] = ints[3 - t]

    expected = np.arange(3, -1, -1, dtype=np.float32).view(np.int32)
    assert run(body, dynamic=18, dtype=np.int32, observe=observe).ravel().tolist() == expected.tolist()


def test_fresh_arrays_are_poisoned():
    def body(out):
        t = cuda.threadIdx.x
        out[t, 0] = cuda.shared.array(4, np.float32)[t]
        out[t, 1] = cuda.shared.array(4, np.uint8)[t]
        out[t, 2] = cuda.local.array((2, 2), np.float16)[1, 1]
        out[t, 3] = cuda.local.array(1, np.uint8)[0]

    out = run(body, width=4)
    assert np.isnan(out[:, 0]).all() and np.isnan(out[:, 2]).all()
    assert (out[:, 1] == 0xAB).all() and (out[:, 3] == 0xAB).all()


def test_partly_written_elements_count_as_uninitialised():
    def body(out):
        part = cuda.shared.array(4, np.uint8)
        part[0] = part[1] = part[2] = 0
        out[0, 0] = part.view(np.uint32)[0]

    with pytest.raises(simt.UninitializedRead):
        run(body, threads=1, observe={"watch": True})


@pytest.mark.parametrize("threads", [4, 1024])  # by threads, and by lanes
@pytest.mark.parametrize("static, dynamic", [(48 * 1024 + 1, 0), (48 * 1024, 179 * 1024 + 1)])
def test_limits(static, dynamic, threads):
    def body(out):
        cuda.shared.array(static, np.uint8)

    def most(out):
        cuda.shared.array(48 * 1024, np.uint8, alignment=16)

    less = static - 1024

    def both(out):
        cuda.shared.array(less, np.uint8), cuda.shared.array(1024, np.uint8)

    for each in (body, both):
        with pytest.raises(simt.LaunchError, match="shared memory"):
            run(each, threads, dynamic=dynamic)
    run(most, threads, dynamic=179 * 1024)


@pytest.mark.parametrize("make", [cuda.shared.array, cuda.local.array])
@pytest.mark.parametrize(("wrong", "error"), [(3, ValueError), (0, ValueError), ("8", TypeError), (True, TypeError)])
def test_alignments(make, wrong, error):
    def body(out):
        make(4, np.int8, wrong)

    with pytest.raises(error, match=f"alignment: expected .*, got {wrong!r}"):
        run(body)


FOUR = np.arange(4)


def test_local_arrays_are_private():
    def body(out):
        t = cuda.threadIdx.x
        mine, table = cuda.local.array(2, np.float32), cuda.const.array_like(FOUR)
        mine[0] = t
        cuda.syncthreads()
        out[t, 0] = mine[0] + 10 * table[t]

    assert run(body).ravel().tolist() == [0, 11, 22, 33]


def test_constant_arrays_are_read_only_copies():
    table = np.arange(4)

    def body(out):
        constant = cuda.const.array_like(table)
        constant[0] = out[0, 0] = 7

    with pytest.raises(ValueError, match="read-only"):
        run(body)
    assert table.tolist() == [0, 1, 2, 3]
