"""LAMB, from sums by atomics to two launches.

The reference is ``refopt.cpu.lamb``, in NumPy. Each element has a direction r, which is Adam's; the norms of a tensor's
parameters and of its r decide how far it moves along r::

    m     = beta1 * m + (1 - beta1) * g                     # running average of the gradient
    u     = beta2 * u + (1 - beta2) * g * g                 # and of its square
    r     = m / (1 - beta1_pow) / (sqrt(u / (1 - beta2_pow)) + epsilon) + decay * p
    ratio = norm(p) / norm(r)                               # 1 where a norm or the decay is 0
    p     = p - lr * ratio * r

beta1_pow and beta2_pow are beta1 and beta2 to the power of the step. All r must be known before the first element of p
can be written, so a step goes through memory twice, 40 bytes per element in fp32: first it reads p, g, m and u and
writes m and u, then it reads p, m and u, computes r again, and writes p. Storing r and reading it back would move as
many bytes, 28 and 12 instead of 24 and 16, and need memory as large as the model; ten more operations cost nothing in a
kernel that waits for memory. Between the two passes, all threads that work on a tensor must wait for each other; on a
GPU, the end of a launch makes them.

The bits of a sum depend on the order of its additions, since each addition rounds. The reference fixes one order
(``refopt.cpu.reduce``, neighbours first, a missing neighbour counts as 0)::

    tile     1024 elements in a row, as 4 rows of 256
    lane     one of 256 columns of a tile: 4 squares, added from the top
    tree     the 256 lanes, ((0 + 1) + (2 + 3)) + ..., then the tiles of a tensor in the same way

Versions:

    lamb_1  sums by atomics, r stored: three launches per tensor, and last bits that change from run to run
    lamb_2  sums in the reference's order, by a tree in shared memory, so its bits from here on; r computed twice
    lamb_3  all tensors in three launches; a warp to a tile, 16-byte loads and stores, a tree of shuffles
    lamb_4  two launches: the last block of a tensor to finish computes its rate
    lamb    ``refopt/gpu/norms.py``, which is what ``gpu.merged_lamb`` runs

The functions that join sums, and the tables, are those of the ladder of LARS (``refopt/gpu/ladder/lars.py``).

The numbers are lr, beta1, beta2, epsilon, decay, beta1_pow and beta2_pow; the caller advances the powers. All rungs
are in fp32, and all except lamb_1 match the reference bit for bit, on the executor and on a GPU; lamb_1 stays within
the rounding error of a sum in any order.

One step on the 25,557,032 parameters of ResNet-50, in 161 tensors, on an NVIDIA H200::

    version     launches      ms  ms as a graph  GB/s  registers
    lamb_1           483  34.271         33.747    30         44
    lamb_2           483   3.389          1.526   670         44
    lamb_3             3   0.262          0.260  3927         78
    lamb_4             2   0.264          0.263  3883         76
    production         2   0.261          0.261  3918

A copy reaches 4275 GB/s; a small model may gain from the L2 cache.
"""

from refopt.gpu import cuda
from refopt.gpu.cuda import Launch, multiprocessors
from refopt.gpu.ladder import lars
from refopt.gpu.ladder.adam import ALIGNED, ONE, START, STOP, TENSOR, G, M, P, U, sqrt
from refopt.gpu.ladder.global_norm import LANES, ROWS, TILE, ZERO, ZEROS, add_squares, is_last, lane_tree
from refopt.gpu.ladder.lars import COUNT, FIRST, THREADS, join, join_lanes, join_tiles
from refopt.gpu.vectors import load4_float32, load_float32, store4_float32, store_float32

DECAY = 4  # its index among the numbers


@cuda.jit(device=True)
def moments(g, m, u, k):
    """The new moments of one element. ``k`` has the numbers from beta1 on, which all elements share."""
    beta1, beta2 = k[0], k[1]
    return beta1 * m + (ONE - beta1) * g, beta2 * u + (ONE - beta2) * g * g


@cuda.jit(device=True)
def direction(p, m, u, k):
    """The direction r of one element, from its new moments."""
    epsilon, decay, beta1_pow, beta2_pow = k[2], k[3], k[4], k[5]
    return m / (ONE - beta1_pow) / (sqrt(u / (ONE - beta2_pow)) + epsilon) + decay * p


@cuda.jit(device=True)
def rate_of(p_squares, r_squares, lr, decay):
    """lr times the ratio of a tensor, from its sums of squares."""
    p_norm, r_norm = sqrt(p_squares), sqrt(r_squares)
    if p_norm > ZERO and r_norm > ZERO and decay > ZERO:
        return lr * (p_norm / r_norm)
    return lr


# Sums by atomics.


@cuda.jit
def lamb_1_moments(p, g, m, u, r, sums, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow):
    k = beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
    # A loop over a fixed grid (grid-stride): in each round the grid takes as many neighbouring elements as it has
    # threads, so the 32 threads of a warp read 128 contiguous bytes (a coalesced access).
    x, y = ZERO, ZERO
    for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
        a = p[i]
        new_m, new_u = moments(g[i], m[i], u[i], k)
        b = direction(a, new_m, new_u, k)
        m[i], u[i], r[i] = new_m, new_u, b
        x += a * a
        y += b * b
    # If two threads read a sum, add to it and write it, one of the two additions may be lost. An atomic does the three
    # steps as one operation, for one thread after another. The machine decides which thread is first, and so the order
    # of the sum: the last bits of the sum, of the ratio and of p differ from run to run. (Also, the L2 cache, which
    # executes the atomics, flushes subnormal numbers to 0.)
    cuda.atomic.add(sums, 0, x)
    cuda.atomic.add(sums, 1, y)


@cuda.jit
def lamb_1_rate(sums, rate, lr, decay):
    rate[0] = rate_of(sums[0], sums[1], lr, decay)
    sums[0], sums[1] = ZERO, ZERO  # for the atomics of the next step to add to


@cuda.jit
def lamb_1_update(p, r, rate):
    i = cuda.grid(1)
    # A thread for each element. The last block may have threads without an element, hence the guard.
    if i < p.size:
        p[i] = p[i] - rate[0] * r[i]


def launches_1(params, grads, moment1, moment2, numbers):
    """Three launches for each tensor: a launch sees everything that the previous one has written."""
    lr, *rest = numbers
    launches = []
    for p, g, m, u in lars.with_elements(params, grads, moment1, moment2):
        r, sums, rate, blocks = lars.zeros(p, p.size), lars.zeros(p, 2), lars.zeros(p, 1), -(-p.size // 256)
        most = 8 * multiprocessors(p)  # blocks: eight for each multiprocessor
        launches += [
            Launch(lamb_1_moments, min(blocks, most), 256, (p, g, m, u, r, sums, *rest)),
            Launch(lamb_1_rate, 1, 1, (sums, rate, lr, numbers[DECAY])),
            Launch(lamb_1_update, blocks, 256, (p, r, rate)),
        ]
    return launches


# Sums in a fixed order, by a tree in shared memory.


@cuda.jit
def lamb_2_moments(p, g, m, u, sums, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow):
    k = beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
    # A block takes a tile, and a thread one lane of it. A lane beyond the end of the tensor is 0. Each sum has its own
    # place, so the order in which blocks run no longer matters.
    start = cuda.blockIdx.x * TILE
    x, y = ZERO, ZERO
    for i in range(start + cuda.threadIdx.x, min(start + TILE, p.size), LANES):
        a = p[i]
        new_m, new_u = moments(g[i], m[i], u[i], k)
        b = direction(a, new_m, new_u, k)
        m[i], u[i] = new_m, new_u
        x += a * a
        y += b * b
    join_lanes(x, y, sums)


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
        # From the stored moments, so r has the same bits as when it was squared.
        p[i] = x - rate[0] * direction(x, m[i], u[i], (beta1, beta2, epsilon, decay, beta1_pow, beta2_pow))


def launches_2(params, grads, moment1, moment2, numbers):
    """Three launches for each tensor, as before."""
    lr, *rest = numbers
    launches = []
    for p, g, m, u in lars.with_elements(params, grads, moment1, moment2):
        sums, rate = lars.zeros(p, (2, -(-p.size // TILE))), lars.zeros(p, 1)
        launches += [
            Launch(lamb_2_moments, sums.shape[1], LANES, (p, g, m, u, sums, *rest)),
            Launch(lamb_2_rate, 1, 256, (sums, rate, lr, numbers[DECAY])),
            Launch(lamb_2_update, -(-p.size // 256), 256, (p, m, u, rate, *rest)),
        ]
    return launches


# All tensors in three launches, a warp to a tile.

# A launch costs some microseconds, and a small tensor leaves most multiprocessors idle. So the tensors are cut into
# chunks of 8 tiles, and a block of 8 warps takes one chunk of any tensor; tables on the device have its addresses. As
# chunks are aligned runs of 2**3 tiles, a block can join the sums of its own tiles: they are a subtree of the tree.


@cuda.jit(device=True)
def one(p, g, m, u, i, stop, k):
    """Store an element's new moments and return its p and r, 0 and 0 beyond the end. Addresses are in bytes."""
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
    """The same for four elements, aligned and all within the tensor."""
    # 16 bytes in one instruction, if their address is a multiple of 16: 512 contiguous bytes for the warp. A load takes
    # some 600 cycles to return; bytes in flight hide that latency, and here each thread has 64.
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
def tile_moments(p, g, m, u, first, stop, aligned, k):
    """A warp updates the moments of a tile and sums the squares of its p and r.

    Thread t has lanes 4t to 4t + 3, and the four that are 128 further.
    """
    i = first + 4 * (cuda.threadIdx.x % 32)
    p_low, p_high, r_low, r_high = ZEROS, ZEROS, ZEROS, ZEROS
    # All threads of a warp take the same branch, so none waits for others to run the other one.
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
def chunk_moments(c, addresses, chunks, sums, k):
    """A block updates the moments of a chunk and computes its sums."""
    tensor, start, stop, warp = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], cuda.threadIdx.x // 32
    p, g, m, u = addresses[P, tensor], addresses[G, tensor], addresses[M, tensor], addresses[U, tensor]
    x, y = tile_moments(p, g, m, u, start + TILE * warp, stop, chunks[c, ALIGNED], k)
    join_tiles(x, y, c, sums)


# Launch bounds: threads of a block, and how many blocks must fit on a multiprocessor. They decide how its 65,536
# registers are divided: 80 per thread for the norms, 48 for an update. More registers allow a thread more loads in
# flight; more blocks (occupancy) also have more loads in flight. Each comes at the other's expense.


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
    # Blocks start roughly in order. This kernel processes the last chunks first: part of what the first launch accessed
    # last is still in the L2 cache.
    c = cuda.gridDim.x - 1 - cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    p, m, u, rate = addresses[P, tensor], addresses[M, tensor], addresses[U, tensor], rates[tensor]
    k = beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
    fours = (stop - start) // 4 * 4 if chunks[c, ALIGNED] else 0  # elements that vectors of four can access
    for i in range(start + 4 * cuda.threadIdx.x, start + fours, 4 * cuda.blockDim.x):
        x, a, b = load4_float32(p + 4 * i), load4_float32(m + 4 * i), load4_float32(u + 4 * i)
        p0, p1 = x[0] - rate * direction(x[0], a[0], b[0], k), x[1] - rate * direction(x[1], a[1], b[1], k)
        p2, p3 = x[2] - rate * direction(x[2], a[2], b[2], k), x[3] - rate * direction(x[3], a[3], b[3], k)
        store4_float32(p + 4 * i, (p0, p1, p2, p3))
    # The tail: up to three elements of a tensor's last chunk, or the whole chunk if the tensor is not aligned.
    for i in range(start + fours + cuda.threadIdx.x, stop, cuda.blockDim.x):
        x, a, b = load_float32(p + 4 * i), load_float32(m + 4 * i), load_float32(u + 4 * i)
        store_float32(p + 4 * i, x - rate * direction(x, a, b, k))


def launches_3(params, grads, moment1, moment2, numbers):
    lr, *rest = numbers
    kernels = lamb_3_moments, lamb_3_rates, lamb_3_update
    return lars.in_three_launches((params, grads, moment1, moment2), kernels, [rest, (lr, numbers[DECAY]), rest])


# Two launches.

# The last block of a tensor to finish can compute the rate: all sums have been written by then. No block waits for
# another, which might not have started, and then never would. It saves the host a launch. The GPU is no faster, as the
# table shows, since launches that are all enqueued follow each other closely.


@cuda.jit(launch_bounds=(THREADS, 3))
def lamb_4_moments(
    addresses, chunks, tensors, sums, rates, counters, lr, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
):
    c = cuda.blockIdx.x
    tensor = chunks[c, TENSOR]
    first, count = tensors[FIRST, tensor], tensors[COUNT, tensor]
    chunk_moments(c, addresses, chunks, sums, (beta1, beta2, epsilon, decay, beta1_pow, beta2_pow))
    if is_last(counters, tensor, count):
        join(sums, first, count)
        if cuda.threadIdx.x == 0:
            rates[tensor] = rate_of(sums[0, first], sums[1, first], lr, decay)


def launches_4(params, grads, moment1, moment2, numbers):
    kernels = lamb_4_moments, lamb_3_update
    return lars.in_two_launches((params, grads, moment1, moment2), kernels, [numbers, numbers[1:]])


# In production, ``refopt/gpu/norms`` has the structure of lamb_4, in any mix of dtypes, with a row of numbers for each
# tensor on the device, and the powers, too. A thread takes eight elements of an update; the two trees of a tile share
# their shuffles; several blocks join a tensor of more than 2**20 elements (``refopt/gpu/tiles.py``); and blocks of the
# second launch start while the first drains, and wait where they need the rate.

RUNGS = {"lamb_1": launches_1, "lamb_2": launches_2, "lamb_3": launches_3, "lamb_4": launches_4}
OTHER_BITS: tuple[str, ...] = ("lamb_1",)  # sums by atomics

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("lamb")
