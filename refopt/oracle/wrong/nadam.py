"""Likely mistakes in NAdam. The scalars are momentum_decay_pow, beta2_pow and mu_product."""

from refopt.oracle.wrong.rule import Wrong

MOMENTUM, ADVANCED = "beta1 * (1 - 0.5 * momentum_decay_pow)", "momentum_decay_pow = momentum_decay_pow * decay_base"
RULES = {
    "NoSchedule": Wrong("no schedule of the momentum", {MOMENTUM: "beta1"}),
    "ProductNotCarried": Wrong("product of momenta not carried", {"mu_product = mu_product * mu": "mu_product = mu"}),
    "DecayPowBeforeUse": Wrong("schedule advanced before use", {
        f"mu = {MOMENTUM}": f"{ADVANCED}; mu = {MOMENTUM}",
        f"{ADVANCED}\n    mu_next = {MOMENTUM}": "mu_next = beta1 * (1 - 0.5 * (momentum_decay_pow * decay_base))",
    }),
    "OneProductForBoth": Wrong("first moment corrected without the next momentum", {
        "mu_product * mu_next": "mu_product",
    }),
}
