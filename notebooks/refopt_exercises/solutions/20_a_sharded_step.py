"""A sharded step.

Teaches: each rank owns a part: it sums the gradients of its part only, updates it, and sends it to the others

Explained in: ../12-sharding.ipynb
"""

# %% [markdown]
# Four ranks have the same parameter, each with its own gradient. An all-reduce gives every rank the whole sum, and
# every rank then updates everything, with a velocity as large as the parameter. In a sharded step, each rank owns a
# quarter: it gets the sum of its quarter and updates it, with a velocity of that size; then an all-gather distributes
# the quarters.
#
# `run_ranks` runs a function for each of four ranks in this process. `comm.reduce_scatter(source, target)` writes part
# `comm.rank` of the sum into the target; `comm.all_gather(source, target)` writes the sources of all ranks into the
# target, one after the other. A slice such as `param[8:16]` is a view of the same memory.

# %%
import numpy as np

from refopt.comm import local
from refopt.gpu import cuda
from refopt_exercises import Exercise

RANKS = 4
QUARTER = np.float32(1 / RANKS)


def spec(params, grads, velocities, lr, mu):
    total = grads[0]
    for g in grads[1:]:
        total = total + g
    parts = np.split(params[0], RANKS)  # views
    for part, g, v in zip(parts, np.split(QUARTER * total, RANKS), velocities):
        v[...] = mu * v + g
        part[...] = part - lr * v
    for p in params:
        p[...] = params[0]


def launch(rank_step, params, grads, velocities, lr, mu):
    def one(comm):
        k = comm.rank
        rank_step(comm, params[k], grads[k], velocities[k], lr, mu)

    local.run(one, RANKS)


def arguments(n):
    rng = np.random.default_rng(n)
    params = [rng.standard_normal(n).astype(np.float32)] * RANKS
    grads = [rng.standard_normal(n).astype(np.float32) for _ in range(RANKS)]
    velocities = [rng.standard_normal(n // RANKS).astype(np.float32) for _ in range(RANKS)]
    return params, grads, velocities, np.float32(0.1), np.float32(0.9)


cases = {"128 elements": arguments(128), "40 elements": arguments(40)}
exercise = Exercise(
    "20_a_sharded_step", spec, cases, launch, limits=["copied", "bytes"], ignore=["grads"], on_gpu=False
)


# %%
@cuda.jit
def update(p, g, v, lr, mu, factor):
    i = cuda.grid(1)
    if i < p.size:
        new = mu * v[i] + factor * g[i]
        v[i] = new
        p[i] = p[i] - lr * new


def rank_step(comm, param, grad, velocity, lr, mu):
    size = velocity.size  # of a part
    own = slice(comm.rank * size, (comm.rank + 1) * size)
    # [solution]
    comm.reduce_scatter(grad, grad[own])
    update[-(-size // 32), 32](param[own], grad[own], velocity, lr, mu, QUARTER)
    comm.all_gather(param[own], param)
    # [stub]
    # # FILL ME IN, about 3 lines
    # [end]


# %% [notebook]
# exercise.check(rank_step)

# %% [notebook]
# exercise.picture(rank_step, "params[0]", "grads[0]", "velocities[0]")

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The target of `reduce_scatter` may be this rank's part of the source itself.
#
# </details>
# <details><summary>Hint 2</summary>
#
# You need three lines: sum `own`, update `own`, gather all parts.
#
# </details>
