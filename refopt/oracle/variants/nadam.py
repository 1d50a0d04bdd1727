"""NAdam: weight decay, and maximizing, as PyTorch has them."""

from refopt import catalog
from refopt.cpu.nadam import rule as nadam_rule
from refopt.oracle.variants.variant import DECAY, MAXIMIZE, OF_DECAY, WEIGHT_DECAY, Variants, extended, prepared


def rule(p, g, *states, lr, weight_decay, decay, maximize, **numbers):
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return nadam_rule(p, g, *states, lr=lr, **numbers)


NADAM = Variants(
    extended(catalog.NADAM, hypers=[WEIGHT_DECAY], choices=DECAY | MAXIMIZE),
    rule,
    OF_DECAY,
    matters={"decay": "weight_decay"},
)
