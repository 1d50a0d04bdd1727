"""How the warps of a block divide the elements of a chunk, and which elements of a row each thread has.

A **warp** is 32 threads that are issued together, a **lane** one of these threads, and a **row** 256 elements. A warp
takes a row at a time, and each of its lanes eight elements of the row.
"""

from collections.abc import Callable

from refopt.gpu.target import cuda, device_function
from refopt.gpu.unroll import named


@device_function
def of_warp(start, stop, length):
    """Where this warp's parts of ``length`` elements begin: the block's warps take parts in turn."""
    return range(start + cuda.threadIdx.x // 32 * length, stop, cuda.blockDim.x // 32 * length)


@device_function
def own(first):
    """This thread's first element of a row: lane t of a warp has 4t to 4t + 3, and the four that are 128 further.

    So the loads of a warp's lanes are contiguous and read whole lines of memory: they are coalesced.
    """
    return first + 4 * (cuda.threadIdx.x % 32)


def either(name: str, variant: Callable[[bool], Callable], length: int) -> Callable:
    """``either(at, first, stop, aligned, common)``: the full or partial variant for ``length`` elements at ``first``.

    ``at`` locates the tensor's arrays, and ``common`` has what all its elements share: both are passed on unchanged.
    ``variant(partial)`` makes the variants, as ``row(at, first, stop, common)``. The full one assumes that all elements
    exist and are aligned, and loads four at a time. The partial one is for the end of a tensor and for unaligned
    arrays; it accesses one element at a time. All threads of a warp take the same branch, so none waits for the others.

    Listings name the three after ``name``, such as update, update_full and update_partial.
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
