"""Likely mistakes in RAdam."""

from refopt.oracle.wrong.rule import Wrong

NEXT = "next_rho(rho, beta2, beta2_pow)"
RULES = {
    "AlwaysRectified": Wrong("always rectified", {"rho > 5": "rho > -1"}),
    "NeverRectified": Wrong("never rectified", {"rho > 5": "rho > 2.0**60"}),
    "ThresholdOfSix": Wrong("rectified from rho > 6", {"rho > 5": "rho > 6"}),
    "RhoInfOneMore": Wrong("rho_inf = 2 / (1 - beta2), without the - 1, in rho as well", {
        "2 / (1 - beta2) - 1": "2 / (1 - beta2)", "    if rho > 5": "    rho = rho + 1\n    if rho > 5",
    }),
    "RectificationSquared": Wrong("rectification without its root", {"return np.sqrt(": "return ("}),
    "RhoFromTheOldPower": Wrong("rho from the old power of beta2", {
        f"beta2_pow, {NEXT}": "beta2_pow, rho",
        "beta2_pow = beta2_pow * beta2": f"rho = {NEXT}; beta2_pow = beta2_pow * beta2",
    }),
    "UnrectifiedUncorrected": Wrong("no bias correction in steps without rectification", {
        "lr / (1 - beta1_pow) * m": "lr * m",
    }),
}
