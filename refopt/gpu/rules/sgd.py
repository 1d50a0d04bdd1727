"""Gradient descent: ``refopt.cpu.sgd``."""

from refopt.gpu.rules import Rule, device_function


def sgd(real: type, present: frozenset[str], maximize: bool) -> Rule:
    @device_function
    def rule(p, g, k):
        lr, l2_decay, _ = k
        g = (-g if maximize else g) + l2_decay * p
        return (p - lr * g,)

    return Rule(rule)
