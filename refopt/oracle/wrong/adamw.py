"""Likely mistakes in AdamW."""

from refopt.oracle.wrong.adam import RULES as OF_ADAM
from refopt.oracle.wrong.rule import Wrong

RATE, STEP = "lr * lr_ratio * coeff", "adam_update(p, g, *states, lr=lr, **numbers)"
DECAY = f"p = p * (1 - {RATE})"
RULES = {
    "DecayInGradient": Wrong("decay in the gradient (Adam with L2), not on the parameter", {
        DECAY: "g = g + lr_ratio * coeff * p",
    }),
    "RatioOnEverything": Wrong("lr_ratio on the whole step, not on the decay alone", {
        "*states, lr=lr": "*states, lr=lr * lr_ratio",
    }),
    "RatioOfTheStep": Wrong("lr_ratio on the step, not on the decay", {
        RATE: "lr * coeff", "*states, lr=lr": "*states, lr=lr * lr_ratio",
    }),
    "DecayAfterwards": Wrong("decay of the new parameter, after the step", {
        DECAY: "pass", f"return {STEP}": f"new, *rest = {STEP}; return new * (1 - {RATE}), *rest",
    }),
    "DecayWithoutLr": Wrong("decay without the learning rate", {RATE: "lr_ratio * coeff"}),
    "DecayTwice": Wrong("decay applied twice", {DECAY: f"{DECAY} * (1 - {RATE})"}),
    "DecayByTheCorrectedRate": Wrong("decay by the bias-corrected learning rate", {
        RATE: "lr / (1 - states[2]) * lr_ratio * coeff",
    }),
    "DecayBySign": Wrong("decay by the sign of the parameter (L1)", {DECAY: f"p = p - {RATE} * np.sign(p)"}),
    "DecayOfTheGradient": Wrong("decay of the gradient instead of the parameter", {DECAY: f"p = p - {RATE} * g"}),
}
MORE = OF_ADAM
