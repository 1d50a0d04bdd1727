"""Adamax: ``refopt.cpu.adamax``."""

from refopt.gpu.rules import Rule, decay_and_sign, device_function, larger


def adamax(real: type, present: frozenset[str], epsilon_at: str, decay: str, maximize: bool) -> Rule:
    one, on_norm = real(1), epsilon_at == "norm"
    share, prepared = decay_and_sign(real, decay, maximize)

    @device_function
    def norm(g, n, beta2, epsilon):
        return larger(abs(g), beta2 * n + epsilon) if on_norm else larger(abs(g) + epsilon, beta2 * n)

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, weight_decay, _ = h
        return beta1, one - beta1, beta2, epsilon, lr / (one - s[0]), share(lr, weight_decay)

    @device_function
    def rule(p, g, m, n, k):
        beta1, rest1, beta2, epsilon, rate, by = k
        p, g = prepared(p, g, by)
        m, n = beta1 * m + rest1 * g, norm(g, n, beta2, epsilon)
        return p - rate * (m / n), m, n

    @device_function
    def advance(h, s):
        return (s[0] * h[1],)

    return Rule(rule, prepare, advance)
