"""LARS with momentum, from three launches for each tensor to two for all.

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

Versions, with the numbers of those of the global norm (``refopt/gpu/ladder/global_norm.py``) that sum as they do:

    lars_2      a tree in shared memory: three launches per tensor
    lars_4      two launches for all tensors: a warp to a tile, and the last block of a tensor computes its rate
    production  ``refopt/gpu/norms.py``, which is what ``gpu.merged_lars_momentum`` runs in the form two_launches

The numbers are lr, mu, coeff, decay and epsilon. Both rungs are in fp32, and match the reference bit for bit, on the
executor and on a GPU.

One step on the 25,557,032 parameters of ResNet-50, in 161 tensors, on an NVIDIA H200::

    version     launches     ms  ms as a graph  GB/s  registers
    lars_2           483  2.386          1.172   610         29
    lars_4             2  0.184          0.183  3913         64
    production         2  0.175          0.175  4088

A copy reaches 4276 GB/s; a small model may gain from the L2 cache.
"""

import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import Launch
from refopt.gpu.ladder import global_norm
from refopt.gpu.ladder.adam import ALIGNED, START, STOP, TENSOR, ZERO, sqrt
from refopt.gpu.ladder.global_norm import LANES, TILE, TILES, chunk_squares, join, join_lanes, join_last, join_tiles
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


def with_elements(*lists):
    """The arrays of each tensor that has elements, since a grid has at least one block."""
    return [column for column in zip(*lists, strict=True) if column[0].size]


# Three launches for each tensor: a launch sees everything that the previous one has written.


@cuda.jit
def lars_2_tiles(p, g, sums):
    # A block takes a tile, and a thread one lane of it, as in norm_2.
    t, shared = cuda.threadIdx.x, cuda.shared.array((2, LANES), np.float32)
    start = cuda.blockIdx.x * TILE
    x, y = ZERO, ZERO
    for i in range(start + t, min(start + TILE, p.size), LANES):
        a, b = p[i], g[i]
        x += a * a
        y += b * b
    shared[0, t], shared[1, t] = x, y
    join_lanes(shared)
    if t == 0:
        sums[0, cuda.blockIdx.x], sums[1, cuda.blockIdx.x] = shared[0, 0], shared[1, 0]


@cuda.jit
def lars_2_rate(sums, rate, lr, coeff, decay, epsilon):
    join(sums, 0, sums.shape[1])
    if cuda.threadIdx.x == 0:
        rate[0] = local_rate(sums[0, 0], sums[1, 0], lr, coeff, decay, epsilon)


@cuda.jit
def lars_2_update(p, g, v, rate, mu, decay):
    i = cuda.grid(1)
    # A thread for each element. The last block may have threads without an element, hence the guard.
    if i < p.size:
        p[i], v[i] = rule(p[i], g[i], v[i], rate[0], mu, decay)


def launches_2(params, grads, velocities, numbers):
    lr, mu, coeff, decay, epsilon = numbers
    launches = []
    for p, g, v in with_elements(params, grads, velocities):
        sums, rate = global_norm.zeros(p, (2, -(-p.size // TILE))), global_norm.zeros(p, 1)
        launches += [
            Launch(lars_2_tiles, sums.shape[1], LANES, (p, g, sums)),
            Launch(lars_2_rate, 1, 256, (sums, rate, lr, coeff, decay, epsilon)),
            Launch(lars_2_update, -(-p.size // 256), 256, (p, g, v, rate, mu, decay)),
        ]
    return launches


# All tensors in two launches, a warp to a tile.

# The launch bounds allow 80 registers per thread for the norms and 48 for an update.

P, G, V = range(3)  # rows of the table of addresses


@cuda.jit(launch_bounds=(32 * TILES, 3))
def lars_4_squares(addresses, chunks, tensors, sums, rates, counters, lr, coeff, decay, epsilon):
    c, shared = cuda.blockIdx.x, cuda.shared.array((2, TILES), np.float32)
    chunk_squares(c, P, addresses, chunks, shared)
    chunk_squares(c, G, addresses, chunks, shared)
    join_tiles(shared, c, sums)
    tensor = chunks[c, TENSOR]
    first = join_last(tensor, tensors, counters, sums)
    if first >= 0:
        rates[tensor] = local_rate(sums[0, first], sums[1, first], lr, coeff, decay, epsilon)


@cuda.jit(launch_bounds=(32 * TILES, 5))
def lars_4_update(addresses, chunks, rates, mu, decay):
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


def in_two_launches(lists, kernels, numbers):
    """One block per chunk in both launches; each kernel has its numbers."""
    if not (filled := with_elements(*lists)):
        return []
    addresses, chunks, tensors, sums = global_norm.tables(list(zip(*filled, strict=True)), 2)
    rates, counters = global_norm.zeros(chunks, len(filled)), global_norm.zeros(chunks, len(filled), np.uint32)
    first = addresses, chunks, tensors, sums, rates, counters, *numbers[0]
    return [
        Launch(kernels[0], chunks.shape[0], 32 * TILES, first),
        Launch(kernels[1], chunks.shape[0], 32 * TILES, (addresses, chunks, rates, *numbers[1])),
    ]


def launches_4(params, grads, velocities, numbers):
    lr, mu, coeff, decay, epsilon = numbers
    kernels = lars_4_squares, lars_4_update
    return in_two_launches((params, grads, velocities), kernels, [(lr, coeff, decay, epsilon), (mu, decay)])


# In production, ``refopt/gpu/norms`` has the structure of lars_4, in any mix of dtypes, with a row of numbers for each
# tensor on the device. A thread takes eight elements of an update; the two trees of a tile share their shuffles;
# several blocks join a tensor of more than 2**20 elements (``refopt/gpu/tiles.py``); and blocks of the second launch
# start while the first drains, and wait where they need the rate.

RUNGS = {"lars_2": launches_2, "lars_4": launches_4}

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("lars")
