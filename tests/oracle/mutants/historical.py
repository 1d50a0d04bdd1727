"""Defects that libraries have had: what went wrong there, as a model of their code."""

from typing import NamedTuple

from oracle.mutants import Mutant, edits

APPLY, UPDATE = "launcher.multi_tensor_apply", "steps.update"

# The control flow of Apex's header, of which the copies in PyTorch, DeepSpeed and TransformerEngine are: the launch is
# inside of the loop over chunks, and a tensor without elements has none.
APEX = (
    "        if size == 0:\n            continue\n", "",
), (
    "            if (len(tensors) == limit and last) or len(blocks) == BLOCKS:",
    "            if (len(tensors) == limit and last) or len(blocks) == BLOCKS or (last and t == len(lists[0]) - 1):",
), ("    if blocks:\n        launch(kernel, lists, tensors, blocks)", "")  # fmt: skip

# The same with a struct of fixed size: sizes behind the slots are written over what follows, and the table is not
# launched until a tensor with elements comes.
OVERRUN = (
    "        if size == 0:\n            continue\n", "",
), (
    "blocks.append((len(tensors) - 1, chunk))",
    "blocks.append(((len(tensors) - 1) % limit if len(tensors) > limit else len(tensors) - 1, chunk))",
), ("(len(tensors) == limit and last)", "(len(tensors) >= limit and last)")  # fmt: skip


def launcher(*changes: tuple[str, str]) -> tuple:
    return edits(*((APPLY, old, new) for old, new in changes))


MUTANTS = (
    Mutant(
        "Apex: no launch if the last tensor is empty", "adamw", "L3", launcher(*APEX),
        "NVIDIA/apex multi_tensor_apply.cuh; ROCm/apex #54",
    ),
    Mutant(
        "PyTorch: foreach, the last tensor empty", "adam", "L3", launcher(*APEX), "pytorch #94865, #100701, #109402",
    ),
    Mutant(
        "PyTorch: norms, the last tensor empty", "lamb", "L3",
        edits(
            (
                "launcher.l2norms", "    multi_tensor_apply(kernel, [arrays])",
                "    if arrays and arrays[-1].size:\n        multi_tensor_apply(kernel, [arrays])",
            ),
        ),
        "pytorch #140066",
    ),
    Mutant(
        "PyTorch: norms, results of empty tensors left out", "lars_momentum", "L3",
        edits(
            (
                "launcher.l2norms", "return [np.sqrt(cleanup(row)) for row in partials]",
                "found = [np.sqrt(cleanup(row)) for row, x in zip(partials, arrays) if x.size]\n"
                "    return found + [partials.dtype.type(0)] * (len(arrays) - len(found))",
            ),
        ),
        "pytorch #109402",
    ),
    Mutant(
        "DeepSpeed: FusedAdam, the last tensor empty", "adamw", "L3", launcher(*APEX),
        "DeepSpeed csrc/adam/multi_tensor_apply.cuh; #8280",
    ),
    Mutant(
        "TransformerEngine: the last tensor empty", "momentum", "L3", launcher(*APEX),
        "TransformerEngine #3207; NeMo Automodel #2997",
    ),
    Mutant(
        "TransformerEngine: an empty one in the last slot", "adamw", "L3", launcher(*OVERRUN),
        "TransformerEngine #3202",
    ),
    Mutant(
        "Apex: an empty one in the last slot", "adam", "L3", launcher(*OVERRUN), "NVIDIA/apex multi_tensor_apply.cuh",
    ),
    Mutant(
        "a byte for the number of a tensor", "sgd", "L3",
        edits(
            ("launcher", "LIMITS = 110, 64,", "LIMITS = 770, 448,"),
            (APPLY, "len(tensors) - 1, chunk", "(len(tensors) - 1) % 256, chunk"),
        ),
        "the header's `unsigned char block_to_tensor` with PyTorch's 32 KB of arguments",
    ),
    Mutant(
        "MXNet: 45 tensors, or an error", "lamb", "L3",
        edits(
            (
                "steps.lamb", "    if skipped",
                "    if len(params) > 45:\n        raise ValueError('at most 45 tensors')\n    if skipped",
            ),
        ),
        "apache/mxnet multi_lamb-inl.h",
    ),
    Mutant(
        "MXNet: 60 tensors of multi_sgd", "sgd", "L3",
        edits(("steps.sgd", "    scale =", "    params, grads = params[:60], grads[:60]\n    scale =")),
        "apache/mxnet multi_sgd",
    ),
    Mutant(
        "Apex: states through the parameter's dtype", "adam", "L10",
        edits((UPDATE, "array[...] = value", "array[...] = np.asarray(value).astype(p.dtype)")),
        "NVIDIA/apex AdamCapturableFunctor; TransformerEngine #1888", ("float16",),
    ),
    Mutant(
        "Apex: masters of bf16 not updated", "adamw", "L11",
        edits(
            (
                UPDATE, "            x = (p if master is None else master)",
                "            if p.dtype.name == 'bfloat16':\n"
                "                master = None\n"
                "            x = (p if master is None else master)",
            ),
        ),
        "NVIDIA/apex #1728", ("bfloat16",),
    ),
    Mutant(
        "TransformerEngine: bf16 gradients refused", "adamw", "L10",
        edits(
            (
                "steps.adamw", "    numbers |=",
                "    if any(g is not None and g.dtype != p.dtype for p, g in zip(params, grads)):\n"
                "        raise RuntimeError('expected gradients of the dtype of the parameters')\n"
                "    numbers |=",
            ),
        ),
        "TransformerEngine #3358",
    ),
    Mutant(
        "PyTorch: the scale taken off twice", "adamw", "L9",
        edits(("steps.factor_of", "rescale_grad * grad_factor[0]", "rescale_grad * grad_factor[0] * grad_factor[0]")),
        "pytorch #90752, #95781, #96755; fixed by #94060 and #95847",
    ),
    Mutant(
        "PyTorch: the scale not taken off", "adamw", "L9",
        edits(("steps.adamw", "factor_of(rescale_grad, grad_factor)", "rescale_grad")), "pytorch #88258, #90752",
    ),
    Mutant(
        "PyTorch: fused SGD, blocks of 16 not written", "sgd", "L5",
        edits(
            (
                UPDATE, "            p[...] = new",
                "            old = p.copy()\n"
                "            p[...] = new\n"
                "            for start in range(32, p.size - 15, 48) if p.itemsize == 2 else ():\n"
                "                p[start : start + 16] = old[start : start + 16]",
            ),
        ),
        "pytorch #191763", ("bfloat16",),
    ),
    Mutant(
        "PyTorch: fused SGD's momentum on skipped steps", "momentum", "L8",
        edits(
            (
                UPDATE, "            p[...] = new",
                "            if numbers.get('lr') is not None:\n                p[...] = new",
            ),
            (
                "steps.momentum", "    if skipped(found_inf):\n        return\n",
                "    lr = None if skipped(found_inf) else lr\n",
            ),
            ("steps.numbers_of", "real(x)", "real(0 if x is None else x)"),
        ),
        "LibreYOLO #771; DeepSpeed #8435 for Muon",
    ),
    Mutant(
        "PyTorch: momentum uninitialised if the first is skipped", "momentum", "L8",
        edits(
            (
                "steps.momentum", "    if skipped(found_inf):\n        return\n",
                "    if skipped(found_inf):\n"
                "        for v in velocities:\n"
                "            if not v.any():\n"
                "                v[...] = 7.0\n"
                "        return\n",
            ),
        ),
        "pytorch, fused SGD: the buffer of a first step that is skipped",
    ),
    Mutant(
        "pytorch_optimizer: momentum zeroed in each step", "momentum", "L1",
        edits(("functors.momentum", "n.mu * v + d", "n.mu * 0 * v + d")), "kozistr/pytorch_optimizer #516",
    ),
    Mutant(
        "PyTorch: the count of steps in bf16", "adamw", "L16",
        edits(("steps.corrections", "    return {", "    step = min(step, 256)\n    return {")),
        "pytorch #110940: a default dtype of 16 bits, in which 256 + 1 is 256",
    ),
    Mutant(
        "PyTorch: NAdam's product in fp32", "nadam", "L1",
        edits(("steps.nadam", "= mu_product[i].flat[0].copy()", "= np.float32(mu_product[i].flat[0])")),
        "pytorch torch.optim.NAdam", ("float64",),
    ),
    Mutant(
        "optax: RAdam's rho by cancelling terms", "radam", "L1",
        edits(
            (
                "steps.radam", "length = rho[i].dtype.type, rho[i].flat[0]",
                "length = rho[i].dtype.type, rho[i].flat[0]\n"
                "        inf_ = 2 / (1 - real(beta2)) - 1\n"
                "        steps = real(round(np.log(float(beta2_pow[i].flat[0])) / np.log(beta2)))\n"
                "        length = inf_ - 2 * steps * beta2_pow[i].flat[0] / (1 - beta2_pow[i].flat[0])",
            ),
        ),
        "optax radam", ("float32",),
    ),
    Mutant(
        "Apex: LAMB's update in the gradient", "lamb", "L4",
        edits(
            (
                UPDATE, "            p[...] = new",
                "            p[...] = new\n            if len(values) == 3:\n                g[...] = values[2]",
            ),
        ),
        "NVIDIA/apex multi_tensor_lamb_stage_1.cu",
    ),
    Mutant(
        "labml: epsilon not corrected", "adam", "L1",
        edits(
            (
                "functors.adam", " / n.root_correction2 + n.epsilon",
                " / n.root_correction2 + n.epsilon / n.root_correction2",
            ),
        ),
        "labmlai/annotated_deep_learning, optimized_update",
    ),
    Mutant(
        "dion: pointers kept by id", "momentum", "L16",
        edits(
            ("steps", '"""The optimizers:', 'KEPT = {}\n"""The optimizers:'),
            (
                UPDATE, "        multi_tensor_apply(kernel, flat)",
                "        key = tuple(id(x) for x in params)\n"
                "        flat[2:] = KEPT.setdefault(key, [[x.copy() for x in xs] for xs in flat[2:]])\n"
                "        multi_tensor_apply(kernel, flat)\n"
                "        for xs, ys in zip(flat[2:], lists):\n"
                "            for x, i in zip(xs, indices):\n"
                "                dense(ys[i])[...] = x",
            ),
        ),
        "microsoft/dion #63",
    ),
    Mutant(
        "a trust ratio of the rounded norm", "lamb", "L1",
        edits(("steps.lamb", "= weight / length", "= np.float32(np.float16(weight / length))")),
        "easily written: Apex's per-tensor norms in fp16",
    ),
)  # fmt: skip


class Elsewhere(NamedTuple):
    """A defect that no call of a step with arrays of at most 2**24 elements shows, and where it is looked for."""

    defect: str
    source: str
    where: str


ELSEWHERE = (
    Elsewhere(
        "2**31 elements or more, truncated to int32",
        "pytorch #101449, Apex #1825, DeepSpeed #7640, TransformerEngine #2918",
        "`test_more_elements_than_an_int32_counts` of tests/laws/test_n06_reduction.py, on a GPU; "
        "`test_beyond_two_to_the_31` of tests/gpu/test_tables.py",
    ),
    Elsewhere(
        "2**31 elements or more in norms and scales", "Apex #1989, #2014",
        "the same, and `test_beyond_two_to_the_31` of tests/gpu/test_cast.py, on a GPU",
    ),
    Elsewhere(
        "21,000 tensors exhaust a pool of handles", "TransformerEngine #3418",
        "nowhere: the longest list of L3 has 1,000 tensors, for the time it takes",
    ),
    Elsewhere(
        "NaN dropped by fmaxf in a maximum norm", "Apex multi_tensor_l2norm_kernel.cu",
        "no routine has a maximum norm; `test_every_element_is_looked_at` of tests/gpu/test_gradient_check.py",
    ),
    Elsewhere(
        "a table uploaded during the capture of a graph", "pytorch #119153",
        "`test_replays_of_a_captured_call` of tests/gpu/test_cast.py, on a GPU",
    ),
    Elsewhere(
        "ranks that disagree, shards without elements", "DeepSpeed #966, #1488, #8280",
        "`test_shards_have_the_bits_of_the_whole` of tests/program/test_sharding.py",
    ),
)  # fmt: skip
