"""NAdam: ``refopt.cpu.nadam``."""

from refopt.gpu.rules import Rule
from refopt.gpu.target import device_function, sqrt


def nadam(real: type, present: frozenset[str]) -> Rule:
    half, one = real(0.5), real(1)

    @device_function
    def momentum(beta1, decay_pow):
        return beta1 * (one - half * decay_pow)

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, decay_base, _ = h
        decay_pow, beta2_pow, product = s
        mu, mu_next = momentum(beta1, decay_pow), momentum(beta1, decay_pow * decay_base)
        product = product * mu
        of_m, of_g = mu_next / (one - product * mu_next), (one - mu) / (one - product)
        return lr, beta1, one - beta1, beta2, one - beta2, epsilon, of_m, of_g, one - beta2_pow

    @device_function
    def rule(p, g, m, u, k):
        lr, beta1, rest1, beta2, rest2, epsilon, of_m, of_g, correction = k
        m = beta1 * m + rest1 * g
        u = beta2 * u + rest2 * g * g
        c = of_m * m + of_g * g
        return p - lr * (c / (sqrt(u / correction) + epsilon)), m, u

    @device_function
    def advance(h, s):
        return s[0] * h[4], s[1] * h[2], s[2] * momentum(h[1], s[0])

    return Rule(rule, prepare, advance)
