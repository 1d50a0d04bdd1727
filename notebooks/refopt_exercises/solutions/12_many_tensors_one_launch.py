"""Many tensors, one launch.

Teaches: merging: a table says which part of which tensor a block takes, so one launch updates all tensors

Explained in: ../2a-all-tensors.ipynb
"""

# %% [markdown]
# Write SGD for a list of tensors, which have 3, 70, 0 and 1100 elements. `parts.Table` writes their addresses into a
# table, cuts them into chunks of at most 1024 elements, and launches a block for each chunk. The block looks up its own
# row of `chunks`, and its threads loop over the elements from `start` to `stop`, as a grid does over a whole tensor.

# %%
import numpy as np

from refopt.gpu import cuda, parts
from refopt.gpu.parts import START, STOP, TENSOR
from refopt.gpu.vectors import load_float32, store_float32
from refopt_exercises import Exercise


def spec(params, grads, lr):
    for p, g in zip(params, grads):
        p[...] = p - lr * g


def launch(sgd, params, grads, lr):
    parts.Table(params, grads, tiles=1).launch(sgd, lr)()


def arguments(*sizes):
    rng = np.random.default_rng(0)
    params, grads = ([rng.standard_normal(n).astype(np.float32) for n in sizes] for _ in range(2))
    return params, grads, np.float32(0.1)


cases = {"four tensors, one of them empty": arguments(3, 70, 0, 1100), "one tensor": arguments(40)}
exercise = Exercise("12_many_tensors_one_launch", spec, cases, launch, limits=["sectors", "requests"],
                    large=lambda: arguments(*[2**16] * 64))

# %% [markdown]
# `load_float32(address)` and `store_float32(address, value)` take addresses in bytes: element i is at `p + 4 * i`.


# %%
@cuda.jit
def sgd(addresses, chunks, lr):
    c = cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    p, g = addresses[0, tensor], addresses[1, tensor]  # where the tensor's arrays of the two lists begin
    # [solution]
    for i in range(start + cuda.threadIdx.x, stop, cuda.blockDim.x):
        store_float32(p + 4 * i, load_float32(p + 4 * i) - lr * load_float32(g + 4 * i))
    # [stub]
    # # FILL ME IN, about 2 lines
    # [end]


# %% [notebook]
# exercise.check(sgd)

# %% [notebook]
# exercise.picture(sgd, "params[0]", "params[1]", "params[3]")

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Write a grid-stride loop, with the block instead of the grid and the chunk instead of the tensor.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The chunk's first element is `start`, not 0; neighbouring threads still take neighbouring elements.
#
# </details>
