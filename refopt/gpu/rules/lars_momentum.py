"""LARS with momentum: ``refopt.cpu.lars``."""

from typing import Any

from refopt.gpu.instructions import sqrt
from refopt.gpu.rules import NormRule
from refopt.gpu.target import device_function


def lars_momentum(real: Any, present: frozenset[str], adapt: str, norm_of: str) -> NormRule:
    zero = real(0)
    of_norms, of_decay = adapt != "decay", adapt != "norms"

    @device_function
    def normed(p, g, k):
        return p, g

    @device_function
    def adapts(p_norm, g_norm, decay):
        """Whether the ratio applies; Paddle's versions have used three conditions."""
        if of_norms and not (p_norm > zero and g_norm > zero):
            return False
        return not of_decay or decay > zero

    @device_function
    def local_lr(p_norm, g_norm, lr, coeff, decay, epsilon):
        if adapts(p_norm, g_norm, decay):
            return lr * coeff * p_norm / (g_norm + decay * p_norm + epsilon)
        return lr

    @device_function
    def close(sums, k):
        lr, _, coeff, decay, epsilon, _ = k
        return (local_lr(sqrt(sums[0]), sqrt(sums[1]), lr, coeff, decay, epsilon),)

    @device_function
    def rule(p, g, v, k):
        _, mu, _, decay, _, _, rate = k
        v = mu * v + rate * (g + decay * p)
        return p - v, v

    return NormRule(
        reads=("params" if norm_of == "master" else "stored_params", "grads"), normed=normed,
        close=close, numbers=("rate",),
        updates=("params", "grads", "velocities"), rule=rule,
    )
