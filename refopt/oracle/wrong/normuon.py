"""Likely mistakes in NorMuon."""

from refopt.cpu.muon import momentum, updates
from refopt.cpu.normuon import row_updates, rule
from refopt.oracle.wrong.rule import Wrong


def not_kept(p, g, v, w, **numbers):
    """Averages that are used but not stored."""
    return *rule(p, g, v, w, **numbers)[:2], w


def as_muon(p, g, v, w, *, stored, coefficients, iterations, lr, mu, weight_decay, use_nesterov, average, beta2,
            row_epsilon, **numbers):
    """Averages that are stored but not used."""
    v, u = momentum(g, v, mu=mu, use_nesterov=use_nesterov, average=average)
    w = row_updates(u, w, beta2=beta2, row_epsilon=row_epsilon, triples=coefficients, lr=lr, **numbers)[1]
    return p * (1 - lr * weight_decay) - updates(u, triples=coefficients, lr=lr, **numbers), v, w


RULES = {
    "AsMuon": Wrong("rows not normalized", as_muon),
    "NotKept": Wrong("the averages of rows not stored", not_kept),
}
