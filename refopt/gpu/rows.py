"""How the warps of a block share the elements of a chunk, and what a thread has of a row.

A **warp** is 32 threads that run in step, a thread of it a **lane**, and 256 elements a **row**. A warp takes a row at
a time, and each of its lanes eight elements of it.
"""

from collections.abc import Callable

from refopt.gpu.target import cuda, device_function
from refopt.gpu.unroll import named


@device_function
def of_warp(start, stop, length):
    """Where this warp's parts of so many elements begin: the block's warps take turns."""
    return range(start + cuda.threadIdx.x // 32 * length, stop, cuda.blockDim.x // 32 * length)


@device_function
def own(first):
    """This thread's first element of a row: thread t of a warp, its lane, has 4t.. and 128 + 4t.., four of each.

    So the loads of a warp's lanes lie side by side and make whole lines of memory: they are coalesced.
    """
    return first + 4 * (cuda.threadIdx.x % 32)


def either(name: str, variant: Callable[[bool], Callable], length: int) -> Callable:
    """``either(at, first, stop, aligned, common)``: the full variant of so many elements at ``first``, or the partial.

    ``at`` says where the tensor's arrays are, and ``common`` is what its elements have in common: both are passed on as
    they are. ``variant(partial)`` makes the variants, as ``row(at, first, stop, common)``. The full one assumes that
    all elements are there and aligned, and loads four at a time. The partial one is for the end of a tensor, and for
    arrays that begin at an odd address; it accesses one element at a time. All threads of a warp take the same branch,
    so none waits for the others.

    Listings show the three under a name, such as update, update_full and update_partial.
    """
    full, partial = variant(False), variant(True)
    for function, word in (full, "full"), (partial, "partial"):
        named(function, name, word)

    @device_function
    def either(at, first, stop, aligned, common):
        if aligned and first + length <= stop:
            return full(at, first, stop, common)
        return partial(at, first, stop, common)

    return named(either, name)
