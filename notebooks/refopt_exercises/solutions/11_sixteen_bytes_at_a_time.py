"""Sixteen bytes at a time.

Teaches: vector loads and stores, which move four elements with one request, and the tail that they leave

Explained in: ../2a-all-tensors.ipynb
"""

# %% [markdown]
# Write SGD, `p = p - lr * g`, four elements at a time. The kernel gets addresses in bytes and the number of elements.
# `load4_float32(address)` returns a tuple of four with one request of 16 bytes, and `store4_float32(address, values)`
# stores one; the address must be a multiple of 16. Load and store the remaining elements one by one.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import address
from refopt.gpu.vectors import load4_float32, load_float32, store4_float32, store_float32
from refopt_exercises import Exercise


def spec(p, g, lr):
    p[...] = p - lr * g


def launch(sgd, p, g, lr):
    sgd[2, 32](address(p), address(g), p.size, lr)


def arguments(n):
    p, g = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
    return p, g, np.float32(0.1)


cases = {"303 elements": arguments(303), "128 elements": arguments(128), "3 elements": arguments(3)}
exercise = Exercise("11_sixteen_bytes_at_a_time", spec, cases, launch, limits=["requests", "sectors"],
                    large=lambda: arguments(2**18))


# %%
@cuda.jit
def sgd(p, g, size, lr):
    fours = size // 4 * 4  # elements that can be taken four at a time
    # [solution]
    for i in range(4 * cuda.grid(1), fours, 4 * cuda.gridsize(1)):
        x, d = load4_float32(p + 4 * i), load4_float32(g + 4 * i)
        new = x[0] - lr * d[0], x[1] - lr * d[1], x[2] - lr * d[2], x[3] - lr * d[3]
        store4_float32(p + 4 * i, new)
    # [stub]
    # # FILL ME IN, about 4 lines
    # [end]
    for i in range(fours + cuda.grid(1), size, cuda.gridsize(1)):
        # [solution]
        store_float32(p + 4 * i, load_float32(p + 4 * i) - lr * load_float32(g + 4 * i))
        # [stub]
        # # FILL ME IN, about 1 line
        # pass
        # [end]


# %% [notebook]
# exercise.check(sgd)

# %% [notebook]
# exercise.picture(sgd)

# %% [notebook]
# exercise.requests(sgd, "g")

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Use a grid-stride loop in which a thread takes four neighbours. If thread 1 begins at element 4, where does thread 0
# continue?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Element i of fp32 is at `p + 4 * i`. If i is a multiple of 4, that is a multiple of 16 bytes from p.
#
# </details>
