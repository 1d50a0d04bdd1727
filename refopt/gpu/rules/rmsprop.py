"""RMSProp, centered too: ``refopt.cpu.rmsprop``."""

from refopt.gpu.rules import Rule, device_function, sqrt


def rmsprop(real: type, present: frozenset[str], epsilon_at: str) -> Rule:
    one, inside = real(1), epsilon_at == "inside"

    @device_function
    def root(d, epsilon):
        return sqrt(d + epsilon) if inside else sqrt(d) + epsilon

    @device_function
    def prepare(h, s):
        lr, rho, mu, epsilon, _ = h
        return lr, rho, one - rho, mu, epsilon

    @device_function
    def rule(p, g, s, v, k):
        lr, rho, rest, mu, epsilon = k
        s = rho * s + rest * g * g
        v = mu * v + lr * g / root(s, epsilon)
        return p - v, s, v

    @device_function
    def centered(p, g, s, v, a, k):
        lr, rho, rest, mu, epsilon = k
        s, a = rho * s + rest * g * g, rho * a + rest * g
        v = mu * v + lr * g / root(s - a * a, epsilon)
        return p - v, s, v, a

    return Rule(centered if "mean_grad" in present else rule, prepare)
