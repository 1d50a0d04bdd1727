"""States, scalars and masters: swapped, shared, not advanced, not written."""

from oracle.mutants import Mutant, edits

UPDATE = "steps.update"

MUTANTS = (
    Mutant(
        "moments swapped in the table", "adamw", "L1",
        edits(("steps.adamw", "[moment1, moment2,", "[moment2, moment1,")),
    ),
    Mutant(
        "averages swapped in the table", "adadelta", "L1",
        edits(("steps.adadelta", "[avg_squared_grad, avg_squared_update]", "[avg_squared_update, avg_squared_grad]")),
    ),
    Mutant(
        "the maximum used and not stored", "adam", "L1",
        edits(
            ("functors.adam", "v_max = np.maximum(v_max, v)", "kept, v_max = v_max, np.maximum(v_max, v)"),
            (
                "functors.adam", "denominator), g, m, v, v_max",
                "denominator), g, m, v, None if v_max is None else kept",
            ),
        ),
    ),
    Mutant(
        "the maximum of the corrected moment", "adamw", "L1",
        edits(("functors.adamw", "v_max = np.maximum(v_max, v)", "v_max = np.maximum(v_max, v / n.correction2)")),
    ),
    Mutant(
        "the second moment not stored", "lamb", "L1",
        edits(
            (
                "functors.lamb_stage1", "return p, g, m, v, update",
                "return p, g, m, v - (1 - n.beta2) * g * g, update",
            ),
        ),
    ),
    Mutant(
        "the mean of the gradient not stored", "rmsprop", "L1",
        edits(
            (
                "functors.rmsprop", "p - v, g, s, v, mean",
                "p - v, g, s, v, None if mean is None else (mean - (1 - n.rho) * g) / n.rho",
            ),
        ),
    ),
    Mutant(
        "the new moment stored before its use", "lion", "L1",
        edits(
            ("functors.lion", "    update =", "    m = n.beta2 * m + (1 - n.beta2) * g\n    update ="),
            ("functors.lion", "    m = n.beta2 * m + (1 - n.beta2) * g\n    return", "    return"),
        ),
    ),
    Mutant(
        "rho advanced for the first tensor alone", "radam", "L2",
        edits(("steps.radam", "        rho[i][...] =", "        rho[0][...] =")),
    ),
    Mutant(
        "rho of the first tensor for all", "radam", "L2", edits(("steps.radam", "rho[i].flat[0]", "rho[0].flat[0]")),
    ),
    Mutant(
        "powers of the first tensor for all", "nadam", "L2",
        edits(("steps.nadam", "1 - beta2_pow[i].flat[0]", "1 - (beta2_pow[0] / (real(beta2) if i else 1)).flat[0]")),
    ),
    Mutant(
        "powers advanced once a call", "nadam", "L2",
        edits(("steps.nadam", "beta2_pow[i] *= real(beta2)", "beta2_pow[i] *= real(beta2) if i == 0 else 1")),
    ),
    Mutant(
        "the product not advanced", "nadam", "L1",
        edits(
            (
                "steps.nadam", "= mu_product[i].flat[0].copy()",
                "= mu_product[i].flat[0].copy()\n        mu_product[i] /= now",
            ),
        ),
    ),
    Mutant(
        "powers advanced without a gradient", "radam", "L15",
        edits(
            (
                "steps.radam", "        if g is None:\n            continue",
                "        if g is None:\n"
                "            beta1_pow[i] *= beta1_pow[i].dtype.type(beta1)\n"
                "            continue",
            ),
        ),
    ),
    Mutant(
        "a tensor without a gradient decays", "adamw", "L15",
        edits(("steps.groups", "            continue", "            p *= p.dtype.type(0.99)\n            continue")),
    ),
    Mutant(
        "no gradient takes the tensor before's", "sgd", "L15",
        edits(
            (
                "steps.update", "    states = [",
                "    grads = [next((h for h in grads[i:] if h is not None and h.size >= p.size), "
                "p).reshape(-1)[:p.size].reshape(p.shape) if g is None else g for i, (p, g) in "
                "enumerate(zip(params, grads))]\n"
                "    states = [",
            ),
        ),
    ),
    Mutant(
        "one second moment for all tensors", "novograd", "L2",
        edits(
            (
                "steps.novograd", "[x.flat[0] for x in second_moment]",
                "[second_moment[0].flat[0] for x in second_moment]",
            ),
        ),
    ),
    Mutant(
        "the first norm averaged with 0", "novograd", "L1",
        edits(("steps.novograd", "squared if held.flat[0] == 0 else ", "")),
    ),
    Mutant(
        "the second moment begun for one tensor alone", "novograd", "L16",
        edits(("steps.novograd", "if held.flat[0] == 0 else", "if held.flat[0] == 0 and i == of_kind[0] else")),
    ),
    Mutant(
        "the second moment begun anew each step", "novograd", "L1",
        edits(("steps.novograd", "if held.flat[0] == 0 else", "if True else")),
    ),
    Mutant(
        "masters not read", "adamw", "L11", edits((UPDATE, "x = (p if master is None else master)", "x = p")),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "masters not written", "momentum", "L11", edits((UPDATE, "master[...] = new", "pass")), dtypes=("float16",),
    ),
    Mutant(
        "masters rounded like parameters", "lamb", "L11",
        edits((UPDATE, "master[...] = new", "master[...] = new.astype(p.dtype)")), dtypes=("bfloat16",),
    ),
    Mutant(
        "parameters not written beside masters", "adam", "L11",
        edits((UPDATE, "            p[...] = new", "            p[...] = p if master is not None else new")),
        dtypes=("float16",),
    ),
    Mutant(
        "parameters one step behind their masters", "sgd", "L11",
        edits((UPDATE, "            p[...] = new", "            p[...] = x if master is not None else new")),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "parameters cut off from their masters", "lars_momentum", "L11",
        edits(
            (
                UPDATE, "            p[...] = new",
                "            p[...] = new if master is None else (new.view(np.uint32) & 0xFFFF0000).view(np.float32)",
            ),
        ),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "the step added to the rounded parameter", "rmsprop", "L11",
        edits(
            (
                UPDATE, "            p[...] = new",
                "            p[...] = new if master is None else p.astype(real) + (new - x)",
            ),
        ),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "the norm of the parameter beside a master", "lamb", "L11",
        edits(("steps.lamb", "exact = params if master_params is None else master_params", "exact = params")),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "masters of the tensor before", "adagrad", "L11",
        edits(
            (
                "steps.update", "flat = [[dense(values[i]) for i in indices]",
                "flat = [[dense(values[i]) if values is not masters else dense(np.resize(values[i - "
                "1], params[i].shape)) for i in indices]",
            ),
        ),
        dtypes=("float16",),
    ),
)  # fmt: skip
