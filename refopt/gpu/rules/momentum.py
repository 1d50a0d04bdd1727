"""Gradient descent with momentum, Nesterov's too: ``refopt.cpu.momentum``."""

from refopt.gpu.rules import Rule, device_function


def momentum(real: type, present: frozenset[str], use_nesterov: bool, maximize: bool) -> Rule:
    one = real(1)

    @device_function
    def prepare(h, s):
        lr, mu, l2_decay, dampening, _ = h
        return lr, mu, l2_decay, one - dampening

    @device_function
    def rule(p, g, v, k):
        lr, mu, l2_decay, rest = k
        g = (-g if maximize else g) + l2_decay * p
        v = mu * v + rest * g
        # Nesterov looks ahead, to the velocity with which the next step would begin.
        return p - lr * (g + mu * v if use_nesterov else v), v

    return Rule(rule, prepare)
