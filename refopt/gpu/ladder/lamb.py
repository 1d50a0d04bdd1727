"""LAMB, from three launches for each tensor to two for all.

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

Versions, with the numbers of those of LARS (``refopt/gpu/ladder/lars.py``), which join sums in the same way:

    lamb_2      three launches per tensor
    lamb_4      two launches for all tensors; in the first a thread takes eight elements at a time, as in production
    production  ``refopt/gpu/norms.py``, which is what ``gpu.merged_lamb`` runs

The numbers are lr, beta1, beta2, epsilon, decay, beta1_pow and beta2_pow; the caller advances the powers. Both rungs
are in fp32, and match the reference bit for bit, on the executor and on a GPU.

One step on the 25,557,032 parameters of ResNet-50, in 161 tensors, on an NVIDIA H200::

    version     launches     ms  ms as a graph  GB/s  registers
    lamb_2           483  2.403          1.562   654         44
    lamb_4             2  0.275          0.274  3735         80
    production         2  0.261          0.261  3915

A copy reaches 4276 GB/s; a small model may gain from the L2 cache.
"""

import numpy as np

from refopt.gpu import cuda, parts
from refopt.gpu.cuda import Launch
from refopt.gpu.ladder import lars
from refopt.gpu.ladder.adam import ALIGNED, ONE, START, STOP, TENSOR, ZERO, G, M, P, U, sqrt
from refopt.gpu.ladder.global_norm import LANES, TILE, TILES, join, join_lanes, join_last, join_tiles, zeros
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


# Three launches for each tensor.


@cuda.jit
def lamb_2_moments(p, g, m, u, sums, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow):
    k = beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
    t, shared = cuda.threadIdx.x, cuda.shared.array((2, LANES), np.float32)
    start = cuda.blockIdx.x * TILE
    x, y = ZERO, ZERO
    for i in range(start + t, min(start + TILE, p.size), LANES):
        a = p[i]
        new_m, new_u = moments(g[i], m[i], u[i], k)
        b = direction(a, new_m, new_u, k)
        m[i], u[i] = new_m, new_u
        x += a * a
        y += b * b
    shared[0, t], shared[1, t] = x, y
    join_lanes(shared)
    if t == 0:
        sums[0, cuda.blockIdx.x], sums[1, cuda.blockIdx.x] = shared[0, 0], shared[1, 0]


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
    lr, *rest = numbers
    launches = []
    for p, g, m, u in lars.with_elements(params, grads, moment1, moment2):
        sums, rate = zeros(p, (2, -(-p.size // TILE))), zeros(p, 1)
        launches += [
            Launch(lamb_2_moments, sums.shape[1], LANES, (p, g, m, u, sums, *rest)),
            Launch(lamb_2_rate, 1, 256, (sums, rate, lr, numbers[DECAY])),
            Launch(lamb_2_update, -(-p.size // 256), 256, (p, m, u, rate, *rest)),
        ]
    return launches


# All tensors in two launches, a warp to a tile.

# A thread has eight elements of a row of a tile, 4t to 4t + 3 and the four that are 128 further, in a local array; each
# of its loads is 16 bytes, if the tensor allows that (``refopt/gpu/parts.py``). The compiler unrolls the loops, and
# keeps the array in registers.

load, store = parts.access("float32")
WHOLE, PARTIAL = np.bool_(True), np.bool_(False)


@cuda.jit(device=True)
def row_moments(at, i, stop, whole, k, s):
    """A thread updates the moments of its elements of a row, and adds the squares of their p and r to its lanes in s.
    """
    x = cuda.local.array((4, 8), np.float32)
    for a in range(4):
        load(at[a], i, stop, whole, x, a)
    for e in range(8):
        x[M, e], x[U, e] = moments(x[G, e], x[M, e], x[U, e], k)
        if whole or i + e + e // 4 * 124 < stop:
            r = direction(x[P, e], x[M, e], x[U, e], k)
            s[0, e] += x[P, e] * x[P, e]
            s[1, e] += r * r
    store(at[M], i, stop, whole, x, M)
    store(at[U], i, stop, whole, x, U)


@cuda.jit(device=True)
def chunk_moments(c, addresses, chunks, sums, k):
    """Each warp of a block updates the moments of a tile and sums its squares; the block joins the sums of a chunk."""
    tensor, stop, warp = chunks[c, TENSOR], chunks[c, STOP], cuda.threadIdx.x // 32
    at = addresses[P, tensor], addresses[G, tensor], addresses[M, tensor], addresses[U, tensor]
    s, shared = cuda.local.array((2, 8), np.float32), cuda.shared.array((2, TILES), np.float32)
    for e in range(8):
        s[0, e], s[1, e] = ZERO, ZERO
    first = chunks[c, START] + TILE * warp
    # All threads of a warp take the same branch, so none waits for others to run the other one.
    for i in range(first + 4 * (cuda.threadIdx.x % 32), first + TILE, LANES):
        if chunks[c, ALIGNED] and first + TILE <= stop:
            row_moments(at, i, stop, WHOLE, k, s)
        else:
            row_moments(at, i, stop, PARTIAL, k, s)
    x, y = parts.lane_tree(s, 0), parts.lane_tree(s, 1)
    if cuda.threadIdx.x % 32 == 0:
        shared[0, warp], shared[1, warp] = x, y
    join_tiles(shared, c, sums)


@cuda.jit(launch_bounds=(32 * TILES, 3))
def lamb_4_moments(
    addresses, chunks, tensors, sums, rates, counters, lr, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow
):
    c = cuda.blockIdx.x
    tensor = chunks[c, TENSOR]
    chunk_moments(c, addresses, chunks, sums, (beta1, beta2, epsilon, decay, beta1_pow, beta2_pow))
    first = join_last(tensor, tensors, counters, sums)
    if first >= 0:
        rates[tensor] = rate_of(sums[0, first], sums[1, first], lr, decay)


@cuda.jit(launch_bounds=(32 * TILES, 5))
def lamb_4_update(addresses, chunks, rates, beta1, beta2, epsilon, decay, beta1_pow, beta2_pow):
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


def launches_4(params, grads, moment1, moment2, numbers):
    kernels = lamb_4_moments, lamb_4_update
    return lars.in_two_launches((params, grads, moment1, moment2), kernels, [numbers, numbers[1:]])


# In production, ``refopt/gpu/norms`` has the structure of lamb_4, in any mix of dtypes, with a row of numbers for each
# tensor on the device, and the powers, too. A thread takes eight elements of an update; the two trees of a tile share
# their shuffles; several blocks join a tensor of more than 2**20 elements (``refopt/gpu/tiles.py``); and blocks of the
# second launch start while the first drains, and wait where they need the rate.

RUNGS = {"lamb_2": launches_2, "lamb_4": launches_4}

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("lamb")
