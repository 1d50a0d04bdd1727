"""What is kept from one call to the next: numbers, tables, states, buffers."""

from oracle.mutants import Mutant, edits

UPDATE = "steps.update"
KEPT = ("steps", '"""The optimizers:', 'KEPT = {}\n"""The optimizers:')

MUTANTS = (
    Mutant(
        "the learning rate of the first call", "adamw", "L16",
        edits(
            KEPT,
            (
                "steps.adamw", "    numbers |=",
                '    numbers["lr"] = KEPT.setdefault((len(params), step > 1), lr)\n    numbers |=',
            ),
        ),
    ),
    Mutant(
        "the decay of the first call", "lamb", "L16",
        edits(
            KEPT,
            (
                "steps.lamb", "    numbers |=",
                '    numbers["weight_decay"] = weight_decay = KEPT.setdefault(len(params), weight_decay)\n'
                "    numbers |=",
            ),
        ),
    ),
    Mutant(
        "the table of the first call of so many tensors", "momentum", "L16",
        edits(
            KEPT,
            (
                UPDATE, "multi_tensor_apply(kernel, flat)",
                "sizes = KEPT.setdefault(len(params), [x.size for x in flat[0]])\n"
                "        multi_tensor_apply(kernel, [[x[:n] for x, n in zip(xs, sizes)] for xs in flat])",
            ),
        ),
    ),
    Mutant(
        "states kept by the address of the parameter", "adagrad", "L16",
        edits(
            KEPT,
            (
                UPDATE, "new, _, *values =",
                "held = [KEPT.get((p.ctypes.data, p.size, k), s) for k, s in enumerate(held)]\n"
                "            new, _, *values =",
            ),
            (
                UPDATE, "array[...] = value",
                "array[...] = value\n                KEPT[p.ctypes.data, p.size, 0] = array.copy()",
            ),
        ),
        source="easily written; cf. dion #63",
    ),
    Mutant(
        "masters kept by the address of the parameter", "sgd", "L16",
        edits(
            KEPT,
            (UPDATE, "new, _, *values =", "x = KEPT.get((p.ctypes.data, p.size), x)\n            new, _, *values ="),
            (
                UPDATE, "            p[...] = new",
                "            p[...] = new\n            KEPT[p.ctypes.data, p.size] = new.copy()",
            ),
        ),
    ),
    Mutant(
        "a state of its own for each tensor", "momentum", "L1",
        edits(
            KEPT,
            (
                UPDATE, "new, _, *values =",
                "held = [KEPT.setdefault(p.size, np.zeros_like(s)) for s in held]\n            new, _, *values =",
            ),
        ),
    ),
    Mutant(
        "steps counted by itself", "adam", "L1",
        edits(KEPT, ("steps.adam", "    numbers =", "    KEPT[0] = step = KEPT.get(0, 0) + 1\n    numbers =")),
    ),
    Mutant(
        "the step counted before its use", "adamw", "L1",
        edits(("steps.adamw", "corrections(beta1, beta2, step)", "corrections(beta1, beta2, step + 1)")),
    ),
    Mutant(
        "the count of steps ends at 50", "lamb", "L1",
        edits(("steps.corrections", "    return {", "    step = min(step, 50)\n    return {")),
    ),
    Mutant(
        "8 bits of the count of steps", "adamw", "L16",
        edits(("steps.corrections", "    return {", "    step = step % 256\n    return {")),
    ),
    Mutant(
        "sums added to those of the call before", "novograd", "L17",
        edits(
            KEPT,
            (
                "steps.novograd", "squared, held = length * length,",
                "KEPT[i] = KEPT.get(i, 0) + length * length\n            squared, held = KEPT[i],",
            ),
        ),
    ),
    Mutant(
        "partial sums in the order in which blocks end", "lamb", "L17",
        edits(
            ("launcher", "THREADS = 512", "THREADS = 512\nORDER = np.random.default_rng()"),
            ("launcher.block_sum", "    while lanes", "    lanes = ORDER.permutation(lanes)\n    while lanes"),
        ),
    ),
    Mutant(
        "the parameter written by the next call", "sgd", "L1",
        edits(
            KEPT,
            (
                UPDATE, "            p[...] = new",
                "            p[...] = KEPT.get(p.size, p)\n            KEPT[p.size] = new",
            ),
        ),
    ),
    Mutant(
        "the update left where the next call reads it", "lamb", "L17",
        edits(
            KEPT,
            (
                "steps.lamb", '    numbers = {"lr": lr, "ratio": ratios}',
                "    for i in active:\n"
                "        key = i, scratch[i].size\n"
                "        scratch[i], KEPT[key] = KEPT.get(key, scratch[i]), scratch[i]\n"
                '    numbers = {"lr": lr, "ratio": ratios}',
            ),
        ),
    ),
    Mutant(
        "one workspace for two tensors of a size", "lamb", "L3",
        edits(
            (
                "steps.lamb", "scratch = [np.zeros(dense(x).shape, real_of(x.dtype)) for x in params]",
                "by_size = {x.size: np.zeros(x.size, real_of(x.dtype)) for x in params}\n"
                "    scratch = [by_size[x.size] for x in params]",
            ),
        ),
    ),
)  # fmt: skip
