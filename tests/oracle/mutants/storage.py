"""What is stored and computed in which dtype; shapes, addresses and aliases; NaN and subnormal numbers."""

from oracle.mutants import Mutant, edits

UPDATE, DENSE = "steps.update", "steps.dense"
BOTH = ("float32", "float64")

MUTANTS = (
    Mutant(
        "states in fp16 on their way to memory", "momentum", "L1",
        edits((UPDATE, "array[...] = value", "array[...] = np.float16(value)")),
    ),
    Mutant(
        "states in bf16 on their way to memory", "adamw", "L1",
        edits(
            (
                UPDATE, "array[...] = value",
                "array[...] = (np.float32(value).view(np.uint32) & 0xFFFF0000).view(np.float32)",
            ),
        ),
    ),
    Mutant(
        "gradients read in the parameter's dtype", "adamw", "L10",
        edits((UPDATE, "g.astype(real) * real(scale)", "g.astype(p.dtype).astype(real) * real(scale)")),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "gradients of 16 bits taken for fp16", "sgd", "L10",
        edits((UPDATE, "g.astype(real) *", "(g if g.itemsize > 2 else g.view(np.float16)).astype(real) *")),
    ),
    Mutant(
        "fp16 parameters computed in fp16", "adagrad", "L1",
        edits(("steps.real_of", "np.float32", "(np.float16 if dtype == np.float16 else np.float32)")),
        dtypes=("float16",),
    ),
    Mutant(
        "the quotient in fp16", "adam", "L1",
        edits(("functors.adam", "(m / denominator)", "(m / denominator).astype(np.float16)")), dtypes=("float32",),
    ),
    Mutant(
        "fp64 computed in fp32", "adadelta", "L1",
        edits(("steps.real_of", "np.float64 if dtype == np.float64 else np.float32", "np.float32")),
        dtypes=("float64",),
    ),
    Mutant(
        "bias corrections in fp32, of fp64", "adamw", "L1",
        edits(("steps.corrections", "1 - beta1**step,", "1 - np.float32(beta1) ** np.float32(step),")),
        dtypes=("float64",),
    ),
    Mutant(
        "bf16 parameters cut off", "momentum", "L1",
        edits(
            (
                UPDATE, "            p[...] = new",
                "            p[...] = (new.view(np.uint32) & 0xFFFF0000).view(np.float32)",
            ),
        ),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "bf16 parameters rounded half up", "sgd", "L11",
        edits(
            (
                UPDATE, "            p[...] = new",
                "            p[...] = (new.view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32)",
            ),
        ),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "states of the second dtype in fp32", "momentum", "L10",
        edits((UPDATE, "real = real_of(kinds[0])", "real = real_of(params[0].dtype)")), dtypes=BOTH,
    ),
    Mutant(
        "the second group of dtypes not launched", "adam", "L10",
        edits(
            (UPDATE, "in groups(params, grads, lists).items()", "in list(groups(params, grads, lists).items())[:1]"),
        ),
        dtypes=BOTH,
    ),
    Mutant(
        "states by their place in the group of a dtype", "rmsprop", "L10",
        edits(
            (
                UPDATE, "[[dense(values[i]) for i in indices] for values in (params, grads, *lists)]",
                "[[dense(values[i if values is params or values is grads else k]) for k, i in "
                "enumerate(indices)] for values in (params, grads, *lists)]",
            ),
        ),
        dtypes=BOTH,
    ),
    Mutant(
        "other axes than C's flattened in a copy", "adamw", "L4",
        edits(
            (DENSE, "x.transpose(sorted(range(x.ndim), key=lambda k: -x.strides[k])).reshape(-1)", "x.reshape(-1)"),
        ),
    ),
    Mutant(
        "states flattened in another order", "adam", "L4",
        edits(
            (
                UPDATE, "[[dense(values[i]) for i in indices] for values in (params, grads, *lists)]",
                "[[dense(values[i]) if values is params or values is grads or "
                "values[i].flags.c_contiguous else values[i].ravel() for i in indices] for values in "
                "(params, grads, *lists)]",
            ),
        ),
    ),
    Mutant(
        "tensors without dimensions left", "lion", "L4",
        edits(("steps.groups", "if g is None:", "if g is None or p.ndim == 0:")),
    ),
    Mutant(
        "the first row of tensors of two axes or more", "lamb", "L4",
        edits((DENSE, "    return", "    x = x[0] if x.ndim > 2 and x.size else x\n    return")),
    ),
    Mutant(
        "a tensor of one element broadcast", "nadam", "L4",
        edits(("steps.groups", "if g is None:", "if g is None or p.shape == (1,):")),
    ),
    Mutant(
        "misaligned tensors begin at the next vector", "momentum", "L4",
        edits(
            (
                UPDATE, "multi_tensor_apply(kernel, flat)",
                "off = [x.ctypes.data % 16 // x.itemsize if x.size > 4 else 0 for x in flat[0]]\n"
                "        multi_tensor_apply(kernel, [[x[k:] for x, k in zip(xs, off)] for xs in flat])",
            ),
        ),
    ),
    Mutant(
        "a store beyond the end", "sgd", "L4",
        edits(
            (
                UPDATE, "            p[...] = new",
                "            p[...] = new\n"
                "            if p.base is not None and p.ctypes.data % 16 and p.size == 17:\n"
                "                np.lib.stride_tricks.as_strided(p, (18,), p.strides)[17] = 0",
            ),
        ),
    ),
    Mutant(
        "gradients hold the decayed gradient", "momentum", "L4",
        edits((UPDATE, "            p[...] = new", "            p[...] = new\n            g[...] = values[-1]")),
    ),
    Mutant(
        "gradients set to 0 after the step", "adagrad", "L4",
        edits((UPDATE, "            p[...] = new", "            p[...] = new\n            g[...] = 0")),
    ),
    Mutant(
        "lists sorted by size in place", "adamw", "L4",
        edits(
            (
                "steps.adamw", "    numbers |=",
                "    order = sorted(range(len(params)), key=lambda i: params[i].size)\n"
                "    for values in (params, grads, moment1, moment2):\n"
                "        values[:] = [values[i] for i in order]\n"
                "    numbers |=",
            ),
        ),
    ),
    Mutant(
        "new arrays put into the list", "sgd", "L1",
        edits(("steps.sgd", "    scale =", "    params[:] = [p.copy() for p in params]\n    scale =")),
    ),
    Mutant(
        "NaN in a gradient taken for 0", "adamw", "L6",
        edits((UPDATE, "g.astype(real) * real(scale)", "np.where(np.isnan(g), 0, g).astype(real) * real(scale)")),
    ),
    Mutant(
        "NaN spreads over its block", "adam", "L6",
        edits(
            (
                UPDATE, "new, _, *values =",
                "x = x + (0 * x.sum() if np.isnan(x.sum()) else 0)\n            new, _, *values =",
            ),
        ),
    ),
    Mutant(
        "infinite gradients clipped", "sgd", "L6",
        edits((UPDATE, "g.astype(real) * real(scale)", "np.clip(g.astype(real), -3e38, 3e38) * real(scale)")),
    ),
    Mutant(
        "a norm of NaN taken for none", "lars_momentum", "L6",
        edits(
            (
                "steps.lars", "            if weight > 0",
                "            length = np.nan_to_num(length)\n            if weight > 0",
            ),
            (UPDATE, "g.astype(real) * real(scale)", "np.nan_to_num(g.astype(real)) * real(scale)"),
        ),
    ),
    Mutant(
        "subnormal numbers flushed", "momentum", "L7",
        edits(
            (
                UPDATE, "            p[...] = new",
                "            p[...] = np.where(abs(new) < np.finfo(real).tiny, 0, new)",
            ),
        ),
    ),
    Mutant(
        "subnormal gradients flushed", "sgd", "L7",
        edits(
            (
                UPDATE, "new, _, *values =",
                "g = np.where(abs(g.astype(real)) < np.finfo(real).tiny, g.dtype.type(0), g)\n"
                "            new, _, *values =",
            ),
        ),
    ),
)  # fmt: skip
