"""Norms and a step.

Teaches: LARS: two norms by one tree, and a separate learning rate for each tensor, in one launch

Explained in: ../3-lars.ipynb
"""

# %% [markdown]
# LARS gives each tensor a rate that depends on the norms of its parameter and its gradient. A block of 64 threads takes
# one tensor: each thread adds up squares of elements that are 64 apart, a tree joins the 64 sums, and then all threads
# update. If a norm is 0, the rate is `lr`; otherwise a tensor that begins at 0 could never change.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt.gpu.cuda import address, on_machine_of
from refopt.gpu.parts import sqrt
from refopt.gpu.vectors import load_float32, store_float32
from refopt_exercises import Exercise


def norm(x):
    s = np.zeros(64, np.float32)
    for row in np.append(x, np.zeros(-x.size % 64, np.float32)).reshape(-1, 64):
        s = s + row * row
    while s.size > 1:
        s = s[: s.size // 2] + s[s.size // 2 :]
    return np.sqrt(s[0])


def spec(params, grads, lr, coeff):
    for p, g in zip(params, grads):
        of_p, of_g = norm(p), norm(g)
        rate = lr * (coeff * of_p / of_g) if of_p > 0 and of_g > 0 else lr
        p[...] = p - rate * g


def launch(lars, params, grads, lr, coeff):
    rows = [(address(p), address(g), p.size) for p, g in zip(params, grads)]
    lars[len(rows), 64](on_machine_of(params[0], np.array(rows, np.int64)), lr, coeff)


def arguments(*sizes):
    rng = np.random.default_rng(0)
    params, grads = ([rng.standard_normal(n).astype(np.float32) for n in sizes] for _ in range(2))
    return params, grads, np.float32(0.5), np.float32(0.01)


at_zero, still = arguments(70), arguments(70)
at_zero[0][0][:] = 0
still[1][0][:] = 0
cases = {"150 and 7 elements": arguments(150, 7), "a parameter of 0": at_zero, "a gradient of 0": still}
exercise = Exercise("15_norms_and_a_step", spec, cases, launch, limits=["launches", "requests", "barriers"],
                    large=lambda: arguments(*[2**12] * 1024))

ZERO = np.float32(0)
P, G, SIZE = range(3)  # columns of the table


# %%
@cuda.jit
def lars(table, lr, coeff):
    shared = cuda.shared.array((2, 64), np.float32)
    t, tensor = cuda.threadIdx.x, cuda.blockIdx.x
    p, g, size = table[tensor, P], table[tensor, G], table[tensor, SIZE]
    x, y = ZERO, ZERO
    for i in range(t, size, 64):
        a, b = load_float32(p + 4 * i), load_float32(g + 4 * i)
        x, y = x + a * a, y + b * b
    shared[0, t], shared[1, t] = x, y
    # [solution]
    half = 32
    while half > 0:
        cuda.syncthreads()
        if t < half:
            shared[0, t] += shared[0, t + half]
            shared[1, t] += shared[1, t + half]
        half //= 2
    cuda.syncthreads()
    of_p, of_g = sqrt(shared[0, 0]), sqrt(shared[1, 0])
    rate = lr
    if of_p > ZERO and of_g > ZERO:
        rate = lr * (coeff * of_p / of_g)
    # [stub]
    # # FILL ME IN, about 11 lines: the tree for both sums, two norms, and the rate of this tensor
    # rate = lr
    # [end]
    for i in range(t, size, 64):
        store_float32(p + 4 * i, load_float32(p + 4 * i) - rate * load_float32(g + 4 * i))


# %% [notebook]
# exercise.check(lars)

# %% [notebook]
# exercise.picture(lars, "params[0]", "grads[0]", "params[1]")

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Two trees of the same shape can share their barriers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# All threads need the norms, not just thread 0: after the last level there is one more barrier.
#
# </details>
