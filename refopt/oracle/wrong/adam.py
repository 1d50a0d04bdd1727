"""Likely mistakes in Adam."""

from refopt.oracle.wrong.rule import Wrong

AVERAGES = "return beta1 * m + (1 - beta1) * g, beta2 * u + (1 - beta2) * g * g"
MOMENTS, STEP = "m, u = moments(g", "descend(p, m, denominator, beta1_pow, beta2_pow"
ROOT, LARGER = "np.sqrt(u) / np.sqrt(1 - beta2_pow) + epsilon", "u_max if u_max is None else larger(u_max, u)"
CORRECTED = {'epsilon_at == "uncorrected"': "False"}  # whatever the argument says


def second_of(square: str) -> dict[str, str]:
    """Another square in the second moment, of the gradient and the new average."""
    return {AVERAGES: f"m = beta1 * m + (1 - beta1) * g; return m, beta2 * u + (1 - beta2) * ({square})"}


RULES = {
    "NoBiasCorrection": Wrong("no bias correction", {
        "1 - beta1_pow": "1 - 0 * beta1_pow", "1 - beta2_pow": "1 - 0 * beta2_pow",
    }),
    "EpsilonUncorrected": Wrong("epsilon added to the other root (epsilon_at)", {"epsilon_at ==": "epsilon_at !="}),
    "PowersBeforeUse": Wrong("powers of beta advanced before use", {
        STEP: "descend(p, m, denominator, beta1_pow * beta1, beta2_pow * beta2",
    }),
    "EpsilonInTheRoot": Wrong("epsilon inside the root", CORRECTED | {
        f"({ROOT})": "np.sqrt(u / (1 - beta2_pow) + epsilon)",
    }),
    "RootForgotten": Wrong("root of the second moment forgotten", CORRECTED | {ROOT: "u / (1 - beta2_pow) + epsilon"}),
    "Nesterov": Wrong("Nesterov's momentum, as in NAdam", {
        "descend(p, m, denominator": "descend(p, beta1 * m + (1 - beta1) * g, denominator",
    }),
    "GradientForMoment": Wrong("gradient instead of its average in the step", {
        "descend(p, m, denominator": "descend(p, g, denominator",
    }),
    "FirstSummed": Wrong("first moment without the factor 1 - beta1", {"(1 - beta1) * g": "g"}),
    "SecondSummed": Wrong("second moment without the factor 1 - beta2", {"(1 - beta2) * g * g": "g * g"}),
    "BothSummed": Wrong("both moments without the factor 1 - beta", {"(1 - beta1) * g": "g", "(1 - beta2) * g": "g"}),
    "SquareOfTheMoment": Wrong("second moment of the average's squares, not the gradient's", second_of("m * m")),
    "Belief": Wrong("second moment about the average, as in AdaBelief", second_of("(g - m) * (g - m)")),
    "OldMoments": Wrong("step with the old moments, which are advanced after it", {
        MOMENTS: f"old = m, u if u_max is None else u_max; {MOMENTS}", "descend(p, m, denominator": "descend(p, *old",
    }),
    "PowersExchanged": Wrong("powers of beta1 and beta2 exchanged", {
        STEP: "descend(p, m, denominator, beta2_pow, beta1_pow",
    }),
    "MaximumForSum": Wrong("the larger of root and epsilon, not their sum", CORRECTED | {
        ROOT: "np.maximum(np.sqrt(u) / np.sqrt(1 - beta2_pow), epsilon)",
    }),
    "MaximumForgotten": Wrong("AMSGrad: maximum kept, but not used", {"u if u_max is None else u_max": "u"}),
    "MaximumOfTheOld": Wrong("AMSGrad: maximum of the old second moment", {
        MOMENTS: f"old = {LARGER}; {MOMENTS}", "beta2_pow * beta2, u_max": "beta2_pow * beta2, old",
    }),
}
