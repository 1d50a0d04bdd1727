"""NAdam: ``refopt.cpu.nadam``."""

from refopt.gpu.rules import Rule, decay_and_sign, device_function, moments, sqrt


def nadam(real: type, present: frozenset[str], decay: str, maximize: bool) -> Rule:
    half, one = real(0.5), real(1)
    share, prepared = decay_and_sign(real, decay, maximize)

    @device_function
    def momentum(beta1, decay_pow):
        return beta1 * (one - half * decay_pow)

    @device_function
    def prepare(h, s):
        lr, beta1, beta2, epsilon, decay_base, weight_decay, _ = h
        mu, mu_next = momentum(beta1, s[0]), momentum(beta1, s[0] * decay_base)
        product = s[2] * mu
        of_m, of_g = mu_next / (one - product * mu_next), (one - mu) / (one - product)
        betas = beta1, one - beta1, beta2, one - beta2
        return betas, lr, epsilon, of_m, of_g, one - s[1], share(lr, weight_decay)

    @device_function
    def rule(p, g, m, u, k):
        betas, lr, epsilon, of_m, of_g, correction, by = k
        p, g = prepared(p, g, by)
        m, u = moments(g, m, u, betas)
        return p - lr * ((of_m * m + of_g * g) / (sqrt(u / correction) + epsilon)), m, u

    @device_function
    def advance(h, s):
        return s[0] * h[4], s[1] * h[2], s[2] * momentum(h[1], s[0])

    return Rule(rule, prepare, advance)
