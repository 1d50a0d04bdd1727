"""RAdam: ``refopt.cpu.radam``."""

from refopt.gpu.rules import Rule, decay_and_sign, device_function, moments, sqrt


def radam(real: type, present: frozenset[str], decay: str, maximize: bool) -> Rule:
    one, two, four, five = real(1), real(2), real(4), real(5)
    share, prepared = decay_and_sign(real, decay, maximize)

    @device_function
    def rectification(rho, beta2):
        rho_inf = two / (one - beta2) - one
        return sqrt((rho - four) * (rho - two) * rho_inf / ((rho_inf - four) * (rho_inf - two) * rho))

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, weight_decay, _ = h
        rate, rectified = lr / (one - s[0]), s[2] > five
        if rectified:
            rate = rate * rectification(s[2], beta2) * sqrt(one - s[1])
        betas = beta1, one - beta1, beta2, one - beta2
        return betas, epsilon, rate, rectified, share(lr, weight_decay)

    @device_function
    def rule(p, g, m, u, k):
        betas, epsilon, rate, rectified, by = k
        p, g = prepared(p, g, by)
        m, u = moments(g, m, u, betas)
        return p - rate * (m / (sqrt(u) + epsilon) if rectified else m), m, u

    @device_function
    def advance(h, s):
        beta2_pow = s[1] * h[2]
        return s[0] * h[1], beta2_pow, one + (s[2] + one) * ((h[2] - beta2_pow) / (one - beta2_pow))

    return Rule(rule, prepare, advance)
