"""From columns to rows.

Teaches: coalescing: neighbouring threads load neighbouring elements, so a warp moves 4 sectors instead of 32

Explained in: ../7a-what-is-slow.ipynb
"""

# %% [markdown]
# Each row of a matrix is multiplied by its own factor. In the kernel below each thread takes a row. It is correct but
# slow: memory stores one row after another, so the threads of a warp load elements that are a whole row apart. Memory
# moves sectors of 32 bytes, and each of these loads uses 4 bytes of its sector.
#
# Look at the picture first. Then rewrite the kernel so that other threads make the same loads and stores.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(x, factors, out):
    out[...] = factors[:, np.newaxis] * x


def launch(scale_rows, x, factors, out):
    scale_rows[-(-max(x.shape) // 32), 32](x, factors, out)  # a thread for each row, or for each column


def arguments(rows, columns):
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    return x, np.arange(rows, dtype=np.float32) / 2, np.full_like(x, np.nan)


cases = {"32 rows of 64": arguments(32, 64), "3 rows of 33": arguments(3, 33), "40 rows of 7": arguments(40, 7)}
exercise = Exercise("05_columns_to_rows", spec, cases, launch, limits=["sectors"],
                    large=lambda: arguments(2**11, 2**11))


# %%
@cuda.jit
def scale_rows(x, factors, out):
    # [solution]
    column = cuda.grid(1)
    if column < x.shape[1]:
        for row in range(x.shape[0]):
            out[row, column] = factors[row] * x[row, column]
    # [stub]
    # # CHANGE ME, 4 lines
    # row = cuda.grid(1)
    # if row < x.shape[0]:
    #     for column in range(x.shape[1]):
    #         out[row, column] = factors[row] * x[row, column]
    # [end]


# %% [notebook]
# exercise.picture(scale_rows)

# %% [markdown]
# The picture shows all accesses at once. The cost depends on the elements that a warp requests at a time. Each line
# below is one request.

# %% [notebook]
# exercise.requests(scale_rows, "x")

# %% [notebook]
# exercise.check(scale_rows)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Which index should differ by one between thread 0 and thread 1, so that both load from one sector?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Let each thread take a column and loop over its rows.
#
# </details>
