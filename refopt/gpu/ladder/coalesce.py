"""Gather gradients in one buffer and cast them: from a launch for each tensor to one for all.

One all-reduce of a large buffer takes less time than hundreds of small ones, and half of it if the elements are fp16.
The reference is ``refopt.cpu.merged_cast`` into the views of a buffer (``refopt.cpu.coalesce_tensor``), in NumPy::

    buffer[offset : offset + g.size] = (scale * g).astype(float16)         # for each gradient g and its offset

The only arithmetic is a product and a rounding. A kernel moves six bytes per element, 4 in and 2 out, and is as fast as
it moves them. Offsets are multiples of 128 elements, so that each tensor begins at a multiple of 256 bytes.

Versions:

    gather_0    a thread for each element, a launch for each tensor
    gather_1    one launch: a thread for each element of the buffer, which searches for its tensor
    gather_2    one launch: a block for each chunk of a tensor, found in a table
    gather_3    16-byte loads and 8-byte stores
    production  ``refopt/gpu/cast.py``, which is what ``gpu.merged_cast`` runs

All match the reference bit for bit: a product and a rounding leave no choice.

One step on the 25,557,032 parameters of ResNet-50, in 161 tensors, on an NVIDIA H200::

    version     launches     ms  ms as a graph  GB/s  registers
    gather_0         161  0.976          0.269   571         10
    gather_1           1  0.361          0.362   424         18
    gather_2           1  0.066          0.066  2324         30
    gather_3           1  0.044          0.044  3451         42
    production         1  0.041          0.041  3733

A copy reaches 4276 GB/s; a small model may gain from the L2 cache.
"""

import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import Launch, address, on_machine_of
from refopt.gpu.vectors import load4_float32, load_float32, store4_float16, store_float16

ALIGNMENT = 128  # elements: 256 bytes of fp16


def offsets_of(sizes):
    """Where each tensor begins in the buffer, and finally where the buffer ends."""
    return np.concatenate([[0], np.cumsum([-(-n // ALIGNMENT) * ALIGNMENT for n in sizes])]).astype(np.int64)


# A thread for each element.


@cuda.jit
def gather_0(g, buffer, offset, scale):
    i = cuda.grid(1)
    if i < g.size:  # the last block may have more threads than there are elements left
        # A warp reads 32 neighbouring elements, 128 bytes, and writes 64: the memory moves sectors of 32 bytes, and the
        # warp uses all of each. `store_float16` rounds to nearest even; `buffer` is an address in bytes.
        store_float16(buffer + 2 * (offset + i), scale * g[i])


def launches_0(grads, buffer, scale):
    """A launch for each tensor. Most end before the next one starts, and leave most of the GPU idle."""
    base, offsets = address(buffer), offsets_of([g.size for g in grads])
    return [
        Launch(gather_0, -(-g.size // 256), 256, (g, base, int(offset), scale))
        for g, offset in zip(grads, offsets, strict=False) if g.size
    ]


# One launch, by a search.


@cuda.jit
def gather_1(addresses, sizes, offsets, buffer, scale):
    # Each thread takes an element of the buffer, and finds its tensor by halving the range of candidates.
    i = cuda.grid(1)
    if i < offsets[sizes.size]:
        low, high = 0, sizes.size
        while high - low > 1:
            middle = (low + high) // 2
            if offsets[middle] <= i:
                low = middle
            else:
                high = middle
        # Eight loads for 161 tensors, each waiting for the one before, to move one element. They hit the cache, but
        # take longer than moving the element.
        element = i - offsets[low]
        if element < sizes[low]:  # else it is in the gap before the next tensor
            store_float16(buffer + 2 * i, scale * load_float32(addresses[low] + 4 * element))


def launches_1(grads, buffer, scale):
    sizes = np.array([g.size for g in grads], np.int64)
    offsets = offsets_of(sizes)
    addresses = np.array([address(g) for g in grads], np.int64)
    tables = [on_machine_of(buffer, table) for table in (addresses, sizes, offsets)]
    return [Launch(gather_1, -(-int(offsets[-1]) // 256), 256, (*tables, address(buffer), scale))]


# One launch, by a table of chunks.

# A block looks up once what its threads share: it takes a chunk of one tensor, which it finds in a table. The host
# builds the table once, and every step uses it.

CHUNK = 2048  # elements
SOURCE, TARGET, COUNT, ALIGNED = range(4)  # columns: two addresses, how many elements, whether both allow vectors


@cuda.jit
def gather_2(chunks, scale):
    c = cuda.blockIdx.x
    source, target, count = chunks[c, SOURCE], chunks[c, TARGET], chunks[c, COUNT]
    for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
        store_float16(target + 2 * i, scale * load_float32(source + 4 * i))


def table_of_chunks(grads, buffer):
    """A row for each chunk of each tensor, on the device."""
    base, offsets = address(buffer), offsets_of([g.size for g in grads])
    rows = []
    for g, offset in zip(grads, offsets, strict=False):
        for start in range(0, g.size, CHUNK):
            source, target = address(g) + 4 * start, base + 2 * (int(offset) + start)
            rows.append((source, target, min(CHUNK, g.size - start), source % 16 == 0 and target % 8 == 0))
    return on_machine_of(buffer, np.array(rows, np.int64).reshape(-1, 4))


def launches_2(grads, buffer, scale, kernel=gather_2, threads=256):
    chunks = table_of_chunks(grads, buffer)
    return [Launch(kernel, chunks.shape[0], threads, (chunks, scale))] if chunks.shape[0] else []


# 16 bytes at a time.


@cuda.jit(launch_bounds=(64, 16))
def gather_3(chunks, scale):
    c = cuda.blockIdx.x
    source, target, count = chunks[c, SOURCE], chunks[c, TARGET], chunks[c, COUNT]
    fours = count // 4 * 4 if chunks[c, ALIGNED] else 0
    # Four elements take one load of 16 bytes and one store of 8. A multiprocessor can have only so many loads in
    # flight, whatever their size: larger ones keep more bytes in flight, and bytes hide the latency. Launch bounds of
    # 16 blocks per multiprocessor stop the compiler from using more registers than that many blocks can have.
    for i in range(4 * cuda.threadIdx.x, fours, 4 * cuda.blockDim.x):
        x = load4_float32(source + 4 * i)
        store4_float16(target + 2 * i, (scale * x[0], scale * x[1], scale * x[2], scale * x[3]))
    for i in range(fours + cuda.threadIdx.x, count, cuda.blockDim.x):  # the tail, or all where nothing is aligned
        store_float16(target + 2 * i, scale * load_float32(source + 4 * i))


def launches_3(grads, buffer, scale):
    return launches_2(grads, buffer, scale, gather_3, 64)


# In production, ``refopt/gpu/cast.py`` has the structure of gather_3, between any two dtypes and with eight elements in
# flight in each thread; plain copies move bytes, 16 at a time, whatever their dtype (``refopt/gpu/words.py``).
# ``refopt/gpu/coalesce.py`` lays out the buffer.

RUNGS = {"gather_0": launches_0, "gather_1": launches_1, "gather_2": launches_2, "gather_3": launches_3}

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("coalesce")
