"""LAMB, from sums by atomics to two launches.

The reference is ``refopt.cpu.lamb``, in NumPy. Each element has a direction r, which is Adam's; how far a tensor goes
along it is by the norm of its parameter and by that of its r::

    m     = beta1 * m + (1 - beta1) * g                     # running average of the gradient
    u     = beta2 * u + (1 - beta2) * g * g                 # and of its square
    r     = m / (1 - beta1_pow) / (sqrt(u / (1 - beta2_pow)) + epsilon) + decay * p
    ratio = norm(p) / norm(r)                               # 1 where a norm or the decay is 0
    p     = p - lr * ratio * r

beta1_pow and beta2_pow are beta1 and beta2 to the power of the step. All r have to be known before the first element of
p can be written, so a step goes through memory twice, 40 bytes per element in fp32: first it reads p, g, m and u and
writes m and u, then it reads p, m and u, forms r once more, and writes p. To keep r and read it again would be as many
bytes, 28 and 12 in place of 24 and 16, and memory as large as the model; ten operations more cost nothing where the
memory is what a kernel waits for. Between the two, all threads that work on a tensor have to wait for each other, and
on a GPU it is the end of a launch that does so.

A sum of many threads has the bits of an order, since each addition rounds. The reference fixes one
(``refopt.cpu.reduce``, neighbours first, a missing neighbour counts as 0)::

    tile     1024 elements in a row, as 4 rows of 256
    lane     one of 256 columns of a tile: 4 squares, added from the top
    tree     the 256 lanes, ((0 + 1) + (2 + 3)) + ..., then the tiles of a tensor in the same way

Versions:

    lamb_1  sums by atomics, r kept: three launches per tensor, whose last bits change from run to run
    lamb_2  sums in the order of the reference, by a tree in shared memory: its bits from here on; r formed twice
    lamb_3  all tensors in three launches; a warp to a tile, 16-byte loads and stores, a tree of shuffles
    lamb_4  two launches: the last block of a tensor to finish makes its rate
    lamb    ``refopt/gpu/norms``, which is what ``gpu.merged_lamb`` runs

The numbers are lr, beta1, beta2, epsilon, decay, beta1_pow and beta2_pow; the powers are the caller's to carry on. All
rungs are in fp32, and all but lamb_1 have the bits of the reference, on the executor and on a GPU; lamb_1 is within
what rounding allows a sum in any order.

One step on the 25,557,032 parameters of ResNet-50, in 161 tensors, on an NVIDIA H200::

    version     launches      ms  ms as a graph  GB/s  registers
    lamb_1           483  34.191         33.759    30         44
    lamb_2           483   2.346          1.551   659         44
    lamb_3             3   0.262          0.260  3929         78
    lamb_4             2   0.264          0.263  3883         76
    production         2   0.261          0.261  3915

A copy has 4249 GB/s; the L2 cache may add to what a small model has.
"""

import math

import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import Launch, address, multiprocessors, on_machine_of
from refopt.gpu.vectors import load4_float32, load_float32, store4_float32, store_float32

TILE, LANES, ROWS = 1024, 256, 4  # elements of a tile; those of a row; rows
ZERO, ONE = np.float32(0), np.float32(1)  # a number of Python's would be a double in the compiled kernel
DECAY = 4  # its place among the numbers


@cuda.jit(device=True)
def sqrt(x):
    """The square root in fp32. Compiled, ``math.sqrt`` gives that; in plain Python it gives a double."""
    return np.float32(math.sqrt(x))


@cuda.jit(device=True)
def moments(g, m, u, k):
    """The new moments of one element. ``k`` is what all elements share: the numbers from beta1 on."""
    beta1, beta2 = k[0], k[1]
    return beta1 * m + (ONE - beta1) * g, beta2 * u + (ONE - beta2) * g * g


@cuda.jit(device=True)
def direction(p, m, u, k):
    """Its direction r, by the new moments."""
    epsilon, decay, beta1_pow, beta2_pow = k[2], k[3], k[4], k[5]
    return m / (ONE - beta1_pow) / (sqrt(u / (ONE - beta2_pow)) + epsilon) + decay * p


@cuda.jit(device=True)
def rate_of(p_squares, r_squares, lr, decay):
    """lr times the ratio of a tensor, of its sums of squares."""
    p_norm, r_norm = sqrt(p_squares), sqrt(r_squares)
    if p_norm > ZERO and r_norm > ZERO and decay > ZERO:
        return lr * (p_norm / r_norm)
    return lr


# Sums by atomics.


@cuda.jit
def lamb_1_moments(p, g, m, u, r, sums, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow):
    k = beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
    # A loop over a fixed grid (grid-stride): in each round the grid takes as many neighbouring elements as it has
    # threads, so the 32 of a warp read 128 bytes in a row (a coalesced access).
    x, y = ZERO, ZERO
    for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
        a = p[i]
        new_m, new_u = moments(g[i], m[i], u[i], k)
        b = direction(a, new_m, new_u, k)
        m[i], u[i], r[i] = new_m, new_u, b
        x += a * a
        y += b * b
    # Two threads that read a sum, add and write it would lose what one of them adds. An atomic does the three as one
    # operation, for one thread after the other. Which comes first is up to the machine, and with it the order of the
    # sum: its last bits differ from run to run, so do the ratio's, and so do those of p. (Besides, the L2 cache, where
    # it is done, takes a subnormal number for 0.)
    cuda.atomic.add(sums, 0, x)
    cuda.atomic.add(sums, 1, y)


@cuda.jit
def lamb_1_rate(sums, rate, lr, decay):
    rate[0] = rate_of(sums[0], sums[1], lr, decay)
    sums[0], sums[1] = ZERO, ZERO  # atomics add to what is there, in the next step, too


@cuda.jit
def lamb_1_update(p, r, rate):
    i = cuda.grid(1)
    # A thread for each element. The last block may have threads left over, hence the guard.
    if i < p.size:
        p[i] = p[i] - rate[0] * r[i]


def launches_1(params, grads, moment1, moment2, numbers):
    """Three launches for each tensor: a launch sees all that the one before it has written."""
    lr, *rest = numbers
    launches = []
    for p, g, m, u in with_elements(params, grads, moment1, moment2):
        r, sums, rate, blocks = zeros(p, p.size), zeros(p, 2), zeros(p, 1), -(-p.size // 256)
        most = 8 * multiprocessors(p)  # blocks: eight for each multiprocessor
        launches += [
            Launch(lamb_1_moments, min(blocks, most), 256, (p, g, m, u, r, sums, *rest)),
            Launch(lamb_1_rate, 1, 1, (sums, rate, lr, numbers[DECAY])),
            Launch(lamb_1_update, blocks, 256, (p, r, rate)),
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
def lamb_2_moments(p, g, m, u, sums, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow):
    k = beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
    # A block takes a tile, a thread a lane of it. A lane beyond the end of the tensor is 0. Each sum has a place of its
    # own, so it does not matter any more which block is first.
    t, start = cuda.threadIdx.x, cuda.blockIdx.x * TILE
    x, y = ZERO, ZERO
    for i in range(start + t, min(start + TILE, p.size), LANES):
        a = p[i]
        new_m, new_u = moments(g[i], m[i], u[i], k)
        b = direction(a, new_m, new_u, k)
        m[i], u[i] = new_m, new_u
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
def lamb_2_rate(sums, rate, lr, decay):
    join(sums, 0, sums.shape[1])
    if cuda.threadIdx.x == 0:
        rate[0] = rate_of(sums[0, 0], sums[1, 0], lr, decay)


@cuda.jit
def lamb_2_update(p, m, u, rate, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow):
    i = cuda.grid(1)
    if i < p.size:
        x = p[i]
        # Of the moments that were stored, so r has the bits that it had when its square was taken.
        p[i] = x - rate[0] * direction(x, m[i], u[i], (beta1, beta2, epsilon, decay, beta1_pow, beta2_pow))


def launches_2(params, grads, moment1, moment2, numbers):
    """Three launches for each tensor, as before."""
    lr, *rest = numbers
    launches = []
    for p, g, m, u in with_elements(params, grads, moment1, moment2):
        sums, rate = zeros(p, (2, -(-p.size // TILE))), zeros(p, 1)
        launches += [
            Launch(lamb_2_moments, sums.shape[1], LANES, (p, g, m, u, sums, *rest)),
            Launch(lamb_2_rate, 1, 256, (sums, rate, lr, numbers[DECAY])),
            Launch(lamb_2_update, -(-p.size // 256), 256, (p, m, u, rate, *rest)),
        ]
    return launches


# All tensors in three launches, a warp to a tile.

# A launch costs some microseconds, and a small tensor leaves most multiprocessors idle. So the tensors are cut into
# chunks of 8 tiles, and a block of 8 warps takes a chunk, whichever tensor it is of; tables on the device say where it
# lies. As chunks are aligned runs of 2**3 tiles, a block can join the sums of its own: they are a branch of the tree.

TILES, WARP = 8, 0xFFFFFFFF  # tiles of a chunk; all 32 threads of a warp
CHUNK, THREADS = TILES * TILE, 32 * TILES
P, G, M, U = range(4)  # rows of the table of addresses
TENSOR, START, STOP, ALIGNED = range(4)  # columns of the table of chunks
FIRST, COUNT = range(2)  # rows of the table of tensors: the first chunk, how many there are
ZEROS = ZERO, ZERO, ZERO, ZERO


@cuda.jit(device=True)
def one(p, g, m, u, i, stop, k):
    """Store the new moments of an element; itself and its r, 0 and 0 beyond the end. Addresses are in bytes."""
    if i < stop:
        x = load_float32(p + 4 * i)
        a, b = moments(load_float32(g + 4 * i), load_float32(m + 4 * i), load_float32(u + 4 * i), k)
        store_float32(m + 4 * i, a)
        store_float32(u + 4 * i, b)
        return x, direction(x, a, b, k)
    return ZERO, ZERO


@cuda.jit(device=True)
def four_by_one(p, g, m, u, i, stop, k):
    x0, r0 = one(p, g, m, u, i, stop, k)
    x1, r1 = one(p, g, m, u, i + 1, stop, k)
    x2, r2 = one(p, g, m, u, i + 2, stop, k)
    x3, r3 = one(p, g, m, u, i + 3, stop, k)
    return (x0, x1, x2, x3), (r0, r1, r2, r3)


@cuda.jit(device=True)
def four(p, g, m, u, i, k):
    """The same of four elements that are all there and aligned."""
    # 16 bytes in one instruction, where they begin at a multiple of 16: 512 in a row for the warp. A load takes some
    # 600 cycles to come back; that latency is hidden by bytes under way, and here they are 64 per thread.
    at = 4 * i
    x, d, a, b = load4_float32(p + at), load4_float32(g + at), load4_float32(m + at), load4_float32(u + at)
    m0, u0 = moments(d[0], a[0], b[0], k)
    m1, u1 = moments(d[1], a[1], b[1], k)
    m2, u2 = moments(d[2], a[2], b[2], k)
    m3, u3 = moments(d[3], a[3], b[3], k)
    store4_float32(m + at, (m0, m1, m2, m3))
    store4_float32(u + at, (u0, u1, u2, u3))
    r0, r1 = direction(x[0], m0, u0, k), direction(x[1], m1, u1, k)
    r2, r3 = direction(x[2], m2, u2, k), direction(x[3], m3, u3, k)
    return x, (r0, r1, r2, r3)


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
def tile_moments(p, g, m, u, first, stop, aligned, k):
    """The moments of a tile, by a warp, and the sums of squares of p and r.

    Thread t has lanes 4t to 4t + 3, and those 128 further.
    """
    i = first + 4 * (cuda.threadIdx.x % 32)
    p_low, p_high, r_low, r_high = ZEROS, ZEROS, ZEROS, ZEROS
    # All threads of a warp take the same way here, so neither waits for the other.
    if aligned and first + TILE <= stop:
        for row in range(ROWS):
            x, r = four(p, g, m, u, i + LANES * row, k)
            y, s = four(p, g, m, u, i + LANES * row + 128, k)
            p_low, p_high = add_squares(p_low, x), add_squares(p_high, y)
            r_low, r_high = add_squares(r_low, r), add_squares(r_high, s)
    else:
        for row in range(ROWS):
            x, r = four_by_one(p, g, m, u, i + LANES * row, stop, k)
            y, s = four_by_one(p, g, m, u, i + LANES * row + 128, stop, k)
            p_low, p_high = add_squares(p_low, x), add_squares(p_high, y)
            r_low, r_high = add_squares(r_low, r), add_squares(r_high, s)
    return lane_tree(p_low, p_high), lane_tree(r_low, r_high)


@cuda.jit(device=True)
def eight(s, k):
    return ((s[k, 0] + s[k, 1]) + (s[k, 2] + s[k, 3])) + ((s[k, 4] + s[k, 5]) + (s[k, 6] + s[k, 7]))


@cuda.jit(device=True)
def chunk_moments(c, addresses, chunks, sums, k):
    """The moments of a chunk, by a block, whose first thread writes the sums."""
    shared = cuda.shared.array((2, TILES), np.float32)
    tensor, start, stop, warp = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], cuda.threadIdx.x // 32
    p, g, m, u = addresses[P, tensor], addresses[G, tensor], addresses[M, tensor], addresses[U, tensor]
    # A warp whose tile lies beyond the end brings 0, as a missing neighbour does.
    x, y = tile_moments(p, g, m, u, start + TILE * warp, stop, chunks[c, ALIGNED], k)
    if cuda.threadIdx.x % 32 == 0:
        shared[0, warp], shared[1, warp] = x, y
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        sums[0, c], sums[1, c] = eight(shared, 0), eight(shared, 1)


# Launch bounds: threads of a block, and how many blocks are to fit on a multiprocessor. Its 65,536 registers are shared
# out by them: 80 per thread for the norms, 48 for an update. Registers hold loads that are under way; but more blocks
# (occupancy) have more of them under way, too, and each is at the other's expense.


@cuda.jit(launch_bounds=(THREADS, 3))
def lamb_3_moments(addresses, chunks, sums, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow):
    chunk_moments(cuda.blockIdx.x, addresses, chunks, sums, (beta1, beta2, epsilon, decay, beta1_pow, beta2_pow))


@cuda.jit
def lamb_3_rates(tensors, sums, rates, lr, decay):
    tensor = cuda.blockIdx.x
    first = tensors[FIRST, tensor]
    join(sums, first, tensors[COUNT, tensor])
    if cuda.threadIdx.x == 0:
        rates[tensor] = rate_of(sums[0, first], sums[1, first], lr, decay)


@cuda.jit(launch_bounds=(THREADS, 5))
def lamb_3_update(addresses, chunks, rates, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow):
    # Blocks begin about in order. The last chunks come first: what the first launch has left last is still in the L2
    # cache, in part.
    c = cuda.gridDim.x - 1 - cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    p, m, u, rate = addresses[P, tensor], addresses[M, tensor], addresses[U, tensor], rates[tensor]
    k = beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
    fours = (stop - start) // 4 * 4 if chunks[c, ALIGNED] else 0  # elements that can be taken four at a time
    for i in range(start + 4 * cuda.threadIdx.x, start + fours, 4 * cuda.blockDim.x):
        x, a, b = load4_float32(p + 4 * i), load4_float32(m + 4 * i), load4_float32(u + 4 * i)
        p0, p1 = x[0] - rate * direction(x[0], a[0], b[0], k), x[1] - rate * direction(x[1], a[1], b[1], k)
        p2, p3 = x[2] - rate * direction(x[2], a[2], b[2], k), x[3] - rate * direction(x[3], a[3], b[3], k)
        store4_float32(p + 4 * i, (p0, p1, p2, p3))
    # The tail: up to three elements of a tensor's last chunk, or all of one that is not aligned.
    for i in range(start + fours + cuda.threadIdx.x, stop, cuda.blockDim.x):
        x, a, b = load_float32(p + 4 * i), load_float32(m + 4 * i), load_float32(u + 4 * i)
        store_float32(p + 4 * i, x - rate * direction(x, a, b, k))


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


def launches_3(params, grads, moment1, moment2, numbers):
    """A block to a chunk, to a tensor, and to a chunk again."""
    if not (filled := with_elements(params, grads, moment1, moment2)):
        return []
    lr, *rest = numbers
    addresses, chunks, tensors, sums, rates = tables(filled)
    return [
        Launch(lamb_3_moments, chunks.shape[0], THREADS, (addresses, chunks, sums, *rest)),
        Launch(lamb_3_rates, len(filled), 256, (tensors, sums, rates, lr, numbers[DECAY])),
        Launch(lamb_3_update, chunks.shape[0], THREADS, (addresses, chunks, rates, *rest)),
    ]


# Two launches.

# The block of a tensor that is the last to finish can make the rate: the sums of all are there by then. No block waits
# for another, which might not have begun, and never would. It is a launch less for the host. For the GPU it makes no
# difference in the table, since launches that are all enqueued follow each other closely.


@cuda.jit(launch_bounds=(THREADS, 3))
def lamb_4_moments(
    addresses, chunks, tensors, sums, rates, counters, lr, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
):
    c = cuda.blockIdx.x
    tensor = chunks[c, TENSOR]
    first, count = tensors[FIRST, tensor], tensors[COUNT, tensor]
    last = cuda.shared.array(1, np.int32)
    chunk_moments(c, addresses, chunks, sums, (beta1, beta2, epsilon, decay, beta1_pow, beta2_pow))
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
            rates[tensor] = rate_of(sums[0, first], sums[1, first], lr, decay)


def launches_4(params, grads, moment1, moment2, numbers):
    """A block to a chunk, twice; the second launch is as it was."""
    if not (filled := with_elements(params, grads, moment1, moment2)):
        return []
    addresses, chunks, tensors, sums, rates = tables(filled)
    args = addresses, chunks, tensors, sums, rates, zeros(sums, len(filled), np.uint32), *numbers
    return [
        Launch(lamb_4_moments, chunks.shape[0], THREADS, args),
        Launch(lamb_3_update, chunks.shape[0], THREADS, (addresses, chunks, rates, *numbers[1:])),
    ]


# In production, ``refopt/gpu/norms`` has the shape of lamb_4, in any mix of dtypes, with a row of numbers for each
# tensor on the device, and the powers there, too. A thread takes eight elements of an update; the two trees of a tile
# share their shuffles; a tensor of more than 2**20 elements is joined by several blocks (``refopt/gpu/tiles.py``); and
# blocks of the second launch begin while the first drains, and wait where they need the rate.

RUNGS = {"lamb_1": launches_1, "lamb_2": launches_2, "lamb_3": launches_3, "lamb_4": launches_4}
OTHER_BITS: tuple[str, ...] = ("lamb_1",)  # sums by atomics

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("lamb")
