"""Likely mistakes in RMSProp."""

from refopt.oracle.wrong.rule import Wrong

MEAN, VARIANCE = "a = rho * a", "s - a * a"
RULES = {
    "CenteringIgnored": Wrong("centering ignored", {VARIANCE: "s"}),
    "OldMeanGrad": Wrong("centered by the old mean of the gradient", {
        MEAN: f"old = a; {MEAN}", VARIANCE: "s - old * old",
    }),
}
