"""Gradient descent: ``refopt.cpu.sgd``."""

from refopt.gpu.rules import Rule, device_function


def sgd(real: type, present: frozenset[str]) -> Rule:
    @device_function
    def rule(p, g, k):
        lr, l2_decay, _ = k
        g = g + l2_decay * p
        return (p - lr * g,)

    return Rule(rule)
