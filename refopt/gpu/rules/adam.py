"""Adam and AMSGrad: ``refopt.cpu.adam``."""

from refopt.gpu.rules import Rule, decay_and_sign, device_function, larger, moments, next_powers, sqrt


def adam(real: type, present: frozenset[str], epsilon_at: str, decay: str, maximize: bool) -> Rule:
    one, corrected = real(1), epsilon_at == "corrected"
    share, prepared = decay_and_sign(real, decay, maximize)

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, weight_decay, _ = h
        rest, root = one - s[0], sqrt(one - s[1])
        rate = lr / rest if corrected else lr * root / rest
        betas = beta1, one - beta1, beta2, one - beta2
        return betas, epsilon, rate, root if corrected else one, share(lr, weight_decay)

    @device_function
    def rule(p, g, m, u, k):
        betas, epsilon, rate, root, by = k
        p, g = prepared(p, g, by)
        m, u = moments(g, m, u, betas)
        return p - rate * (m / (sqrt(u) / root + epsilon)), m, u

    @device_function
    def amsgrad(p, g, m, u, u_max, k):
        betas, epsilon, rate, root, by = k
        p, g = prepared(p, g, by)
        m, u = moments(g, m, u, betas)
        u_max = larger(u_max, u)
        return p - rate * (m / (sqrt(u_max) / root + epsilon)), m, u, u_max

    return Rule(amsgrad if "moment2_max" in present else rule, prepare, next_powers)
