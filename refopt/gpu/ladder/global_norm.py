"""The norm of all gradients together, and the factor that clips them: sums, from atomics to two launches.

The reference is ``refopt.cpu.check_gradients``, in NumPy::

    norm   = sqrt(sum over all gradients of g * g)
    factor = min(max_norm / (norm + epsilon), 1)       # which the optimizer multiplies each gradient by

A step writes only two numbers; it reads 4 bytes per element in fp32, and that takes the time. The sum is the hard part.
Floating-point addition is not associative: (a + b) + c and a + (b + c) round different numbers. So the bits of a sum
depend on the order of its additions, and the same bits every time need a fixed order. The reference fixes this one
(``refopt.cpu.reduce``, neighbours first, a missing neighbour counts as 0)::

    tile     1024 elements in a row, as 4 rows of 256
    lane     one of 256 columns of a tile: 4 squares, added from the top
    tree     the 256 lanes, ((0 + 1) + (2 + 3)) + ..., then the tiles of a tensor, then the tensors

Versions:

    norm_0      each thread sums its squares and adds them to the total by an atomic: bits change from run to run
    norm_1      a tree in shared memory makes one sum per block, which an atomic adds to the total: bits still change
    norm_2      a block stores the sum of a tile, further launches join them: the bits of the reference from here on
    norm_3      all tensors in one launch; a warp to a tile, 16-byte loads, a tree of shuffles
    norm_4      two launches: the last block of a tensor to finish joins its sums
    production  ``refopt/gpu/gradient_check.py``, which is what ``gpu.gradient_check`` runs

One step on the 25,557,032 parameters of ResNet-50, in 161 tensors, on an NVIDIA H200::

    version     launches      ms  ms as a graph  GB/s  registers
    norm_0           162  16.869         16.704     6         30
    norm_1           162   0.999          0.432   236         30
    norm_2           323   2.016          0.699   146         28
    norm_3             3   0.043          0.041  2483         64
    norm_4             2   0.044          0.043  2389         72
    production         2   0.038          0.038  2670

A copy reaches 4275 GB/s; a small model may gain from the L2 cache.
"""

import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import Launch, address, multiprocessors, on_machine_of
from refopt.gpu.ladder.adam import sqrt
from refopt.gpu.vectors import load4_float32, load_float32

TILE, LANES, ROWS = 1024, 256, 4  # elements of a tile; those of a row; rows
ZERO, ONE = np.float32(0), np.float32(1)  # a Python number would be a double in the compiled kernel
NORM, FACTOR = range(2)  # indices in the result


@cuda.jit(device=True)
def finish(squares, out, max_norm, epsilon):
    norm = sqrt(squares)
    clip = max_norm / (norm + epsilon)
    out[NORM] = norm
    out[FACTOR] = clip if clip < ONE else ONE


# A total that all threads add to.


@cuda.jit
def norm_0(g, total):
    x = ZERO
    for i in range(cuda.grid(1), g.size, cuda.gridsize(1)):
        x += g[i] * g[i]
    # If two threads read the total, add to it and write it, one of the two sums may be lost. An atomic does the three
    # steps as one operation. The machine decides which thread is first, and so the order of the sum: the last bits of
    # the total differ from run to run.
    cuda.atomic.add(total, 0, x)


@cuda.jit
def finish_total(total, out, max_norm, epsilon):
    finish(total[0], out, max_norm, epsilon)
    total[0] = ZERO  # for the next step


def launches_0(grads, out, numbers, kernel=norm_0):
    """A launch for each tensor, then one of a single thread."""
    total = on_machine_of(out, np.zeros(1, np.float32))
    most = 8 * multiprocessors(out)  # blocks: eight for each multiprocessor
    blocks = [Launch(kernel, min(-(-g.size // 256), most), 256, (g, total)) for g in grads if g.size]
    return [*blocks, Launch(finish_total, 1, 1, (total, out, *numbers))]


# One sum of each block first.


@cuda.jit
def norm_1(g, total):
    # Memory that the threads of a block share, on the multiprocessor itself: some 30 cycles away; global memory is 600
    # away.
    shared = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    x = ZERO
    for i in range(cuda.grid(1), g.size, cuda.gridsize(1)):
        x += g[i] * g[i]
    shared[t] = x
    half = 128
    while half > 0:
        # Without this barrier a thread could read a sum that another has not written yet. All threads of the block must
        # reach it, so it is outside the condition.
        cuda.syncthreads()
        if t < half:
            shared[t] += shared[t + half]
        half //= 2
    # Atomics on one address wait for each other, so there is one per block, not per thread. But blocks, too, finish in
    # any order.
    if t == 0:
        cuda.atomic.add(total, 0, shared[0])


def launches_1(grads, out, numbers):
    return launches_0(grads, out, numbers, norm_1)


# A fixed order.


@cuda.jit
def norm_2(g, sums):
    # A block takes a tile, and a thread one lane of it. The order in which blocks run no longer matters: each sum has
    # its own place, and does not depend on other blocks.
    shared = cuda.shared.array(256, np.float32)
    t, start = cuda.threadIdx.x, cuda.blockIdx.x * TILE
    x = ZERO
    for row in range(ROWS):
        i = start + LANES * row + t
        if i < g.size:
            x += g[i] * g[i]
    shared[t] = x
    distance = 1
    while distance < LANES:
        cuda.syncthreads()
        # Neighbours first: lane 0 adds 1, 2 adds 3; then 0 adds 2, 4 adds 6.
        if t % (2 * distance) == 0:
            shared[t] += shared[t + distance]
        distance *= 2
    if t == 0:
        sums[cuda.blockIdx.x] = shared[0]


@cuda.jit(device=True)
def join(sums, first, count):
    """A block joins consecutive sums by the tree, neighbours first. The result replaces the first of them."""
    while count > 1:
        parents = (count + 1) // 2
        for base in range(0, parents, cuda.blockDim.x):
            k = base + cuda.threadIdx.x
            x = ZERO
            if k < parents:
                x = sums[first + 2 * k]
                if 2 * k + 1 < count:
                    x += sums[first + 2 * k + 1]
            # Other threads have read above what a thread overwrites below, so all must have read before any writes. And
            # all must have written before the next round reads.
            cuda.syncthreads()
            if k < parents:
                sums[first + k] = x
            cuda.syncthreads()
        count = parents


@cuda.jit
def join_2(sums, roots, tensor):
    join(sums, 0, sums.size)
    if cuda.threadIdx.x == 0:
        roots[tensor] = sums[0]


@cuda.jit
def finish_roots(roots, out, max_norm, epsilon):
    join(roots, 0, roots.size)
    if cuda.threadIdx.x == 0:
        finish(roots[0], out, max_norm, epsilon)


def launches_2(grads, out, numbers):
    """Two launches for each tensor, and one for all: a launch sees everything that the previous one has written."""
    roots, launches = on_machine_of(out, np.zeros(len(grads), np.float32)), []
    for tensor, g in enumerate(grads):
        sums = on_machine_of(out, np.zeros(max(1, -(-g.size // TILE)), np.float32))  # 0 of a tensor without elements
        launches += [Launch(norm_2, sums.size, LANES, (g, sums)), Launch(join_2, 1, 256, (sums, roots, tensor))]
    return [*launches, Launch(finish_roots, 1, 256, (roots, out, *numbers))]


# All tensors in one launch, a warp to a tile.

# The tensors are cut into chunks of 16 tiles, and a block takes one chunk of any tensor. Tables on the device describe
# the chunks.

CHUNK = 16 * TILE
THREADS = 128  # of a block: four warps
WARP = 0xFFFFFFFF  # the mask of a shuffle in which all 32 threads of a warp take part
TENSOR, START, STOP, SLOT, ALIGNED = range(5)  # columns of the table of chunks; SLOT is the place of the first sum
FIRST, COUNT, CHUNKS = range(3)  # rows of the table of tensors: the first sum, and how many sums and chunks
ZEROS = ZERO, ZERO, ZERO, ZERO


@cuda.jit(device=True)
def some(array, i, stop):
    """Four elements, loaded one by one, and 0 for those beyond the end. The address of the array is in bytes."""
    at = array + 4 * i
    return (
        load_float32(at) if i < stop else ZERO,
        load_float32(at + 4) if i + 1 < stop else ZERO,
        load_float32(at + 8) if i + 2 < stop else ZERO,
        load_float32(at + 12) if i + 3 < stop else ZERO,
    )


@cuda.jit(device=True)
def add_squares(sums, x):
    return sums[0] + x[0] * x[0], sums[1] + x[1] * x[1], sums[2] + x[2] * x[2], sums[3] + x[3] * x[3]


@cuda.jit(device=True)
def warp_tree(x):
    """The sum over the 32 threads of a warp, neighbours first, on all of them: 5 shuffles, no memory, no barrier."""
    for level in range(5):
        # Each thread reads the x of the thread whose number differs in one bit. A shuffle makes the threads of its mask
        # wait for each other, so it needs no barrier. a + b and b + a have the same bits, so both get the same sum.
        x += cuda.shfl_xor_sync(WARP, x, 1 << level)
    return x


@cuda.jit(device=True)
def lane_tree(low, high):
    """The sum over the 256 lanes of a tile, on all threads of the warp. A thread has 4 lanes of either half."""
    # The first two levels of the tree are within the thread, five are between threads, and the last joins the halves.
    return warp_tree((low[0] + low[1]) + (low[2] + low[3])) + warp_tree((high[0] + high[1]) + (high[2] + high[3]))


@cuda.jit(device=True)
def tile_squares(g, first, stop, aligned):
    """A warp sums the squares of a tile. Thread t has lanes 4t to 4t + 3, and the four that are 128 further."""
    i = first + 4 * (cuda.threadIdx.x % 32)
    low, high = ZEROS, ZEROS
    # All threads of a warp take the same branch, so none waits for others to run the other one.
    if aligned and first + TILE <= stop:
        for row in range(ROWS):
            # 16 bytes per thread, so 512 contiguous bytes for the warp, and eight such loads in flight at once: bytes
            # in flight hide latency, and an instruction that loads 16 bytes takes no longer than one that loads 4.
            at = g + 4 * (i + LANES * row)
            x, y = load4_float32(at), load4_float32(at + 512)
            low, high = add_squares(low, x), add_squares(high, y)
    else:
        for row in range(ROWS):
            k = i + LANES * row
            low, high = add_squares(low, some(g, k, stop)), add_squares(high, some(g, k + 128, stop))
    return lane_tree(low, high)


@cuda.jit(device=True)
def chunk_sums(c, addresses, chunks, sums):
    """Store the sums of a chunk's tiles in their places."""
    g, start, stop = addresses[chunks[c, TENSOR]], chunks[c, START], chunks[c, STOP]
    warp = cuda.threadIdx.x // 32
    for first in range(start + warp * TILE, stop, cuda.blockDim.x // 32 * TILE):
        x = tile_squares(g, first, stop, chunks[c, ALIGNED])
        if cuda.threadIdx.x % 32 == 0:
            sums[chunks[c, SLOT] + (first - start) // TILE] = x


@cuda.jit(launch_bounds=(THREADS, 6))
def norm_3(addresses, chunks, sums):
    chunk_sums(cuda.blockIdx.x, addresses, chunks, sums)


@cuda.jit
def join_3(tensors, sums, roots):
    tensor = cuda.blockIdx.x
    first, count = tensors[FIRST, tensor], tensors[COUNT, tensor]
    join(sums, first, count)
    if cuda.threadIdx.x == 0:
        roots[tensor] = sums[first] if count > 0 else ZERO


def tables(grads):
    """Addresses, chunks, tensors, and room for the sums of all tiles and of all tensors, on the device.

    A tensor without elements gets a chunk without tiles; its block writes a sum of 0.
    """
    addresses = np.array([address(g) for g in grads], np.int64)
    counts = np.array([-(-g.size // TILE) for g in grads])
    firsts = np.cumsum(counts) - counts
    chunks = [
        (tensor, start, min(start + CHUNK, g.size), firsts[tensor] + start // TILE, addresses[tensor] % 16 == 0)
        for tensor, g in enumerate(grads) for start in range(0, max(1, g.size), CHUNK)
    ]
    tensors = np.array([firsts, counts, [max(1, -(-g.size // CHUNK)) for g in grads]], np.int64)
    scratch = np.zeros(max(1, counts.sum()), np.float32), np.zeros(len(grads), np.float32)
    host = addresses, np.array(chunks, np.int64).reshape(-1, 5), tensors, *scratch
    return [on_machine_of(grads[0], table) for table in host]


def launches_3(grads, out, numbers):
    """One launch for the tiles, one for the tensors, one for all."""
    addresses, chunks, tensors, sums, roots = tables(grads)
    return [
        Launch(norm_3, chunks.shape[0], THREADS, (addresses, chunks, sums)),
        Launch(join_3, len(grads), 256, (tensors, sums, roots)),
        Launch(finish_roots, 1, 256, (roots, out, *numbers)),
    ]


# Two launches.

# The last block of a tensor to finish can join its sums: all others have been written by then. No block waits for
# another, which might not have started, and then never would. It saves the host a launch. The GPU is no faster, as the
# table shows, since launches that are all enqueued follow each other closely.


@cuda.jit(device=True)
def is_last(counters, tensor, count):
    """Whether all other blocks of a tensor, which has ``count``, have come before this one; its first thread asks."""
    last = cuda.shared.array(1, np.int32)
    if cuda.threadIdx.x == 0:
        # Writes may become visible in any order. The fence makes those of this block visible before the count, so a
        # thread that sees this block counted also sees its sums.
        cuda.threadfence()
        # Adds 1, or goes from count - 1 back to 0, ready for the next step. It returns the old value.
        last[0] = cuda.atomic.inc(counters, tensor, count - 1) == count - 1
        # Reads may also happen early: the sums of other blocks must not be read before the count.
        cuda.threadfence()
    cuda.syncthreads()  # the other threads learn whether the block is last, and are ordered after the fences, too
    return last[0] != 0


@cuda.jit(launch_bounds=(THREADS, 6))
def norm_4(addresses, chunks, tensors, sums, roots, counters):
    c = cuda.blockIdx.x
    tensor = chunks[c, TENSOR]
    chunk_sums(c, addresses, chunks, sums)
    cuda.syncthreads()  # all warps of this block have written
    if is_last(counters, tensor, tensors[CHUNKS, tensor]):
        join(sums, tensors[FIRST, tensor], tensors[COUNT, tensor])
        if cuda.threadIdx.x == 0:
            roots[tensor] = sums[tensors[FIRST, tensor]] if tensors[COUNT, tensor] > 0 else ZERO


def launches_4(grads, out, numbers):
    addresses, chunks, tensors, sums, roots = tables(grads)
    counters = on_machine_of(out, np.zeros(len(grads), np.uint32))
    args = addresses, chunks, tensors, sums, roots, counters
    return [Launch(norm_4, chunks.shape[0], THREADS, args), Launch(finish_roots, 1, 256, (roots, out, *numbers))]


# In production, ``refopt/gpu/gradient_check.py`` has the structure of norm_4. It also looks for inf and NaN, which
# costs nothing where the sum of a tile is finite; gradients may have any dtype; and several blocks join a tensor of
# more than 2**20 elements, counting each other as chunks do here (``joiner`` in ``refopt/gpu/tiles.py``).

RUNGS = {"norm_0": launches_0, "norm_1": launches_1, "norm_2": launches_2, "norm_3": launches_3, "norm_4": launches_4}
OTHER_BITS: tuple[str, ...] = "norm_0", "norm_1"  # sums by atomics

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("global_norm")
