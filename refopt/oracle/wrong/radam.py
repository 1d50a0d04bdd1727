"""Likely mistakes in RAdam."""

from refopt.oracle.wrong.options import OF_DECAY
from refopt.oracle.wrong.rule import Wrong

NEXT, MOMENTS = "next_rho(rho, beta2, beta2_pow)", "m, u = moments("
GIVEN = {f"beta2_pow, {NEXT}": "beta2_pow, rho"}  # not the next one
RULES = {
    "AlwaysRectified": Wrong("always rectified", {"rho > 5": "rho > -1"}),
    "NeverRectified": Wrong("never rectified", {"rho > 5": "rho > 2.0**60"}),
    "ThresholdOfSix": Wrong("rectified from rho > 6", {"rho > 5": "rho > 6"}),
    "RhoInfOneMore": Wrong("rho_inf = 2 / (1 - beta2), without the - 1", {"2 / (1 - beta2) - 1": "2 / (1 - beta2)"}),
    "BothRhosOneMore": Wrong("rho_inf = 2 / (1 - beta2), without the - 1, in rho as well", {
        "2 / (1 - beta2) - 1": "2 / (1 - beta2)", "    if rho > 5": "    rho = rho + 1\n    if rho > 5",
    }),
    "RectificationSquared": Wrong("rectification without its root", {"return np.sqrt(": "return ("}),
    "RhoNotAdvanced": Wrong("rho not advanced", GIVEN),
    "RhoBeforeUse": Wrong("rho advanced before use", GIVEN | {
        MOMENTS: f"rho = next_rho(rho, beta2, beta2_pow * beta2); {MOMENTS}",
    }),
    "RhoFromTheOldPower": Wrong("rho from the old power of beta2", GIVEN | {
        "beta2_pow = beta2_pow * beta2": f"rho = {NEXT}; beta2_pow = beta2_pow * beta2",
    }),
    "NoBiasCorrection": Wrong("no bias correction", {
        "(1 - beta1_pow)": "(1 - 0 * beta1_pow)", "np.sqrt(1 - beta2_pow)": "np.sqrt(1 - 0 * beta2_pow)",
    }),
    "UnrectifiedUncorrected": Wrong("no bias correction in steps without rectification", {
        "lr / (1 - beta1_pow) * m": "lr * m",
    }),
} | OF_DECAY
