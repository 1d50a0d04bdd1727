"""Adadelta: ``refopt.cpu.adadelta``."""

from refopt.gpu.rules import Rule, device_function, sqrt


def adadelta(real: type, present: frozenset[str]) -> Rule:
    one = real(1)

    @device_function
    def prepare(h, s):
        lr, rho, epsilon, _ = h
        return lr, rho, one - rho, epsilon

    @device_function
    def rule(p, g, s, x, k):
        lr, rho, rest, epsilon = k
        s = rho * s + rest * g * g
        d = sqrt((x + epsilon) / (s + epsilon)) * g
        x = rho * x + rest * d * d
        return p - lr * d, s, x

    return Rule(rule, prepare)
