"""Bugs planted in the text of right steps: what stands in its place, and what a diagnosis has to say."""

from typing import Any, NamedTuple

import numpy as np

ADAMW = """
def step(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step):
    for i, (p, g, m, v) in enumerate(zip(params, grads, moment1, moment2)):
        real = p.dtype.type
        p *= real(1 - lr * coeff)
        m += real(1 - beta1) * (g - m)
        v[...] = real(beta2) * v + real(1 - beta2) * g * g
        first, second = 1 - beta1**step, 1 - beta2**step
        denominator = np.sqrt(v) / real(second**0.5) + real(epsilon)
        p -= real(lr / first) * m / denominator
"""

LAMB = """
def step(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, weight_decay, step):
    for p, g, m, v in zip(params, grads, moment1, moment2):
        real = p.dtype.type
        m[...] = real(beta1) * m + real(1 - beta1) * g
        v[...] = real(beta2) * v + real(1 - beta2) * g * g
        hat = m / real(1 - beta1**step)
        var = v / real(1 - beta2**step)
        r = hat / (np.sqrt(var) + real(epsilon)) + real(weight_decay) * p
        p_norm, r_norm = np.linalg.norm(p.ravel()), np.linalg.norm(r.ravel())
        ratio = p_norm / r_norm if p_norm > 0 and r_norm > 0 and weight_decay > 0 else real(1)
        p -= real(lr) * ratio * r
"""

LARS = """
def step(params, grads, velocities, *, lr, mu, lars_coeff, lars_weight_decay, epsilon):
    for p, g, v in zip(params, grads, velocities):
        real = p.dtype.type
        wd, eps = real(lars_weight_decay), real(epsilon)
        w, n = np.linalg.norm(p.ravel()), np.linalg.norm(g.ravel())
        local = real(lr)
        if w > 0 and n > 0:
            local = real(lr) * real(lars_coeff) * w / (n + wd * w + eps)
        v[...] = real(mu) * v + local * (g + wd * p)
        p -= v
"""

NOVOGRAD = """
def step(params, grads, moment, second_moment, *, lr, beta1, beta2, epsilon, weight_decay):
    for p, g, m, v in zip(params, grads, moment, second_moment):
        real = p.dtype.type
        n = np.dot(g.ravel(), g.ravel())
        v[...] = n if v[0] == 0 else real(beta2) * v + real(1 - beta2) * n
        d = g / (np.sqrt(v) + real(epsilon))
        d = d + real(weight_decay) * p
        m[...] = real(beta1) * m + d
        p -= real(lr) * m
"""

MOMENTUM = """
def step(params, grads, velocities, *, lr, mu, l2_decay, use_nesterov=False):
    for p, g, v in zip(params, grads, velocities):
        real = p.dtype.type
        g = g + real(l2_decay) * p
        v *= real(mu)
        v += g
        d = g + real(mu) * v if use_nesterov else v
        p -= real(lr) * d
"""


class Bug(NamedTuple):
    """A bug: what of the text becomes what, and a pattern that the name of a reason has to match."""

    old: str
    new: str
    reason: str


BUGS: dict[str, tuple[str, dict[str, Bug]]] = {
    "adamw": (ADAMW, {
        "epsilon in the root": Bug(
            "np.sqrt(v) / real(second**0.5) + real(epsilon)", "np.sqrt(v / real(second) + real(epsilon))",
            "epsilon inside the root",
        ),
        "epsilon beside the uncorrected root": Bug(
            "np.sqrt(v) / real(second**0.5) + real(epsilon)", "(np.sqrt(v) + real(epsilon)) / real(second**0.5)",
            "epsilon_at=uncorrected",
        ),
        "no epsilon": Bug(" + real(epsilon)", "", "epsilon ignored: taken as 0"),
        "epsilon squared": Bug("real(epsilon)", "real(epsilon * epsilon)", "epsilon squared"),
        "no bias correction": Bug("1 - beta1**step, 1 - beta2**step", "1.0, 1.0", "^no bias correction$"),
        "first moment not corrected": Bug("1 - beta1**step", "1.0", "no bias correction of the first"),
        "second moment not corrected": Bug("1 - beta2**step", "1.0", "no bias correction of the second"),
        "step from 0": Bug("real = p", "step_ = step - 1\n        real = p", "of t - 1"),
        "step one ahead": Bug("first, second =", "step = step + (i == 0)\n        first, second =", "t \\+ 1"),
        "correction without root": Bug("second**0.5", "second", "were `sqrt.u. / .1 - beta2_pow"),
        "decay in the gradient": Bug(
            "p *= real(1 - lr * coeff)", "g = g + real(coeff) * p", "decay in the gradient"
        ),
        "decay afterwards": Bug("p *= real(1 - lr * coeff)", "", "decay of the new parameter"),
        "decay without lr": Bug("1 - lr * coeff", "1 - coeff", "decay without the learning rate"),
        "no decay": Bug("p *= real(1 - lr * coeff)", "pass", "coeff ignored: taken as 0"),
        "decay grows": Bug("1 - lr * coeff", "1 + lr * coeff", "minus coeff|1 \\+ lr"),
        "betas swapped": Bug("real = p", "beta1, beta2 = beta2, beta1\n        real = p", "beta1 and beta2 swapped"),
        "beta2 for beta1": Bug("m += real(1 - beta1)", "m += real(1 - beta2)", "beta2"),
        "square forgotten": Bug("* g * g", "* abs(g)", "abs"),
        "old second moment": Bug(
            "v[...] = real", "old = v.copy()\n        v[...] = real", "`u` as it was before the step"
        ),
        "uphill": Bug("p -= real(lr / first)", "p += real(lr / first)", "\\+|minus lr"),
        "root forgotten": Bug(
            "np.sqrt(v) / real(second**0.5)", "v / real(second)", "root of the second moment forgotten"
        ),
        "second moment in bf16": Bug(
            "first, second =", "v[...] = (v.view(np.uint32) + 0x7FFF + (v.view(np.uint32) >> 16 & 1) & 0xFFFF0000)"
            ".view(np.float32)\n        first, second =", "moment2 rounded to bfloat16",
        ),
        "first moment not kept": Bug("m += real(1 - beta1) * (g - m)", "m = m + real(1 - beta1) * (g - m)",
                                     "moment1 not written"),
        "decay and no correction": Bug("first, second = 1 - beta1**step, 1 - beta2**step\n",
            "first = second = 1.0\n        p /= real(1 - lr * coeff)\n        p *= real(1 - coeff)\n",
            "decay without the learning rate and no bias correction|no bias correction and decay without"),
    }),
    "lamb": (LAMB, {
        "no trust ratio": Bug("lr) * ratio", "lr)", "no trust ratio"),
        "ratio inverted": Bug("p_norm / r_norm if", "r_norm / p_norm if", "ratio inverted"),
        "ratio clipped": Bug("p -= real(lr) * ratio", "p -= real(lr) * min(ratio, real(1))", "clipped at 1"),
        "no bias correction": Bug("1 - beta1**step)\n        var = v / real(1 - beta2**step)", "1)\n        var = v",
                                  "no bias correction"),
        "epsilon in the root": Bug("np.sqrt(var) + real(epsilon)", "np.sqrt(var + real(epsilon))", "epsilon"),
        "decay outside of the norm": Bug(
            " + real(weight_decay) * p\n", "\n", "no weight decay in the direction",
        ),
        "squared norms": Bug("p_norm / r_norm if", "p_norm**2 / r_norm**2 if", "squared norms"),
        "adapts without decay": Bug(" and weight_decay > 0", "", "always_adapt"),
        "old moment": Bug(
            "m[...] = real(beta1) * m", "old = m.copy()\n        m[...] = real(beta1) * m", "before the step"
        ),
    }),
    "lars_momentum": (LARS, {
        "no adaptation": Bug("if w > 0 and n > 0", "if False", "no trust ratio|False"),
        "decay not in the denominator": Bug("n + wd * w + eps", "n + eps", "left out of the denominator"),
        "decay not in the update": Bug("(g + wd * p)", "g", "no weight decay in the update"),
        "epsilon forgotten": Bug(" + eps)", ")", "epsilon ignored"),
        "lr twice": Bug("p -= v", "p -= real(lr) * v", "learning rate applied to the velocity again"),
        "rate outside": Bug("v[...] = real(mu) * v + local * (g + wd * p)\n        p -= v",
                            "v[...] = real(mu) * v + (g + wd * p)\n        p -= local * v", "outside of the velocity"),
        "norms squared": Bug("np.linalg.norm(p.ravel()), np.linalg.norm(g.ravel())",
                             "np.dot(p.ravel(), p.ravel()), np.dot(g.ravel(), g.ravel())", "squared norms"),
        "Nesterov": Bug("p -= v", "p -= local * (g + wd * p) + real(mu) * v", "Nesterov"),
        "coefficient ignored": Bug(" * real(lars_coeff)", "", "lars_coeff ignored: taken as 1"),
    }),
    "novograd": (NOVOGRAD, {
        "first norm averaged": Bug("n if v[0] == 0 else ", "", "first norm averaged"),
        "epsilon in the root": Bug("np.sqrt(v) + real(epsilon)", "np.sqrt(v + real(epsilon))", "inside the root"),
        "decay normalized": Bug("d = g / (np.sqrt(v) + real(epsilon))\n        d = d + real(weight_decay) * p",
                                "d = (g + real(weight_decay) * p) / (np.sqrt(v) + real(epsilon))", "decay divided"),
        "mean of squares": Bug("np.dot(g.ravel(), g.ravel())", "np.mean(g * g)", "mean of squares"),
        "averaged": Bug("m + d", "m + real(1 - beta1) * d", "grad_averaging=True"),
        "norm for its square": Bug("n = np.dot(g.ravel(), g.ravel())", "n = np.linalg.norm(g)", "for its square"),
        "no decay": Bug("d = d + real(weight_decay) * p", "pass", "weight_decay ignored"),
        "lr in the moment": Bug(
            "m + d\n        p -= real(lr) * m", "m + real(lr) * d\n        p -= m", "learning rate"
        ),
        "divided by the square": Bug("np.sqrt(v) + real", "v + real", "root of the second moment forgotten"),
    }),
    "momentum": (MOMENTUM, {
        "dampened": Bug("v += g", "v += real(1 - mu) * g", "dampened"),
        "decay decoupled": Bug("g = g + real(l2_decay) * p", "p *= real(1 - lr * l2_decay)", "decay on the parameter"),
        "Nesterov ignored": Bug("if use_nesterov", "if False", "use_nesterov ignored"),
        "lr in the velocity": Bug("v += g", "g = real(lr) * g; v += g", "learning rate inside the velocity$"),
        "no decay": Bug("g = g + real(l2_decay) * p", "pass", "l2_decay ignored"),
        "mu forgotten": Bug("v *= real(mu)", "pass", "mu"),
        "lr in the velocity and again": Bug("v += g", "g = real(lr) * g; v += g", "and again in the step"),
        "old velocity": Bug("v *= real(mu)", "old = v.copy(); v *= real(mu)", "old velocity"),
        "fp16 velocity": Bug("v += g", "v += g; v[...] = v.astype(np.float16)", "velocities rounded to float16"),
    }),
}  # fmt: skip


# Bugs that take more than one change.
MORE = {
    "step from 0": {"beta1**step, 1 - beta2**step": "beta1**step_, 1 - beta2**step_"},
    "step one ahead": {"step + (i == 0)": "step + 1", "step = step + 1": "t = step + 1",
                       "beta1**step, 1 - beta2**step": "beta1**t, 1 - beta2**t"},
    "decay afterwards": {"m / denominator": "m / denominator\n        p *= real(1 - lr * coeff)"},
    "old second moment": {"np.sqrt(v)": "np.sqrt(old)"},
    "old moment": {"hat = m": "hat = old"},
    "lr in the velocity": {"real(lr) * d": "d"},
    "old velocity": {"if use_nesterov else v": "if use_nesterov else old"},
}  # fmt: skip


def with_bug(routine: str, name: str) -> Any:
    """The step with a bug, or the right one for an empty name."""
    text, bugs = BUGS[routine]
    if name:
        bug = bugs[name]
        assert bug.old in text
        text = text.replace(bug.old, bug.new)
        for old, new in MORE.get(name, {}).items():
            assert old in text
            text = text.replace(old, new)
    names: dict[str, Any] = {"np": np}
    exec(text, names)
    return names["step"]
