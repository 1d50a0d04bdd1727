"""Gradient descent: maximizing, as PyTorch has it."""

from refopt import catalog
from refopt.cpu.sgd import rule as sgd_rule
from refopt.oracle.variants.variant import MAXIMIZE, Variants, extended


def rule(p, g, *states, maximize, **numbers):
    return sgd_rule(p, -g if maximize else g, *states, **numbers)


SGD = Variants(extended(catalog.SGD, choices=MAXIMIZE), rule)
