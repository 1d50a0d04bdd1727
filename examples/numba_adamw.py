"""AdamW of all tensors in one launch, in Numba alone: built as `refopt/gpu/elementwise.py`, with plain loads.

The arrays of a model are four flat arrays, with the tensors one behind the other. A block takes a chunk, a part of a
tensor, so each tensor can have its own numbers. Run it on a GPU, or without one in Numba's simulator or on refopt's
executor:

    python examples/numba_adamw.py
    NUMBA_ENABLE_CUDASIM=1 python examples/numba_adamw.py
    python -m refopt.simt examples/numba_adamw.py

Numba contracts a * b + c into one operation on a GPU, so there the last bit of a result may differ.
"""

import math
import zlib

import numpy as np
from numba import cuda

TENSOR, START, STOP = range(3)  # columns of the table of chunks
CHUNK, BLOCK = 1024, 64  # elements of a chunk; threads of a block
ROW = 256  # elements that the 32 threads of a warp take at a time
SECOND = 128  # from a thread's first four elements of a row to its other four
one = np.float32(1)


@cuda.jit(device=True)
def shared_numbers(hyper, powers, tensor):
    """The numbers that all elements of a tensor share."""
    lr, beta1, beta2 = hyper[0, tensor], hyper[1, tensor], hyper[2, tensor]
    epsilon, weight_decay = hyper[3, tensor], hyper[4, tensor]
    root = np.float32(math.sqrt(one - powers[1, tensor]))
    rate = lr / (one - powers[0, tensor])
    return (beta1, one - beta1, beta2, one - beta2), epsilon, rate, root, one - lr * weight_decay


@cuda.jit(device=True)
def rule(p, g, m, u, k):
    """The new parameter and moments of one element."""
    (beta1, rest1, beta2, rest2), epsilon, rate, root, decay = k
    p = p * decay
    m, u = beta1 * m + rest1 * g, beta2 * u + rest2 * g * g
    return p - rate * (m / (np.float32(math.sqrt(u)) / root + epsilon)), m, u


@cuda.jit
def merged_adamw(params, grads, moment1, moment2, chunks, hyper, powers):
    c = cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    k = shared_numbers(hyper, powers, tensor)
    x = cuda.local.array((4, 8), np.float32)  # x[a, e]: element e of array a, in registers
    for first in range(start + cuda.threadIdx.x // 32 * ROW, stop, cuda.blockDim.x // 32 * ROW):
        i = first + 4 * (cuda.threadIdx.x % 32)
        for e in range(8):
            j = i + e % 4 + e // 4 * SECOND
            if j < stop:
                x[0, e], x[1, e], x[2, e], x[3, e] = params[j], grads[j], moment1[j], moment2[j]
        for e in range(8):
            x[0, e], x[2, e], x[3, e] = rule(x[0, e], x[1, e], x[2, e], x[3, e], k)
        for e in range(8):
            j = i + e % 4 + e // 4 * SECOND
            if j < stop:
                params[j], moment1[j], moment2[j] = x[0, e], x[2, e], x[3, e]


def chunks_of(sizes):
    """The table of chunks (C, 3) of tensors of some sizes, one behind the other."""
    rows, begin = [], 0
    for tensor, size in enumerate(sizes):
        rows += [(tensor, begin + i, begin + min(i + CHUNK, size)) for i in range(0, size, CHUNK)]
        begin += size
    return np.array(rows, np.int64)


def main(sizes=(3, 1000, 2500), steps=3):
    """Train on noise: the parameters and moments after some steps, three arrays (n,) of float32."""
    values, total, tensors = np.random.default_rng(1), sum(sizes), len(sizes)
    params = values.standard_normal(total).astype(np.float32)
    moment1, moment2 = np.zeros(total, np.float32), np.zeros(total, np.float32)
    arrays = [cuda.to_device(x) for x in (params, moment1, moment2)]
    hyper = np.repeat(np.array([[1e-3], [0.9], [0.999], [1e-8], [0.01]], np.float32), tensors, 1)
    powers = np.array([[0.9], [0.999]], np.float32).repeat(tensors, 1)
    chunks = chunks_of(sizes)
    for _ in range(steps):
        grads = values.standard_normal(total).astype(np.float32)
        lists = arrays[0], cuda.to_device(grads), *arrays[1:]
        merged_adamw[len(chunks), BLOCK](*lists, cuda.to_device(chunks), cuda.to_device(hyper), cuda.to_device(powers))
        powers *= np.array([[0.9], [0.999]], np.float32)
    return [x.copy_to_host() for x in arrays]


if __name__ == "__main__":
    for name, array in zip(("params", "moment1", "moment2"), main(), strict=True):
        print(f"{name}: {array[:3]}, crc32 of all bytes {zlib.crc32(array.tobytes()):08x}")
