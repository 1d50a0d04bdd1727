"""What is kept from one call to the next: numbers, tables, states, buffers."""

from oracle.mutants import FUNCTOR, STORE, SUM, UPDATE, mutant

KEPT = ("steps", '"""The optimizers:', 'KEPT = {}\n"""The optimizers:')

MUTANTS = (
    mutant("the learning rate of the first call", "adamw", "L16", KEPT, ("steps.adamw", "    numbers |=",
        '    numbers["lr"] = KEPT.setdefault((len(params), step > 1), lr)\n    numbers |=')),
    mutant("the decay of the first call", "lamb", "L16", KEPT, ("steps.lamb", "    numbers |=",
        '    numbers["weight_decay"] = weight_decay = KEPT.setdefault(len(params), weight_decay)\n    numbers |=')),
    mutant("the table of the first call of so many tensors", "momentum", "L16", KEPT,
        (UPDATE, "multi_tensor_apply(kernel, flat)",
         "sizes = KEPT.setdefault(len(params), [x.size for x in flat[0]])\n"
         "        multi_tensor_apply(kernel, [[x[:n] for x, n in zip(xs, sizes)] for xs in flat])")),
    mutant("states kept by the address of the parameter", "adagrad", "L16", KEPT, (UPDATE, FUNCTOR,
        "held = [KEPT.get((p.ctypes.data, p.size, k), s) for k, s in enumerate(held)]\n            " + FUNCTOR),
        (UPDATE, "array[...] = value",
         "array[...] = value\n                KEPT[p.ctypes.data, p.size, 0] = array.copy()"),
        source="easily written; cf. dion #63"),
    mutant("a state of its own for each tensor", "momentum", "L1", KEPT,
        (UPDATE, FUNCTOR, "held = [KEPT.setdefault(p.size, np.zeros_like(s)) for s in held]\n            " + FUNCTOR)),
    mutant("steps counted by itself", "adam", "L1", KEPT,
        ("steps.adam", "    numbers =", "    KEPT[0] = step = KEPT.get(0, 0) + 1\n    numbers =")),
    mutant("the step counted before its use", "adamw", "L1",
        ("steps.adamw", "corrections(beta1, beta2, step)", "corrections(beta1, beta2, step + 1)")),
    mutant("8 bits of the count of steps", "adamw", "L16",
        ("steps.corrections", "    return {", "    step = step % 256\n    return {")),
    mutant("16 bits of the count of steps", "adamw", "L24",
        ("steps.corrections", "    return {", "    step = step % 65536\n    return {")),
    mutant("a count of steps that sticks at 2048", "adam", "L24",
        ("steps.corrections", "    return {", "    step = min(step, 2048)\n    return {")),
    mutant("other from the 2,000th call on", "lion", "L24", KEPT,
        ("steps.lion", "    numbers =", "    KEPT[0] = KEPT.get(0, 0) + 1\n    lr = lr / 2 if KEPT[0] > 2000 else lr\n"
         "    numbers =")),
    mutant("sums added to those of the call before", "novograd", "L17", KEPT,
        ("steps.novograd", "squared, held = length * length,",
         "KEPT[i] = KEPT.get(i, 0) + length * length\n            squared, held = KEPT[i],")),
    mutant("partial sums in the order in which blocks end", "lamb", "L17",
        ("launcher", "THREADS = 512", "THREADS = 512\nORDER = np.random.default_rng()"),
        (SUM, "    while lanes", "    lanes = ORDER.permutation(lanes)\n    while lanes")),
    mutant("the parameter written by the next call", "sgd", "L1", KEPT,
        (UPDATE, STORE, "            p[...] = KEPT.get(p.size, p)\n            KEPT[p.size] = new")),
    mutant("the update left where the next call reads it", "lamb", "L17", KEPT,
        ("steps.lamb", '    numbers = {"lr": lr, "ratio": ratios}',
         "    for i in active:\n        key = i, scratch[i].size\n"
         "        scratch[i], KEPT[key] = KEPT.get(key, scratch[i]), scratch[i]\n"
         '    numbers = {"lr": lr, "ratio": ratios}')),
    mutant("one workspace for two tensors of a size", "lamb", "L3",
        ("steps.lamb", "scratch = [np.zeros(dense(x).shape, real_of(x.dtype)) for x in params]",
         "by_size = {x.size: np.zeros(x.size, real_of(x.dtype)) for x in params}\n"
         "    scratch = [by_size[x.size] for x in params]")))
