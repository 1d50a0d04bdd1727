"""Detective: a double among floats.

Teaches: a Python number, even an integer, turns fp32 arithmetic into fp64; `np.float32(...)` does not

Explained in: ../7-what-goes-wrong.ipynb
"""

# %% [markdown]
# AdamW shrinks the weights before its step. The kernel below has the right formula, but on some GPUs it takes many
# times as long as it should. Its results do not show why. The executor knows the type that the compiler would give each
# operation.

# %%
import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise


def spec(p, lr, decay):
    p[...] = p * (np.float32(1) - lr * decay)


def launch(shrink, p, lr, decay):
    shrink[-(-p.size // 32), 32](p, lr, decay)


def arguments(n):
    return np.linspace(-1, 1, n, dtype=np.float32), np.float32(0.5), np.float32(0.25)


cases = {"100 elements": arguments(100), "1 element": arguments(1)}
exercise = Exercise("04_a_double_among_floats", spec, cases, launch, limits=["requests", "sectors"],
                    large=lambda: arguments(2**22))

ONE = np.float32(1)


# %%
@cuda.jit
def shrink(p, lr, decay):
    i = cuda.grid(1)
    if i < p.size:
        # [solution]
        p[i] = p[i] * (ONE - lr * decay)
        # [stub]
        # p[i] = p[i] * (1 - lr * decay)  # CHANGE ME, 1 line
        # [end]


# %% [markdown]
# A comparison of the results finds no error:

# %% [notebook]
# exercise.compare(shrink)

# %% [markdown]
# The executor finds it:

# %% [notebook]
# exercise.check(shrink)

# %% [notebook]
# exercise.picture(shrink)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# To the compiler, `1` is an integer of 64 bits. The only common type of an integer and an fp32 number is fp64.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `ONE` has the type fp32.
#
# </details>
