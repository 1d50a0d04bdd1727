"""Top-k with residuals.

Teaches: sending only the largest elements of a gradient, while a residual keeps the others for later steps

Explained in: ../11-fused-all-reduce.ipynb
"""

# %% [markdown]
# An all-reduce moves every element of a gradient. Deep Gradient Compression ([Lin et al.
# 2018](https://arxiv.org/abs/1712.01887); Paddle's `dgc`) sends only the largest ones, 0.1 % in the paper. The others
# are not lost: each rank keeps them in a *residual*, and adds it to its next gradient, until they are large enough.
#
# With `u = r + g`, an element is kept if `|u| < threshold`: `r` gets `u`, and `sent` gets 0. Otherwise `sent` gets `u`,
# and `r` gets 0. So one of the two arrays gets each element bit for bit, -0 and inf included. The threshold is the k-th
# largest `|u|`; if several elements equal it, all of them are sent. NaN is below no threshold, so it is sent: if it
# were kept, it would stay in the residual forever, and the other ranks would not notice.
#
# Each element is sent with its index. The paper also corrects the momentum for elements that are sent late, and clips
# gradients on each rank; this exercise leaves out both.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise

ZERO = np.float32(0)


def spec(g, r, sent, threshold):
    u = r + g
    kept = abs(u) < threshold
    sent[...] = np.where(kept, ZERO, u)
    r[...] = np.where(kept, u, ZERO)


def launch(select, g, r, sent, threshold):
    select[-(-g.size // 32), 32](g, r, sent, threshold)


def arguments(n, k, odd=()):
    g, r = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
    g[: len(odd)] = r[: len(odd)] = odd  # -0 + -0 is -0
    sizes = np.sort(np.nan_to_num(abs(r + g), nan=np.inf))
    return g, r, np.full(n, np.nan, np.float32), sizes[-k]


ODD = -0.0, 0.0, np.nan, np.inf, -np.inf, 1e-45
cases = {
    "the largest 7 of 70": arguments(70, 7), "the largest 9 of 99, with NaN and inf": arguments(99, 9, ODD),
    "20 of one size, of either sign": arguments(45, 9, [4, -4] * 10), "all of 33": arguments(33, 33, ODD),
    "-0 at a threshold of 0": (*arguments(3, 1, [-0.0, 0.0, 1])[:3], ZERO), "1 element": arguments(1, 1),
}
exercise = Exercise("22_top_k_with_residuals", spec, cases, launch, limits=["requests", "sectors"],
                    large=lambda: arguments(2**22, 2**12))


# %%
@cuda.jit
def select(g, r, sent, threshold):
    i = cuda.grid(1)
    # [solution]
    if i < g.size:
        u = r[i] + g[i]
        if abs(u) < threshold:
            sent[i], r[i] = ZERO, u
        else:
            sent[i], r[i] = u, ZERO
    # [stub]
    # # FILL ME IN, about 6 lines: the sum, and which of the two arrays gets it
    # [end]


# %% [notebook]
# exercise.check(select)

# %% [notebook]
# exercise.picture(select)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `r = u - sent` looks right. What is inf - inf? And `sent = u * mask`: what is -1 * 0, and what is inf * 0?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Is `|u| >= threshold` the opposite of `|u| < threshold` for NaN? Store both arrays in either branch of one condition.
#
# </details>
