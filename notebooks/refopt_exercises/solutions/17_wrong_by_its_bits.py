"""Wrong by its bits.

Teaches: formulas that are equal in exact arithmetic round differently; the elements that differ show which line does

Explained in: ../15-the-oracle.ipynb
"""

# %% [markdown]
# Another AdamW, the suspect, agrees with yours within any reasonable tolerance, but not bit for bit, so two runs of the
# same training drift apart. You have its results, not its source. It computes one line of the kernel below differently,
# though both are AdamW on paper. Find the line by comparing bits, and write it as the suspect does. There are four
# suspicions, all of them equal to the kernel in exact arithmetic:
#
# - the decay is subtracted, `p - lr * coeff * p`, instead of multiplying p;
# - the square is formed first, `(1 - beta2) * (g * g)`;
# - the moment, instead of the rate, is divided by `1 - beta1_pow`, before it is divided by the root;
# - the root is taken of the corrected square, `sqrt(u / (1 - beta2_pow))`, not of each.

# %%
import math

import numpy as np

from refopt.gpu import cuda
from refopt_exercises import Exercise, suspect

spec = suspect.adamw  # (p, g, m, u, lr, beta1, beta2, epsilon, coeff, beta1_pow, beta2_pow)


def launch(adamw, p, *args):
    adamw[-(-p.size // 32), 32](p, *args)


def arguments(g=1.0, coeff=0.01):
    rng = np.random.default_rng(0)
    p, m, grad = rng.standard_normal((3, 200)).astype(np.float32)
    u = rng.random(200).astype(np.float32)
    numbers = 0.1, 0.9, 0.999, 1e-8, coeff, 0.9**3, 0.999**3
    return p, np.float32(g) * grad, m, u, *map(np.float32, numbers)


cases = {"random gradients": arguments(), "gradients of 0": arguments(g=0), "no decay": arguments(coeff=0)}
exercise = Exercise("17_wrong_by_its_bits", spec, cases, launch, limits=["requests", "sectors"])

ONE = np.float32(1)


@cuda.jit(device=True)
def sqrt(x):
    """The square root in fp32. Compiled, ``math.sqrt`` gives that; in plain Python it gives a double."""
    return np.float32(math.sqrt(x))


# %% [markdown]
# The oracle allows as much rounding error as the formula can cause. It finds that the suspect obeys its first law:

# %% [notebook]
# from refopt import oracle
#
# print(oracle.check("adamw", suspect.step, dtypes=["float32"], laws=["L1"]))


# %%
@cuda.jit
def adamw(p, g, m, u, lr, beta1, beta2, epsilon, coeff, beta1_pow, beta2_pow):
    i = cuda.grid(1)
    if i < p.size:
        # [solution]
        x, d = p[i], g[i]
        x = x - lr * coeff * x
        # [stub]
        # # CHANGE ME, 1 line of these
        # x, d = p[i], g[i]
        # x = x * (ONE - lr * coeff)
        # [end]
        new_m = beta1 * m[i] + (ONE - beta1) * d
        new_u = beta2 * u[i] + (ONE - beta2) * d * d
        rate = lr / (ONE - beta1_pow)
        x = x - rate * (new_m / (sqrt(new_u) / sqrt(ONE - beta2_pow) + epsilon))
        p[i], m[i], u[i] = x, new_m, new_u


# %% [markdown]
# How many elements of each array differ in each case? Which arrays are always equal, and in which case are all equal?

# %% [notebook]
# exercise.differences(adamw)

# %% [notebook]
# exercise.check(adamw)

# %% [notebook]
# exercise.picture(adamw, "p", "u")

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Both moments are equal bit for bit. Which of the suspicions would change u?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Without decay no element differs. `lr * coeff * x` is computed from the left: `(lr * coeff) * x`.
#
# </details>
