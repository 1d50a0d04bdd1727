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
    "NormWithoutDecay": Wrong("norm of the direction without its decay", {
        "squares(r)": "squares(r - weight_decay * p)",
    }),
    "NormOfTheGradient": Wrong("norm of the gradient instead of the direction", {"squares(r)": "squares(g)"}),
    "NormOfTheMoment": Wrong("norm of the first moment instead of the direction", {
        "squares(r)": "squares(of_moments[0])",
    }),
    "OldMoments": Wrong("step with the old moments, which are advanced after it", {
        MOMENTS: f"old = m, u; {MOMENTS}", 'stored("moment1", m), stored("moment2", u)': "old",
    }),
    "RatioWithoutDecay": Wrong("trust ratio not on the decay, though its norm counts", WITHOUT_DECAY | {
        "squares(r)": "squares(r + weight_decay * p)", STEP: "p - lr * (ratio * r + weight_decay * p)",
    }),
    "RootMeanSquare": Wrong("root mean square of the direction instead of its norm", {
        "np.sqrt(sum_of_squares(r))": "np.sqrt(sum_of_squares(r)) / np.sqrt(sum_of_squares(0 * p + 1))",
    }),
    "EpsilonInTheRoot": Wrong("epsilon inside the root", {
        f"({ROOT} + epsilon)": "np.sqrt(u / (1 - beta2_pow) + epsilon)",
    }),
    "EpsilonUncorrected": Wrong("epsilon added to the uncorrected root", {
        f"/ ({ROOT} + epsilon)": "* np.sqrt(1 - beta2_pow) / (np.sqrt(u) + epsilon)",
    }),
    "RootForgotten": Wrong("root of the second moment forgotten", {ROOT: "u / (1 - beta2_pow)"}),
    "EpsilonInTheNorms": Wrong("epsilon added to both norms", {
        "(*norms": "(*[x + epsilon if x > 0 else x for x in norms]",
    }),
    "RatioInverted": Wrong("trust ratio inverted", {RATIO: f"1 / {RATIO}"}),
    "RatioOfSquares": Wrong("squared norms instead of norms: a root forgotten", {
        "(*norms": "(*[x * x for x in norms]",
    }),
    "RatioForgotten": Wrong("no trust ratio", {"param_norm / direction_norm if adapts else": ""}),
    "RatioClipped": Wrong("trust ratio clipped at 1", {RATIO: f"min({RATIO}, type(norms[0])(1))"}),
}
