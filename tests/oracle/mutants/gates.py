"""The gate and the factors."""

from oracle.mutants import FP16, FUNCTOR, GATE, GRADIENT, UPDATE, mutant

SKIPPED, FACTOR = "steps.skipped", "steps.factor_of"
IS_SET, BOTH = "found_inf[0] != 0", "rescale_grad * grad_factor[0]"

MUTANTS = (
    mutant("found_inf ignored", "adamw", "L8", ("steps.adamw", GATE, "")),
    mutant("found_inf inverted", "adam", "L8", (SKIPPED, IS_SET, "found_inf[0] == 0")),
    mutant("found_inf of NaN taken for none", "lion", "L8", (SKIPPED, IS_SET, "abs(found_inf[0]) > 0")),
    mutant("found_inf below 0 taken for none", "sgd", "L8", (SKIPPED, IS_SET, "found_inf[0] > 0")),
    mutant("found_inf as a whole number", "rmsprop", "L8",
        (SKIPPED, IS_SET, "abs(np.nan_to_num(found_inf[0], posinf=1)) >= 1")),
    mutant("found_inf keeps the first tensor alone", "adamw", "L8",
        ("steps.adamw", GATE, "    if skipped(found_inf):\n        grads = [None, *grads[1:]]\n")),
    mutant("a skipped step takes gradients of 0", "momentum", "L8", ("steps.momentum", GATE,
        "    if skipped(found_inf):\n        grads = [0 * np.nan_to_num(g) for g in grads]\n")),
    mutant("the second moment advanced on skipped steps", "novograd", "L8", ("steps.novograd", GATE, ""),
        ("steps.novograd", "    numbers = {", GATE + "    numbers = {")),
    mutant("powers advanced on skipped steps", "radam", "L8", ("steps.radam", GATE, ""),
        ("steps.radam", "    scale =", GATE + "    scale =")),
    mutant("decay on skipped steps", "adamw", "L8", ("steps.adamw", GATE,
        "    if skipped(found_inf):\n        for p in params:\n"
        "            p *= p.dtype.type(1 - np.max(lr) * np.max(coeff))\n        return\n")),
    mutant("grad_factor ignored", "adam", "L9", (FACTOR, BOTH, "rescale_grad")),
    mutant("rescale_grad ignored", "momentum", "L9",
        (FACTOR, "rescale_grad if grad_factor is None else " + BOTH, "1.0 if grad_factor is None else grad_factor[0]")),
    mutant("rescale_grad only without a grad_factor", "adagrad", "L9", (FACTOR, BOTH, "grad_factor[0]")),
    mutant("divided by the factor", "adamw", "L9", (FACTOR, BOTH, "rescale_grad / grad_factor[0]")),
    mutant("the decay scaled too", "momentum", "L9",
        ("functors.momentum", "d = g + n.l2_decay * p", "d = g + n.scale * (n.l2_decay * p)"),
        ("steps.momentum", '"use_nesterov": use_nesterov}',
         '"use_nesterov": use_nesterov, "scale": factor_of(rescale_grad, grad_factor)}')),
    mutant("the factor not in the second moment", "adamw", "L9",
        ("functors.adamw", "* g * g", "* (g / n.scale) * (g / n.scale)"), ("steps.adamw", "    numbers |= corrections",
         '    numbers["scale"] = factor_of(rescale_grad, grad_factor)\n    numbers |= corrections')),
    mutant("the factor not in the norm", "lars_momentum", "L9",
        ("steps.lars", "for i in of_kind], scale)", "for i in of_kind])")),
    mutant("the factor on the step", "lion", "L9", (UPDATE, GRADIENT, "g.astype(real)"),
        (UPDATE, FUNCTOR, "n.lr *= real(scale)\n            " + FUNCTOR)),
    mutant("the factor on the first tensor alone", "sgd", "L9",
        (UPDATE, "real(scale)", "(real(scale) if t == 0 else real(1))")),
    mutant("gradients scaled in fp16", "adam", "L9", (UPDATE, GRADIENT, "(g * g.dtype.type(scale)).astype(real)"),
        dtypes=FP16))
