"""Defects that libraries have had: what went wrong there, as a model of their code."""

from oracle.mutants import APPLY, BF16, FP16, FP64, GATE, NORMS, STORE, UPDATE, mutant

# The control flow of Apex's header, of which the copies in PyTorch, DeepSpeed and TransformerEngine are: the launch is
# inside of the loop over chunks, and a tensor without elements has none.
APEX = (
    (APPLY, "        if size == 0:\n            continue\n", ""),
    (APPLY, "            if (len(tensors) == limit and last) or len(blocks) == BLOCKS:",
     "            if (len(tensors) == limit and last) or len(blocks) == BLOCKS or (last and t == len(lists[0]) - 1):"),
    (APPLY, "    if blocks:\n        launch(kernel, lists, tensors, blocks)", ""))

# The same with a struct of fixed size: sizes behind the slots are written over what follows, and the table is not
# launched until a tensor with elements comes.
OVERRUN = ((APPLY, "        if size == 0:\n            continue\n", ""),
           (APPLY, "blocks.append((len(tensors) - 1, chunk))",
            "blocks.append(((len(tensors) - 1) % limit if len(tensors) > limit else len(tensors) - 1, chunk))"),
           (APPLY, "(len(tensors) == limit and last)", "(len(tensors) >= limit and last)"))

MUTANTS = (
    mutant("Apex: no launch if the last tensor is empty", "adamw", "L3", *APEX,
        source="NVIDIA/apex multi_tensor_apply.cuh; ROCm/apex #54; pytorch #94865, #100701, #109402; DeepSpeed "
               "csrc/adam/multi_tensor_apply.cuh, #8280; TransformerEngine #3207; NeMo Automodel #2997"),
    mutant("PyTorch: norms, the last tensor empty", "lamb", "L3", (NORMS, "    multi_tensor_apply(kernel, [arrays])",
        "    if arrays and arrays[-1].size:\n        multi_tensor_apply(kernel, [arrays])"), source="pytorch #140066"),
    mutant("PyTorch: norms, results of empty tensors left out", "lars_momentum", "L3",
        (NORMS, "return [np.sqrt(cleanup(row)) for row in partials]",
         "found = [np.sqrt(cleanup(row)) for row, x in zip(partials, arrays) if x.size]\n"
         "    return found + [partials.dtype.type(0)] * (len(arrays) - len(found))"), source="pytorch #109402"),
    mutant("TransformerEngine: an empty one in the last slot", "adamw", "L3", *OVERRUN,
        source="TransformerEngine #3202; NVIDIA/apex multi_tensor_apply.cuh"),
    mutant("a byte for the number of a tensor", "sgd", "L3", ("launcher", "LIMITS = 110, 64,", "LIMITS = 770, 448,"),
        (APPLY, "len(tensors) - 1, chunk", "(len(tensors) - 1) % 256, chunk"),
        source="the header's `unsigned char block_to_tensor` with PyTorch's 32 KB of arguments"),
    mutant("MXNet: 45 tensors, or an error", "lamb", "L3", ("steps.lamb", "    if skipped",
        "    if len(params) > 45:\n        raise ValueError('at most 45 tensors')\n    if skipped"),
        source="apache/mxnet multi_lamb-inl.h"),
    mutant("MXNet: 60 tensors of multi_sgd", "sgd", "L3",
        ("steps.sgd", "    scale =", "    params, grads = params[:60], grads[:60]\n    scale ="),
        source="apache/mxnet multi_sgd"),
    mutant("Apex: states through the parameter's dtype", "adam", "L10",
        (UPDATE, "array[...] = value", "array[...] = np.asarray(value).astype(p.dtype)"),
        source="NVIDIA/apex AdamCapturableFunctor; TransformerEngine #1888", dtypes=FP16),
    mutant("Apex: masters of bf16 not updated", "adamw", "L11",
        (UPDATE, "            x = (p if master is None else master)",
         "            if p.dtype.name == 'bfloat16':\n                master = None\n"
         "            x = (p if master is None else master)"), source="NVIDIA/apex #1728", dtypes=BF16),
    mutant("TransformerEngine: bf16 gradients refused", "adamw", "L10", ("steps.adamw", "    numbers |=",
        "    if any(g is not None and g.dtype != p.dtype for p, g in zip(params, grads)):\n"
        "        raise RuntimeError('expected gradients of the dtype of the parameters')\n    numbers |="),
        source="TransformerEngine #3358"),
    mutant("PyTorch: the scale taken off twice", "adamw", "L9",
        ("steps.factor_of", "rescale_grad * grad_factor[0]", "rescale_grad * grad_factor[0] * grad_factor[0]"),
        source="pytorch #90752, #95781, #96755; fixed by #94060 and #95847"),
    mutant("PyTorch: fused SGD, blocks of 16 not written", "sgd", "L5", (UPDATE, STORE,
        "            old = p.copy()\n            p[...] = new\n"
        "            for start in range(32, p.size - 15, 48) if p.itemsize == 2 else ():\n"
        "                p[start : start + 16] = old[start : start + 16]"), source="pytorch #191763", dtypes=BF16),
    mutant("PyTorch: fused SGD's momentum on skipped steps", "momentum", "L8",
        (UPDATE, STORE, "            if numbers.get('lr') is not None:\n    " + STORE),
        ("steps.momentum", GATE, "    lr = None if skipped(found_inf) else lr\n"),
        ("steps.numbers_of", "real(x)", "real(0 if x is None else x)"),
        source="LibreYOLO #771; DeepSpeed #8435 for Muon"),
    mutant("PyTorch: momentum uninitialised if the first is skipped", "momentum", "L8", ("steps.momentum", GATE,
        "    if skipped(found_inf):\n        for v in velocities:\n            if not v.any():\n"
        "                v[...] = 7.0\n        return\n"),
        source="pytorch, fused SGD: the buffer of a first step that is skipped"),
    mutant("pytorch_optimizer: momentum zeroed in each step", "momentum", "L1",
        ("functors.momentum", "n.mu * v + d", "n.mu * 0 * v + d"), source="kozistr/pytorch_optimizer #516"),
    mutant("PyTorch: the count of steps in bf16", "adamw", "L16",
        ("steps.corrections", "    return {", "    step = min(step, 256)\n    return {"),
        source="pytorch #110940: a default dtype of 16 bits, in which 256 + 1 is 256"),
    mutant("PyTorch: NAdam's product in fp32", "nadam", "L1",
        ("steps.nadam", "= mu_product[i].flat[0].copy()", "= np.float32(mu_product[i].flat[0])"),
        source="pytorch torch.optim.NAdam", dtypes=FP64),
    mutant("optax: RAdam's rho by cancelling terms", "radam", "L1",
        ("steps.radam", "length = rho[i].dtype.type, rho[i].flat[0]",
         "length = rho[i].dtype.type, rho[i].flat[0]\n        inf_ = 2 / (1 - real(beta2)) - 1\n"
         "        steps = real(round(np.log(float(beta2_pow[i].flat[0])) / np.log(beta2)))\n"
         "        length = inf_ - 2 * steps * beta2_pow[i].flat[0] / (1 - beta2_pow[i].flat[0])"),
        source="optax radam"),
    mutant("Apex: LAMB's update in the gradient", "lamb", "L4",
        (UPDATE, STORE, STORE + "\n            if len(values) == 3:\n                g[...] = values[2]"),
        source="NVIDIA/apex multi_tensor_lamb_stage_1.cu"),
    mutant("labml: epsilon not corrected", "adam", "L1", ("functors.adam", " / n.root_correction2 + n.epsilon",
        " / n.root_correction2 + n.epsilon / n.root_correction2"),
        source="labmlai/annotated_deep_learning, optimized_update", reason="epsilon_at=uncorrected"),
    mutant("dion: pointers kept by id", "momentum", "L1",
        ("steps", '"""The optimizers:', 'KEPT = {}\n"""The optimizers:'),
        (UPDATE, "        multi_tensor_apply(kernel, flat)",
         "        key = tuple(x.size for x in params)  # as if all lists had got the ids of others\n"
         "        flat[2:] = KEPT.setdefault(key, [[x.copy() for x in xs] for xs in flat[2:]])\n"
         "        multi_tensor_apply(kernel, flat)\n        for xs, ys in zip(flat[2:], lists):\n"
         "            for x, i in zip(xs, indices):\n                dense(ys[i])[...] = x"),
        source="microsoft/dion #63"),
    mutant("a trust ratio of the rounded norm", "lamb", "L1",
        ("steps.lamb", "= weight / length", "= np.float32(np.float16(weight / length))"),
        source="easily written: Apex's per-tensor norms in fp16"))
