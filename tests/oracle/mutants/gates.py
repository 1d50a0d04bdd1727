"""The gate and the factors."""

from oracle.mutants import Mutant, edits

SKIPPED, FACTOR, UPDATE = "steps.skipped", "steps.factor_of", "steps.update"
IS_SET = "found_inf[0] != 0"


def gate(routine: str) -> str:
    return f"steps.{'lars' if routine == 'lars_momentum' else routine}"


GATE = "    if skipped(found_inf):\n        return\n"

MUTANTS = (
    Mutant("found_inf ignored", "adamw", "L8", edits((gate("adamw"), GATE, ""))),
    Mutant("found_inf ignored in LAMB", "lamb", "L8", edits((gate("lamb"), GATE, ""))),
    Mutant("found_inf inverted", "adam", "L8", edits((SKIPPED, IS_SET, "found_inf[0] == 0"))),
    Mutant("found_inf of NaN taken for none", "lion", "L8", edits((SKIPPED, IS_SET, "abs(found_inf[0]) > 0"))),
    Mutant("found_inf below 0 taken for none", "sgd", "L8", edits((SKIPPED, IS_SET, "found_inf[0] > 0"))),
    Mutant(
        "found_inf as a whole number", "rmsprop", "L8",
        edits((SKIPPED, IS_SET, "abs(np.nan_to_num(found_inf[0], posinf=1)) >= 1")),
    ),
    Mutant(
        "found_inf keeps the first tensor alone", "adamw", "L8",
        edits((gate("adamw"), GATE, "    if skipped(found_inf):\n        grads = [None, *grads[1:]]\n")),
    ),
    Mutant(
        "a skipped step takes gradients of 0", "momentum", "L8",
        edits(
            (
                gate("momentum"), GATE,
                "    if skipped(found_inf):\n        grads = [0 * np.nan_to_num(g) for g in grads]\n",
            ),
        ),
    ),
    Mutant(
        "moments advanced on skipped steps", "lamb", "L8",
        edits((gate("lamb"), GATE, "    lr = 0.0 if skipped(found_inf) else lr\n")),
    ),
    Mutant(
        "states advanced with finite gradients", "adagrad", "L8",
        edits(
            (
                gate("adagrad"), GATE,
                "    if skipped(found_inf):\n"
                "        if any(np.isnan(g).any() for g in grads):\n"
                "            return\n"
                "        lr = 0.0\n",
            ),
        ),
    ),
    Mutant(
        "the second moment advanced on skipped steps", "novograd", "L8",
        edits(
            (gate("novograd"), GATE, ""),
            (gate("novograd"), "    numbers = {", "    if skipped(found_inf):\n        return\n    numbers = {"),
        ),
    ),
    Mutant(
        "powers advanced on skipped steps", "radam", "L8",
        edits(
            (gate("radam"), GATE, ""),
            (gate("radam"), "    scale =", "    if skipped(found_inf):\n        return\n    scale ="),
        ),
    ),
    Mutant(
        "decay on skipped steps", "adamw", "L8",
        edits(
            (
                gate("adamw"), GATE,
                "    if skipped(found_inf):\n"
                "        for p in params:\n"
                "            p *= p.dtype.type(1 - np.max(lr) * np.max(coeff))\n"
                "        return\n",
            ),
        ),
    ),
    Mutant(
        "the gate behind the first launch", "lars_momentum", "L8",
        edits(
            (
                gate("lars_momentum"), GATE,
                "    if skipped(found_inf):\n"
                "        for v in velocities:\n"
                "            v *= v.dtype.type(mu)\n"
                "        return\n",
            ),
        ),
    ),
    Mutant("grad_factor ignored", "adam", "L9", edits((FACTOR, "rescale_grad * grad_factor[0]", "rescale_grad"))),
    Mutant(
        "grad_factor ignored in LARS", "lars_momentum", "L9",
        edits((FACTOR, "rescale_grad * grad_factor[0]", "rescale_grad")),
    ),
    Mutant(
        "rescale_grad ignored", "momentum", "L9",
        edits(
            (
                FACTOR, "rescale_grad if grad_factor is None else rescale_grad * grad_factor[0]",
                "1.0 if grad_factor is None else grad_factor[0]",
            ),
        ),
    ),
    Mutant(
        "rescale_grad only without a grad_factor", "adagrad", "L9",
        edits((FACTOR, "rescale_grad * grad_factor[0]", "grad_factor[0]")),
    ),
    Mutant(
        "divided by the factor", "adamw", "L9",
        edits((FACTOR, "rescale_grad * grad_factor[0]", "rescale_grad / grad_factor[0]")),
    ),
    Mutant(
        "the factor twice", "momentum", "L9",
        edits((FACTOR, "rescale_grad * grad_factor[0]", "rescale_grad * grad_factor[0] ** 2")),
    ),
    Mutant(
        "the decay scaled too", "momentum", "L9",
        edits(
            ("functors.momentum", "d = g + n.l2_decay * p", "d = g + n.scale * (n.l2_decay * p)"),
            (
                gate("momentum"), '"use_nesterov": use_nesterov}',
                '"use_nesterov": use_nesterov, "scale": factor_of(rescale_grad, grad_factor)}',
            ),
        ),
    ),
    Mutant(
        "the factor not in the second moment", "adamw", "L9",
        edits(
            ("functors.adamw", "* g * g", "* (g / n.scale) * (g / n.scale)"),
            (
                gate("adamw"), "    numbers |= corrections",
                '    numbers["scale"] = factor_of(rescale_grad, grad_factor)\n    numbers |= corrections',
            ),
        ),
    ),
    Mutant(
        "the factor not in the norm", "lars_momentum", "L9",
        edits((gate("lars_momentum"), "for i in of_kind], scale)", "for i in of_kind])")),
    ),
    Mutant(
        "the factor not in the norm of NovoGrad", "novograd", "L9",
        edits((gate("novograd"), "for i in of_kind], scale)", "for i in of_kind])")),
    ),
    Mutant(
        "the factor on the step", "lion", "L9",
        edits(
            (UPDATE, "g.astype(real) * real(scale)", "g.astype(real)"),
            (UPDATE, "new, _, *values =", "n.lr *= real(scale)\n            new, _, *values ="),
        ),
    ),
    Mutant(
        "the factor on the first tensor alone", "sgd", "L9",
        edits((UPDATE, "real(scale)", "(real(scale) if t == 0 else real(1))")),
    ),
    Mutant(
        "gradients scaled in fp16", "adam", "L9",
        edits((UPDATE, "g.astype(real) * real(scale)", "(g * g.dtype.type(scale)).astype(real)")),
        dtypes=("float16",),
    ),
)  # fmt: skip
