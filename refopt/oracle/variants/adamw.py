"""AdamW: maximizing, as PyTorch has it."""

from refopt import catalog
from refopt.cpu.adamw import rule as adamw_rule
from refopt.oracle.variants.variant import MAXIMIZE, Variants, extended


def rule(p, g, *states, maximize, **numbers):
    return adamw_rule(p, -g if maximize else g, *states, **numbers)


ADAMW = Variants(extended(catalog.ADAMW, choices=MAXIMIZE), rule)
