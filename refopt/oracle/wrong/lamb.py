"""Likely mistakes in LAMB."""

from refopt.oracle.wrong.rule import Wrong

MOMENTS, ROOT = "m, u = moments(", "np.sqrt(u / (1 - beta2_pow))"
QUOTIENT = f"m / (1 - beta1_pow) / ({ROOT} + epsilon)"
RATIO, STEP = "trust_ratio(*norms, weight_decay=weight_decay, always_adapt=always_adapt)", "p - lr * ratio * r"
WITHOUT_DECAY = {"+ weight_decay * p": "+ 0 * weight_decay * p"}  # in the direction
RULES = {
    "DecayAfterTheNorm": Wrong("decay after the norm: not in the direction", WITHOUT_DECAY | {
        STEP: f"{STEP} - lr * weight_decay * p",
    }),
    "Uncorrected": Wrong("no bias correction", {QUOTIENT: "m / (np.sqrt(u) + epsilon)"}),
    "RatioByNormsAlone": Wrong("trust ratio even without decay (always_adapt)", {
        "weight_decay > 0 or always_adapt": "True",
    }),
    "RatioByDecayAlone": Wrong("trust ratio whatever the norms are", {"param_norm > 0 and direction_norm > 0 and": ""}),
    "DecayForgotten": Wrong("no weight decay in the direction", WITHOUT_DECAY),
    "DecayAfterwards": Wrong("decay of the new parameter, outside of the ratio", WITHOUT_DECAY | {
        STEP: f"({STEP}) * (1 - lr * weight_decay)",
    }),
    "DecayInTheGradient": Wrong("decay in the gradient, not in the direction", WITHOUT_DECAY | {
        MOMENTS: f"g = g + weight_decay * p; {MOMENTS}",
    }),
    "OldMoments": Wrong("step with the old moments, which are advanced after it", {
        MOMENTS: f"old = m, u; {MOMENTS}", 'stored("moment1", m), stored("moment2", u)': "old",
    }),
    "RatioWithoutDecay": Wrong("trust ratio not on the decay, though its norm counts", WITHOUT_DECAY | {
        "squares(r)": "squares(r + weight_decay * p)", STEP: "p - lr * (ratio * r + weight_decay * p)",
    }),
    "EpsilonUncorrected": Wrong("epsilon added to the uncorrected root", {
        f"/ ({ROOT} + epsilon)": "* np.sqrt(1 - beta2_pow) / (np.sqrt(u) + epsilon)",
    }),
    "RootForgotten": Wrong("root of the second moment forgotten", {ROOT: "u / (1 - beta2_pow)"}),
    "RatioInverted": Wrong("trust ratio inverted", {RATIO: f"1 / {RATIO}"}),
    "RatioForgotten": Wrong("no trust ratio", {"param_norm / direction_norm if adapts else": ""}),
    "RatioClipped": Wrong("trust ratio clipped at 1", {RATIO: f"min({RATIO}, type(norms[0])(1))"}),
}
