"""Likely mistakes in Lion."""

from refopt.oracle.wrong.rule import Wrong

SIGN, BLEND, DECAY = "lr * sign(c)", "c = beta1", "p = p * (1 - lr * coeff)"
RULES = {
    "SignOfZeroIsOne": Wrong("sign of zero taken as 1", {SIGN: "lr * np.where(c == 0, 1.0, sign(c))"}),
    "SignOfZeroIsMinusOne": Wrong("sign of zero taken as -1", {SIGN: "lr * np.where(c == 0, -1.0, sign(c))"}),
    "SignOfTheNewMomentum": Wrong("sign of the new momentum", {SIGN: "lr * sign(beta2 * m + (1 - beta2) * g)"}),
    "DecayInGradient": Wrong("decay in the gradient, not on the parameter", {
        BLEND: f"g = g + coeff * p; {BLEND}", DECAY: "pass",
    }),
    "DecayAfterwards": Wrong("decay of the new parameter, after the step", {
        DECAY: "pass", f"p - {SIGN}": f"(p - {SIGN}) * (1 - lr * coeff)",
    }),
}
