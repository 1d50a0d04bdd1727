"""Adadelta: ``refopt.cpu.adadelta``."""

from refopt.gpu.rules import Rule, decay_and_sign, device_function, sqrt


def adadelta(real: type, present: frozenset[str], decay: str, maximize: bool) -> Rule:
    one = real(1)
    share, prepared = decay_and_sign(real, decay, maximize)

    @device_function
    def prepare(h, s):
        lr, rho, epsilon, weight_decay, _ = h
        return lr, rho, one - rho, epsilon, share(lr, weight_decay)

    @device_function
    def rule(p, g, s, x, k):
        lr, rho, rest, epsilon, by = k
        p, g = prepared(p, g, by)
        s = rho * s + rest * g * g
        d = sqrt((x + epsilon) / (s + epsilon)) * g
        x = rho * x + rest * d * d
        return p - lr * d, s, x

    return Rule(rule, prepare)
