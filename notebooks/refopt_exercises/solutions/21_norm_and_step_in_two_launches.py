"""Global norm and AdamW, in two launches.

Teaches: clipping by the norm of all gradients needs all of them before the first update; two launches are enough

Explained in: ../2b-sums.ipynb
"""

# %% [markdown]
# Clip all gradients by their common norm, then take a step of AdamW, for any number of tensors. A launch sees
# everything that the blocks of the previous one wrote, so one launch sums squares, and the next one computes the norm
# and the step. The norm needs no third launch: each block adds up the sums of all chunks, in the same order.
#
# The order is part of the specification. Lane t of 64 adds up the squares of elements t, t + 64, ... of its chunk of at
# most 1024; the second half of the lanes is added to the first until one sum is left. The sums of chunks are added one
# by one, in the order of the table: large tensors first.

# %%
import numpy as np

from refopt.gpu import cuda, parts
from refopt.gpu.cuda import on_machine_of
from refopt.gpu.parts import START, STOP, TENSOR, sqrt
from refopt.gpu.vectors import load_float32, store_float32
from refopt_exercises import Exercise

ZERO, ONE = np.float32(0), np.float32(1)


def sum_of_squares(chunk):
    s = np.zeros(64, np.float32)
    for row in np.append(chunk, np.zeros(-chunk.size % 64, np.float32)).reshape(-1, 64):
        s = s + row * row
    while s.size > 1:
        s = s[: s.size // 2] + s[s.size // 2 :]
    return s[0]


def spec(params, grads, moments1, moments2, max_norm, lr, beta1, beta2, epsilon, coeff, beta1_pow, beta2_pow):
    total = ZERO
    for g in sorted(grads, key=lambda g: -g.size):  # in the table's order; those of equal size as in the list
        for start in range(0, g.size, 1024):
            total = total + sum_of_squares(g[start : start + 1024])
    norm = np.sqrt(total)
    factor = max_norm / norm if norm > max_norm else ONE
    for p, g, m, u in zip(params, grads, moments1, moments2):
        d = factor * g
        m[...] = beta1 * m + (ONE - beta1) * d
        u[...] = beta2 * u + (ONE - beta2) * d * d
        x = p * (ONE - lr * coeff)
        p[...] = x - lr / (ONE - beta1_pow) * (m / (np.sqrt(u) / np.sqrt(ONE - beta2_pow) + epsilon))


def launch(step, params, grads, moments1, moments2, *numbers):
    table = parts.Table(params, grads, moments1, moments2, tiles=1)
    step(table, on_machine_of(params[0], np.zeros(table.count, np.float32)), *numbers)


def arguments(*sizes, scale=1.0, max_norm=1.0, seed=0):
    rng = np.random.default_rng(seed)
    scales = np.float32(1), np.float32(scale), np.float32(1e-2), np.float32(1e-4)
    lists = [[k * rng.random(n).astype(np.float32) for n in sizes] for k in scales]
    numbers = max_norm, 0.125, 0.9, 0.999, 1e-8, 0.01, 0.9**3, 0.999**3
    return *lists, *map(np.float32, numbers)


cases = {
    "a norm above the limit": arguments(70, 1100, 3), "a norm below it": arguments(70, scale=0.01),
    "gradients of 0": arguments(5, 64, scale=0),
    "20 tensors": arguments(*range(30, 130, 5), scale=2.0, max_norm=30.0, seed=5),
}
limits = "launches", "requests", "barriers", "copies"
exercise = Exercise("21_norm_and_step_in_two_launches", spec, cases, launch, limits,
                    large=lambda: arguments(*[2**16] * 16))


# %%
@cuda.jit
def square_sums(addresses, chunks, sums):
    shared = cuda.shared.array(64, np.float32)
    t, c = cuda.threadIdx.x, cuda.blockIdx.x
    g = addresses[1, chunks[c, TENSOR]]
    x = ZERO
    for i in range(chunks[c, START] + t, chunks[c, STOP], 64):
        d = load_float32(g + 4 * i)
        x += d * d
    shared[t] = x
    # [solution]
    half = 32
    while half > 0:
        cuda.syncthreads()
        if t < half:
            shared[t] += shared[t + half]
        half //= 2
    if t == 0:
        sums[c] = shared[0]
    # [stub]
    # # FILL ME IN, about 8 lines: the tree, and the sum of this chunk
    # [end]


# %%
@cuda.jit
def clip_and_step(addresses, chunks, sums, max_norm, lr, beta1, beta2, epsilon, coeff, beta1_pow, beta2_pow):
    c = cuda.blockIdx.x
    tensor = chunks[c, TENSOR]
    p, g, m, u = addresses[0, tensor], addresses[1, tensor], addresses[2, tensor], addresses[3, tensor]
    factor = ONE
    # [solution]
    total = ZERO
    for k in range(sums.size):
        total += sums[k]
    norm = sqrt(total)
    if norm > max_norm:
        factor = max_norm / norm
    # [stub]
    # # FILL ME IN, about 6 lines: the sum of all chunks, the norm, and the factor
    # [end]
    keep, rate, root = ONE - lr * coeff, lr / (ONE - beta1_pow), sqrt(ONE - beta2_pow)
    for i in range(chunks[c, START] + cuda.threadIdx.x, chunks[c, STOP], 64):
        at = 4 * i
        d = factor * load_float32(g + at)
        # [solution]
        new_m = beta1 * load_float32(m + at) + (ONE - beta1) * d
        new_u = beta2 * load_float32(u + at) + (ONE - beta2) * d * d
        store_float32(p + at, load_float32(p + at) * keep - rate * (new_m / (sqrt(new_u) / root + epsilon)))
        store_float32(m + at, new_m)
        store_float32(u + at, new_u)
        # [stub]
        # # FILL ME IN, about 5 lines: AdamW of one element
        # [end]


def step(table, sums, max_norm, *numbers):
    table.launch(square_sums, sums)()
    table.launch(clip_and_step, sums, max_norm, *numbers)()


# %% [notebook]
# exercise.check(step)

# %% [markdown]
# The pictures show the first launch and the second one:

# %% [notebook]
# exercise.picture(step, "grads[0]", "grads[1]", "grads[2]")

# %% [notebook]
# exercise.picture(step, "params[0]", "params[1]", "params[2]", launch=1)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The tree is that of exercise 6. Every thread can add up all sums: if all threads of a warp read the same element, that
# is one request.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `sums` has an element for each chunk, so no two blocks write to the same one. Why would an atomic addition to one
# element give different bits?
#
# </details>
