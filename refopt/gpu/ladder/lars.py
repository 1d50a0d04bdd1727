"""LARS with momentum, from sums by atomics to two launches.

The reference is ``refopt.cpu.lars``, in NumPy. The norms of a tensor and of its gradient determine one learning rate,
with which each element is updated independently::

    rate = lr * coeff * norm(p) / (norm(g) + decay * norm(p) + epsilon)    # plain lr where a norm is 0
    v    = mu * v + rate * (g + decay * p)                                 # velocity
    p    = p - v

All of p and g must be read before the first element of p can be written, so a step goes through memory twice: the
norms read p and g, 8 bytes per element in fp32, the update reads p, g and v and writes p and v, 20 bytes. Between the
two, all threads that work on a tensor must wait for each other; on a GPU, the end of a launch makes them.

The bits of a sum depend on the order of its additions, since each addition rounds. The reference fixes one order
(``refopt.cpu.reduce``, neighbours first, a missing neighbour counts as 0)::

    tile     1024 elements in a row, as 4 rows of 256
    lane     one of 256 columns of a tile: 4 squares, added from the top
    tree     the 256 lanes, ((0 + 1) + (2 + 3)) + ..., then the tiles of a tensor in the same way

Versions:

    lars_1        sums by atomics: three launches per tensor, and last bits that change from run to run
    lars_2        sums in the reference's order, by a tree in shared memory, so its bits from here on
    lars_3        all tensors in three launches; a warp to a tile, 16-byte loads, a tree of shuffles
    lars_4        two launches: the last block of a tensor to finish computes its rate
    two_launches  ``refopt/gpu/norms.py``, which is what ``gpu.merged_lars_momentum`` runs

The function that sums a tile by a warp, and the one that tells the last block, are those of the global norm
(``refopt/gpu/ladder/global_norm.py``).

The numbers are lr, mu, coeff, decay and epsilon. All rungs are in fp32, and all except lars_1 match the reference bit
for bit, on the executor and on a GPU; lars_1 stays within the rounding error of a sum in any order.

One step on the 25,557,032 parameters of ResNet-50, in 161 tensors, on an NVIDIA H200::

    version     launches      ms  ms as a graph  GB/s  registers
    lars_1           483  34.130         33.661    21         30
    lars_2           483   2.300          1.139   628         29
    lars_3             3   0.184          0.182  3939         56
    lars_4             2   0.183          0.182  3935         64
    production         2   0.175          0.175  4086

A copy reaches 4275 GB/s; a small model may gain from the L2 cache.
"""

import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import Launch, multiprocessors, on_machine_of
from refopt.gpu.ladder import adam
from refopt.gpu.ladder.adam import ALIGNED, START, STOP, TENSOR, sqrt
from refopt.gpu.ladder.global_norm import LANES, TILE, ZERO, is_last, tile_squares
from refopt.gpu.vectors import load4_float32, load_float32, store4_float32, store_float32


@cuda.jit(device=True)
def local_rate(p_squares, g_squares, lr, coeff, decay, epsilon):
    """The learning rate of a tensor, from its sums of squares."""
    p_norm, g_norm = sqrt(p_squares), sqrt(g_squares)
    if p_norm > ZERO and g_norm > ZERO:
        return lr * coeff * p_norm / (g_norm + decay * p_norm + epsilon)
    return lr


@cuda.jit(device=True)
def rule(p, g, v, rate, mu, decay):
    """One element: the new parameter and the new velocity."""
    v = mu * v + rate * (g + decay * p)
    return p - v, v


# Sums by atomics.


@cuda.jit
def lars_1_squares(p, g, sums):
    # A loop over a fixed grid (grid-stride): in each round the grid takes as many neighbouring elements as it has
    # threads, so the 32 threads of a warp read 128 contiguous bytes (a coalesced access).
    x, y = ZERO, ZERO
    for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
        a, b = p[i], g[i]
        x += a * a
        y += b * b
    # If two threads read a sum, add to it and write it, one of the two additions may be lost. An atomic does the three
    # steps as one operation, for one thread after another. The machine decides which thread is first, and so the order
    # of the sum: the last bits of the sum, of the rate, and of p and v differ from run to run. (Also, the L2 cache,
    # which executes the atomics, flushes subnormal numbers to 0.)
    cuda.atomic.add(sums, 0, x)
    cuda.atomic.add(sums, 1, y)


@cuda.jit
def lars_1_rate(sums, rate, lr, coeff, decay, epsilon):
    rate[0] = local_rate(sums[0], sums[1], lr, coeff, decay, epsilon)
    sums[0], sums[1] = ZERO, ZERO  # for the atomics of the next step to add to


@cuda.jit
def lars_update(p, g, v, rate, mu, decay):
    i = cuda.grid(1)
    # A thread for each element. The last block may have threads without an element, hence the guard.
    if i < p.size:
        p[i], v[i] = rule(p[i], g[i], v[i], rate[0], mu, decay)


def launches_1(params, grads, velocities, numbers):
    """Three launches for each tensor: a launch sees everything that the previous one has written."""
    lr, mu, coeff, decay, epsilon = numbers
    launches = []
    for p, g, v in with_elements(params, grads, velocities):
        sums, rate, blocks = zeros(p, 2), zeros(p, 1), -(-p.size // 256)
        most = 8 * multiprocessors(p)  # blocks: eight for each multiprocessor
        launches += [
            Launch(lars_1_squares, min(blocks, most), 256, (p, g, sums)),
            Launch(lars_1_rate, 1, 1, (sums, rate, lr, coeff, decay, epsilon)),
            Launch(lars_update, blocks, 256, (p, g, v, rate, mu, decay)),
        ]
    return launches


def with_elements(*lists):
    """The arrays of each tensor that has elements, since a grid has at least one block."""
    return [column for column in zip(*lists, strict=True) if column[0].size]


def zeros(like, shape, dtype=np.float32):
    """An array of zeros on the same machine as ``like``."""
    return on_machine_of(like, np.zeros(shape, dtype))


# Sums in a fixed order, by a tree in shared memory.


@cuda.jit(device=True)
def join_lanes(x, y, sums):
    """The threads of a block join two numbers each, and store the sums of their tile."""
    # Shared memory belongs to a block and is on its multiprocessor: some 30 cycles away; global memory is 600 away.
    t, shared = cuda.threadIdx.x, cuda.shared.array((2, LANES), np.float32)
    shared[0, t], shared[1, t] = x, y
    distance = 1
    while distance < LANES:
        # A thread now reads sums that others have written in the previous round. At the barrier all threads of the
        # block wait for each other, so all of them must reach it: it is outside the condition.
        cuda.syncthreads()
        # Neighbours first: 0 adds 1, 2 adds 3, and so on; then 0 adds 2, 4 adds 6. The first threads have work, not
        # every second one, so whole warps have none and skip the addition.
        lane = 2 * distance * t
        if lane < LANES:
            shared[0, lane] += shared[0, lane + distance]
            shared[1, lane] += shared[1, lane + distance]
        distance *= 2
    if t == 0:  # the thread that has computed the last sums
        sums[0, cuda.blockIdx.x], sums[1, cuda.blockIdx.x] = shared[0, 0], shared[1, 0]


@cuda.jit
def lars_2_tiles(p, g, sums):
    # A block takes a tile, and a thread one lane of it. A lane beyond the end of the tensor is 0. Each sum has its own
    # place, so the order in which blocks run no longer matters.
    start = cuda.blockIdx.x * TILE
    x, y = ZERO, ZERO
    for i in range(start + cuda.threadIdx.x, min(start + TILE, p.size), LANES):
        a, b = p[i], g[i]
        x += a * a
        y += b * b
    join_lanes(x, y, sums)


@cuda.jit(device=True)
def join(sums, first, count):
    """One block joins consecutive sums by the tree. The result replaces the first of them."""
    distance = 1
    while distance < count:
        for k in range(2 * distance * cuda.threadIdx.x, count - distance, 2 * distance * cuda.blockDim.x):
            sums[0, first + k] += sums[0, first + k + distance]
            sums[1, first + k] += sums[1, first + k + distance]
        cuda.syncthreads()  # within the block, a barrier also orders accesses to global memory
        distance *= 2


@cuda.jit
def lars_2_rate(sums, rate, lr, coeff, decay, epsilon):
    join(sums, 0, sums.shape[1])
    if cuda.threadIdx.x == 0:
        rate[0] = local_rate(sums[0, 0], sums[1, 0], lr, coeff, decay, epsilon)


def launches_2(params, grads, velocities, numbers):
    """Three launches for each tensor, as before."""
    lr, mu, coeff, decay, epsilon = numbers
    launches = []
    for p, g, v in with_elements(params, grads, velocities):
        sums, rate = zeros(p, (2, -(-p.size // TILE))), zeros(p, 1)
        launches += [
            Launch(lars_2_tiles, sums.shape[1], LANES, (p, g, sums)),
            Launch(lars_2_rate, 1, 256, (sums, rate, lr, coeff, decay, epsilon)),
            Launch(lars_update, -(-p.size // 256), 256, (p, g, v, rate, mu, decay)),
        ]
    return launches


# All tensors in three launches, a warp to a tile.

# A launch costs some microseconds, and a small tensor leaves most multiprocessors idle. So the tensors are cut into
# chunks of 8 tiles, and a block of 8 warps takes one chunk of any tensor; tables on the device have its addresses. As
# chunks are aligned runs of 2**3 tiles, a block can join the sums of its own tiles: they are a subtree of the tree.

TILES = 8  # of a chunk
CHUNK, THREADS = TILES * TILE, 32 * TILES
P, G, V = range(3)  # rows of the table of addresses
FIRST, COUNT = range(2)  # rows of the table of tensors: the first chunk, how many there are


@cuda.jit(device=True)
def eight(s, k):
    return ((s[k, 0] + s[k, 1]) + (s[k, 2] + s[k, 3])) + ((s[k, 4] + s[k, 5]) + (s[k, 6] + s[k, 7]))


@cuda.jit(device=True)
def join_tiles(x, y, c, sums):
    """The warps of a block join the sums of their tiles; the first thread stores those of the chunk."""
    shared, warp = cuda.shared.array((2, TILES), np.float32), cuda.threadIdx.x // 32
    if cuda.threadIdx.x % 32 == 0:
        shared[0, warp], shared[1, warp] = x, y
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        sums[0, c], sums[1, c] = eight(shared, 0), eight(shared, 1)


@cuda.jit(device=True)
def chunk_squares(c, addresses, chunks, sums):
    """A block computes the sums of a chunk."""
    tensor, stop, aligned = chunks[c, TENSOR], chunks[c, STOP], chunks[c, ALIGNED]
    # A warp whose tile is beyond the end contributes 0, like a missing neighbour.
    first = chunks[c, START] + TILE * (cuda.threadIdx.x // 32)
    x = tile_squares(addresses[P, tensor], first, stop, aligned)
    y = tile_squares(addresses[G, tensor], first, stop, aligned)
    join_tiles(x, y, c, sums)


# Launch bounds: threads of a block, and how many blocks must fit on a multiprocessor. They decide how its 65,536
# registers are divided: 80 per thread for the norms, 48 for an update. More registers allow a thread more loads in
# flight; more blocks (occupancy) also have more loads in flight. Each comes at the other's expense.


@cuda.jit(launch_bounds=(THREADS, 3))
def lars_3_squares(addresses, chunks, sums):
    chunk_squares(cuda.blockIdx.x, addresses, chunks, sums)


@cuda.jit
def lars_3_rates(tensors, sums, rates, lr, coeff, decay, epsilon):
    tensor = cuda.blockIdx.x
    first = tensors[FIRST, tensor]
    join(sums, first, tensors[COUNT, tensor])
    if cuda.threadIdx.x == 0:
        rates[tensor] = local_rate(sums[0, first], sums[1, first], lr, coeff, decay, epsilon)


@cuda.jit(launch_bounds=(THREADS, 5))
def lars_3_update(addresses, chunks, rates, mu, decay):
    # Blocks start roughly in order. This kernel processes the last chunks first: the norms read them last, so they are
    # still in the L2 cache.
    c = cuda.gridDim.x - 1 - cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    p, g, v, rate = addresses[P, tensor], addresses[G, tensor], addresses[V, tensor], rates[tensor]
    fours = (stop - start) // 4 * 4 if chunks[c, ALIGNED] else 0  # elements that vectors of four can access
    for i in range(start + 4 * cuda.threadIdx.x, start + fours, 4 * cuda.blockDim.x):
        at = 4 * i
        x, d, a = load4_float32(p + at), load4_float32(g + at), load4_float32(v + at)
        p0, v0 = rule(x[0], d[0], a[0], rate, mu, decay)
        p1, v1 = rule(x[1], d[1], a[1], rate, mu, decay)
        p2, v2 = rule(x[2], d[2], a[2], rate, mu, decay)
        p3, v3 = rule(x[3], d[3], a[3], rate, mu, decay)
        store4_float32(p + at, (p0, p1, p2, p3))
        store4_float32(v + at, (v0, v1, v2, v3))
    # The tail: up to three elements of a tensor's last chunk, or the whole chunk if the tensor is not aligned.
    for i in range(start + fours + cuda.threadIdx.x, stop, cuda.blockDim.x):
        at = 4 * i
        x, a = rule(load_float32(p + at), load_float32(g + at), load_float32(v + at), rate, mu, decay)
        store_float32(p + at, x)
        store_float32(v + at, a)


def tables(tensors):
    """The three tables, and room for the sums of chunks and for the rates, on the device."""
    addresses, chunks = adam.tables(*zip(*tensors, strict=True), chunk=CHUNK)
    counts = np.array([-(-p.size // CHUNK) for p, *_ in tensors])
    places = on_machine_of(chunks, np.array([np.cumsum(counts) - counts, counts]))
    return addresses, chunks, places, zeros(chunks, (2, chunks.shape[0])), zeros(chunks, len(tensors))


def in_three_launches(lists, kernels, numbers):
    """One block per chunk, then one per tensor, then one per chunk again; each kernel has its numbers."""
    if not (filled := with_elements(*lists)):
        return []
    addresses, chunks, tensors, sums, rates = tables(filled)
    return [
        Launch(kernels[0], chunks.shape[0], THREADS, (addresses, chunks, sums, *numbers[0])),
        Launch(kernels[1], len(filled), 256, (tensors, sums, rates, *numbers[1])),
        Launch(kernels[2], chunks.shape[0], THREADS, (addresses, chunks, rates, *numbers[2])),
    ]


def launches_3(params, grads, velocities, numbers):
    lr, mu, coeff, decay, epsilon = numbers
    kernels = lars_3_squares, lars_3_rates, lars_3_update
    return in_three_launches((params, grads, velocities), kernels, [(), (lr, coeff, decay, epsilon), (mu, decay)])


# Two launches.

# The last block of a tensor to finish can compute the rate: all sums have been written by then. No block waits for
# another, which might not have started, and then never would. It saves the host a launch. The GPU is no faster, as the
# table shows, since launches that are all enqueued follow each other closely.


@cuda.jit(launch_bounds=(THREADS, 3))
def lars_4_squares(addresses, chunks, tensors, sums, rates, counters, lr, coeff, decay, epsilon):
    c = cuda.blockIdx.x
    tensor = chunks[c, TENSOR]
    first, count = tensors[FIRST, tensor], tensors[COUNT, tensor]
    chunk_squares(c, addresses, chunks, sums)
    if is_last(counters, tensor, count):  # its first thread has written the block's sums
        join(sums, first, count)
        if cuda.threadIdx.x == 0:
            rates[tensor] = local_rate(sums[0, first], sums[1, first], lr, coeff, decay, epsilon)


def in_two_launches(lists, kernels, numbers):
    """One block per chunk in both launches."""
    if not (filled := with_elements(*lists)):
        return []
    addresses, chunks, tensors, sums, rates = tables(filled)
    counters = zeros(sums, len(filled), np.uint32)
    return [
        Launch(kernels[0], chunks.shape[0], THREADS,
               (addresses, chunks, tensors, sums, rates, counters, *numbers[0])),
        Launch(kernels[1], chunks.shape[0], THREADS, (addresses, chunks, rates, *numbers[1])),
    ]


def launches_4(params, grads, velocities, numbers):
    lr, mu, coeff, decay, epsilon = numbers
    kernels = lars_4_squares, lars_3_update  # which is unchanged
    return in_two_launches((params, grads, velocities), kernels, [(lr, coeff, decay, epsilon), (mu, decay)])


# In production, ``refopt/gpu/norms`` has the structure of lars_4, in any mix of dtypes, with a row of numbers for each
# tensor on the device. A thread takes eight elements of an update; the two trees of a tile share their shuffles;
# several blocks join a tensor of more than 2**20 elements (``refopt/gpu/tiles.py``); and blocks of the second launch
# start while the first drains, and wait where they need the rate.

RUNGS = {"lars_1": launches_1, "lars_2": launches_2, "lars_3": launches_3, "lars_4": launches_4}
OTHER_BITS: tuple[str, ...] = ("lars_1",)  # sums by atomics

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("lars")
