"""Rates from the squares of the gradient: Adagrad, RMSProp and Adadelta."""

from refopt.gpu.rules import Rule
from refopt.gpu.target import device_function, sqrt


@device_function
def adagrad_rule(p, g, s, k):
    """``refopt.cpu.adagrad``."""
    lr, epsilon, _ = k
    s = s + g * g
    return p - lr * g / (sqrt(s) + epsilon), s


@device_function
def root_inside(d, epsilon):
    return sqrt(d + epsilon)


@device_function
def root_outside(d, epsilon):
    return sqrt(d) + epsilon


def adagrad(real: type, present: frozenset[str]) -> Rule:
    return Rule(adagrad_rule)


def rmsprop(real: type, present: frozenset[str], epsilon_at: str) -> Rule:
    one = real(1)
    root = root_inside if epsilon_at == "inside" else root_outside

    @device_function
    def prepare(h, s):
        lr, rho, mu, epsilon, _ = h
        return lr, rho, one - rho, mu, epsilon

    @device_function
    def rule(p, g, s, v, k):
        """``refopt.cpu.rmsprop``."""
        lr, rho, rest, mu, epsilon = k
        s = rho * s + rest * g * g
        v = mu * v + lr * g / root(s, epsilon)
        return p - v, s, v

    @device_function
    def centered(p, g, s, v, a, k):
        """The same with the variance."""
        lr, rho, rest, mu, epsilon = k
        s = rho * s + rest * g * g
        a = rho * a + rest * g
        v = mu * v + lr * g / root(s - a * a, epsilon)
        return p - v, s, v, a

    return Rule(centered if "mean_grad" in present else rule, prepare)


def adadelta(real: type, present: frozenset[str]) -> Rule:
    one = real(1)

    @device_function
    def prepare(h, s):
        lr, rho, epsilon, _ = h
        return lr, rho, one - rho, epsilon

    @device_function
    def rule(p, g, s, x, k):
        """``refopt.cpu.adadelta``."""
        lr, rho, rest, epsilon = k
        s = rho * s + rest * g * g
        d = sqrt((x + epsilon) / (s + epsilon)) * g
        x = rho * x + rest * d * d
        return p - lr * d, s, x

    return Rule(rule, prepare)
