"""A sum in a block.

Teaches: a tree in shared memory with a barrier between its levels; the order of a sum is part of its specification

Explained in: ../2b-sums.ipynb
"""

# %% [markdown]
# Each block of 64 threads sums 64 elements; the last block may have fewer, and uses 0 for missing elements. A
# floating-point sum depends on the order of the additions, so the specification fixes one: the second half is added to
# the first, again and again, until one number is left.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(x, sums):
    for block in range(sums.size):
        s = np.zeros(64, np.float32)
        part = x[64 * block : 64 * block + 64]
        s[: part.size] = part
        while s.size > 1:
            s = s[: s.size // 2] + s[s.size // 2 :]
        sums[block] = s[0]


def launch(add_up, x, sums):
    add_up[sums.size, 64](x, sums)


def arguments(n):
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    return x, np.full(-(-n // 64), np.nan, np.float32)


cases = {"128 elements": arguments(128), "100 elements": arguments(100), "1 element": arguments(1)}
exercise = Exercise("06_a_sum_in_a_block", spec, cases, launch, limits=["requests", "barriers"],
                    large=lambda: arguments(2**22))

ZERO = np.float32(0)

# %% [markdown]
# All threads of a block see the memory of `cuda.shared.array`. `cuda.syncthreads()` waits until all of them have
# reached it; after it, each thread can read what the others wrote before it.


# %%
@cuda.jit
def add_up(x, sums):
    shared = cuda.shared.array(64, np.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i] if i < x.size else ZERO
    half = 32
    while half > 0:
        # [solution]
        cuda.syncthreads()
        if t < half:
            shared[t] += shared[t + half]
        # [stub]
        # # FILL ME IN, about 3 lines
        # [end]
        half //= 2
    # [solution]
    if t == 0:
        sums[cuda.blockIdx.x] = shared[0]
    # [stub]
    # # FILL ME IN, about 2 lines
    # [end]


# %% [notebook]
# exercise.check(add_up)

# %% [notebook]
# exercise.picture(add_up)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# On each level, thread t adds `shared[t + half]`, which another thread has written on the level before.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Put the barrier outside the condition: all threads must reach it, including those that add nothing.
#
# </details>
