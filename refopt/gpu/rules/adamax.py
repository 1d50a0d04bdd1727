"""Adamax: ``refopt.cpu.adamax``."""

from refopt.gpu.rules import Rule, device_function, larger


def adamax(real: type, present: frozenset[str]) -> Rule:
    one = real(1)

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, _ = h
        return beta1, one - beta1, beta2, epsilon, lr / (one - s[0])

    @device_function
    def rule(p, g, m, n, k):
        beta1, rest1, beta2, epsilon, rate = k
        m = beta1 * m + rest1 * g
        n = larger(abs(g), beta2 * n + epsilon)
        return p - rate * (m / n), m, n

    @device_function
    def advance(h, s):
        return (s[0] * h[1],)

    return Rule(rule, prepare, advance)
