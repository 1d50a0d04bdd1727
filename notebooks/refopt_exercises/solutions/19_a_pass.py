"""A pass.

Teaches: a training step as a list of ops, and a rewrite that merges updates without changing a bit

Explained in: ../9-a-step-as-a-program.ipynb
"""

# %% [markdown]
# `step_program` writes a step as one `momentum` op per tensor, and each op is a launch. The slots of another op,
# `merged_momentum`, take any number of tensors. Write the pass that merges the updates.
#
# An op has `type`, `inputs` and `outputs` (names of variables by slot), and `attrs`, its numbers. A merged op has one
# learning rate. In the second case, two of the layers have another rate.

# %%
import numpy as np

from refopt import cpu
from refopt.program import Op, run, step_program
from refopt_exercises import Exercise

NAMES = "conv", "norm", "bias", "head"
SHAPES = (6, 5), (6,), (6,), (4, 6)


def spec(params, grads, velocities, rates):
    for p, g, v, rate in zip(params, grads, velocities, rates):
        cpu.momentum(p, g, v, lr=rate, mu=0.9)


def launch(merge_updates, params, grads, velocities, rates):
    program = step_program(zip(NAMES, SHAPES), "momentum", lr=dict(zip(NAMES, rates)), mu=0.9)
    arrays = dict(zip(NAMES, params)) | {f"{name}_velocity_0": v for name, v in zip(NAMES, velocities)}
    arrays |= {f"{name}@GRAD": g for name, g in zip(NAMES, grads)}
    run(merge_updates(program), arrays, backend="gpu")


def arguments(*rates):
    rng = np.random.default_rng(0)
    lists = [[rng.standard_normal(shape).astype(np.float32) for shape in SHAPES] for _ in range(3)]
    return *lists, rates


cases = {"one learning rate": arguments(0.1, 0.1, 0.1, 0.1), "two learning rates": arguments(0.1, 0.5, 0.5, 0.1)}
exercise = Exercise("19_a_pass", spec, cases, launch, limits=["launches"])

# %% [markdown]
# `print(program)` shows a program as text. A program cannot be changed; `program.replace(main=...)` returns another
# one. A merged op must come after all ops that compute its gradients.


# %%
def merge_updates(program):
    others = [op for op in program.main if op.type != "momentum"]
    updates = [op for op in program.main if op.type == "momentum"]
    # [solution]
    merged = []
    for rate in dict.fromkeys(op.attrs["lr"] for op in updates):
        alike = [op for op in updates if op.attrs["lr"] == rate]
        inputs = {slot: [op.inputs[slot][0] for op in alike] for slot in alike[0].inputs}
        outputs = {slot: [op.outputs[slot][0] for op in alike] for slot in alike[0].outputs}
        merged.append(Op("merged_momentum", inputs, outputs, alike[0].attrs, "optimize"))
    # [stub]
    # merged = updates  # FILL ME IN, about 6 lines
    # [end]
    return program.replace(main=[*others, *merged])


# %% [notebook]
# print(merge_updates(step_program(zip(NAMES, SHAPES), "momentum", lr=0.1, mu=0.9)))

# %% [notebook]
# exercise.check(merge_updates)

# %% [notebook]
# exercise.picture(merge_updates, *(f"params[{k}]" for k in range(4)), launch=-1)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `op.inputs["params"]` has one name; the merged op has the names of all: `[op.inputs["params"][0] for op in updates]`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Updates can become one op only if all their attributes are equal: group them by `op.attrs["lr"]` first.
#
# </details>
