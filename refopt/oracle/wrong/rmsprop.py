"""Likely mistakes in RMSProp."""

from refopt.oracle.wrong.options import OF_DECAY
from refopt.oracle.wrong.rule import Wrong

MEAN, VARIANCE = "a = rho * a", "s - a * a"
RULES = {
    "EpsilonAtTheOtherPlace": Wrong("epsilon on the other side of the root (epsilon_at)", {
        "epsilon_at ==": "epsilon_at !=",
    }),
    "CenteringIgnored": Wrong("centering ignored", {VARIANCE: "s"}),
    "LearningRateAtTheOtherPlace": Wrong(None, {"lr_at ==": "lr_at !="}),
    "SquareFirst": Wrong(None, {"(1 - rho) * g * g": "(1 - rho) * (g * g)"}),
    "OldMeanGrad": Wrong("centered by the old mean of the gradient", {
        MEAN: f"old = a; {MEAN}", VARIANCE: "s - old * old",
    }),
    "VarianceClamped": Wrong(None, {VARIANCE: f"np.maximum({VARIANCE}, 0)"}),  # where the specification has NaN
    "StepRegrouped": Wrong(None, {"lr * g / root(d, epsilon, epsilon_at)": "lr * (g / root(d, epsilon, epsilon_at))"}),
} | OF_DECAY
