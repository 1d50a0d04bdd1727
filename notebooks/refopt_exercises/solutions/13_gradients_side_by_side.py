"""Gradients side by side.

Teaches: coalescing gradients into one buffer, cast to fp16 on the way, so that one all-reduce takes them all

Explained in: ../8-coalescing.ipynb
"""

# %% [markdown]
# Copy fp32 gradients into one fp16 buffer, multiplied by a scale, each to an offset that is a multiple of 128 elements.
# Leave the gaps between them unchanged. A row of the table has the address of a gradient, its offset in the buffer, and
# its number of elements; a block takes a row.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import address, on_machine_of
from refopt.gpu.vectors import load_float32, store_float16
from refopt_exercises import Exercise


def offsets_of(grads):
    return np.cumsum([0] + [-(-g.size // 128) * 128 for g in grads])[:-1]


def spec(grads, buffer, scale):
    for g, offset in zip(grads, offsets_of(grads)):
        buffer[offset : offset + g.size] = (scale * g).astype(np.float16)


def launch(gather, grads, buffer, scale):
    rows = [(address(g), offset, g.size) for g, offset in zip(grads, offsets_of(grads))]
    gather[len(rows), 64](on_machine_of(buffer, np.array(rows, np.int64)), address(buffer), scale)


def arguments(*sizes):
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal(n).astype(np.float32) for n in sizes]
    return grads, np.full(sum(-(-n // 128) * 128 for n in sizes), -1, np.float16), np.float32(0.25)


cases = {"150, 7 and 64 elements": arguments(150, 7, 64), "1 element": arguments(1)}
exercise = Exercise("13_gradients_side_by_side", spec, cases, launch, limits=["sectors", "requests"],
                    large=lambda: arguments(*[2**12] * 1024))

SOURCE, OFFSET, COUNT = range(3)  # columns of the table


# %%
@cuda.jit
def gather(table, buffer, scale):
    row = cuda.blockIdx.x
    source, offset, count = table[row, SOURCE], table[row, OFFSET], table[row, COUNT]
    # [solution]
    for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
        store_float16(buffer + 2 * (offset + i), scale * load_float32(source + 4 * i))
    # [stub]
    # # FILL ME IN, about 2 lines: store_float16(address, value) rounds to nearest even
    # [end]


# %% [notebook]
# exercise.check(gather)

# %% [notebook]
# exercise.picture(gather, "grads[0]", "grads[1]", "buffer")

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Addresses are in bytes. How many bytes does an element of the source have, and an element of the buffer?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Element i of the gradient goes to element `offset + i` of the buffer, which is at `buffer + 2 * (offset + i)`.
#
# </details>
