"""How the warps of a block share the elements of a chunk, and what a thread has of a row.

A **warp** is 32 threads that run in step, a thread of it a **lane**, and 256 elements a **row**. A warp takes a row at
a time, and each of its lanes eight elements of it.
"""

from collections.abc import Callable

from refopt.gpu.target import cuda, device_function


@device_function
def of_warp(start, stop, length):
    """Where the parts begin that fall to this warp, of so many elements each: the block's warps take turns."""
    return range(start + cuda.threadIdx.x // 32 * length, stop, cuda.blockDim.x // 32 * length)


@device_function
def own(first):
    """This thread's first element of a row: thread t of a warp, its lane, has 4t.. and 128 + 4t.., four of each.

    So the loads of a warp's lanes lie side by side and make whole lines of memory: they are coalesced.
    """
    return first + 4 * (cuda.threadIdx.x % 32)


def either(variant: Callable[[bool], Callable], length: int) -> Callable:
    """``part(at, first, stop, aligned, k)``: the full variant of so many elements at ``first``, or the partial one.

    ``variant(partial)`` makes them, as ``part(at, first, stop, k)``. The full one takes all elements to be there and
    aligned, and loads four at a time. The partial one is for the end of a tensor, and for arrays that begin at an odd
    address; it looks at each element by itself. All threads of a warp go the same way, so none waits while others go
    another.
    """
    full, partial = variant(False), variant(True)

    @device_function
    def part(at, first, stop, aligned, k):
        if aligned and first + length <= stop:
            return full(at, first, stop, k)
        return partial(at, first, stop, k)

    return part
