"""A loop over the grid.

Teaches: a grid-stride loop, by which a grid of any size takes arrays of any size

Explained in: ../2-from-ten-lines.ipynb
"""

# %% [markdown]
# Write the momentum step for one tensor. The grid has 2 blocks of 32 threads, however large the tensor is. The whole
# grid takes the first 64 elements, then the next 64, and so on.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(p, g, v, lr, mu):
    v[...] = mu * v + g
    p[...] = p - lr * v


def launch(momentum, p, g, v, lr, mu):
    momentum[2, 32](p, g, v, lr, mu)


def arguments(n):
    p, g, v = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    return p, g, v, np.float32(0.1), np.float32(0.9)


cases = {"150 elements": arguments(150), "64 elements": arguments(64), "20 elements": arguments(20)}
exercise = Exercise("03_grid_stride", spec, cases, launch, limits=["requests", "sectors"],
                    large=lambda: arguments(2**18))

# %% [markdown]
# `cuda.gridsize(1)` is the number of all threads of the grid. Keep a value that you need twice in a variable: an
# element that has just been stored would be loaded again.


# %%
@cuda.jit
def momentum(p, g, v, lr, mu):
    # [solution]
    for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
        new = mu * v[i] + g[i]
        v[i] = new
        p[i] = p[i] - lr * new
    # [stub]
    # # FILL ME IN, about 4 lines
    # pass
    # [end]


# %% [notebook]
# exercise.check(momentum)

# %% [notebook]
# exercise.picture(momentum)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Thread 5 of the grid takes elements 5, 69, 133. What is the step, and where does it end?
#
# </details>
# <details><summary>Hint 2</summary>
#
# If the check reports a `DataRace`, two threads take the same element: is your step the size of a block, or that of the
# grid?
#
# </details>
