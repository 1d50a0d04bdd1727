"""Guard the tail.

Teaches: a thread for each element, and a guard for the threads that have none

Explained in: ../2-from-ten-lines.ipynb
"""

# %% [markdown]
# A gradient was scaled up before the backward pass, and has to be scaled down again: `out[i] = k * x[i]`. The launch
# has a thread for each element. Blocks have 32 threads each, so the last block may have more threads than there are
# elements left.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(x, out, k):
    out[...] = k * x


def launch(scale, x, out, k):
    scale[-(-x.size // 32), 32](x, out, k)  # as many blocks of 32 threads as cover x


def arguments(n):
    return np.arange(n, dtype=np.float32), np.full(n, np.nan, np.float32), np.float32(0.5)


cases = {"72 elements, 3 blocks": arguments(72), "64 elements, 2 full blocks": arguments(64), "1 element": arguments(1)}
exercise = Exercise("01_guard_the_tail", spec, cases, launch, limits=["requests", "sectors"],
                    large=lambda: arguments(2**22))

# %% [markdown]
# The kernel runs once for each thread. `cuda.grid(1)` is the index of the thread in the whole grid: `cuda.blockIdx.x *
# cuda.blockDim.x + cuda.threadIdx.x`.


# %%
@cuda.jit
def scale(x, out, k):
    i = cuda.grid(1)
    # [solution]
    if i < x.size:
        out[i] = k * x[i]
    # [stub]
    # # FILL ME IN, about 2 lines
    # [end]


# %% [notebook]
# exercise.check(scale)

# %% [markdown]
# The picture shows which elements your threads access: a mark for each thread (down) and element (across).

# %% [notebook]
# exercise.picture(scale)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Without a guard the executor reports `OutOfBounds` and names the thread. What do that thread and its neighbours have
# in common?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Only threads with `i < x.size` have an element. The others do nothing.
#
# </details>
