"""Lists of tensors: tables that are full, empty tensors, and slots that are taken for tensors."""

from oracle.mutants import APPLY, ARRAYS, LAUNCH, NORMS, UPDATE, mutant

EVERY = "for t in range(len(lists[0])):"
RESULTS = "return [np.sqrt(cleanup(row)) for row in partials]"

MUTANTS = (
    mutant("tensors beyond the 110th dropped", "sgd", "L3", (APPLY, EVERY, "for t in range(len(lists[0]))[:110]:")),
    mutant("what is left after whole tables dropped", "momentum", "L3",
        (APPLY, EVERY, "for t in range(len(lists[0]) // limit * limit or len(lists[0])):")),
    mutant("the tensor that fills the table is lost", "adamw", "L3",
        (APPLY, "launch(kernel, lists, tensors, blocks)\n                blocks",
         "launch(kernel, lists, tensors, blocks[:-1])\n                blocks")),
    mutant("one launch and no more", "adam", "L3",
        (APPLY, "    if blocks:\n", "    if blocks and len(lists[0]) <= limit:\n")),
    mutant("blocks of a launch are run again in the next", "sgd", "L3",
        (APPLY, "                blocks = []\n", "                blocks = [b for b in blocks if b[0] == 0]\n")),
    mutant("320 blocks a launch, and the rest dropped", "momentum", "L3",
        ("launcher", "LIMITS = 110, 64, 48, 36", "LIMITS = 9999, 9999, 9999, 9999"),
        (APPLY, "blocks.append((len(tensors) - 1, chunk))",
         "blocks += [(len(tensors) - 1, chunk)] if len(blocks) < BLOCKS - 1 else []")),
    mutant("an empty tensor ends the list", "adagrad", "L3", (APPLY, "continue", "break")),
    mutant("an empty tensor ends its launch unlaunched", "rmsprop", "L3",
        (APPLY, "            continue", "            tensors, blocks = [], []\n            continue")),
    mutant("an empty tensor shifts the states", "adam", "L3", (LAUNCH, ARRAYS,
        "[values[t if d < 2 else sum(x.size > 0 for x in values[:t])][start:stop] for d, values in enumerate(lists)]")),
    mutant("no tensors at all are an error", "nadam", "L3",
        ("steps.nadam", "    if skipped(found_inf):", "    params[0].shape\n    if skipped(found_inf):")),
    mutant("states of the tensor before beyond the 36th", "adamw", "L3", (LAUNCH, ARRAYS,
        "[values[t - 36 if d > 1 and t >= 36 and values[t].size == values[t - 36].size else t][start:stop] for d, "
        "values in enumerate(lists)]")),
    mutant("tensors of one shape share a state", "adadelta", "L3", (UPDATE, "flat = [[",
        "same = {p.shape: i for i, p in reversed(list(enumerate(params)))}\n"
        "        lists = lists and [[values[same[p.shape]] if p.shape[0] % 2 else x for p, x in zip(params, "
        "values)] if values is not masters else values for values in lists]\n        flat = [[")),
    mutant("the learning rate by the slot of a launch", "adamw", "L14",
        (UPDATE, "indices[t], real)", "indices[t % 36], real)")),
    mutant("numbers by the place among active tensors", "adamw", "L15",
        (UPDATE, "numbers_of(numbers, indices[t], real)", "numbers_of(numbers, t, real)")),
    mutant("the learning rate of the first tensor", "momentum", "L14", ("steps.numbers_of", "x[i]", "x[0]")),
    mutant("the decay of the last tensor", "sgd", "L14",
        ("steps.numbers_of", "x[i]", "x[-1] if name == 'l2_decay' else x[i]")),
    mutant("norms of a launch in the slots of the first", "lamb", "L3",
        (NORMS, "partials[t, chunk] =", "partials[t % 110, chunk] =")),
    mutant("as many partial sums as the first tensor has", "lars_momentum", "L3",
        (NORMS, "max([(x.size + CHUNK - 1) // CHUNK for x in arrays], default=0)",
         "max(1, (arrays[0].size + CHUNK - 1) // CHUNK) if arrays else 0"),
        (NORMS, "partials[t, chunk] =", "partials[t, chunk % most] =")),
    mutant("one norm of all tensors", "lamb", "L2", (NORMS, RESULTS, "return [np.sqrt(partials.sum())] * len(arrays)")),
    mutant("the trust ratio of the tensor before", "lars_momentum", "L2", ("steps.lars", "            if weight > 0",
        "            weight = weights[of_kind.index(i) - 1]\n            if weight > 0")),
    mutant("the order of the list shows", "sgd", "L2",
        ("functors.sgd", "p - n.lr * g, g", "p - n.lr * (g * (1 + n.place)), g"), ("steps.sgd", '"l2_decay": l2_decay}',
         '"l2_decay": l2_decay, "place": [k * 2.0**-24 for k in range(len(params))]}')))
