"""NovoGrad: ``refopt.cpu.novograd``."""

from typing import Any

from refopt.gpu.instructions import sqrt
from refopt.gpu.rules import NormRule
from refopt.gpu.target import device_function


def novograd(real: Any, present: frozenset[str], grad_averaging: bool) -> NormRule:
    zero, one = real(0), real(1)

    @device_function
    def normed(g, k):
        return (g,)

    @device_function
    def average(v, n, beta2):
        if v == zero:
            return n
        return beta2 * v + (one - beta2) * n

    @device_function
    def close(sums, k):
        _, _, beta2, epsilon, _, _, v = k
        v = average(v, sums[0], beta2)
        return sqrt(v) + epsilon, v

    @device_function
    def rule(p, g, m, k):
        lr, beta1, _, _, decay, _, divisor = k
        d = g / divisor + decay * p
        if grad_averaging:
            d = (one - beta1) * d
        m = beta1 * m + d
        return p - lr * m, m

    return NormRule(
        reads=("grads",), normed=normed,
        close=close, numbers=("divisor",),
        updates=("params", "grads", "moment"), rule=rule,
    )
