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
    norm_0           162  16.877         16.737     6         30
    norm_1           162   0.663          0.441   232         30
    norm_2           323   1.415          0.707   145         25
    norm_3             3   0.040          0.039  2651         56
    norm_4             2   0.043          0.042  2447         56
    production         2   0.038          0.038  2661

A copy reaches 4276 GB/s; a small model may gain from the L2 cache.
"""

import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import Launch, multiprocessors, on_machine_of
from refopt.gpu.ladder import adam
from refopt.gpu.ladder.adam import ALIGNED, ONE, START, STOP, TENSOR, ZERO, sqrt
from refopt.gpu.vectors import load4_float32, load_float32

TILE, LANES, ROWS = 1024, 256, 4  # elements of a tile; those of a row; rows
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
    total = zeros(out, 1)
    most = 8 * multiprocessors(out)  # blocks: eight for each multiprocessor
    blocks = [Launch(kernel, min(-(-g.size // 256), most), 256, (g, total)) for g in grads if g.size]
    return [*blocks, Launch(finish_total, 1, 1, (total, out, *numbers))]


def zeros(like, shape, dtype=np.float32):
    """An array of zeros on the same machine as ``like``."""
    return on_machine_of(like, np.zeros(shape, dtype))


# One sum of each block first.


@cuda.jit(device=True)
def join_lanes(shared):
    """The threads of a block join the 256 numbers of each row, by a tree: the first of a row becomes its sum."""
    t, distance = cuda.threadIdx.x, 1
    while distance < LANES:
        # A thread reads sums that others have written in the previous round. At the barrier all threads of the block
        # wait for each other, so all of them must reach it: it is outside the condition.
        cuda.syncthreads()
        # Neighbours first: 0 adds 1, 2 adds 3, and so on; then 0 adds 2, 4 adds 6. The first threads have work, not
        # every second one, so whole warps have none and skip the addition.
        lane = 2 * distance * t
        if lane < LANES:
            for row in range(shared.shape[0]):
                shared[row, lane] += shared[row, lane + distance]
        distance *= 2


@cuda.jit
def norm_1(g, total):
    # Memory that the threads of a block share, on the multiprocessor itself: some 30 cycles away; global memory is 600
    # away.
    t, shared = cuda.threadIdx.x, cuda.shared.array((1, LANES), np.float32)
    x = ZERO
    for i in range(cuda.grid(1), g.size, cuda.gridsize(1)):
        x += g[i] * g[i]
    shared[0, t] = x
    join_lanes(shared)
    # Atomics on one address wait for each other, so there is one per block, not per thread. But blocks, too, finish in
    # any order.
    if t == 0:
        cuda.atomic.add(total, 0, shared[0, 0])


def launches_1(grads, out, numbers):
    return launches_0(grads, out, numbers, norm_1)


# A fixed order.


@cuda.jit
def norm_2(g, sums):
    # A block takes a tile, and a thread one lane of it. The order in which blocks run no longer matters: each sum has
    # its own place, and does not depend on other blocks.
    t, shared = cuda.threadIdx.x, cuda.shared.array((1, LANES), np.float32)
    start = cuda.blockIdx.x * TILE
    x = ZERO
    for i in range(start + t, min(start + TILE, g.size), LANES):
        x += g[i] * g[i]
    shared[0, t] = x
    join_lanes(shared)
    if t == 0:  # the thread that has computed the last sum
        sums[0, cuda.blockIdx.x] = shared[0, 0]


@cuda.jit(device=True)
def join(sums, first, count):
    """One block joins consecutive sums of each row by the tree. The result replaces the first of them."""
    distance = 1
    while distance < count:
        for k in range(2 * distance * cuda.threadIdx.x, count - distance, 2 * distance * cuda.blockDim.x):
            for row in range(sums.shape[0]):
                sums[row, first + k] += sums[row, first + k + distance]
        cuda.syncthreads()  # within the block, a barrier also orders accesses to global memory
        distance *= 2


@cuda.jit
def join_2(sums, roots, tensor):
    join(sums, 0, sums.shape[1])
    if cuda.threadIdx.x == 0:
        roots[0, tensor] = sums[0, 0]


@cuda.jit
def finish_roots(roots, out, max_norm, epsilon):
    join(roots, 0, roots.shape[1])
    if cuda.threadIdx.x == 0:
        finish(roots[0, 0], out, max_norm, epsilon)


def launches_2(grads, out, numbers):
    """Two launches for each tensor, and one for all: a launch sees everything that the previous one has written."""
    roots, launches = zeros(out, (1, len(grads))), []
    for tensor, g in enumerate(grads):
        sums = zeros(out, (1, max(1, -(-g.size // TILE))))  # 0 of a tensor without elements
        launches += [Launch(norm_2, sums.shape[1], LANES, (g, sums)), Launch(join_2, 1, 256, (sums, roots, tensor))]
    return [*launches, Launch(finish_roots, 1, 256, (roots, out, *numbers))]


# All tensors in one launch, a warp to a tile.

# A launch costs some microseconds, and a small tensor leaves most multiprocessors idle. So the tensors are cut into
# chunks of 8 tiles, and a block of 8 warps takes one chunk of any tensor; tables on the device have its addresses. As
# chunks are aligned runs of 2**3 tiles, a block can join the sums of its own tiles: they are a subtree of the tree.

TILES = 8  # of a chunk
CHUNK, THREADS = TILES * TILE, 32 * TILES
WARP = 0xFFFFFFFF  # the mask of a shuffle in which all 32 threads of a warp take part
FIRST, COUNT = range(2)  # rows of the table of tensors: the first chunk, how many there are
ZEROS = ZERO, ZERO, ZERO, ZERO


@cuda.jit(device=True)
def one(array, i, stop):
    """An element, and 0 beyond the end. The address of the array is in bytes."""
    return load_float32(array + 4 * i) if i < stop else ZERO


@cuda.jit(device=True)
def four(array, i, stop):
    return one(array, i, stop), one(array, i + 1, stop), one(array, i + 2, stop), one(array, i + 3, stop)


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
            low, high = add_squares(low, four(g, k, stop)), add_squares(high, four(g, k + 128, stop))
    return lane_tree(low, high)


@cuda.jit(device=True)
def chunk_squares(c, row, addresses, chunks, shared):
    """Each warp of a block sums the squares of its tile, of the tensors in a row of addresses, into that of shared."""
    warp = cuda.threadIdx.x // 32
    # A warp whose tile is beyond the end contributes 0, like a missing neighbour.
    first = chunks[c, START] + TILE * warp
    x = tile_squares(addresses[row, chunks[c, TENSOR]], first, chunks[c, STOP], chunks[c, ALIGNED])
    if cuda.threadIdx.x % 32 == 0:
        shared[row, warp] = x


@cuda.jit(device=True)
def join_tiles(shared, c, sums):
    """The first thread of a block joins the sums of its warps, in each row, and stores those of the chunk."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        for row in range(shared.shape[0]):
            low = (shared[row, 0] + shared[row, 1]) + (shared[row, 2] + shared[row, 3])
            sums[row, c] = low + ((shared[row, 4] + shared[row, 5]) + (shared[row, 6] + shared[row, 7]))


@cuda.jit(device=True)
def chunk_sum(c, addresses, chunks, sums):
    shared = cuda.shared.array((1, TILES), np.float32)
    chunk_squares(c, 0, addresses, chunks, shared)
    join_tiles(shared, c, sums)


# Launch bounds: threads of a block, and how many blocks must fit on a multiprocessor. They decide how its 65,536
# registers are divided, here 80 per thread. More registers allow a thread more loads in flight; more blocks (occupancy)
# also have more loads in flight. Each comes at the other's expense.


@cuda.jit(launch_bounds=(THREADS, 3))
def norm_3(addresses, chunks, sums):
    chunk_sum(cuda.blockIdx.x, addresses, chunks, sums)


@cuda.jit
def join_3(tensors, sums, roots):
    tensor = cuda.blockIdx.x
    first = tensors[FIRST, tensor]
    join(sums, first, tensors[COUNT, tensor])
    if cuda.threadIdx.x == 0:
        roots[0, tensor] = sums[0, first]


def tables(lists, rows, least=0):
    """The tables, and room for as many rows of sums of chunks, on the device."""
    addresses, chunks = adam.tables(*lists, chunk=CHUNK, least=least)
    counts = np.array([-(-max(x.size, least) // CHUNK) for x in lists[0]])
    tensors = on_machine_of(chunks, np.array([np.cumsum(counts) - counts, counts]))
    return addresses, chunks, tensors, zeros(chunks, (rows, chunks.shape[0]))


def launches_3(grads, out, numbers):
    """One launch for the tiles, one for the tensors, one for all. A tensor without elements has a chunk, of sum 0."""
    addresses, chunks, tensors, sums = tables([grads], 1, 1)
    roots = zeros(out, (1, len(grads)))
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


@cuda.jit(device=True)
def join_last(tensor, tensors, counters, sums):
    """The last block of a tensor joins its sums; its first thread gets the place of the result, all others -1."""
    first, count = tensors[FIRST, tensor], tensors[COUNT, tensor]
    if is_last(counters, tensor, count):
        join(sums, first, count)
        if cuda.threadIdx.x == 0:
            return first
    return -1


@cuda.jit(launch_bounds=(THREADS, 3))
def norm_4(addresses, chunks, tensors, sums, roots, counters):
    c = cuda.blockIdx.x
    chunk_sum(c, addresses, chunks, sums)  # which the first thread writes
    first = join_last(chunks[c, TENSOR], tensors, counters, sums)
    if first >= 0:
        roots[0, chunks[c, TENSOR]] = sums[0, first]


def launches_4(grads, out, numbers):
    args = *tables([grads], 1, 1), zeros(out, (1, len(grads))), zeros(out, len(grads), np.uint32)
    return [Launch(norm_4, args[1].shape[0], THREADS, args), Launch(finish_roots, 1, 256, (args[4], out, *numbers))]


# In production, ``refopt/gpu/gradient_check.py`` has the structure of norm_4. It also looks for inf and NaN, which
# costs nothing where the sum of a tile is finite; gradients may have any dtype; and several blocks join a tensor of
# more than 2**20 elements, counting each other as chunks do here (``joiner`` in ``refopt/gpu/tiles.py``).

RUNGS = {"norm_0": launches_0, "norm_1": launches_1, "norm_2": launches_2, "norm_3": launches_3, "norm_4": launches_4}
OTHER_BITS: tuple[str, ...] = "norm_0", "norm_1"  # sums by atomics

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("global_norm")
