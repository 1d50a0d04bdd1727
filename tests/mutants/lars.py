"""The ways in which implementations of LARS have been, or easily are, wrong, beside those that the oracle knows.

Each is what stands instead in the rule, and in `refopt.cpu.merged`.
"""

from mutants.family import implementation, mutants, of_the_first
from refopt.catalog import LARS_MOMENTUM
from refopt.cpu.reduce import TILE
from refopt.oracle.exact.cases import Run
from refopt.oracle.source import rewritten

OF_PARAM, OF_GRAD = 'p if norm_of == "master" else stored("params", p)', "np.sqrt(sum_of_squares(g))"
NORMS = "param_norm > 0 and grad_norm > 0"
SCALED = {"stored, mu": "stored, scale, mu"}  # the rule is given what the gradient was multiplied by
SCALE, FACTOR = ({"**self.numbers)": f"**self.numbers, scale={x})"} for x in ("self.rescale * real(factor)", "factor"))


def whole(x):
    """The tiles that are whole, if there are any."""
    return x[: x.size // TILE * TILE] if x.size > TILE else x


WRONG: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    # wd * p in the denominator for wd * ||p||, as in the reference of Paddle's own test
    "DecayElementwiseInDenominator": ({
        "grad_norm, *, lr": "grad_norm, *, p, lr", "**numbers)\n    return": "**numbers, p=p)\n    return",
        "lars_weight_decay * param_norm": "lars_weight_decay * p"}, {}),
    "RescaleForgottenInNorm": (SCALED | {OF_GRAD: "np.sqrt(sum_of_squares(g / scale))"}, SCALE),
    "RescaleForgottenInUpdate": (SCALED | {"return update(p, g,": "return update(p, g / scale,"}, SCALE),
    "FactorForgottenInNorm": (SCALED | {OF_GRAD: "np.sqrt(sum_of_squares(g / g.dtype.type(scale)))"}, FACTOR),
    "FactorAppliedFirst": ({}, {  # another rounding (N8)
        'real(factor) * arrays["grads"].astype(real)': '(real(factor) * arrays["grads"].astype(real))'}),
    "FirstWeightDecay": ({}, of_the_first("lars_weight_decay")),
    "TailLeftOutOfNorm": ({OF_GRAD: OF_GRAD.replace("(g)", "(whole(g))"), OF_PARAM: f"whole({OF_PARAM})"}, {}),
    "NormOfMaster": ({OF_PARAM: "p"}, {}),
    "NormOfParam": ({OF_PARAM: 'stored("params", p)'}, {}),
    "NormOfNearestEven": ({}, {  # with remainders, ties are stored away from zero
        'array if name == "params" else x.astype': "x.astype"}),
    "AdaptsByDecayAlone": ({"[adapt]": '["decay"]'}, {}),  # Paddle's GPU kernel of 2021, whatever is asked for
    "GradNormNotTested": ({NORMS: "param_norm > 0"}, {}),
    "ParamNormNotTested": ({NORMS: "grad_norm > 0"}, {}),  # parameters that are zero stay zero
    "NanNormAdapts": ({NORMS: "not (param_norm <= 0) and not (grad_norm <= 0)"}, {}),
    "FlagIsOne": ({}, {"found_inf.reshape(-1)[0] != 0": "found_inf.reshape(-1)[0] == 1"})}
MUTANTS: dict[str, Run] = mutants(LARS_MOMENTUM) | {
    name: implementation(LARS_MOMENTUM, rewritten(LARS_MOMENTUM.rule, rule, whole=whole), changes)
    for name, (rule, changes) in WRONG.items()}
