"""Muon: corrected momentum, epsilon added to the norm, outputs along columns, and matrices that are sent as bf16.

::

    u      = mu * v / (1 - mu**(t + 1)) + (1 - mu) * g' / (1 - mu**t)    lookahead="corrected"; t is the step's number
    u      = v / (1 - mu**t)                                             without Nesterov's momentum
    x      = u / (||u|| + epsilon)                                       epsilon_is="added"
    ratio  = sqrt(max(1, columns / rows))                                outputs="columns"
    u, x and lr * ratio * x rounded to bf16                              sent_as="bfloat16"
"""

from refopt.catalog import KNOWN
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.cast import rounded
from refopt.cpu.muon import momentum, norm_of, ratio, updates
from refopt.oracle.variants.variant import STEP_NUMBER, Variants, advanced, extended


def through_bf16(x):
    return rounded(x, numpy_dtype("bfloat16")).astype(x.dtype)


def norm_and_epsilon(u, epsilon):
    return norm_of(u, 0) + epsilon


def ratio_of_columns(rows, columns, *how):
    return ratio(columns, rows, *how)


def rule(
    p, g, v, step_number, *, stored, coefficients, iterations, lr, mu, weight_decay, use_nesterov, average, lookahead,
    outputs, epsilon_is, sent_as, **numbers,
):
    v, u = momentum(g, v, mu=mu, use_nesterov=use_nesterov, average=average)
    if lookahead == "corrected":
        now, entering = 1 - mu**step_number, (1 - mu) * g if average else g
        u = mu * v / (1 - mu ** (step_number + 1)) + entering / now if use_nesterov else v / now
    others = {} if outputs == "rows" else {"scale": ratio_of_columns}
    others |= {} if epsilon_is == "least" else {"norm": norm_and_epsilon}
    u = through_bf16(u) if sent_as == "bfloat16" else u
    update = updates(u, triples=coefficients, lr=lr, **others, **numbers)
    update = through_bf16(through_bf16(update)) if sent_as == "bfloat16" else update  # x, and its product
    return p * (1 - lr * weight_decay) - update, v, advanced(step_number)


MUON = Variants(
    extended(
        KNOWN["muon"], slots=[STEP_NUMBER],
        choices={
            "lookahead": ("plain", "corrected"), "outputs": ("rows", "columns"), "epsilon_is": ("least", "added"),
            "sent_as": ("arithmetic", "bfloat16"),
        },
    ),
    rule,
    {
        "lookahead=plain": "momentum and gradient without correction, as in PyTorch",
        "lookahead=corrected": "momentum and gradient divided by the sum of their weights, as in optax",
        "epsilon_is=least": "epsilon is the least value of the norm, as in PyTorch",
        "epsilon_is=added": "epsilon is added to the norm, as in Keller Jordan's Muon and optax",
        "sent_as=arithmetic": "matrices are not rounded",
        "sent_as=bfloat16": "rounded to bf16 before and after the iterations, as in dion",
        "outputs=rows": "the ratio of rows to columns: outputs along rows, as in PyTorch",
        "outputs=columns": "the ratio of columns to rows: outputs along columns, as in optax",
    },
    matters={"epsilon_is": "epsilon"}, counted=("lookahead",),
)
