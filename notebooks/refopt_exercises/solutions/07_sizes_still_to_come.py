"""Detective: sizes still to come.

Teaches: a race between a read and a write that no test of the numbers shows; read, wait, write, wait

Explained in: ../7-what-goes-wrong.ipynb
"""

# %% [markdown]
# To place tensors in a buffer from its end, you need, for each tensor, the number of elements still to come: its own
# size plus all later ones. A block computes this in five rounds, in which each thread adds the element 1, 2, 4, 8 and
# 16 places after its own.
#
# The kernel gives the right numbers here, and usually on a GPU.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(sizes, to_come):
    to_come[...] = np.cumsum(sizes[::-1])[::-1]


def launch(suffix_sums, sizes, to_come):
    suffix_sums[1, 32](sizes, to_come)


def arguments(n):
    return np.arange(1, n + 1, dtype=np.int32), np.full(n, -1, np.int32)


cases = {"32 tensors": arguments(32), "20 tensors": arguments(20)}
exercise = Exercise("07_sizes_still_to_come", spec, cases, launch, limits=["barriers", "requests"])


# %%
@cuda.jit
def suffix_sums(sizes, to_come):
    shared = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    shared[t] = sizes[t] if t < sizes.size else 0
    cuda.syncthreads()
    distance = 1
    while distance < 32:
        # [solution]
        behind = shared[t + distance] if t + distance < 32 else 0
        cuda.syncthreads()
        shared[t] += behind
        cuda.syncthreads()
        # [stub]
        # # CHANGE ME, about 4 lines
        # if t + distance < 32:
        #     shared[t] += shared[t + distance]
        # cuda.syncthreads()
        # [end]
        distance *= 2
    if t < sizes.size:
        to_come[t] = shared[t]


# %% [markdown]
# A comparison of the numbers alone:

# %% [notebook]
# exercise.compare(suffix_sums)

# %% [markdown]
# The executor names two lines and two threads:

# %% [notebook]
# exercise.check(suffix_sums)

# %% [notebook]
# exercise.picture(suffix_sums)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Thread 3 reads the element that thread 4 writes in the same round. What if thread 4 is faster?
#
# </details>
# <details><summary>Hint 2</summary>
#
# All threads must read before any writes: keep the value in a variable, and put a barrier between the two.
#
# </details>
