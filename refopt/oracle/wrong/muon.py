"""Likely mistakes in Muon."""

from functools import partial

import numpy as np

from refopt.cpu.muon import momentum, ratio, updates
from refopt.cpu.newton_schulz import by_gram
from refopt.oracle.bound.double_double import high
from refopt.oracle.wrong.rule import Wrong


def muon_with(
    p, g, v, *, stored, cut, coefficients, restarts, iterations, lr, mu, weight_decay, epsilon, use_nesterov, average,
    adjust_lr, compute, ahead=momentum, triples=lambda triples: triples, starts=lambda restarts: restarts,
    update=updates, by_velocity=False, decays_last=False,
):
    """The rule, with places to change."""
    v, u = ahead(g, v, mu=mu, use_nesterov=use_nesterov, average=average)
    if by_velocity:
        size = np.linalg.norm(high(getattr(v, "value", v)))
        update = partial(update, norm=lambda x, epsilon: np.maximum(size, epsilon))
    moved = update(u, cut=cut, triples=triples(coefficients), lr=lr, epsilon=epsilon, adjust_lr=adjust_lr,
                   compute=compute, restarts=starts(restarts))
    kept = 1 - lr * weight_decay
    return (p - moved) * kept if decays_last else p * kept - moved, v


def other_triples(*triple):
    return partial(muon_with, triples=lambda triples: [triple] * len(triples))


def other_scale(scale):
    return partial(muon_with, update=partial(updates, scale=scale))


def other_norm(norm):
    return partial(muon_with, update=partial(updates, norm=norm))


def of_the_gradient(g, v, *, mu, use_nesterov, average):
    """Momentum that is stored but not used: the update uses the gradient."""
    return momentum(g, v, mu=mu, use_nesterov=use_nesterov, average=average)[0], g


def ahead_twice(g, v, *, mu, use_nesterov, average):
    v, u = momentum(g, v, mu=mu, use_nesterov=use_nesterov, average=average)
    return v, mu * u + ((1 - mu) * g if average else g)


def with_weights_exchanged(g, v, *, mu, use_nesterov, average, ahead=False):
    """Momentum with mu and 1 - mu exchanged in the velocity, or only in what looks ahead."""
    once = partial(momentum, use_nesterov=False, average=average)
    v = once(g, v, mu=mu if ahead else 1 - mu)[0]
    return v, once(g, v, mu=1 - mu if ahead else mu)[0] if use_nesterov else v


def reshaped(u, *, cut, **numbers):
    """Results for a transposed matrix that are reshaped, not transposed back."""
    moved = updates(u, cut=cut, **numbers)
    value = getattr(moved, "value", moved)
    parts = [value.high, value.low] if hasattr(value, "high") else [value]
    for part in (*parts, *([moved.error] if hasattr(moved, "error") else [])):
        for matrix in cut.matrices(part):
            if matrix.shape[0] > matrix.shape[1]:
                matrix[...] = matrix.T.reshape(matrix.shape).copy()
    return moved


def as_it_is(u, *, lr, **_):
    """No matrix is made orthogonal: gradient descent with momentum."""
    return lr * u


def of_halves(u, *, cut, **numbers):
    """The upper and the lower rows separately, as if two ranks had half of the matrix each."""
    top, (*_, bottom) = cut.ends[0][0], cut.ends[0]
    rows = [top, (top + bottom + 1) // 2, bottom] if bottom - top > 1 else [top, bottom]
    return updates(u, cut=cut._replace(ends=(rows, cut.ends[1])), **numbers)


def by_other_gram(**other):
    return partial(muon_with, update=partial(updates, gram=partial(by_gram, **other)))


def upper(square, dtype):
    """A square rounded to a dtype, with the elements above the diagonal also below it."""
    higher = np.triu(square).astype(dtype)
    return np.where(np.tri(len(square), dtype=bool).T, higher, higher.T)


def starting(starts):
    return partial(muon_with, starts=starts)


GRAM = "restarts",
RULES = {
    "NotIterated": Wrong("no iteration: a matrix divided by its norm", partial(muon_with, triples=lambda t: t[:0])),
    "OneLess": Wrong("an iteration too few", partial(muon_with, triples=lambda t: t[:-1])),
    "OneMore": Wrong("an iteration too many", partial(muon_with, triples=lambda t: [*t, *t[-1:]])),
    "Cubic": Wrong("coefficients (1.5, -0.5, 0), of Newton and Schulz", other_triples(1.5, -0.5, 0.0)),
    "Quintic": Wrong("coefficients (2, -1.5, 0.5)", other_triples(2.0, -1.5, 0.5)),
    "OfTaylor": Wrong("coefficients (15, -10, 3) / 8", other_triples(1.875, -1.25, 0.375)),
    "LastCoefficient": Wrong("c = 2 instead of 2.0315", other_triples(3.4445, -4.7750, 2.0)),
    "SpectralNorm": Wrong("divided by the largest singular value", other_norm(lambda u, epsilon: np.linalg.norm(u, 2))),
    "NormOfRows": Wrong("each row divided by its own norm", other_norm(
        lambda u, epsilon: np.sqrt(u.shape[0]) * np.linalg.norm(u, axis=1, keepdims=True))),
    "NormOfColumns": Wrong("each column divided by its own norm", other_norm(
        lambda u, epsilon: np.sqrt(u.shape[1]) * np.linalg.norm(u, axis=0, keepdims=True))),
    "Halves": Wrong("rows in two halves, made orthogonal separately", partial(muon_with, update=of_halves)),
    "AsItIs": Wrong("nothing made orthogonal: momentum alone", partial(muon_with, update=as_it_is)),
    "OfTheGradient": Wrong("the gradient made orthogonal, not the momentum", partial(muon_with, ahead=of_the_gradient)),
    "AheadTwice": Wrong("Nesterov's momentum applied twice", partial(muon_with, ahead=ahead_twice)),
    "WeightsExchanged": Wrong("mu and 1 - mu exchanged in the velocity", partial(
        muon_with, ahead=with_weights_exchanged)),
    "WeightsExchangedAhead": Wrong("mu and 1 - mu exchanged in Nesterov's momentum", partial(
        muon_with, ahead=partial(with_weights_exchanged, ahead=True))),
    "Reshaped": Wrong("the result for a transposed matrix reshaped, not transposed back", partial(
        muon_with, update=reshaped)),
    "NormOfVelocity": Wrong("divided by the norm of the velocity", partial(muon_with, by_velocity=True)),
    "DecayAfterwards": Wrong("decay of the new parameter, after the step", partial(muon_with, decays_last=True)),
    "RatioOfSquares": Wrong("the root of the ratio forgotten", other_scale(lambda *of: ratio(*of) ** 2)),
    "QKept": Wrong("Q kept at a restart, so that it is applied to x twice", by_other_gram(
        restarted=lambda q, x, product: (product(q, product(q, x)), product(q, x))), needs=GRAM),
    "QLost": Wrong("Q not applied to x at a restart", by_other_gram(
        restarted=lambda q, x, product: (x, product(q, x))), needs=GRAM),
    "OldGram": Wrong("R from the x before a restart, not from Q x", by_other_gram(
        restarted=lambda q, x, product: (product(q, x), x)), needs=GRAM),
    "LastQLost": Wrong("the last Q not applied to x", by_other_gram(
        finished=lambda q, x, product: (x, x)), needs=GRAM),
}
# The same polynomials: bits tell them, or rounding errors that have outgrown the bound.
MORE = {
    "Upper": Wrong("the triangle above the diagonal mirrored, not the one below it", by_other_gram(
        mirrored=upper), needs=GRAM, rough=True),
    "OneRestart": Wrong("Gram matrices restarted after two iterations, as restarts=(2,) declares", starting(
        lambda restarts: (2,)), rough=True),
    "RestartEarly": Wrong("Gram matrices restarted one iteration early", starting(
        lambda restarts: tuple(x - 1 for x in restarts)), needs=GRAM, rough=True),
    "RestartLate": Wrong("Gram matrices restarted one iteration late", starting(
        lambda restarts: tuple(x + 1 for x in restarts)), needs=GRAM, rough=True),
    "NoRestart": Wrong("Gram matrices restarted too late or never", starting(lambda restarts: ()), rough=True),
}
