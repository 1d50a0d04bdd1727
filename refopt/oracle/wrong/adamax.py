"""Likely mistakes in Adamax."""

from refopt.oracle.wrong.rule import Wrong

RULES = {
    "AbsoluteForgotten": Wrong("no absolute value of the gradient", {"abs(g)": "g"}),
    # A NaN in the gradient stays in the norm, as with np.maximum; one in the norm is lost, as with fmaxf.
    "EpsilonInTheDenominator": Wrong("epsilon in the denominator", {
        "abs(g) + epsilon": "abs(g)", "beta2 * n + epsilon": "beta2 * n", "(m / n)": "(m / (n + epsilon))",
    }),
    "NoBiasCorrection": Wrong("no bias correction", {"lr / (1 - beta1_pow)": "lr"}),
}
