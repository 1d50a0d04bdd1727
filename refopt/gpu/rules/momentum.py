"""Gradient descent with momentum, Nesterov's too: ``refopt.cpu.momentum``."""

from refopt.gpu.rules import Rule, device_function


def momentum(real: type, present: frozenset[str], use_nesterov: bool) -> Rule:
    @device_function
    def rule(p, g, v, k):
        lr, mu, l2_decay, _ = k
        g = g + l2_decay * p
        v = mu * v + g
        # Nesterov looks ahead: the velocity that the next step would begin with.
        return p - lr * (g + mu * v if use_nesterov else v), v

    return Rule(rule)
