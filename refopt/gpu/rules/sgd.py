"""Gradient descent, plain and with momentum."""

from refopt.gpu.rules import Rule
from refopt.gpu.target import device_function


@device_function
def sgd_rule(p, g, k):
    """``refopt.cpu.sgd``."""
    lr, l2_decay, _ = k
    g = g + l2_decay * p
    return (p - lr * g,)


@device_function
def momentum_rule(p, g, v, k):
    """``refopt.cpu.momentum``."""
    lr, mu, l2_decay, _ = k
    g = g + l2_decay * p
    v = mu * v + g
    return p - lr * v, v


@device_function
def nesterov_rule(p, g, v, k):
    """The same, looking ahead."""
    lr, mu, l2_decay, _ = k
    g = g + l2_decay * p
    v = mu * v + g
    return p - lr * (g + mu * v), v


def sgd(real: type, present: frozenset[str]) -> Rule:
    return Rule(sgd_rule)


def momentum(real: type, present: frozenset[str], use_nesterov: bool) -> Rule:
    return Rule(nesterov_rule if use_nesterov else momentum_rule)
