"""Likely mistakes in NovoGrad."""

from refopt.oracle.wrong.rule import Wrong

AVERAGE, TOWARDS = "n if v == 0 else beta2 * v + (1 - beta2) * n", "direction(p, g, v, epsilon=epsilon, weight_decay="
ROOT, MOMENT = "(np.sqrt(v) + epsilon)", "m = beta1 * m + ((1 - beta1) * d if grad_averaging else d)"
ADVANCED = "v = average("
WITHOUT_DECAY = {"+ weight_decay * p": "+ 0 * weight_decay * p"}  # in the direction
RULES = {
    "FirstNormAveraged": Wrong("first norm averaged with 0, not taken as it is", {"n if v == 0 else": ""}),
    "AverageOfNorms": Wrong("average of norms, not of their squares", {
        AVERAGE: "n if v == 0 else (beta2 * np.sqrt(v) + (1 - beta2) * np.sqrt(n)) ** 2",
    }),
    "DividedByTheOldNorm": Wrong("divided by the old norm", {
        ADVANCED: f"old = v; {ADVANCED}", "d = direction(p, g, v,": "d = direction(p, g, v if old == 0 else old,",
    }),
    "DividedElementByElement": Wrong("second moment per element, not per tensor", {
        "d = direction(p, g, v,": "d = direction(p, g, g * g,",
    }),
    "NormSummed": Wrong("second moment without the factor 1 - beta2", {"(1 - beta2) * n": "n"}),
    "RootForgotten": Wrong("root of the second moment forgotten", {ROOT: "(v + epsilon)"}),
    "DecayInTheGradient": Wrong("decay in the gradient, and so in its norm", WITHOUT_DECAY | {
        ADVANCED: f"g = g + weight_decay * p; {ADVANCED}",
    }),
    "NormalizedAfterwards": Wrong("divided by the norm in the step, not in the moment", {
        MOMENT: "m = beta1 * m + g", "p - lr * m": f"p - lr * (m / {ROOT} + weight_decay * p)",
    }),
    "EpsilonInTheRoot": Wrong("epsilon inside the root", {ROOT: "np.sqrt(v + epsilon)"}),
    "DecayNormalized": Wrong("decay divided by the norm as well", {
        f"g / {ROOT} + weight_decay * p": f"(g + weight_decay * p) / {ROOT}",
    }),
    "DecayDecoupled": Wrong("decay on the parameter, not in the moment", WITHOUT_DECAY | {
        "p - lr * m": "p - lr * m - lr * weight_decay * p",
    }),
    "AveragingWithoutDecay": Wrong("grad_averaging without the decay", {
        f"{TOWARDS}weight_decay": f"{TOWARDS}weight_decay / (1 - beta1 if grad_averaging else 1)",
    }),
}
