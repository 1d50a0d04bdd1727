"""What is stored and computed in which dtype; shapes, addresses and aliases; NaN and subnormal numbers."""

from oracle.mutants import BF16, DENSE, FLAT, FP16, FP64, FUNCTOR, GRADIENT, STORE, UPDATE, mutant

BOTH = "float32", "float64"

MUTANTS = (
    mutant("states in fp16 on their way to memory", "momentum", "L1",
        (UPDATE, "array[...] = value", "array[...] = np.float16(value)")),
    mutant("states in bf16 on their way to memory", "adamw", "L1", (UPDATE, "array[...] = value",
        "array[...] = (np.float32(value).view(np.uint32) & 0xFFFF0000).view(np.float32)")),
    mutant("gradients read in the parameter's dtype", "adamw", "L10",
        (UPDATE, GRADIENT, "g.astype(p.dtype).astype(real) * real(scale)"), dtypes=BF16),
    mutant("gradients of 16 bits taken for fp16", "sgd", "L10",
        (UPDATE, "g.astype(real) *", "(g if g.itemsize > 2 else g.view(np.float16)).astype(real) *")),
    mutant("fp16 parameters computed in fp16", "adagrad", "L1",
        ("steps.real_of", "np.float32", "(np.float16 if dtype == np.float16 else np.float32)"), dtypes=FP16),
    mutant("the quotient in fp16", "adam", "L1",
        ("functors.adam", "(m / denominator)", "(m / denominator).astype(np.float16)")),
    mutant("fp64 computed in fp32", "adadelta", "L1",
        ("steps.real_of", "np.float64 if dtype == np.float64 else np.float32", "np.float32"), dtypes=FP64),
    mutant("bias corrections in fp32, of fp64", "adamw", "L1",
        ("steps.corrections", "1 - beta1**step,", "1 - np.float32(beta1) ** np.float32(step),"), dtypes=FP64),
    mutant("bf16 parameters cut off", "momentum", "L1",
        (UPDATE, STORE, "            p[...] = (new.view(np.uint32) & 0xFFFF0000).view(np.float32)"), dtypes=BF16),
    mutant("bf16 parameters rounded half up", "sgd", "L11",
        (UPDATE, STORE, "            p[...] = (new.view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32)"),
        dtypes=BF16),
    mutant("the second group of dtypes not launched", "adam", "L10",
        (UPDATE, "in groups(params, grads, lists).items()", "in list(groups(params, grads, lists).items())[:1]"),
        dtypes=BOTH),
    mutant("other axes than C's flattened in a copy", "adamw", "L4",
        (DENSE, "x.transpose(sorted(range(x.ndim), key=lambda k: -x.strides[k])).reshape(-1)", "x.reshape(-1)")),
    mutant("states flattened in another order", "adam", "L4", (UPDATE, FLAT,
        "[[dense(values[i]) if values is params or values is grads or values[i].flags.c_contiguous else "
        "values[i].ravel() for i in indices] for values in (params, grads, *lists)]")),
    mutant("tensors without dimensions left", "lion", "L4",
        ("steps.groups", "if g is None:", "if g is None or p.ndim == 0:")),
    mutant("the first row of tensors of two axes or more", "lamb", "L4",
        (DENSE, "    return", "    x = x[0] if x.ndim > 2 and x.size else x\n    return")),
    mutant("a tensor of one element broadcast", "nadam", "L4",
        ("steps.groups", "if g is None:", "if g is None or p.shape == (1,):")),
    mutant("misaligned tensors begin at the next vector", "momentum", "L4", (UPDATE, "multi_tensor_apply(kernel, flat)",
        "off = [x.ctypes.data % 16 // x.itemsize if x.size > 4 else 0 for x in flat[0]]\n"
        "        multi_tensor_apply(kernel, [[x[k:] for x, k in zip(xs, off)] for xs in flat])")),
    mutant("a store beyond the end", "sgd", "L4", (UPDATE, STORE,
        STORE + "\n            if p.base is not None and p.ctypes.data % 16 and p.size == 17:\n"
        "                np.lib.stride_tricks.as_strided(p, (18,), p.strides)[17] = 0")),
    mutant("gradients hold the decayed gradient", "momentum", "L4",
        (UPDATE, STORE, STORE + "\n            g[...] = values[-1]")),
    mutant("gradients set to 0 after the step", "adagrad", "L4", (UPDATE, STORE, STORE + "\n            g[...] = 0")),
    mutant("lists sorted by size in place", "adamw", "L4", ("steps.adamw", "    numbers |=",
        "    order = sorted(range(len(params)), key=lambda i: params[i].size)\n"
        "    for values in (params, grads, moment1, moment2):\n        values[:] = [values[i] for i in order]\n"
        "    numbers |=")),
    mutant("new arrays put into the list", "sgd", "L1",
        ("steps.sgd", "    scale =", "    params[:] = [p.copy() for p in params]\n    scale =")),
    mutant("NaN in a gradient taken for 0", "adamw", "L6",
        (UPDATE, GRADIENT, "np.where(np.isnan(g), 0, g).astype(real) * real(scale)")),
    mutant("NaN spreads over its block", "adam", "L6",
        (UPDATE, FUNCTOR, "x = x + (0 * x.sum() if np.isnan(x.sum()) else 0)\n            " + FUNCTOR)),
    mutant("infinite gradients clipped", "sgd", "L6",
        (UPDATE, GRADIENT, "np.clip(g.astype(real), -3e38, 3e38) * real(scale)")),
    mutant("subnormal numbers flushed", "momentum", "L7",
        (UPDATE, STORE, "            p[...] = np.where(abs(new) < np.finfo(real).tiny, 0, new)")),
    mutant("subnormal gradients flushed", "sgd", "L7", (UPDATE, FUNCTOR,
        "g = np.where(abs(g.astype(real)) < np.finfo(real).tiny, g.dtype.type(0), g)\n            " + FUNCTOR)))
