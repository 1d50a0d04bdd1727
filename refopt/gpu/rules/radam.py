"""RAdam: ``refopt.cpu.radam``."""

from refopt.gpu.rules import Rule
from refopt.gpu.target import device_function, sqrt


def radam(real: type, present: frozenset[str]) -> Rule:
    one, two, four, five = real(1), real(2), real(4), real(5)

    @device_function
    def rectification(rho, beta2):
        rho_inf = two / (one - beta2) - one
        return sqrt((rho - four) * (rho - two) * rho_inf / ((rho_inf - four) * (rho_inf - two) * rho))

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, _ = h
        beta1_pow, beta2_pow, rho = s
        rate, rectified = lr / (one - beta1_pow), rho > five
        if rectified:
            rate = rate * rectification(rho, beta2) * sqrt(one - beta2_pow)
        return beta1, one - beta1, beta2, one - beta2, epsilon, rate, rectified

    @device_function
    def rule(p, g, m, u, k):
        beta1, rest1, beta2, rest2, epsilon, rate, rectified = k
        m = beta1 * m + rest1 * g
        u = beta2 * u + rest2 * g * g
        step = m / (sqrt(u) + epsilon) if rectified else m
        return p - rate * step, m, u

    @device_function
    def advance(h, s):
        beta2_pow = s[1] * h[2]
        return s[0] * h[1], beta2_pow, one + (s[2] + one) * ((h[2] - beta2_pow) / (one - beta2_pow))

    return Rule(rule, prepare, advance)
