"""A sum by shuffles.

Teaches: the threads of a warp pass values to each other without memory and without a barrier

Explained in: ../2b-sums.ipynb
"""

# %% [markdown]
# A warp sums a row of 32 numbers, neighbours first: 0 and 1, 2 and 3, and so on; then pairs of these sums. A block has
# four warps, so it takes four rows. You need neither shared memory nor a barrier: `cuda.shfl_xor_sync(WARP, value, k)`
# gives each lane the value of the lane whose number differs in the bits of k.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(x, sums):
    for row in range(sums.size):
        s = x[row]
        while s.size > 1:
            s = s[0::2] + s[1::2]
        sums[row] = s[0]


def launch(sum_rows, x, sums):
    sum_rows[-(-sums.size // 4), 128](x, sums)


def arguments(rows):
    x = np.random.default_rng(rows).standard_normal((rows, 32)).astype(np.float32)
    return x, np.full(rows, np.nan, np.float32)


cases = {"4 rows": arguments(4), "5 rows": arguments(5), "1 row": arguments(1)}
exercise = Exercise("09_a_sum_by_shuffles", spec, cases, launch, limits=["requests", "barriers"],
                    large=lambda: arguments(2**17))

WARP = 0xFFFFFFFF  # all 32 lanes take part


# %%
@cuda.jit
def sum_rows(x, sums):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < sums.size:  # all lanes of a warp have one row, so either all of them come in here or none
        value = x[row, lane]
        # [solution]
        for level in range(5):
            value += cuda.shfl_xor_sync(WARP, value, 1 << level)
        if lane == 0:
            sums[row] = value
        # [stub]
        # # FILL ME IN, about 4 lines
        # [end]


# %% [notebook]
# exercise.check(sum_rows)

# %% [notebook]
# exercise.picture(sum_rows)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Lane 0 first needs the value of lane 1, and lane 2 that of lane 3: numbers that differ in bit 0. Then lane 0 needs the
# sum of lanes 2 and 3, whose numbers differ from its own in bit 1.
#
# </details>
# <details><summary>Hint 2</summary>
#
# There are five rounds, with k = 1, 2, 4, 8, 16. In the end all lanes have the sum; one of them stores it.
#
# </details>
