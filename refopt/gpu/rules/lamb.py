"""LAMB: ``refopt.cpu.lamb``.

The second launch computes r again, from the moments that the first has stored: 40 bytes per element in fp32. Storing r
would move as many bytes, and need memory.
"""

from typing import Any

from refopt.gpu.instructions import sqrt
from refopt.gpu.rules import NormRule
from refopt.gpu.target import device_function


def lamb(real: Any, present: frozenset[str], always_adapt: bool) -> NormRule:
    zero, one = real(0), real(1)

    @device_function
    def moments(p, g, m, u, k):
        _, beta1, beta2, _, _, _, _, _ = k
        return beta1 * m + (one - beta1) * g, beta2 * u + (one - beta2) * g * g

    @device_function
    def direction(p, m, u, epsilon, decay, rest1, rest2):
        return m / rest1 / (sqrt(u / rest2) + epsilon) + decay * p

    @device_function
    def normed(p, g, m, u, k):
        _, _, _, epsilon, decay, _, power1, power2 = k
        return p, direction(p, m, u, epsilon, decay, one - power1, one - power2)

    @device_function
    def trust_ratio(p_norm, r_norm, decay):
        if p_norm > zero and r_norm > zero and (always_adapt or decay > zero):
            return p_norm / r_norm
        return one

    @device_function
    def close(sums, k):
        lr, beta1, beta2, _, decay, _, power1, power2 = k
        rate = lr * trust_ratio(sqrt(sums[0]), sqrt(sums[1]), decay)
        return rate, one - power1, one - power2, power1 * beta1, power2 * beta2

    @device_function
    def rule(p, m, u, k):
        _, _, _, epsilon, decay, _, rate, rest1, rest2 = k
        return (p - rate * direction(p, m, u, epsilon, decay, rest1, rest2),)

    return NormRule(
        reads=("params", "grads", "moment1", "moment2"), moments=moments, normed=normed,
        close=close, numbers=("rate", "rest1", "rest2"),
        updates=("params", "moment1", "moment2"), rule=rule,
    )
