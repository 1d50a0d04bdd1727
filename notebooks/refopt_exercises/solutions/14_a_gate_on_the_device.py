"""A gate on the device.

Teaches: a step that skips itself when a gradient is inf or NaN, without asking the host

Explained in: ../6-mixed-precision.ipynb
"""

# %% [markdown]
# In mixed precision a step is skipped if any gradient is inf or NaN. If the host read the flag, it would wait for the
# GPU, and then the GPU for the host. So the flag stays on the device: one kernel sets it, the next one reads it.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(p, g, v, found_inf, lr, mu):
    if np.isfinite(g).all():
        v[...] = mu * v + g
        p[...] = p - lr * v
    else:
        found_inf[0] = 1


def arguments(n, value=None):
    p, g, v = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    g[n // 2] = g[n // 2] if value is None else value
    return p, g, v, np.zeros(1, np.int32), np.float32(0.1), np.float32(0.9)


cases = {
    "70 finite gradients": arguments(70), "a NaN among 70": arguments(70, np.nan),
    "an inf among 70": arguments(70, np.inf), "a -inf among 70": arguments(70, -np.inf),
}
exercise = Exercise("14_a_gate_on_the_device", spec, cases, limits=["launches", "copies", "requests"],
                    large=lambda: arguments(2**22))

ZERO = np.float32(0)

# %% [markdown]
# Several threads may find an inf or NaN at once. `cuda.atomic.max(array, index, value)` lets them all set the flag.


# %%
@cuda.jit
def find(g, found_inf):
    i = cuda.grid(1)
    # [solution]
    if i < g.size and g[i] - g[i] != ZERO:  # inf - inf and NaN - NaN are NaN, which is not equal to anything
        cuda.atomic.max(found_inf, 0, 1)
    # [stub]
    # # FILL ME IN, about 2 lines
    # [end]


@cuda.jit
def update(p, g, v, found_inf, lr, mu):
    i = cuda.grid(1)
    # [solution]
    if i < p.size and found_inf[0] == 0:
        new = mu * v[i] + g[i]
        v[i] = new
        p[i] = p[i] - lr * new
    # [stub]
    # # FILL ME IN, about 4 lines
    # [end]


def step(p, g, v, found_inf, lr, mu):
    blocks = -(-p.size // 32)
    find[blocks, 32](g, found_inf)
    update[blocks, 32](p, g, v, found_inf, lr, mu)


# %% [notebook]
# exercise.check(step)

# %% [notebook]
# exercise.picture(step, launch=1)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `x - x` is 0 for every finite x. What is it for inf, -inf and NaN?
#
# </details>
# <details><summary>Hint 2</summary>
#
# All threads read `found_inf[0]`: for a warp that is one request of one sector.
#
# </details>
