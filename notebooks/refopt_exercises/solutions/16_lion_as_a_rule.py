"""Lion as a rule.

Teaches: only a rule for one element distinguishes an optimizer; loads, tables and launches are the same for all

Explained in: ../../docs/adding-an-optimizer.md
"""

# %% [markdown]
# Lion takes a step of fixed size, in the direction of the sign of a blend of momentum and gradient. Write the rule for
# one element. The rest is given: `update` applies the rule to the eight elements that a thread holds, `parts.rows`
# loops over a chunk, and `parts.Table` over all tensors. The specification is refopt's reference, `cpu.merged_lion`:
#
#     c = beta1 * m + (1 - beta1) * g
#     p = p * (1 - lr * coeff) - lr * sign(c)        with the old m
#     m = beta2 * m + (1 - beta2) * g

# %%
import numpy as np

from refopt import cpu
from refopt.gpu import cuda, parts
from refopt_exercises import Exercise

ONE, ZERO = np.float32(1), np.float32(0)


def spec(params, grads, moments, lr, beta1, beta2, coeff):
    cpu.merged_lion(params, grads, moments, lr=lr, beta1=beta1, beta2=beta2, coeff=coeff)


def launch(rule, params, grads, moments, lr, beta1, beta2, coeff):
    load, store = parts.access("float32")

    @parts.rows
    @parts.device_function
    def update(addresses, tensor, i, stop, whole, k):
        x = cuda.local.array((3, 8), np.float32)
        for a in range(3):
            load(addresses[a, tensor], i, stop, whole, x, a)
        for e in range(8):
            x[0, e], x[2, e] = rule(x[0, e], x[1, e], x[2, e], k)
        store(addresses[0, tensor], i, stop, whole, x, 0)
        store(addresses[2, tensor], i, stop, whole, x, 2)

    @cuda.jit
    def lion(addresses, chunks, lr, beta1, beta2, coeff):
        k = lr, beta1, ONE - beta1, beta2, ONE - beta2, ONE - lr * coeff
        update(addresses, chunks, cuda.blockIdx.x, k)

    parts.Table(params, grads, moments, tiles=1).launch(lion, lr, beta1, beta2, coeff)()


def arguments(*sizes, zero=False):
    rng = np.random.default_rng(0)
    lists = [[rng.standard_normal(n).astype(np.float32) for n in sizes] for _ in range(3)]
    for x in (*lists[1], *lists[2]):
        x[...] = 0 if zero else x
    return *lists, *map(np.float32, (0.1, 0.9, 0.99, 0.01))


cases = {"3, 70 and 300 elements": arguments(3, 70, 300), "nothing to blend": arguments(70, zero=True)}
exercise = Exercise("16_lion_as_a_rule", spec, cases, launch, limits=["launches", "requests"],
                    large=lambda: arguments(*[2**16] * 64))

# %% [markdown]
# The sign of 0 is 0. `k` holds the values that all elements share: `1 - beta1`, for example, is computed once.


# %%
@parts.device_function
def rule(p, g, m, k):
    lr, beta1, rest1, beta2, rest2, keep = k  # keep is 1 - lr * coeff
    # [solution]
    c = beta1 * m + rest1 * g
    sign = ONE if c > ZERO else (-ONE if c < ZERO else c)
    return p * keep - lr * sign, beta2 * m + rest2 * g
    # [stub]
    # # FILL ME IN, about 3 lines: return the new p and the new m
    # return p, m
    # [end]


# %% [notebook]
# exercise.check(rule)

# %% [notebook]
# exercise.picture(rule, "params[0]", "params[1]", "params[2]")

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Compute the sign by comparisons: `a if condition else b`. Its numbers must be fp32; otherwise the kernel computes in
# fp64.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The blend with beta1 serves only for the sign. Store the blend with beta2 as the momentum.
#
# </details>
