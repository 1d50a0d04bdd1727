"""What is wrong, or easily is, in NAdam. The scalars are momentum_decay_pow, beta2_pow and mu_product."""

import numpy as np

from refopt.cpu.adam import moments
from refopt.cpu.nadam import update as nadam_rule
from refopt.oracle.wrong.options import with_options
from refopt.oracle.wrong.rule import Wrong


def no_schedule(p, g, m, u, decay, b2, product, *, decay_base, **numbers):
    """beta1 for every mu."""
    p, m, u, _, b2, product = nadam_rule(p, g, m, u, decay * 0, b2, product, decay_base=decay_base, **numbers)
    return p, m, u, decay * decay_base, b2, product


def next_momentum_forgotten(p, g, m, u, decay, b2, product, *, decay_base, **numbers):
    """mu for mu_next."""
    p, m, u, _, b2, product = nadam_rule(p, g, m, u, decay, b2, product, decay_base=1, **numbers)
    return p, m, u, decay * decay_base, b2, product


def product_not_carried(p, g, m, u, decay, b2, product, **numbers):
    return nadam_rule(p, g, m, u, decay, b2, product * 0 + 1, **numbers)


def decay_pow_before_use(p, g, m, u, decay, b2, product, *, decay_base, **numbers):
    p, m, u, _, b2, product = nadam_rule(p, g, m, u, decay * decay_base, b2, product, decay_base=decay_base, **numbers)
    return p, m, u, decay * decay_base, b2, product


def beta2_pow_before_use(p, g, m, u, decay, b2, product, *, beta2, **numbers):
    p, m, u, decay, _, product = nadam_rule(p, g, m, u, decay, b2 * beta2, product, beta2=beta2, **numbers)
    return p, m, u, decay, b2 * beta2, product


def nadam_epsilon_uncorrected(p, g, m, u, decay, b2, product, *, epsilon, **numbers):
    return nadam_rule(p, g, m, u, decay, b2, product, epsilon=epsilon / np.sqrt(1 - b2), **numbers)


def one_product_for_both(p, g, m, u, decay, b2, product, *, lr, beta1, beta2, epsilon, decay_base):
    """The moment, too, corrected without mu_next."""
    mu, following = beta1 * (1 - 0.5 * decay), beta1 * (1 - 0.5 * (decay * decay_base))
    product = product * mu
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    c = following / (1 - product) * m + (1 - mu) / (1 - product) * g
    return p - lr * (c / (np.sqrt(u / (1 - b2)) + epsilon)), m, u, decay * decay_base, b2 * beta2, product


RULES = with_options(
    nadam_rule,
    {
        "NoSchedule": Wrong("no schedule of the momentum", no_schedule),
        "NextMomentumForgotten": Wrong("momentum of this step for that of the next", next_momentum_forgotten),
        "ProductNotCarried": Wrong("product of momenta not carried", product_not_carried),
        "DecayPowBeforeUse": Wrong("schedule advanced before use", decay_pow_before_use),
        "Beta2PowBeforeUse": Wrong("power of beta2 advanced before use", beta2_pow_before_use),
        "EpsilonUncorrected": Wrong("epsilon beside the uncorrected root", nadam_epsilon_uncorrected),
        "OneProductForBoth": Wrong("first moment corrected without the next momentum", one_product_for_both),
    },
)  # fmt: skip
