"""A row for each warp.

Teaches: two arrays of different shapes, and a loop by which 32 threads take a row of any length

Explained in: ../3a-lars-in-two-launches.ipynb
"""

# %% [markdown]
# Add a vector to each row of a matrix, as broadcasting does. A block is one warp of 32 threads and takes one row, whose
# number is `cuda.blockIdx.x`. A row may have more elements than there are threads, or fewer.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(x, b, out):
    out[...] = x + b


def launch(add_row, x, b, out):
    add_row[x.shape[0], 32](x, b, out)


def arguments(rows, columns):
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    return x, np.arange(columns, dtype=np.float32) / 4, np.full_like(x, np.nan)


cases = {"3 rows of 40": arguments(3, 40), "2 rows of 5": arguments(2, 5), "1 row of 96": arguments(1, 96)}
exercise = Exercise("02_a_row_for_each_warp", spec, cases, launch, limits=["requests", "sectors"],
                    large=lambda: arguments(2**12, 2**10))


# %%
@cuda.jit
def add_row(x, b, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    # [solution]
    for column in range(lane, x.shape[1], 32):
        out[row, column] = x[row, column] + b[column]
    # [stub]
    # # FILL ME IN, about 2 lines: range(start, stop, step) works as in Python
    # [end]


# %% [notebook]
# exercise.check(add_row)

# %% [markdown]
# In the picture, elements of a matrix are numbered in the order of memory, row by row.

# %% [notebook]
# exercise.picture(add_row)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# In its first round the warp takes columns 0 to 31, and lane 3 takes column 3. Which column is lane 3's in the second
# round?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Lane 3 takes columns 3, 35, 67, ... as long as they are below `x.shape[1]`.
#
# </details>
