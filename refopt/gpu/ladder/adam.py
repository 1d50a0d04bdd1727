"""Adam, from ten lines to what runs in production.

The reference is ``refopt.cpu.adam.rule``, in NumPy. Adam updates each element independently::

    m = beta1 * m + (1 - beta1) * g                    # running average of the gradient
    u = beta2 * u + (1 - beta2) * g * g                # and of its square
    p = p - lr / (1 - beta1_pow) * (m / (sqrt(u) / sqrt(1 - beta2_pow) + epsilon))

beta1_pow and beta2_pow are beta1 and beta2 to the power of the step. A step reads p, g, m and u, and writes p, m and
u: seven times 4 bytes per element in fp32. Some twenty operations use these 28 bytes, and a GPU can do hundreds in the
time that it takes to move them, so a kernel is as fast as its loads and stores.

Versions:

    adam_0      the source of adam_1, compiled as plain Numba does: the last bits differ
    adam_1      a thread for each element, a launch for each tensor
    adam_2      a loop over a fixed grid (grid-stride); a thread computes the shared numbers once
    adam_3      all tensors in one launch, found in a table
    adam_4      16-byte loads and stores, four elements at a time
    production  ``refopt/gpu/elementwise.py``, which is what ``gpu.merged_adam`` runs

All versions except adam_0 match the reference bit for bit, on the executor and on a GPU.

One step on the 25,557,032 parameters of ResNet-50, in 161 tensors, on an NVIDIA H200::

    version     launches     ms  ms as a graph  GB/s  registers
    adam_0           161  0.739          0.575  1245         27
    adam_1           161  0.735          0.576  1242         27
    adam_2           161  0.778          0.622  1150         46
    adam_3             1  0.213          0.213  3355         44
    adam_4             1  0.178          0.178  4015         72
    production         1  0.178          0.178  4026

A copy reaches 4276 GB/s; a small model may gain from the L2 cache.
"""

import math
from functools import partial

import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import Launch, address, multiprocessors, on_machine_of
from refopt.gpu.vectors import load4_float32, load_float32, store4_float32, store_float32

# A Python number would be a double in the compiled kernel, and so would every result computed with it.
ZERO, ONE = np.float32(0), np.float32(1)


@cuda.jit(device=True)
def sqrt(x):
    """The square root in fp32. Compiled, ``math.sqrt`` returns fp32; in plain Python it returns a double."""
    return np.float32(math.sqrt(x))


# A thread for each element.


@cuda.jit
def adam_1(p, g, m, u, lr, beta1, beta2, epsilon, beta1_pow, beta2_pow):
    # The number of this thread in the whole grid: blockIdx.x * blockDim.x + threadIdx.x.
    i = cuda.grid(1)
    # All blocks are the same size, so the last one may have more threads than there are elements left. Without this
    # guard they would write past the end of the arrays.
    if i < p.size:
        # Threads 0 to 31 are a warp, and load together: 32 neighbouring elements, 128 bytes. The memory serves them
        # all at once, as four sectors of 32 bytes (a coalesced access).
        m[i] = beta1 * m[i] + (ONE - beta1) * g[i]
        u[i] = beta2 * u[i] + (ONE - beta2) * g[i] * g[i]
        rate = lr / (ONE - beta1_pow)
        p[i] = p[i] - rate * (m[i] / (sqrt(u[i]) / sqrt(ONE - beta2_pow) + epsilon))


def launches_1(params, grads, moment1, moment2, numbers, kernel=adam_1):
    """Enough blocks of 256 threads to cover each tensor; some threads of the last one may have no element."""
    return [
        Launch(kernel, -(-p.size // 256), 256, (p, g, m, u, *numbers))
        for p, g, m, u in zip(params, grads, moment1, moment2, strict=True) if p.size  # a grid has at least one block
    ]


# Plain Numba lets the compiler turn beta1 * m + ... into one instruction, a fused multiply-add (FMA), which rounds once
# where the source rounds twice. That is more exact, and as fast here; but NumPy rounds twice, and the compiler decides
# which of the products it fuses. A kernel whose bits are compared cannot leave that to the compiler.

adam_0 = cuda.jit(adam_1.function, contract=True)
launches_0 = partial(launches_1, kernel=adam_0)


# A loop over a grid of fixed size.


@cuda.jit
def adam_2(p, g, m, u, lr, beta1, beta2, epsilon, beta1_pow, beta2_pow):
    # These are the same for all elements. A division and a root take as long as the rest of the arithmetic; here a
    # thread computes them once for all its elements. It gains nothing, as the table shows: threads wait for memory, not
    # for arithmetic, and a loop over several elements takes more registers. The versions below do gain.
    rest1, rest2 = ONE - beta1, ONE - beta2
    rate, root = lr / (ONE - beta1_pow), sqrt(ONE - beta2_pow)
    # gridsize is the number of threads in the grid. In each round the grid takes that many neighbouring elements, so
    # each warp still reads contiguous memory. A grid of any size is correct, and the loop's end has become the guard.
    for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
        new_m = beta1 * m[i] + rest1 * g[i]
        new_u = beta2 * u[i] + rest2 * g[i] * g[i]
        # From registers, not from the arrays: the compiler cannot know that p, m and u do not overlap, so it would
        # have to load again the values that it has just stored.
        p[i] = p[i] - rate * (new_m / (sqrt(new_u) / root + epsilon))
        m[i], u[i] = new_m, new_u


def launches_2(params, grads, moment1, moment2, numbers):
    """At most eight blocks for each multiprocessor, fewer where a tensor is small."""
    return [
        Launch(adam_2, min(-(-p.size // 256), 8 * multiprocessors(p)), 256, (p, g, m, u, *numbers))
        for p, g, m, u in zip(params, grads, moment1, moment2, strict=True) if p.size
    ]


# All tensors in one launch.

# A model has hundreds of tensors, most of them small. Each launch costs a few microseconds before its first load, and
# a small tensor leaves most multiprocessors idle. So the tensors are cut into chunks, and a block processes one chunk
# of any tensor. A table on the device has the addresses of the tensors: a kernel can take only so many arguments, but
# a table can have any size.

CHUNK = 1024  # elements: enough to be worth a block, few enough that small tensors keep its threads busy
P, G, M, U = range(4)  # rows of the table of addresses
TENSOR, START, STOP, ALIGNED = range(4)  # columns of the table of chunks


@cuda.jit(device=True)
def descend(p, g, m, u, k):
    """One element of a step: the new p, m and u. ``k`` has the numbers that all elements share."""
    beta1, rest1, beta2, rest2, epsilon, rate, root = k
    m = beta1 * m + rest1 * g
    u = beta2 * u + rest2 * g * g
    return p - rate * (m / (sqrt(u) / root + epsilon)), m, u


@cuda.jit(device=True)
def shared_numbers(lr, beta1, beta2, epsilon, beta1_pow, beta2_pow):
    return beta1, ONE - beta1, beta2, ONE - beta2, epsilon, lr / (ONE - beta1_pow), sqrt(ONE - beta2_pow)


@cuda.jit(device=True)
def one_element(p_at, g_at, m_at, u_at, k):
    """Load one element of each array, and store its new values. Addresses are in bytes."""
    p, m, u = descend(load_float32(p_at), load_float32(g_at), load_float32(m_at), load_float32(u_at), k)
    store_float32(p_at, p)
    store_float32(m_at, m)
    store_float32(u_at, u)


@cuda.jit
def adam_3(addresses, chunks, lr, beta1, beta2, epsilon, beta1_pow, beta2_pow):
    c = cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    p, g, m, u = addresses[P, tensor], addresses[G, tensor], addresses[M, tensor], addresses[U, tensor]
    k = shared_numbers(lr, beta1, beta2, epsilon, beta1_pow, beta2_pow)
    # The threads of the block loop over its chunk as the grid looped over the tensor before.
    for i in range(start + cuda.threadIdx.x, stop, cuda.blockDim.x):
        one_element(p + 4 * i, g + 4 * i, m + 4 * i, u + 4 * i, k)


def tables(*arrays, chunk=CHUNK, least=0):
    """The address of each tensor in each list, and the chunks of all tensors, on the device.

    A tensor without elements has no chunk, or one if ``least`` is 1.
    """
    addresses = np.array([[address(x) for x in column] for column in arrays], np.int64)
    aligned = (addresses % 16 == 0).all(0)
    chunks = [
        (tensor, start, min(start + chunk, x.size), aligned[tensor])
        for tensor, x in enumerate(arrays[0]) for start in range(0, max(x.size, least), chunk)
    ]
    return [on_machine_of(arrays[0][0], table) for table in (addresses, np.array(chunks, np.int64).reshape(-1, 4))]


def launches_3(params, grads, moment1, moment2, numbers, kernel=adam_3, threads=256):
    """One block for each chunk."""
    addresses, chunks = tables(params, grads, moment1, moment2)
    return [Launch(kernel, chunks.shape[0], threads, (addresses, chunks, *numbers))] if chunks.shape[0] else []


# 16 bytes at a time.

# A load takes some 600 cycles to return. Having many bytes in flight hides that latency: many warps, and many bytes in
# each load. A thread can load 16 bytes with one instruction if their address is a multiple of 16. So it takes four
# elements at a time, and has 64 bytes in flight instead of 16. The registers for them leave fewer for other warps (less
# occupancy); the launch bounds tell the compiler how many blocks of 64 threads must fit on a multiprocessor, and so how
# many registers a thread may use.


@cuda.jit(launch_bounds=(64, 12))
def adam_4(addresses, chunks, lr, beta1, beta2, epsilon, beta1_pow, beta2_pow):
    c = cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    p, g, m, u = addresses[P, tensor], addresses[G, tensor], addresses[M, tensor], addresses[U, tensor]
    k = shared_numbers(lr, beta1, beta2, epsilon, beta1_pow, beta2_pow)
    fours = (stop - start) // 4 * 4 if chunks[c, ALIGNED] else 0  # elements that vectors of four can access
    for i in range(start + 4 * cuda.threadIdx.x, start + fours, 4 * cuda.blockDim.x):
        at = 4 * i
        # All four loads are in flight before the first value is needed.
        x, d, a, b = load4_float32(p + at), load4_float32(g + at), load4_float32(m + at), load4_float32(u + at)
        p0, m0, u0 = descend(x[0], d[0], a[0], b[0], k)
        p1, m1, u1 = descend(x[1], d[1], a[1], b[1], k)
        p2, m2, u2 = descend(x[2], d[2], a[2], b[2], k)
        p3, m3, u3 = descend(x[3], d[3], a[3], b[3], k)
        store4_float32(p + at, (p0, p1, p2, p3))
        store4_float32(m + at, (m0, m1, m2, m3))
        store4_float32(u + at, (u0, u1, u2, u3))
    # The tail: up to three elements of a tensor's last chunk, or the whole chunk if the tensor is not aligned.
    for i in range(start + fours + cuda.threadIdx.x, stop, cuda.blockDim.x):
        one_element(p + 4 * i, g + 4 * i, m + 4 * i, u + 4 * i, k)


launches_4 = partial(launches_3, kernel=adam_4, threads=64)


# In production, ``refopt/gpu/elementwise.py`` has the structure of adam_4. A thread takes eight elements at a time, a
# warp a row of 256, in any mix of dtypes; each tensor has its own numbers and powers on the device, where a replayed
# graph reads their new values; a flag on the device skips the step. ``refopt/gpu/rules/adam.py`` has Adam's formula:
# ``descend`` and ``shared_numbers`` are ``rule`` and ``prepare`` there.

RUNGS = {"adam_0": launches_0, "adam_1": launches_1, "adam_2": launches_2, "adam_3": launches_3, "adam_4": launches_4}
OTHER_BITS: tuple[str, ...] = ("adam_0",)  # on a GPU, where an FMA rounds a product and its sum once

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("adam")
