"""Likely mistakes in LARS."""

from refopt.oracle.wrong.rule import Wrong

ADAPTS, NORMS = "adapts(param_norm, grad_norm, lars_weight_decay, adapt)", "param_norm, grad_norm"
DECAYED = "(g + lars_weight_decay * p)"
STEP = "update(p, g, v, local_lr=rate, mu=mu, lars_weight_decay=lars_weight_decay)"
LR = 'numbers["lr"]'
RULES = {
    "NotAdapted": Wrong("no trust ratio: the learning rate unchanged", {f"not {ADAPTS}": "True"}),
    "NormsSquared": Wrong("squared norms instead of norms: a root forgotten", {
        f"if not {ADAPTS}": f"{NORMS} = param_norm * param_norm, grad_norm * grad_norm\n    if not {ADAPTS}",
    }),
    "NormsExchanged": Wrong("norms of parameter and gradient exchanged", {
        f"if not {ADAPTS}": f"{NORMS} = grad_norm, param_norm\n    if not {ADAPTS}",
    }),
    "DecayForgotten": Wrong("no weight decay in the update", {DECAYED: "(g + 0 * p)"}),
    "DecayDecoupled": Wrong("decay on the parameter, not in the velocity", {
        DECAYED: "g", "return p - v": "return p - v - local_lr * lars_weight_decay * p",
    }),
    "DecayDecoupledByLr": Wrong("decay on the parameter by lr, not in the velocity", {
        DECAYED: "(g + 0 * p)", f"return {STEP}": f"new, v = {STEP}; return new - {LR} * lars_weight_decay * p, v",
    }),
    "MomentumOfEverything": Wrong("mu applied to the new gradient as well", {
        f"mu * v + local_lr * {DECAYED}": f"mu * (v + local_lr * {DECAYED})",
    }),
    "RateOutsideOfVelocity": Wrong("learning rate outside of the velocity", {
        f"local_lr * {DECAYED}": DECAYED, "return p - v": "return p - local_lr * v",
    }),
    "Dampened": Wrong("gradient dampened by 1 - mu", {f"local_lr * {DECAYED}": f"(1 - mu) * local_lr * {DECAYED}"}),
    "Nesterov": Wrong("Nesterov's momentum", {
        f"v = mu * v + local_lr * {DECAYED}": f"step = local_lr * {DECAYED}; v = mu * v + step",
        "return p - v": "return p - (step + mu * v)",
    }),
    "EpsilonInVelocity": Wrong("epsilon in the velocity, not in the denominator", {  # where Paddle's docstring puts it
        "+ epsilon)": "+ 0 * epsilon)", "return update(p, g": 'return update(p, g + numbers["epsilon"]',
    }),
    "LearningRateAgain": Wrong("learning rate applied to the velocity again", {
        f"return {STEP}": f"_, v = {STEP}; return p - {LR} * v, v",
    }),
}
