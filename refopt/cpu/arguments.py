"""The arguments that routines share: they complete the docstring of each merged function.

Args:
    params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
    grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of ``None`` skips
        its tensor: parameter, states and scalars stay as they are.
    moment1: P arrays of the same shapes, of the arithmetic type, of the parameter's dtype, or, unless the routine has
        norms, in 8 bits (numerics, N21): the running average of the gradient, 0 at first.
    moment2: P arrays like them: the running average of its square, 0 at first.
    beta1_pow: P arrays of one element, of the arithmetic type: beta1 to the power of the coming step, beta1 at first.
    beta2_pow: P arrays of one element, of the arithmetic type: beta2 to the power of the coming step, beta2 at first.
    lr: learning rate, one number or one per tensor; at least 0.
    mu: momentum, at least 0.
    beta1, beta2, rho: how slowly the averages move, at least 0 and below 1.
    epsilon: added to the denominator, at least 0.
    l2_decay: weight decay added to the gradient, one number or one per tensor; at least 0.
    coeff, weight_decay: weight decay, one number or one per tensor; at least 0.
    rescale_grad: multiplies every gradient before it is used; above 0.
    decay: ``"l2"``: weight decay is added to the gradient; ``"decoupled"``: the parameter decays separately, before the
        step.
    maximize: whether to maximize: the sign of the rescaled gradient is flipped before anything else.
    epsilon_at: ``"corrected"`` or ``"uncorrected"``, the root that epsilon is added to.
    moment2_max: ``None``, or for AMSGrad P arrays like moment2: its maximum, 0 at first; single entries may be
        ``None``.
    master_params: ``None``, or P arrays: masters, which are the exact parameters in the arithmetic type, or remainders
        of bf16 parameters, in uint16 or int8 (numerics, N15); single entries may be ``None``.
    grad_factor: ``None``, or an array of one element that also multiplies every gradient; see `check_gradients`. fp32,
        or fp64 for fp64 parameters.
    found_inf: ``None``, or an fp32 array of one element: if it is not 0, the step changes nothing.
    rounding: ``"nearest"``, or ``"stochastic"``: stochastic rounding to bf16 arrays (numerics, N16) and
        of states in 8 bits (N21).
    seed: of the random bits, a whole number below 2**24, or one per tensor; pass a new one every step.

Raises:
    ValueError, TypeError: the message names argument and index; nothing has been modified then.
"""

import inspect
import re
from itertools import groupby


def documented(where: str, text: str | None, names: list[str], source: str) -> str:
    """A docstring with all arguments in the order of the signature: its own, and the missing ones from above.

    Raises:
        TypeError: an argument is in neither, or one of its own is not in the signature.
    """
    own, shared = inspect.cleandoc(text or ""), __doc__ or ""
    of_own, about = _arguments(own), _arguments(shared) | _arguments(own)
    if odd := [name for name in names if name not in about] + [name for name in of_own if name not in names]:
        got = "one that is not in the signature" if odd[0] in of_own else "none"
        raise TypeError(f"{where}: docstring: expected a line for {odd[0]} under Args, got {got}")
    lines = [f"    {', '.join(group)}: {what}" for what, group in groupby(names, about.__getitem__)]
    before, after = own.partition("\nArgs:")[0].rstrip(), shared[shared.index("Raises:") :].rstrip()
    args = "\n".join(["Args:", *lines])
    return f"{before}\n\n{args}\n\n{after}\n\nSource: {source}. docs/numerics.md fixes each rounding.\n"


def _arguments(text: str) -> dict[str, str]:
    """The description of each argument under Args, with its line breaks."""
    section = re.search(r"(?ms)^Args:\n(.*?)(\n\n|\Z)", text)
    entries = re.findall(r"(?ms)^    (\w[\w, ]*): (.*?)(?=\n    \w|\Z)", section[1] if section else "")
    return {name: what for names, what in entries for name in names.split(", ")}
