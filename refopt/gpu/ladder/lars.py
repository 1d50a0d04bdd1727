"""LARS with momentum, from sums by atomics to two launches.

The reference is ``refopt.cpu.lars``, in NumPy. A tensor has one learning rate, by its norm and by that of its gradient,
and with it each element is for itself::

    rate = lr * coeff * norm(p) / (norm(g) + decay * norm(p) + epsilon)    # plain lr where a norm is 0
    v    = mu * v + rate * (g + decay * p)                                 # velocity
    p    = p - v

All of p and g have to be read before the first element of p can be written, so a step goes through memory twice: the
norms read p and g, 8 bytes per element in fp32, the update reads p, g and v and writes p and v, 20 bytes. Between the
two, all threads that work on a tensor have to wait for each other, and on a GPU it is the end of a launch that does so.

A sum of many threads has the bits of an order, since each addition rounds. The reference fixes one
(``refopt.cpu.reduce``, neighbours first, a missing neighbour counts as 0)::

    tile     1024 elements in a row, as 4 rows of 256
    lane     one of 256 columns of a tile: 4 squares, added from the top
    tree     the 256 lanes, ((0 + 1) + (2 + 3)) + ..., then the tiles of a tensor in the same way

Versions:

    lars_1        sums by atomics: three launches per tensor, whose last bits change from run to run
    lars_2        sums in the order of the reference, by a tree in shared memory: its bits from here on
    lars_3        all tensors in three launches; a warp to a tile, 16-byte loads, a tree of shuffles
    lars_4        two launches: the last block of a tensor to finish makes its rate
    two_launches  ``refopt/gpu/norms``, which is what ``gpu.merged_lars_momentum`` runs

The numbers are lr, mu, coeff, decay and epsilon. All rungs are in fp32, and all but lars_1 have the bits of the
reference, on the executor and on a GPU; lars_1 is within what rounding allows a sum in any order.

One step on the 25,557,032 parameters of ResNet-50, in 161 tensors, on an NVIDIA H200::

    version     launches      ms  ms as a graph  GB/s  registers
    lars_1           483  34.156         33.680    21         30
    lars_2           483   2.248          1.158   618         29
    lars_3             3   0.184          0.182  3924         72
    lars_4             2   0.185          0.183  3905         80
    production         2   0.175          0.175  4093

A copy has 4249 GB/s; the L2 cache may add to what a small model has.
"""

import math

import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import Launch, address, multiprocessors, on_machine_of
from refopt.gpu.vectors import load4_float32, load_float32, store4_float32, store_float32

TILE, LANES, ROWS = 1024, 256, 4  # elements of a tile; those of a row; rows
ZERO = np.float32(0)  # a number of Python's would be a double in the compiled kernel, and all that it meets


@cuda.jit(device=True)
def sqrt(x):
    """The square root in fp32. Compiled, ``math.sqrt`` gives that; in plain Python it gives a double."""
    return np.float32(math.sqrt(x))


@cuda.jit(device=True)
def local_rate(p_squares, g_squares, lr, coeff, decay, epsilon):
    """The learning rate of a tensor, of its sums of squares."""
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
    # threads, so the 32 of a warp read 128 bytes in a row (a coalesced access).
    x, y = ZERO, ZERO
    for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
        a, b = p[i], g[i]
        x += a * a
        y += b * b
    # Two threads that read a sum, add and write it would lose what one of them adds. An atomic does the three as one
    # operation, for one thread after the other. Which comes first is up to the machine, and with it the order of the
    # sum: its last bits differ from run to run, so do the rate's, and so do those of p and v. (Besides, the L2 cache,
    # where it is done, takes a subnormal number for 0.)
    cuda.atomic.add(sums, 0, x)
    cuda.atomic.add(sums, 1, y)


@cuda.jit
def lars_1_rate(sums, rate, lr, coeff, decay, epsilon):
    rate[0] = local_rate(sums[0], sums[1], lr, coeff, decay, epsilon)
    sums[0], sums[1] = ZERO, ZERO  # atomics add to what is there, in the next step, too


@cuda.jit
def lars_update(p, g, v, rate, mu, decay):
    i = cuda.grid(1)
    # A thread for each element. The last block may have threads left over, hence the guard.
    if i < p.size:
        p[i], v[i] = rule(p[i], g[i], v[i], rate[0], mu, decay)


def launches_1(params, grads, velocities, numbers):
    """Three launches for each tensor: a launch sees all that the one before it has written."""
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
    """The arrays of each tensor that has elements; a grid has at least one block."""
    return [column for column in zip(*lists, strict=True) if column[0].size]


def zeros(like, shape, dtype=np.float32):
    """An array on the machine of another."""
    return on_machine_of(like, np.zeros(shape, dtype))


# Sums in a fixed order, by a tree in shared memory.


@cuda.jit
def lars_2_tiles(p, g, sums):
    # A block takes a tile, a thread a lane of it. A lane beyond the end of the tensor is 0. Each sum has a place of its
    # own, so it does not matter any more which block is first.
    t, start = cuda.threadIdx.x, cuda.blockIdx.x * TILE
    x, y = ZERO, ZERO
    for i in range(start + t, min(start + TILE, p.size), LANES):
        a, b = p[i], g[i]
        x += a * a
        y += b * b
    # Shared memory belongs to a block, and lies on its multiprocessor: some 30 cycles away, where global memory is 600.
    shared = cuda.shared.array((2, LANES), np.float32)
    shared[0, t], shared[1, t] = x, y
    distance = 1
    while distance < LANES:
        # What a thread reads now, others have written in the round before. The barrier has all threads of the block
        # wait for each other, so all of them have to come to it: it stands outside of the condition.
        cuda.syncthreads()
        # Neighbours first: 0 takes 1, 2 takes 3, and so on; then 0 takes 2, 4 takes 6. The threads with work are the
        # first ones, not every second one, so whole warps have none and are done.
        lane = 2 * distance * t
        if lane < LANES:
            shared[0, lane] += shared[0, lane + distance]
            shared[1, lane] += shared[1, lane + distance]
        distance *= 2
    if t == 0:  # which has made the last sums itself
        sums[0, cuda.blockIdx.x], sums[1, cuda.blockIdx.x] = shared[0, 0], shared[1, 0]


@cuda.jit(device=True)
def join(sums, first, count):
    """The tree over some sums in a row, by one block. The result replaces the first of them."""
    distance = 1
    while distance < count:
        for k in range(2 * distance * cuda.threadIdx.x, count - distance, 2 * distance * cuda.blockDim.x):
            sums[0, first + k] += sums[0, first + k + distance]
            sums[1, first + k] += sums[1, first + k + distance]
        cuda.syncthreads()  # a barrier is one for global memory, too, within the block
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
# chunks of 8 tiles, and a block of 8 warps takes a chunk, whichever tensor it is of; tables on the device say where it
# lies. As chunks are aligned runs of 2**3 tiles, a block can join the sums of its own: they are a branch of the tree.

TILES, WARP = 8, 0xFFFFFFFF  # tiles of a chunk; all 32 threads of a warp
CHUNK, THREADS = TILES * TILE, 32 * TILES
P, G, V = range(3)  # rows of the table of addresses
TENSOR, START, STOP, ALIGNED = range(4)  # columns of the table of chunks
FIRST, COUNT = range(2)  # rows of the table of tensors: the first chunk, how many there are
ZEROS = ZERO, ZERO, ZERO, ZERO


@cuda.jit(device=True)
def some(array, i, stop):
    """Four elements, one by one, with 0 for those beyond the end. Addresses, here of an array, are in bytes."""
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
def lane_tree(low, high):
    """The sum over the 256 lanes of a tile, of which a thread has 4 in either half; in all threads of the warp."""
    # Two levels of the tree are within the thread.
    x, y = (low[0] + low[1]) + (low[2] + low[3]), (high[0] + high[1]) + (high[2] + high[3])
    for level in range(5):
        # Five are between threads: each gets what the one has whose number differs in one bit, register to register,
        # with neither memory nor barrier. Both add the same two numbers, and a + b has the bits of b + a.
        x += cuda.shfl_xor_sync(WARP, x, 1 << level)
        y += cuda.shfl_xor_sync(WARP, y, 1 << level)
    return x + y  # the last joins the halves


@cuda.jit(device=True)
def tile_squares(p, g, first, stop, aligned):
    """The sums of squares of p and g over a tile, by a warp. Thread t has lanes 4t to 4t + 3, and those 128 further."""
    i = first + 4 * (cuda.threadIdx.x % 32)
    p_low, p_high, g_low, g_high = ZEROS, ZEROS, ZEROS, ZEROS
    # All threads of a warp take the same way here, so neither waits for the other.
    if aligned and first + TILE <= stop:
        for row in range(ROWS):
            # 16 bytes in one instruction, where they begin at a multiple of 16: 512 in a row for the warp. A load takes
            # some 600 cycles to come back; that latency is hidden by bytes under way, and here they are 64 a thread.
            at = 4 * (i + LANES * row)
            a, b = load4_float32(p + at), load4_float32(p + at + 512)
            c, d = load4_float32(g + at), load4_float32(g + at + 512)
            p_low, p_high = add_squares(p_low, a), add_squares(p_high, b)
            g_low, g_high = add_squares(g_low, c), add_squares(g_high, d)
    else:
        for row in range(ROWS):
            k = i + LANES * row
            p_low, p_high = add_squares(p_low, some(p, k, stop)), add_squares(p_high, some(p, k + 128, stop))
            g_low, g_high = add_squares(g_low, some(g, k, stop)), add_squares(g_high, some(g, k + 128, stop))
    return lane_tree(p_low, p_high), lane_tree(g_low, g_high)


@cuda.jit(device=True)
def eight(s, k):
    return ((s[k, 0] + s[k, 1]) + (s[k, 2] + s[k, 3])) + ((s[k, 4] + s[k, 5]) + (s[k, 6] + s[k, 7]))


@cuda.jit(device=True)
def chunk_squares(c, addresses, chunks, sums):
    """The sums of a chunk, by a block; its first thread writes them."""
    shared = cuda.shared.array((2, TILES), np.float32)
    tensor, start, stop, warp = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], cuda.threadIdx.x // 32
    # A warp whose tile lies beyond the end brings 0, as a missing neighbour does.
    x, y = tile_squares(addresses[P, tensor], addresses[G, tensor], start + TILE * warp, stop, chunks[c, ALIGNED])
    if cuda.threadIdx.x % 32 == 0:
        shared[0, warp], shared[1, warp] = x, y
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        sums[0, c], sums[1, c] = eight(shared, 0), eight(shared, 1)


# Launch bounds: threads of a block, and how many blocks are to fit on a multiprocessor. Its 65,536 registers are shared
# out by them: 80 per thread for the norms, 48 for an update. Registers hold loads that are under way; but more blocks
# (occupancy) have more of them under way, too, and each is at the other's expense.


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
    # Blocks begin about in order. The last chunks come first: what the norms have read last is still in the L2 cache.
    c = cuda.gridDim.x - 1 - cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    p, g, v, rate = addresses[P, tensor], addresses[G, tensor], addresses[V, tensor], rates[tensor]
    fours = (stop - start) // 4 * 4 if chunks[c, ALIGNED] else 0  # elements that can be taken four at a time
    for i in range(start + 4 * cuda.threadIdx.x, start + fours, 4 * cuda.blockDim.x):
        at = 4 * i
        x, d, a = load4_float32(p + at), load4_float32(g + at), load4_float32(v + at)
        p0, v0 = rule(x[0], d[0], a[0], rate, mu, decay)
        p1, v1 = rule(x[1], d[1], a[1], rate, mu, decay)
        p2, v2 = rule(x[2], d[2], a[2], rate, mu, decay)
        p3, v3 = rule(x[3], d[3], a[3], rate, mu, decay)
        store4_float32(p + at, (p0, p1, p2, p3))
        store4_float32(v + at, (v0, v1, v2, v3))
    # The tail: up to three elements of a tensor's last chunk, or all of one that is not aligned.
    for i in range(start + fours + cuda.threadIdx.x, stop, cuda.blockDim.x):
        at = 4 * i
        x, a = rule(load_float32(p + at), load_float32(g + at), load_float32(v + at), rate, mu, decay)
        store_float32(p + at, x)
        store_float32(v + at, a)


def tables(tensors):
    """The three tables, and room for the sums of chunks and for the rates, on the device."""
    addresses = np.array([[address(x) for x in column] for column in zip(*tensors, strict=True)])
    aligned = (addresses % 16 == 0).all(0)
    chunks = [
        (tensor, start, min(start + CHUNK, p.size), aligned[tensor])
        for tensor, (p, *_) in enumerate(tensors) for start in range(0, p.size, CHUNK)
    ]
    counts = np.array([-(-p.size // CHUNK) for p, *_ in tensors])
    host = addresses, np.array(chunks), np.array([np.cumsum(counts) - counts, counts])
    like = tensors[0][0]
    return [on_machine_of(like, x) for x in host] + [zeros(like, (2, len(chunks))), zeros(like, len(tensors))]


def launches_3(params, grads, velocities, numbers):
    """A block to a chunk, to a tensor, and to a chunk again."""
    if not (filled := with_elements(params, grads, velocities)):
        return []
    lr, mu, coeff, decay, epsilon = numbers
    addresses, chunks, tensors, sums, rates = tables(filled)
    return [
        Launch(lars_3_squares, chunks.shape[0], THREADS, (addresses, chunks, sums)),
        Launch(lars_3_rates, len(filled), 256, (tensors, sums, rates, lr, coeff, decay, epsilon)),
        Launch(lars_3_update, chunks.shape[0], THREADS, (addresses, chunks, rates, mu, decay)),
    ]


# Two launches.

# The block of a tensor that is the last to finish can make the rate: the sums of all are there by then. No block waits
# for another, which might not have begun, and never would. It is a launch less for the host. For the GPU it makes no
# difference in the table, since launches that are all enqueued follow each other closely.


@cuda.jit(launch_bounds=(THREADS, 3))
def lars_4_squares(addresses, chunks, tensors, sums, rates, counters, lr, coeff, decay, epsilon):
    c = cuda.blockIdx.x
    tensor = chunks[c, TENSOR]
    first, count = tensors[FIRST, tensor], tensors[COUNT, tensor]
    last = cuda.shared.array(1, np.int32)
    chunk_squares(c, addresses, chunks, sums)
    if cuda.threadIdx.x == 0:  # which has written the sums of the block
        # Writes may become visible in any order. The fence has the sums come before the count, so whoever finds this
        # block counted finds its sums, too.
        cuda.threadfence()
        # Adds 1, or goes from count - 1 back to 0, ready for the next step. It returns what was there before.
        last[0] = cuda.atomic.inc(counters, tensor, count - 1) == count - 1
        # And reads may be ahead of their turn: the sums of the others are not to be read before the count was.
        cuda.threadfence()
    cuda.syncthreads()  # the rest of the block learns whether it is the last, and is behind the fences as well
    if last[0] != 0:
        join(sums, first, count)
        if cuda.threadIdx.x == 0:
            rates[tensor] = local_rate(sums[0, first], sums[1, first], lr, coeff, decay, epsilon)


def launches_4(params, grads, velocities, numbers):
    """A block to a chunk, twice; the second launch is as it was."""
    if not (filled := with_elements(params, grads, velocities)):
        return []
    lr, mu, coeff, decay, epsilon = numbers
    addresses, chunks, tensors, sums, rates = tables(filled)
    args = addresses, chunks, tensors, sums, rates, zeros(sums, len(filled), np.uint32), lr, coeff, decay, epsilon
    return [
        Launch(lars_4_squares, chunks.shape[0], THREADS, args),
        Launch(lars_3_update, chunks.shape[0], THREADS, (addresses, chunks, rates, mu, decay)),
    ]


# In production, ``refopt/gpu/norms`` has the shape of lars_4, in any mix of dtypes, with a row of
# numbers for each tensor on the device. A thread takes eight elements of an update; the two trees of a tile share
# their shuffles; a tensor of more than 2**20 elements is joined by several blocks (``refopt/gpu/tiles.py``); and blocks
# of the second launch begin while the first drains, and wait where they need the rate.

RUNGS = {"lars_1": launches_1, "lars_2": launches_2, "lars_3": launches_3, "lars_4": launches_4}
OTHER_BITS: tuple[str, ...] = ("lars_1",)  # sums by atomics

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("lars")
