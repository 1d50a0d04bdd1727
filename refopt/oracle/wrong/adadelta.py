"""Likely mistakes in Adadelta."""

from refopt.oracle.wrong.rule import Wrong

QUOTIENT = "np.sqrt((x + epsilon) / (s + epsilon))"
RULES = {
    "EpsilonOutsideTheRoots": Wrong(
        "epsilon outside of the roots", {QUOTIENT: "(np.sqrt(x) + epsilon) / (np.sqrt(s) + epsilon)"}
    ),
    "EpsilonOutsideTheDivisor": Wrong(
        "epsilon outside of the divisor's root", {QUOTIENT: "np.sqrt(x + epsilon) / (np.sqrt(s) + epsilon)"}
    ),
    "EpsilonOutsideTheDividend": Wrong(
        "epsilon outside of the dividend's root", {QUOTIENT: "(np.sqrt(x) + epsilon) / np.sqrt(s + epsilon)"}
    ),
    "LearningRateInTheAverage": Wrong(
        "learning rate inside the average of updates", {QUOTIENT: f"lr * {QUOTIENT}", "p - lr * d": "p - d"}
    ),
    "AverageOfUpdatesBeforeUse": Wrong(
        "average of updates advanced before use", {"p - lr * d": f"p - lr * ({QUOTIENT} * g)"}
    ),
}
