"""Likely mistakes in momentum."""

from refopt.oracle.wrong.rule import Wrong

DECAY, VELOCITY = "g = g + l2_decay * p", "mu * v + (g if dampening == 0 else (1 - dampening) * g)"
STEP = "p - lr * (g + mu * v if use_nesterov else v)"
KEPT = {"    v = mu": "    old = v; v = mu"}
BY_LR = {DECAY: "g = lr * (g + l2_decay * p)"}
BY_REST = {VELOCITY: "mu * v + (1 - dampening) * ((1 - mu) * g)"}
RULES = {
    "LearningRateInVelocity": Wrong("learning rate inside the velocity", BY_LR | {"p - lr * (": "p - ("}),
    "DecayDecoupled": Wrong("decay on the parameter, not in the velocity", {DECAY: "p = p * (1 - lr * l2_decay)"}),
    "Dampened": Wrong("gradient dampened by 1 - mu, the decay not", {DECAY: "g = (1 - mu) * g + l2_decay * p"}),
    "DampenedWithDecay": Wrong("gradient dampened by 1 - mu", BY_REST),  # as in PyTorch with dampening
    "DecayAfterwards": Wrong("decay of the new parameter, after the step", {
        DECAY: "pass", f"return {STEP}": f"p = {STEP}; return p - lr * l2_decay * p",
    }),
    "OtherSign": Wrong("velocity with the opposite sign", {
        VELOCITY: "mu * v - (1 - dampening) * g", STEP: "p + lr * (mu * v - g if use_nesterov else v)",
    }),
    "Averaged": Wrong(
        "gradient dampened by 1 - mu: the velocity as an average", BY_REST | {"(g + mu * v": "((1 - mu) * g + mu * v"}
    ),
    "LearningRateTwice": Wrong("learning rate inside the velocity, and again in the step", BY_LR),
    "MomentumOfEverything": Wrong("mu applied to the new gradient as well", {
        VELOCITY: "mu * (v + (1 - dampening) * g)",
    }),
    "DampeningOfEverything": Wrong("dampening of the whole velocity", {VELOCITY: "(1 - dampening) * (mu * v + g)"}),
    "NesterovWithTheOldVelocity": Wrong("Nesterov with the old velocity", KEPT | {"g + mu * v if": "g + mu * old if"}),
    "NesterovWithoutDecay": Wrong(
        "Nesterov's step without the decay", {"(g + mu * v if": "(plain + mu * v if", DECAY: f"plain = g; {DECAY}"}
    ),
}
