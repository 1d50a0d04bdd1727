"""Kernels that are right on a GPU and look as if they were not: watched, they give the right answer and no error."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from simt.cases import PAIR, SCHEDULES, Cases, ints

right = Cases()  # the outcome is what the last argument begins with


@right([1, 1], ints, block=40)
def all_of_those_that_are_left(out):
    if cuda.threadIdx.x >= 35:
        return
    out[0] = cuda.syncthreads_and(int(cuda.threadIdx.x < 35))
    out[1] = cuda.syncthreads_or(int(cuda.threadIdx.x == 34))


@right([4, 3, 2, 1], lambda: ints(4), block=4)
def return_within_a_loop(out):
    t = cuda.threadIdx.x
    out[t] = 0
    while True:
        out[t] += 1
        if out[t] > 3 - t:
            return
        cuda.syncthreads()


@right(1, ints, block=2)
def wait_that_sleeps(out):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.add(out, 1, 0) == 0:
            cuda.nanosleep(100)
        out[0] = 1
    else:
        cuda.atomic.exch(out, 1, 1)


@right([15, 14], ints)
def syncwarp_of_two_branches(out):
    """The two calls of syncwarp meet: it is no shuffle."""
    s = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    s[t] = t
    if t < 16:
        cuda.syncwarp()
    else:
        cuda.syncwarp()
    out[t] = s[15 - t]


@right([1, 0, 3, 2], ints)
def shuffles_of_disjoint_halves(out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_xor_sync(0xFFFF, t, 1)
    else:
        out[t] = cuda.shfl_xor_sync(0xFFFF0000, t, 1)


@right([4, 1], lambda: cuda.device_array(2, np.int32), ints, block=4)
def counter_set_by_an_exchange(count, out):
    """What was there before does not matter."""
    if cuda.threadIdx.x == 0:
        cuda.atomic.exch(count, 0, 0)
    cuda.syncthreads()
    cuda.atomic.add(count, 0, 1)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[0] = count[0]
        out[1] = 1


@right([6, 0], lambda: np.zeros(2, PAIR), lambda: np.zeros(2, np.float32), block=4)
def atomics_on_a_column_of_records(x, out):
    cuda.atomic.add(x["b"], 1, cuda.threadIdx.x)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[0], out[1] = x[1]["b"], x["a"][1]


PADDED = np.dtype([("a", np.int8), ("b", np.float64), ("c", np.int16, (3,))], align=True)


@right([3, 4], lambda: cuda.device_array(32, PADDED), ints)
def copy_of_a_record_with_padding(x, out):
    t = cuda.threadIdx.x
    mine = cuda.local.array(1, PADDED)
    mine[0].a, mine[0].b = t, 4
    for i in range(3):
        mine[0].c[i] = 0
    x[t] = mine[0]
    cuda.syncwarp()
    if t == 3:
        out[0], out[1] = x[3].a, x[3].b


@right([3, 4], lambda: ints(1), lambda: ints(1), lambda: ints(2), grid=2, block=1)
def mailbox_that_is_filled_twice(box, full, out):
    cuda.cg.this_grid()
    for turn in range(2):
        if cuda.blockIdx.x == 0:
            while cuda.atomic.add(full, 0, 0) != 0:
                pass
            cuda.threadfence()
            box[0] = 3 + turn
            cuda.threadfence()
            cuda.atomic.exch(full, 0, 1)
        else:
            while cuda.atomic.add(full, 0, 0) != 1:
                pass
            cuda.threadfence()
            out[turn] = box[0]
            cuda.threadfence()
            cuda.atomic.exch(full, 0, 0)


# Atomics, whose order is that of the threads: watched, these are run in several.


@right(6, ints, ints, ints, grid=6, block=1)
def look_back_by_tickets(ticket, sums, out):
    """A block waits for those that took a ticket before it, in whichever order they start."""
    b = cuda.atomic.add(ticket, 0, 1)
    before = 0
    while b and not before:
        before = cuda.atomic.add(sums, b - 1, 0)
    cuda.threadfence()
    cuda.atomic.exch(sums, b, before + 1)
    if b == 5:
        out[0] = before + 1


ORDERS = [*({"schedule": name, "seed": seed} for name, seed in SCHEDULES), {"orders": 3}]


@pytest.mark.parametrize("orders", ORDERS, ids=["forward", "reverse", "random", "all"])
@pytest.mark.parametrize("name", right)
def test_a_right_kernel_passes(name, orders, monkeypatch):
    case = right[name]
    expected = np.atleast_1d(case.outcome)
    monkeypatch.setattr(simt.machine.spins, "UNCHANGED", 100)
    answers = []
    for watch in (False, True):
        arrays = case.arguments()
        with simt.observe(watch=watch, **(orders if watch or "orders" not in orders else {}), **case.options):
            cuda.jit(case.body)[case.grid, case.block](*arrays)
        answers.append(arrays[-1][: expected.size].tolist())
    assert answers == [expected.tolist()] * 2
