"""Adagrad: ``refopt.cpu.adagrad``."""

from refopt.gpu.rules import Rule, device_function, sqrt


def adagrad(real: type, present: frozenset[str]) -> Rule:
    @device_function
    def rule(p, g, s, k):
        lr, epsilon, _ = k
        s = s + g * g
        return p - lr * g / (sqrt(s) + epsilon), s

    return Rule(rule)
