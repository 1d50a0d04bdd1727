"""Threads that wait for what does not come. On a GPU they are ended from outside."""

from numba import cuda

from benchmarks.defects.case import case, ints


@case("a wait that nobody ends", [ints(2), ints(1)], [0], block=32, grid=2, hangs=True)
def wait_that_nobody_ends(flags, y):
    """Each block waits for the other before it signals."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.add(flags, 1 - cuda.blockIdx.x, 0) == 0:
            pass
        cuda.atomic.add(flags, cuda.blockIdx.x, 1)
        y[0] = 1


@case("a wait on a plain load, which a compiler moves out of the loop", [ints(1), ints(1)], [1], block=64, hangs=True)
def wait_on_a_plain_load(flag, y):
    t = cuda.threadIdx.x
    if t == 0:
        while flag[0] == 0:
            pass
        y[0] = 1
    if t == 32:
        flag[0] = 1
