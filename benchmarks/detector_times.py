"""Times a kernel without defects, under whatever stands for `numba.cuda`.

Prints seconds of processor time, so that what else the machine does matters little, and a digest of the result.

    python -m benchmarks.detector_times NAME
"""

import hashlib
import json
import statistics
import sys
import time

import numpy as np
from numba import cuda

REPEATS = 3
KERNELS = {
    "vecadd": "128 blocks of 256 threads add two vectors",
    "reduction": "16 blocks of 128 threads add up 16,384 numbers in shared memory",
    "matmul": "16 blocks of 256 threads multiply two 64x64 matrices by tiles in shared memory",
    "rotated": "64 threads intersect 40 rotated boxes with 40 others",
    "suppression": "16 blocks of 64 threads compare 256 boxes with each other, by tiles in shared memory",
    "rotated_suppression": "64 threads compare 64 rotated boxes with each other",
}


@cuda.jit
def vecadd(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def reduction(x, out):
    part = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    total = np.float32(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i]
    part[t] = total
    cuda.syncthreads()
    step = 64
    while step:
        if t < step:
            part[t] += part[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = part[0]


@cuda.jit
def matmul(a, b, out):
    left = cuda.shared.array((16, 16), np.float32)
    right = cuda.shared.array((16, 16), np.float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = np.float32(0)
    for k in range(0, 64, 16):
        left[y, x] = a[row, k + x]
        right[y, x] = b[k + y, column]
        cuda.syncthreads()
        for j in range(16):
            total += left[y, j] * right[j, x]
        cuda.syncthreads()
    out[row, column] = total


MOST = np.float32(0.3)  # overlap


def launches():
    """By name, the kernel, its geometry and its arguments; of the first three small integers: every sum is exact."""
    from benchmarks import boxes  # compiled when imported, unless something stands for `numba.cuda`

    numbers = np.random.default_rng(0).integers(0, 8, 32_768).astype(np.float32)
    overlapping = boxes.rotated(40, 0), boxes.rotated(40, 1)
    squares = [numbers[start : start + 4096].reshape(64, 64) for start in (0, 4096)]
    return {
        "vecadd": (vecadd, 128, 256, [numbers, numbers, np.zeros_like(numbers)]),
        "reduction": (reduction, 16, 128, [numbers[:16_384], np.zeros(16, np.float32)]),
        "matmul": (matmul, (4, 4), (16, 16), [*squares, np.zeros((64, 64), np.float32)]),
        "rotated": (boxes.rotated_overlaps, (1, 1), 64, [40, 40, *overlapping, np.zeros(1600, np.float32)]),
        "suppression": (boxes.suppression, (4, 4), 64, [256, MOST, boxes.along_axes(256), np.zeros(1024, np.uint64)]),
        "rotated_suppression": (
            boxes.rotated_suppression, (1, 1), 64, [64, MOST, boxes.rotated(64, 2), np.zeros(64, np.uint64)]
        ),
    }


def main(name):
    """One launch to warm up, then several that are timed."""
    kernel, grid, block, arrays = launches()[name]
    arrays = [cuda.to_device(x) if isinstance(x, np.ndarray) else x for x in arrays]
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.process_time()
        kernel[grid, block](*arrays)
        cuda.synchronize()
        seconds.append(time.process_time() - start)
    result = hashlib.sha256(arrays[-1].copy_to_host().tobytes()).hexdigest()[:16]
    print(json.dumps({"median_s": statistics.median(seconds[1:]), "times_s": seconds[1:], "result": result}))


if __name__ == "__main__":
    main(sys.argv[1])
