"""Formulas that are wrong in one place, as functors have them."""

from oracle.mutants import Mutant, edits


def of(name: str, routine: str, *changes: tuple[str, str], functor: str = "", law: str = "L1") -> Mutant:
    where = f"functors.{functor or routine}"
    return Mutant(f"{name}", routine, law, edits(*((where, old, new) for old, new in changes)))


def host(name: str, routine: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, routine, "L1", edits((f"steps.{where}", old, new)))


MUTANTS = (
    of(
        "AdamW: decay in the gradient", "adamw",
        ("    p = p - n.lr * n.lr_ratio * n.coeff * p\n", "    g = g + n.coeff * p\n"),
    ),
    of("AdamW: decay without the rate", "adamw", ("n.lr * n.lr_ratio * n.coeff", "n.coeff")),
    of(
        "AdamW: decay of the new parameter", "adamw", ("    p = p - n.lr * n.lr_ratio * n.coeff * p\n", ""),
        (
            "p - n.lr / n.correction1 * (m / denominator)",
            "(p - n.lr / n.correction1 * (m / denominator)) * (1 - n.lr * n.lr_ratio * n.coeff)",
        ),
    ),
    of("AdamW: lr_ratio on the step too", "adamw", ("n.lr / n.correction1", "n.lr_ratio * n.lr / n.correction1")),
    of(
        "AdamW: epsilon in the root", "adamw",
        (
            "np.sqrt(v if v_max is None else v_max) / n.root_correction2 + n.epsilon",
            "np.sqrt((v if v_max is None else v_max) / n.correction2 + n.epsilon)",
        ),
    ),
    of(
        "AdamW: decay squared in the rate", "adamw",
        ("n.lr * n.lr_ratio * n.coeff", "n.lr * n.lr * n.lr_ratio * n.coeff"),
    ),
    of(
        "AdamW: old first moment in the step", "adamw", ("    m = n.beta1", "    m_old = m\n    m = n.beta1"),
        ("(m / denom", "(m_old / denom"),
    ),
    host("AdamW: corrections of the step before", "adamw", "adamw", "beta2, step)", "beta2, max(step - 1, 1))"),
    host(
        "AdamW: betas swapped in the corrections", "adamw", "adamw", "corrections(beta1, beta2,",
        "corrections(beta2, beta1,",
    ),
    of(
        "Adam: epsilon beside the uncorrected root", "adam",
        (" / n.root_correction2 + n.epsilon", " / n.root_correction2 + n.epsilon / n.root_correction2"),
    ),
    of("Adam: no bias correction", "adam", ("n.lr / n.correction1", "n.lr"), (" / n.root_correction2", "")),
    of("Adam: the gradient in place of the moment", "adam", ("(m / denominator)", "(g / denominator)")),
    of("Adam: beta1 in the second moment", "adam", ("n.beta2 * v + (1 - n.beta2)", "n.beta1 * v + (1 - n.beta1)")),
    of("Adam: the square of the moment", "adam", ("(1 - n.beta2) * g * g", "(1 - n.beta2) * m * m")),
    of("LAMB: no trust ratio", "lamb", ("n.lr * n.ratio", "n.lr"), functor="lamb_stage2"),
    host("LAMB: the ratio inverted", "lamb", "lamb", "weight / length", "length / weight"),
    host("LAMB: the ratio at most 1", "lamb", "lamb", "weight / length", "min(weight / length, 1)"),
    host("LAMB: squares of norms", "lamb", "lamb", "weight / length", "(weight / length) ** 2"),
    host("LAMB: adapts without decay", "lamb", "lamb", " and (decay > 0 or always_adapt)", ""),
    of("LAMB: decay outside of the norm", "lamb", (" + n.weight_decay * p", ""), functor="lamb_stage1"),
    host(
        "LAMB: the norm of the gradient", "lamb", "lamb", "lengths = l2norms([scratch[i]",
        "lengths = l2norms([dense(grads[i]).astype(kind)",
    ),
    of("LAMB: no bias correction", "lamb", ("m / n.correction1", "m"), functor="lamb_stage1"),
    of(
        "LAMB: epsilon in the root", "lamb",
        ("(np.sqrt(v / n.correction2) + n.epsilon)", "np.sqrt(v / n.correction2 + n.epsilon)"), functor="lamb_stage1",
    ),
    host("LARS: no coefficient", "lars_momentum", "lars", " * kind(lars_coeff)", ""),
    host(
        "LARS: no decay in the denominator", "lars_momentum", "lars", "(length + decay * weight + kind(epsilon))",
        "(length + kind(epsilon))",
    ),
    host(
        "LARS: the norm of the decayed gradient", "lars_momentum", "lars",
        "(length + decay * weight + kind(epsilon))",
        "(np.linalg.norm(dense(grads[i]).astype(kind) * kind(scale) + decay * "
        "dense(params[i]).astype(kind)) + kind(epsilon))",
    ),
    host(
        "LARS: epsilon beside the weight's norm", "lars_momentum", "lars",
        "weight / (length + decay * weight + kind(epsilon))", "(weight + kind(epsilon)) / (length + decay * weight)",
    ),
    of("LARS: no decay in the velocity", "lars_momentum", ("(g + n.lars_weight_decay * p)", "g"), functor="lars"),
    of(
        "LARS: the rate outside of the velocity", "lars_momentum", ("n.mu * v + n.rate * (g", "n.mu * v + (g"),
        ("p - v", "p - n.rate * v"), functor="lars",
    ),
    of("LARS: dampened", "lars_momentum", ("n.rate * (g", "(1 - n.mu) * n.rate * (g"), functor="lars"),
    of("LARS: Nesterov's step", "lars_momentum", ("p - v", "p - (n.mu * v + n.rate * g)"), functor="lars"),
    host(
        "LARS: mean of squares", "lars_momentum", "lars", "            if weight > 0",
        "            weight, length = weight / grads[i].size ** 0.5, length / grads[i].size ** 0.5\n"
        "            if weight > 0",
    ),
    of("NovoGrad: the norm squared as divisor", "novograd", ("np.sqrt(n.second_moment)", "n.second_moment")),
    of(
        "NovoGrad: decay divided by the norm", "novograd",
        (
            "g / (np.sqrt(n.second_moment) + n.epsilon) + n.weight_decay * p",
            "(g + n.weight_decay * p) / (np.sqrt(n.second_moment) + n.epsilon)",
        ),
    ),
    of("NovoGrad: always averaged", "novograd", ("if n.grad_averaging:", "if True:")),
    of(
        "NovoGrad: decay decoupled", "novograd", (" + n.weight_decay * p", ""),
        ("p - n.lr * m", "p * (1 - n.lr * n.weight_decay) - n.lr * m"),
    ),
    of(
        "NovoGrad: epsilon in the root", "novograd",
        ("(np.sqrt(n.second_moment) + n.epsilon)", "np.sqrt(n.second_moment + n.epsilon)"),
    ),
    host("NovoGrad: the norm in place of its square", "novograd", "novograd", "length * length", "length"),
    host(
        "NovoGrad: mean of squares", "novograd", "novograd", "length * length",
        "length * length / max(grads[i].size, 1)",
    ),
    of(
        "NovoGrad: decay not averaged", "novograd",
        (
            "g / (np.sqrt(n.second_moment) + n.epsilon) + n.weight_decay * p",
            "g / (np.sqrt(n.second_moment) + n.epsilon)",
        ),
        ("    m = n.beta1 * m + d", "    m = n.beta1 * m + (d + n.weight_decay * p)"),
    ),
    of("momentum: dampened", "momentum", ("n.mu * v + d", "n.mu * v + (1 - n.mu) * d")),
    of(
        "momentum: Nesterov with the old velocity", "momentum",
        ("    v = n.mu * v + d", "    old = v\n    v = n.mu * v + d"), ("d = d + n.mu * v", "d = d + n.mu * old"),
    ),
    of("momentum: Nesterov never", "momentum", ("if n.use_nesterov", "if False")),
    of(
        "momentum: decay not in the velocity", "momentum", ("d = g + n.l2_decay * p", "d = g"),
        ("p - n.lr * d, g", "p - n.lr * (d + n.l2_decay * p), g"),
    ),
    of(
        "momentum: the rate in the velocity", "momentum", ("n.mu * v + d", "n.mu * v + n.lr * d"),
        ("    else:\n        d = v", "    else:\n        return p - v, g, v"),
    ),
    of("momentum: mu on the gradient", "momentum", ("n.mu * v + d", "v + n.mu * d")),
    of(
        "SGD: decay decoupled", "sgd",
        ("    g = g + n.l2_decay * p\n    return p - n.lr * g", "    return p - n.lr * g - n.l2_decay * p"),
    ),
    of("SGD: decay of the wrong sign", "sgd", ("g + n.l2_decay * p", "g - n.l2_decay * p")),
    of("SGD: uphill", "sgd", ("p - n.lr * g", "p + n.lr * g")),
    of("Adagrad: epsilon in the root", "adagrad", ("(np.sqrt(s) + n.epsilon)", "np.sqrt(s + n.epsilon)")),
    of(
        "Adagrad: the sum before this step", "adagrad", ("    s = s + g * g\n", "    old, s = s, s + g * g\n"),
        ("np.sqrt(s)", "np.sqrt(old)"),
    ),
    of("Adagrad: the sum of sizes", "adagrad", ("s + g * g", "s + abs(g)")),
    of("Adagrad: the cube root", "adagrad", ("np.sqrt(s)", "np.cbrt(s)")),
    of(
        "RMSProp: epsilon outside of the root", "rmsprop",
        ("np.sqrt(variance + n.epsilon)", "(np.sqrt(variance) + n.epsilon)"),
    ),
    of(
        "RMSProp: the rate outside of the velocity", "rmsprop", ("n.mu * v + n.lr * g /", "n.mu * v + g /"),
        ("p - v, g", "p - n.lr * v, g"),
    ),
    of("RMSProp: the mean not squared", "rmsprop", ("s - mean * mean", "s - abs(mean)")),
    of(
        "RMSProp: the old mean", "rmsprop",
        (
            "        mean = n.rho * mean + (1 - n.rho) * g\n        variance = s - mean * mean",
            "        variance = s - mean * mean\n        mean = n.rho * mean + (1 - n.rho) * g",
        ),
    ),
    of("RAdam: not rectified", "radam", ("rate * n.rectification *", "rate *")),
    of(
        "RAdam: epsilon beside the corrected root", "radam",
        (
            "n.root_correction2 * (m / (np.sqrt(v) + n.epsilon))",
            "(m / (np.sqrt(v) / n.root_correction2 + n.epsilon))",
        ),
    ),
    host("RAdam: the threshold at 4", "radam", "radam", "length > 5", "length > 4"),
    host("RAdam: rectified without the root", "radam", "radam", "np.sqrt(squared)", "squared"),
    of("RAdam: no correction before the threshold", "radam", ("p - rate * m", "p - n.lr * m")),
    of(
        "NAdam: no look ahead", "nadam",
        ("of_moment = n.mu_next / (1 - n.product * n.mu_next)", "of_moment = n.mu_now / (1 - n.product)"),
    ),
    of("NAdam: the gradient not corrected", "nadam", ("(1 - n.mu_now) / (1 - n.product)", "(1 - n.mu_now)")),
    of("NAdam: beta1 in place of the schedule", "nadam", ("(1 - n.mu_now)", "(1 - n.beta1)")),
    of("NAdam: the second moment not corrected", "nadam", ("v / n.correction2", "v")),
    of(
        "Lion: the moment with beta1", "lion",
        ("m = n.beta2 * m + (1 - n.beta2) * g", "m = n.beta1 * m + (1 - n.beta1) * g"),
    ),
    of(
        "Lion: the sign of the new moment", "lion",
        ("np.sign(n.beta1 * m + (1 - n.beta1) * g)", "np.sign(n.beta2 * m + (1 - n.beta2) * g)"),
    ),
    of(
        "Lion: the sign of 0 is 1", "lion",
        (
            "update = np.sign(n.beta1 * m + (1 - n.beta1) * g)",
            "update = np.where(n.beta1 * m + (1 - n.beta1) * g >= 0, n.lr / n.lr, -n.lr / n.lr)",
        ),
    ),
    of(
        "Lion: decay in the update", "lion",
        (
            "    p = p * (1 - n.lr * n.coeff)\n    update = np.sign(n.beta1 * m + (1 - n.beta1) * g)",
            "    update = np.sign(n.beta1 * m + (1 - n.beta1) * g + n.coeff * p)",
        ),
    ),
    of("Adamax: the maximum without the decay", "adamax", ("n.beta2 * norm + n.epsilon", "norm + n.epsilon")),
    of(
        "Adamax: epsilon beside the divisor", "adamax", ("n.beta2 * norm + n.epsilon", "n.beta2 * norm"),
        ("(m / norm)", "(m / (norm + n.epsilon))"),
    ),
    of("Adamax: no bias correction", "adamax", ("n.lr / n.correction1", "n.lr")),
    of("Adadelta: no rate", "adadelta", ("p - n.lr * d", "p - d")),
    of(
        "Adadelta: the average of the new update", "adadelta",
        ("    d = np.sqrt(x", "    x = n.rho * x + (1 - n.rho) * g * g\n    d = np.sqrt(x"),
    ),
    of(
        "Adadelta: epsilon outside of the roots", "adadelta",
        ("np.sqrt(x + n.epsilon) / np.sqrt(s + n.epsilon)", "(np.sqrt(x) + n.epsilon) / (np.sqrt(s) + n.epsilon)"),
    ),
    of("Adadelta: the rate in the average", "adadelta", ("(1 - n.rho) * d * d", "(1 - n.rho) * n.lr * d * n.lr * d")),
)  # fmt: skip
