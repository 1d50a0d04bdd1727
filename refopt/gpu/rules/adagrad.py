"""Adagrad: ``refopt.cpu.adagrad``."""

from refopt.gpu.rules import Rule, decay_and_sign, device_function, sqrt


def adagrad(real: type, present: frozenset[str], decay: str, maximize: bool) -> Rule:
    share, prepared = decay_and_sign(real, decay, maximize)

    @device_function
    def prepare(h, s):
        lr, epsilon, weight_decay, _ = h
        return lr, epsilon, share(lr, weight_decay)

    @device_function
    def rule(p, g, s, k):
        lr, epsilon, by = k
        p, g = prepared(p, g, by)
        s = s + g * g
        return p - lr * g / (sqrt(s) + epsilon), s

    return Rule(rule, prepare)
