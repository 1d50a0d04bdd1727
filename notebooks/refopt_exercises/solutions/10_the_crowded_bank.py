"""Detective: the crowded bank.

Teaches: shared memory has 32 banks, and a column of a tile of 32 by 32 is in one of them

Explained in: ../7a-what-is-slow.ipynb
"""

# %% [markdown]
# The kernel below transposes through shared memory: a warp loads the rows of a tile of 32 by 32 and stores its columns,
# so that both the loads and the stores of global memory are coalesced. All numbers are right and every access is in
# bounds, but the accesses to shared memory are slow. The score shows why.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(x, out):
    out[...] = x.T


def launch(transpose, x, out):
    transpose[-(-x.shape[0] // 32) * -(-x.shape[1] // 32), 32](x, out)  # a block of one warp for each tile


def arguments(rows, columns):
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    return x, np.full((columns, rows), np.nan, np.float32)


cases = {"32 by 32": arguments(32, 32), "40 by 33": arguments(40, 33)}
exercise = Exercise("10_the_crowded_bank", spec, cases, launch, limits=["sectors", "conflicts", "barriers"],
                    large=lambda: arguments(2**11, 2**11))


# %%
@cuda.jit
def transpose(x, out):
    # [solution]
    tile = cuda.shared.array((32, 33), np.float32)
    # [stub]
    # tile = cuda.shared.array((32, 32), np.float32)  # CHANGE ME, 1 line
    # [end]
    tiles = (x.shape[1] + 31) // 32  # of a row of tiles
    row, column = cuda.blockIdx.x // tiles * 32, cuda.blockIdx.x % tiles * 32
    lane = cuda.threadIdx.x
    for k in range(32):
        if row + k < x.shape[0] and column + lane < x.shape[1]:
            tile[k, lane] = x[row + k, column + lane]
    cuda.syncthreads()
    for k in range(32):
        if column + k < x.shape[1] and row + lane < x.shape[0]:
            out[column + k, row + lane] = tile[lane, k]


# %% [notebook]
# exercise.compare(transpose)

# %% [notebook]
# exercise.check(transpose)

# %% [notebook]
# exercise.picture(transpose)

# %% [markdown]
# Which banks hold the words that a warp loads or stores at a time?

# %% [notebook]
# exercise.requests(transpose, "shared")

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A word of shared memory is in bank `address / 4 % 32`. In which banks are `tile[0, k]`, `tile[1, k]`, `tile[2, k]`?
#
# </details>
# <details><summary>Hint 2</summary>
#
# If a row of the tile had 33 elements, the next row would begin one bank further on. The last element of each row may
# stay unused.
#
# </details>
