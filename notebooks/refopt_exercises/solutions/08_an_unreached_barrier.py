"""Detective: the barrier that some never reach.

Teaches: all threads of a block must reach a barrier, so it must not be inside a condition

Explained in: ../7-what-goes-wrong.ipynb
"""

# %% [markdown]
# The kernel below finds the largest absolute value of each block of 64 elements, as a loss scaler needs it. With 128
# elements it is correct. With 100 it may hang on one GPU and give wrong numbers on another. The executor reports which
# threads wait at the barrier, and how many never reach it.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(x, largest):
    for block in range(largest.size):
        largest[block] = np.abs(x[64 * block : 64 * block + 64]).max()


def launch(find_largest, x, largest):
    find_largest[largest.size, 64](x, largest)


def arguments(n):
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    return x, np.full(-(-n // 64), np.nan, np.float32)


cases = {"100 elements": arguments(100), "128 elements": arguments(128), "65 elements": arguments(65)}
exercise = Exercise("08_an_unreached_barrier", spec, cases, launch, limits=["barriers", "requests"],
                    large=lambda: arguments(2**22))

ZERO = np.float32(0)


# %%
@cuda.jit
def find_largest(x, largest):
    shared = cuda.shared.array(64, np.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    # [solution]
    shared[t] = abs(x[i]) if i < x.size else ZERO
    half = 32
    while half > 0:
        cuda.syncthreads()
        if t < half and shared[t + half] > shared[t]:
            shared[t] = shared[t + half]
        half //= 2
    # [stub]
    # # CHANGE ME, about 2 lines
    # if i < x.size:
    #     shared[t] = abs(x[i])
    #     half = 32
    #     while half > 0:
    #         cuda.syncthreads()
    #         if t < half and shared[t + half] > shared[t]:
    #             shared[t] = shared[t + half]
    #         half //= 2
    # [end]
    if t == 0:
        largest[cuda.blockIdx.x] = shared[0]


# %% [notebook]
# exercise.check(find_largest)

# %% [notebook]
# exercise.picture(find_largest)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# In the last block some threads have no element. Where are they while the others wait?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Let a thread without an element take part, with a value that cannot change a maximum of absolute values.
#
# </details>
