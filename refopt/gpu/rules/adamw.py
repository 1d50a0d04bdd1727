"""Adam with decoupled weight decay, AMSGrad too: ``refopt.cpu.adamw``."""

from refopt.gpu.rules import Rule, device_function, next_powers
from refopt.gpu.rules.adam import adam


def adamw(real: type, present: frozenset[str], epsilon_at: str) -> Rule:
    one, inner = real(1), adam(real, present, epsilon_at)
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
