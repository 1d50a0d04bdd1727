"""Beat the bytes.

Teaches: a step takes as long as its bytes; fusing launches saves loads and stores, not arithmetic

Explained in: ../1-why-merging-pays.ipynb
"""

# %% [markdown]
# Three kernels make one step of momentum, with a gradient that has to be scaled down. None of them wastes a byte: they
# use every byte of every sector. Together they move 32 bytes per element in three launches. How few bytes and launches
# are enough?
#
# Keep the order of the operations, so that the bits stay the same.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(p, g, v, scale, lr, mu):
    v[...] = mu * v
    v[...] = v + scale * g
    p[...] = p - lr * v


def arguments(n):
    p, g, v = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    return p, g, v, np.float32(1 / 3), np.float32(0.1), np.float32(0.9)


cases = {"128 elements": arguments(128), "70 elements": arguments(70)}
exercise = Exercise("18_beat_the_bytes", spec, cases, limits=["launches", "bytes", "requests", "copies"],
                    large=lambda: arguments(2**22))


# %%
# [solution]
@cuda.jit
def fused(p, g, v, scale, lr, mu):
    i = cuda.grid(1)
    if i < p.size:
        new = mu * v[i] + scale * g[i]
        v[i] = new
        p[i] = p[i] - lr * new


def step(p, g, v, scale, lr, mu):
    fused[-(-p.size // 32), 32](p, g, v, scale, lr, mu)


# [stub]
# # CHANGE ME: one kernel, and one launch in step
# @cuda.jit
# def decay(v, mu):
#     i = cuda.grid(1)
#     if i < v.size:
#         v[i] = mu * v[i]
#
#
# @cuda.jit
# def add_scaled(v, g, scale):
#     i = cuda.grid(1)
#     if i < v.size:
#         v[i] = v[i] + scale * g[i]
#
#
# @cuda.jit
# def descend(p, v, lr):
#     i = cuda.grid(1)
#     if i < p.size:
#         p[i] = p[i] - lr * v[i]
#
#
# def step(p, g, v, scale, lr, mu):
#     blocks = -(-p.size // 32)
#     decay[blocks, 32](v, mu)
#     add_scaled[blocks, 32](v, g, scale)
#     descend[blocks, 32](p, v, lr)
#
#
# [end]

# %% [notebook]
# exercise.check(step)

# %% [notebook]
# exercise.picture(step)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# p, g and v have to be loaded, p and v stored: 20 bytes per element. Which of the 32 are loads of values that were just
# stored?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Keep the new velocity in a variable: store it once, and do not load it again.
#
# </details>
