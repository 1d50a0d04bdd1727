"""RMSProp, centered too: ``refopt.cpu.rmsprop``."""

from refopt.gpu.rules import Rule, decay_and_sign, device_function, sqrt


def rmsprop(real: type, present: frozenset[str], epsilon_at: str, lr_at: str, decay: str, maximize: bool) -> Rule:
    one, inside, later = real(1), epsilon_at == "inside", lr_at == "step"
    share, prepared = decay_and_sign(real, decay, maximize)

    @device_function
    def root(d, epsilon):
        return sqrt(d + epsilon) if inside else sqrt(d) + epsilon

    @device_function
    def prepare(h, s):
        lr, rho, mu, epsilon, weight_decay, _ = h
        return lr, rho, one - rho, mu, epsilon, share(lr, weight_decay)

    @device_function
    def rule(p, g, s, v, k):
        lr, rho, rest, mu, epsilon, by = k
        p, g = prepared(p, g, by)
        s = rho * s + rest * g * g
        v = mu * v + (g if later else lr * g) / root(s, epsilon)
        return p - (lr * v if later else v), s, v

    @device_function
    def centered(p, g, s, v, a, k):
        lr, rho, rest, mu, epsilon, by = k
        p, g = prepared(p, g, by)
        s, a = rho * s + rest * g * g, rho * a + rest * g
        v = mu * v + (g if later else lr * g) / root(s - a * a, epsilon)
        return p - (lr * v if later else v), s, v, a

    return Rule(centered if "mean_grad" in present else rule, prepare)
