"""Lion: ``refopt.cpu.lion``."""

from refopt.gpu.rules import Rule, device_function


def lion(real: type, present: frozenset[str]) -> Rule:
    zero, one, minus_one = real(0), real(1), real(-1)

    @device_function
    def sign(x):
        """1 above zero, -1 below, and x itself otherwise (zero or NaN)."""
        return one if x > zero else (minus_one if x < zero else x)

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, coeff, _ = h
        return lr, beta1, one - beta1, beta2, one - beta2, one - lr * coeff

    @device_function
    def rule(p, g, m, k):
        lr, beta1, rest1, beta2, rest2, keep = k
        return p * keep - lr * sign(beta1 * m + rest1 * g), beta2 * m + rest2 * g

    return Rule(rule, prepare)
