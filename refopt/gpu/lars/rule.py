"""The rule of LARS, as its kernels evaluate it: ``refopt.cpu.lars`` line by line."""

from collections.abc import Callable

from refopt.dtypes import arithmetic
from refopt.gpu.gate import gate
from refopt.gpu.target import device_function, sqrt

# Rows of the address table, which are the routine's slots, and of the hyperparameter block.
P, G, V, M = range(4)
LR, MU, COEFF, DECAY, EPSILON, RESCALE = range(6)
# Values of `adapt`.
NORMS, DECAY_ONLY, DECAY_AND_NORMS = range(3)
# Rows of the table of rates: local learning rate and weight decay of each tensor.
RATE, WD = range(2)


@device_function
def rule(p, g, v, rate, mu, wd):
    """One element: the new parameter and the new velocity."""
    v = mu * v + rate * (g + wd * p)
    return p - v, v


@device_function
def rule8(p, g, v, rate, mu, wd):
    """Eight elements."""
    p0, v0 = rule(p[0], g[0], v[0], rate, mu, wd)
    p1, v1 = rule(p[1], g[1], v[1], rate, mu, wd)
    p2, v2 = rule(p[2], g[2], v[2], rate, mu, wd)
    p3, v3 = rule(p[3], g[3], v[3], rate, mu, wd)
    p4, v4 = rule(p[4], g[4], v[4], rate, mu, wd)
    p5, v5 = rule(p[5], g[5], v[5], rate, mu, wd)
    p6, v6 = rule(p[6], g[6], v[6], rate, mu, wd)
    p7, v7 = rule(p[7], g[7], v[7], rate, mu, wd)
    return (p0, p1, p2, p3, p4, p5, p6, p7), (v0, v1, v2, v3, v4, v5, v6, v7)


@device_function
def local_lr(p_squares, g_squares, lr, coeff, wd, epsilon, adapt):
    """The learning rate of one tensor, from its two sums of squares."""
    p_norm, g_norm = sqrt(p_squares), sqrt(g_squares)
    norms, decays = p_norm > 0 and g_norm > 0, wd > 0
    adapts = (
        (adapt == NORMS and norms)
        or (adapt == DECAY_ONLY and decays)
        or (adapt == DECAY_AND_NORMS and norms and decays)
    )  # fmt: skip
    if adapts:
        return lr * coeff * p_norm / (g_norm + wd * p_norm + epsilon)
    return lr


class Signature(tuple):
    """What a kernel is made for.

    The dtypes of p, g, v and the master (None if there is none, uint16 for a remainder in its place), whether the
    stored or the exact parameter is normed, and the dtype of the factor (None if the step is given neither factor
    nor flag).
    """

    def __new__(cls, dtypes: tuple, norm_of: str, factor: str | None) -> "Signature":
        return super().__new__(cls, (*dtypes, norm_of, factor))

    @property
    def real(self) -> type:
        """The arithmetic type."""
        return arithmetic(self[P])

    @property
    def exact(self) -> tuple[int, ...]:
        """The slots that hold the parameter the rule works on: both, if it is in two halves."""
        return (P, M) if self[M] == "uint16" else (M,) if self[M] else (P,)

    @property
    def normed(self) -> tuple[int, ...]:
        """The slots that hold what is normed."""
        return self.exact if self[4] == "master" else (P,)

    @property
    def gate(self) -> tuple[Callable, Callable]:
        """The two functions of `refopt.gpu.gate`."""
        return gate(self.real, self[5])
