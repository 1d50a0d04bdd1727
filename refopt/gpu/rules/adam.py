"""Adam and AMSGrad, also with decoupled weight decay: ``refopt.cpu.adam`` and ``refopt.cpu.adamw``."""

from typing import Any

from refopt.gpu.rules import Rule
from refopt.gpu.target import device_function, sqrt


@device_function
def larger(x, y):
    """The larger of two numbers; y where one of them is NaN."""
    return x if x > y else y


@device_function
def next_powers(h, s):
    """Both powers of beta, one step on."""
    return s[0] * h[1], s[1] * h[2]


def adam(real: type, present: frozenset[str], epsilon_at: str) -> Rule:
    one = real(1)

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, _ = h
        return beta1, one - beta1, beta2, one - beta2, epsilon, lr / (one - s[0]), sqrt(one - s[1])

    @device_function
    def prepare_uncorrected(h, s):
        lr, beta1, beta2, epsilon, _ = h
        rate = lr * sqrt(one - s[1]) / (one - s[0])
        return beta1, one - beta1, beta2, one - beta2, epsilon, rate, one

    @device_function
    def descend(p, m, u, epsilon, rate, root):
        return p - rate * (m / (sqrt(u) / root + epsilon))

    @device_function
    def rule(p, g, m, u, k):
        beta1, rest1, beta2, rest2, epsilon, rate, root = k
        m = beta1 * m + rest1 * g
        u = beta2 * u + rest2 * g * g
        return descend(p, m, u, epsilon, rate, root), m, u

    @device_function
    def amsgrad(p, g, m, u, u_max, k):
        beta1, rest1, beta2, rest2, epsilon, rate, root = k
        m = beta1 * m + rest1 * g
        u = beta2 * u + rest2 * g * g
        u_max = larger(u_max, u)
        return descend(p, m, u_max, epsilon, rate, root), m, u, u_max

    return Rule(
        amsgrad if "moment2_max" in present else rule,
        prepare if epsilon_at == "corrected" else prepare_uncorrected,
        next_powers,
    )


def adamw(real: type, present: frozenset[str], epsilon_at: str) -> Rule:
    one = real(1)
    inner: Any = adam(real, present, epsilon_at)
    adam_rule, adam_prepare = inner.rule, inner.prepare

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, coeff, lr_ratio, rescale = h
        return one - lr * lr_ratio * coeff, adam_prepare((lr, beta1, beta2, epsilon, rescale), s)

    @device_function
    def rule(p, g, m, u, k):
        return adam_rule(p * k[0], g, m, u, k[1])

    @device_function
    def amsgrad(p, g, m, u, u_max, k):
        return adam_rule(p * k[0], g, m, u, u_max, k[1])

    return Rule(amsgrad if "moment2_max" in present else rule, prepare, next_powers)
