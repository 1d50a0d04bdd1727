"""Adam with decoupled weight decay, AMSGrad too: ``refopt.cpu.adamw``."""

from refopt.gpu.rules import Rule, device_function, next_powers
from refopt.gpu.rules.adam import adam


def adamw(real: type, present: frozenset[str], epsilon_at: str, maximize: bool) -> Rule:
    one, inner = real(1), adam(real, present, epsilon_at, "decoupled", maximize)
    adam_rule, adam_prepare = inner.rule, inner.prepare

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, coeff, lr_ratio, rescale = h
        betas, epsilon, rate, root, _ = adam_prepare((lr, beta1, beta2, epsilon, coeff, rescale), s)
        return betas, epsilon, rate, root, one - lr * lr_ratio * coeff

    return Rule(adam_rule, prepare, next_powers)
