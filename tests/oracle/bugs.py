"""Bugs planted in the text of right steps: what stands in its place, and what a diagnosis says of it."""

from typing import Any

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
        g = g.astype(p.dtype)  # before its norm is taken
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
        g = g.astype(p.dtype)  # before its norm is taken
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

ADADELTA = """
def step(params, grads, squares, updates, *, lr, rho, epsilon):
    for p, g, s, x in zip(params, grads, squares, updates):
        real = p.dtype.type
        rho_, eps = real(rho), real(epsilon)
        s[...] = rho_ * s + (1 - rho_) * g * g
        d = np.sqrt(x + eps) / np.sqrt(s + eps) * g
        x[...] = rho_ * x + (1 - rho_) * d * d
        p -= real(lr) * d
"""

ADAGRAD = """
def step(params, grads, sums, *, lr, epsilon):
    for p, g, s in zip(params, grads, sums):
        real = p.dtype.type
        g = g.astype(p.dtype, copy=False)  # before it is squared
        s += g * g
        p -= real(lr) * g / (np.sqrt(s) + real(epsilon))
"""

TEXTS = {"adamw": ADAMW, "lamb": LAMB, "lars_momentum": LARS, "novograd": NOVOGRAD, "momentum": MOMENTUM,
         "adadelta": ADADELTA, "adagrad": ADAGRAD}

# What is replaced by what in these, often.
DECAY = "p *= real(1 - lr * coeff)"
SECOND = "v[...] = real(beta2) * v + real(1 - beta2) * g * g"
STEP = "p -= real(lr / first) * m / denominator"
ROOT = "np.sqrt(v) / real(second**0.5) + real(epsilon)"
VELOCITY = "v[...] = real(mu) * v + local * (g + wd * p)"
LOCAL = "local = real(lr) * real(lars_coeff) * w / (n + wd * w + eps)"
NORMS = "p_norm, r_norm = np.linalg.norm(p.ravel()), np.linalg.norm(r.ravel())"
REAL = "real = p.dtype.type\n"

# Of kinds that a diagnosis is made for.
KNOWN = {
    "adamw": {
        "betas swapped": ({"real = p": "beta1, beta2 = beta2, beta1\n        real = p"}, "beta1 and beta2 swapped"),
        "step from 0": ({"real = p": "step_ = step - 1\n        real = p", "beta1**step, 1 - beta2**step":
            "beta1**step_, 1 - beta2**step_"}, "of t - 1"),
        "old second moment": ({"v[...] = real": "old = v.copy()\n        v[...] = real", "np.sqrt(v)": "np.sqrt(old)"},
            "`u` as it was before the step"),
        "second moment in bf16": ({"first, second =":
            "v[...] = (v.view(np.uint32) + 0x7FFF + (v.view(np.uint32) >> 16 & 1) & "
            "0xFFFF0000).view(np.float32)\n        first, second ="}, "as if `u` were `u rounded to bfloat16`"),
        "first moment not kept": ({"m += real(1 - beta1) * (g - m)": "m = m + real(1 - beta1) * (g - m)"},
            "moment1 not written"),
        "update by a hundredth too large": ({"p -= real(lr / first)": "p -= real(1.01) * real(lr / first)"},
            "the update apart from decay times 1.01"),
        "half of the update": ({"p -= real(lr / first)": "p -= real(0.5) * real(lr / first)"},
            "the update apart from decay times 0.5"),
        "decay and no correction": ({"first, second = 1 - beta1**step, 1 - beta2**step\n":
            "first = second = 1.0\n        p /= real(1 - lr * coeff)\n        p *= real(1 - coeff)\n"},
            "decay without the learning rate and no bias correction")},
    "lars_momentum": {
        "lr twice": ({"p -= v": "p -= real(lr) * v"}, "learning rate applied to the velocity again"),
        "norms of a rank's share": ({"(p.ravel())": "(p.ravel()[-(-p.size // 4):][:-(-p.size // 4)])", "(g.ravel())":
            "(g.ravel()[-(-p.size // 4):][:-(-p.size // 4)])"}, "norms of part 2 of 4 of the elements alone"),
        "norms of a rank's tiles": ({REAL: REAL + "        own = np.arange(p.size) // 128 % 2 == 0\n", "(p.ravel())":
            "(p.ravel() * own)", "(g.ravel())": "(g.ravel() * own)"}, "norms of every second block of 128 of")},
    "novograd": {"first norm averaged": ({"n if v[0] == 0 else ": ""}, "first norm averaged")}, "momentum": {
        "no decay, and dampened": ({"g = g + real(l2_decay) * p": "pass", "v += g": "v += real(1 - mu) * g"},
            "gradient dampened by 1 - mu and l2_decay ignored"),
        "average after a sum in fp16": ({REAL:
            REAL + "        g = (sum([g.astype(np.float16)] * 8) / np.float16(8)).astype(p.dtype)\n"},
            "gradients of 8 ranks added in float16 and divided after the sum"),
        "fp16 velocity": ({"v += g": "v += g; v[...] = v.astype(np.float16)"},
            "as if `each v` were `v rounded to float16`")}}

# Written before anybody knew which hypotheses there would be, but for those that others stand for; what names each
# today, if anything does.
FIRST = {
    "adamw": {
        "old second moment not decayed": ({SECOND: "v += real(1 - beta2) * g * g"},
            "as if `beta2 * u` were `u` (in moments_one_by_one)"),
        "epsilon squared in the root": ({ROOT: "np.sqrt(v / real(second) + real(epsilon)**2)"},
            "as if `sqrt(u / (1 - beta2_pow)) + epsilon` were `sqrt(u / (1 - beta2_pow) + epsilon * epsilon)` (in "
            "descend_as_in_the_paper)"),
        "beta1 in the second correction": ({"1 - beta2**step": "1 - beta1**step"},
            "beta1 instead of beta2, in its powers only (bias correction)"),
        "first correction multiplied": ({STEP: "p -= real(lr * first) * m / denominator"},
            "as if `m / (1 - beta1_pow)` were `m * (1 - beta1_pow)` (in descend_as_in_the_paper)"),
        "gradient clipped by element": ({REAL: REAL + "        g = np.clip(g, -1, 1)\n"},
            "gradient clipped elementwise to 1"),
        "gradient clipped by norm": ({REAL: REAL + "        g = g * min(1, 1 / np.linalg.norm(g))\n"},
            "gradient clipped to a norm of 1"),
        "update clipped": ({STEP: "p -= real(lr) * np.clip(m / real(first) / denominator, -1, 1)"},
            "as if `d` were `clip(d, -1, 1)` in `return p - lr * d`"),
        "first moment corrected in place": ({STEP: "m /= real(first)\n        p -= real(lr) * m / denominator"},
            "as if `m` were `m / (1 - beta1_pow)` (in update)"),
        "tail of 8 lost": ({REAL:
            REAL + "        k = p.size // 8 * 8\n        p, g, m, v = (x.reshape(-1)[:k] for x in (p, g, m, v))\n"},
            "elements are not written: they keep their old values"),
        "second correction one ahead": ({"1 - beta2**step": "1 - beta2**(step + 1)"},
            "beta2_pow one step early: of t + 1")},
    "lamb": {
        "ratio clipped at 10": ({"p -= real(lr) * ratio": "p -= real(lr) * min(ratio, real(10))"},
            "as if `ratio` were `min(ratio, 10)` (in rule)"),
        "decay decoupled": ({" + real(weight_decay) * p\n": "\n", "p -= real(lr)":
            "p *= real(1 - lr * weight_decay)\n        p -= real(lr)"}, "decay after the norm: not in the direction"),
        "epsilon at the norm": ({"p_norm / r_norm if": "p_norm / (r_norm + real(epsilon)) if"},
            "as if `direction_norm` were `direction_norm + epsilon` (in trust_ratio)"),
        "root of one norm forgotten": ({"np.linalg.norm(p.ravel()),": "np.dot(p.ravel(), p.ravel()),"},
            "as if `param_norm` were `param_norm * param_norm`"),
        "decay times lr": ({"real(weight_decay) * p": "real(lr * weight_decay) * p"},
            "weight_decay * lr instead of weight_decay"),
        "ratio without the decay": ({"r = hat": "a = hat", " + real(weight_decay) * p\n":
            "\n        r = a + real(weight_decay) * p\n", "ratio * r": "(ratio * a + real(weight_decay) * p)"},
            "trust ratio not on the decay, though its norm counts"),
        "norm of half": ({NORMS: NORMS + "\n        p_norm = np.linalg.norm(p.ravel()[:(p.size + 1) // 2])"},
            "as if `p` were `the first half of p alone` in `norms = (sqrt(sum_of_squares(p)), "
            "sqrt(sum_of_squares(r)))`")},
    "lars_momentum": {
        "decay of the gradient norm": ({"n + wd * w": "n + wd * n"},
            "as if `param_norm` were `grad_norm` (in local_lr)"),
        "decay by lr": ({"(g + wd * p)\n        p -= v": "g\n        p *= 1 - real(lr) * wd\n        p -= v"},
            "decay on the parameter by lr, not in the velocity"),
        "velocity not kept": ({"v[...] =": "v ="}, "velocities not written"),
        "no step for zero norms": ({"local = real(lr)\n": "local = real(0)\n"}, "as if `lr` were `0` (in local_lr)")},
    "novograd": {
        "corrected": ({"weight_decay):": "weight_decay, step):", "real(lr) * m": "real(lr / (1 - beta1**step)) * m"},
            "as if `m` were `m / (1 - beta1**t)` in `return (p - lr * m, m, v)`"),
        "Nesterov": ({"real(lr) * m": "real(lr) * (d + real(beta1) * m)"},
            "as if `m` were `m * beta1 + d` in `return (p - lr * m, m, v)`"),
        "second moment not kept": ({"v[...] =": "v ="}, "second_moment not advanced")},
    "momentum": {
        "decay subtracted": ({"g + real(l2_decay) * p": "g - real(l2_decay) * p"}, "-l2_decay instead of l2_decay"),
        "uphill": ({"p -= real(lr)": "p += real(lr)"}, "-lr instead of lr"),
        "mu forgotten in Nesterov": ({"g + real(mu) * v if": "g + v if"}, "as if `mu * v` were `v` (in update)"),
        "dampened but for the first step": ({"use_nesterov=False):": "use_nesterov=False, step):", "v += g":
            "v += g if step == 1 else real(1 - mu) * g"}, "gradient dampened by 1 - mu, from step 2 on")}}

SECOND_SET = {
    "adamw": {
        "product of gradient and average": ({"real(1 - beta2) * g * g": "real(1 - beta2) * g * m"},
            "as if `g` were `m` (in moments_one_by_one)"),
        "decay by the root of lr": ({DECAY: "p *= real(1 - lr**0.5 * coeff)"},
            "as if `lr` were `sqrt(lr)` (in update)"),
        "correction of ten steps alone": ({"1 - beta1**step, 1 - beta2**step":
            "(1 - beta1**step, 1 - beta2**step) if step <= 10 else (1.0, 1.0)"}, "no bias correction, from step 11 on"),
        "first moment in fp16": ({"m += real(1 - beta1) * (g - m)":
            "m[...] = (m + real(1 - beta1) * (g - m)).astype(np.float16)"},
            "as if `m` were `m rounded to float16` in `return (m, u)`"),
        "both kinds of decay": ({DECAY: "g = g + real(coeff) * p\n        p *= real(1 - lr * coeff)"},
            "coeff * p added to the gradient as well"),
        "step counted by tensors": ({"1 - beta1**step, 1 - beta2**step":
            "1 - beta1**(step + i), 1 - beta2**(step + i)"}, "bias correction advanced by each tensor: of t + i"),
        "first square as it is": ({SECOND: SECOND + " if step > 1 else g * g"},
            "second moment without the factor 1 - beta2, in the first step only"),
        "sign of the average": ({STEP: "p -= real(lr) * np.sign(m)"},
            "as if `d` were `sign(d)` in `return p - lr * d`")},
    "lamb": {
        "larger of root and epsilon": ({"(np.sqrt(var) + real(epsilon))": "np.maximum(np.sqrt(var), real(epsilon))"},
            "as if `sqrt(u / (1 - beta2_pow)) + epsilon` were `maximum(sqrt(u / (1 - beta2_pow)), epsilon)` (in "
            "direction)"),
        "norm of the decayed parameter": ({"np.linalg.norm(p.ravel()),":
            "np.linalg.norm(((1 - real(lr * weight_decay)) * p).ravel()),"},
            "as if `param_norm` were `param_norm * (1 - lr * weight_decay)` (in trust_ratio)"),
        "ratio of the tensor before": ({"    for p, g, m, v in": "    last = None\n    for p, g, m, v in",
            "        p -= real(lr) * ratio":
            "        ratio, last = ratio if last is None else last, ratio\n        p -= real(lr) * ratio"}, ""),
        "ratio to the sum of norms": ({"p_norm / r_norm if": "p_norm / (p_norm + r_norm) if"},
            "as if `direction_norm` were `direction_norm + param_norm` (in trust_ratio)"),
        "direction clipped": ({"        p_norm, r_norm": "        r = np.clip(r, -1, 1)\n        p_norm, r_norm"},
            "as if `(...) + weight_decay * p` were `clip(((...) + weight_decay * p), -1, 1)` (in direction)"),
        "ratio at least 1": ({"p -= real(lr) * ratio": "p -= real(lr) * max(ratio, real(1))"},
            "as if `ratio` were `max(ratio, 1)` (in rule)"),
        "old moments": ({REAL: REAL + "        n, w = m.copy(), v.copy()\n", "hat = m": "hat = n", "var = v":
            "var = w"}, "step with the old moments, which are advanced after it")},
    "lars_momentum": {
        "lr out of the velocity": ({VELOCITY: "v[...] = real(mu) * v + local / real(lr) * (g + wd * p)", "p -= v":
            "p -= real(lr) * v"}, "were `(local_lr * (g + lars_weight_decay * p)) / lr`"),
        "epsilon squared": ({"wd * w + eps": "wd * w + eps * eps"}, "epsilon squared, or applied twice"),
        "decay squared in the denominator": ({"wd * w + eps": "wd * wd * w + eps"},
            "as if `lars_weight_decay` were `lars_weight_decay * lars_weight_decay` (in local_lr)"),
        "velocity clipped": ({VELOCITY: "v[...] = np.clip(real(mu) * v + local * (g + wd * p), -0.1, 0.1)"},
            "as if `each v` were `clip(v, -0.1, 0.1)` in `return (p - v, v)`"),
        "norm of the second half": ({"np.linalg.norm(p.ravel())": "np.linalg.norm(p.ravel()[p.size // 2:])"},
            "as if `p if norm_of == 'master' else stored('params', p)` were `the second half of (p if norm_of == "
            "'master' else stored('params', p)) alone` (in rule)"),
        "sign of the gradient lost": (
            {"(g + wd * p)": "(abs(g) + wd * p)"}, "gradient replaced by its absolute value")},
    "novograd": {
        "larger of norm and epsilon": ({"(np.sqrt(v) + real(epsilon))": "np.maximum(np.sqrt(v), real(epsilon))"},
            "epsilon ignored: taken as 0"),
        "second moment not decayed": ({"real(beta2) * v": "v"}, "as if `beta2 * v` were `v` (in average)"),
        "decay of the moment": ({"real(weight_decay) * p": "real(weight_decay) * m"}, "as if `p` were `m` (in rule)"),
        "second moment corrected": ({"weight_decay):": "weight_decay, step):", "np.sqrt(v)":
            "np.sqrt(v / real(1 - beta2**step))"}, "as if `v` were `v / (1 - beta2**t)` (in rule)"),
        "averaged after the first step": ({"weight_decay):": "weight_decay, step):", "m + d":
            "m + (d if step == 1 else real(1 - beta1) * d)"}, "grad_averaging=True, from step 2 on"),
        "norm of the decayed gradient": ({"n = np.dot(g.ravel(), g.ravel())":
            "n = np.sum((g + real(weight_decay) * p)**2)"},
            "as if `g` were `g + weight_decay * p` in `v = average(v, sum_of_squares(g), beta2=beta2)`"),
        "sign of the moment": ({"real(lr) * m": "real(lr) * np.sign(m)"},
            "as if `m` were `sign(m)` in `return (p - lr * m, m, v)`")},
    "momentum": {
        "lr on the velocity": ({"v *= real(mu)": "v *= real(mu * lr)"},
            "as if `v` were `v * lr` in `v = mu * v + (g if dampening == 0 else (1 - dampening) * g)`"),
        "decay of the velocity": ({"real(l2_decay) * p": "real(l2_decay) * v"}, "as if `p` were `v` (in update)"),
        "step clipped": ({"real(lr) * d": "real(lr) * np.clip(d, -1, 1)"},
            "as if `v` were `clip(v, -1, 1)` in `return (p - lr * (g + mu * v if use_nesterov else v), v)`"),
        "velocity without memory": ({"v += g": "v[...] = g"}, "velocities not read: taken as 0"),
        "gradient normalized": ({REAL: REAL + "        g = g / np.linalg.norm(g)\n"}, "gradient divided by its norm"),
        "every second element": ({REAL: REAL + "        p, g, v = (x.reshape(-1)[::2] for x in (p, g, v))\n"},
            "elements are not written: they keep their old values"),
        "velocity with the opposite sign": ({"v *= real(mu)": "v *= -real(mu)"},
            "as if `v` were `-v` in `v = mu * v + (g if dampening == 0 else (1 - dampening) * g)`")}}

THIRD_SET = {
    "adamw": {
        "epsilon times the root of the correction": ({"+ real(epsilon)": "+ real(epsilon * second**0.5)"}, ""),
        "decay of the average": ({DECAY: "pass", STEP: STEP + "\n        p -= real(lr * coeff) * m"}, ""),
        "squares of clipped gradients": ({"real(1 - beta2) * g * g": "real(1 - beta2) * np.clip(g, -1, 1)**2"},
            "as if `each g` were `clip(g, -1, 1)` in `u = beta2 * u + (1 - beta2) * g * g`"),
        "both corrections of the first": ({"lr / first": "lr / (first * second)"},
            "as if `m` were `m / (1 - beta2_pow)` (in update)"),
        "decay of positive parameters": ({DECAY: "p *= np.where(p > 0, real(1 - lr * coeff), real(1))"}, "")},
    "lamb": {
        "one added to the norm": ({"p_norm / r_norm if": "p_norm / (r_norm + 1) if"}, ""),
        "correction without root": ({"var = v / real(1 - beta2**step)": "var = v / real(1 - beta2**step)**2"},
            "as if `sqrt(u / (1 - beta2_pow))` were `sqrt(u) / (1 - beta2_pow)` (in direction)"),
        "norm of the step": ({"np.linalg.norm(r.ravel())": "np.linalg.norm((real(lr) * r).ravel())"},
            "as if `param_norm` were `param_norm / lr` (in trust_ratio)"),
        "first correction one ahead": ({"1 - beta1**step": "1 - beta1**(step + 1)"},
            "beta1_pow one step early: of t + 1"),
        "square without root in the norm of r": ({"np.linalg.norm(r.ravel())": "np.dot(r.ravel(), r.ravel())"},
            "as if `sqrt(sum_of_squares(r))` were `sum_of_squares(r)` (in rule)")},
    "lars_momentum": {
        "coefficient added": ({"real(lr) * real(lars_coeff) * w": "real(lr) * (real(lars_coeff) + w", "+ eps)":
            "+ eps))"}, ""),
        "larger of norm and epsilon": ({"(n + wd * w + eps)": "max(n + wd * w, eps)"},
            "as if `(...) + epsilon` were `maximum(grad_norm + lars_weight_decay * param_norm, epsilon)` (in "
            "local_lr)"),
        "root of the local rate": ({LOCAL: "local = np.sqrt(real(lr) * real(lars_coeff) * w / (n + wd * w + eps))"},
            "as if `(...) / (...) + epsilon` were `sqrt(((...) / (...) + epsilon))` (in local_lr)"),
        "mu in the step": ({"p -= v": "p -= real(mu) * v"}, "as if `v` were `v * mu` in `return (p - v, v)`")},
    "novograd": {
        "epsilon after the division": ({"g / (np.sqrt(v) + real(epsilon))": "g / np.sqrt(v) + real(epsilon)"},
            "as if `g / (sqrt(v) + epsilon)` were `g / sqrt(v) + epsilon` (in direction)"),
        "1 - beta1 in the second moment": ({"real(1 - beta2) * n": "real(1 - beta1) * n"},
            "as if `beta2` were `beta1` in `return n if v == 0 else beta2 * v + (1 - beta2) * n`"),
        "divided twice": ({"d = g / (np.sqrt(v) + real(epsilon))": "d = g / (np.sqrt(v) + real(epsilon))**2"},
            "as if `sqrt(v) + epsilon` were `(sqrt(v) + epsilon) ** 2` in `return g / (sqrt(v) + epsilon) + "
            "weight_decay * p`"),
        "step by 1 - beta1": ({"real(lr) * m": "real(lr * (1 - beta1)) * m"},
            "as if `m` were `m - beta1 * m` in `return (p - lr * m, m, v)`"),
        "largest square": ({"np.dot(g.ravel(), g.ravel())": "(g * g).max(initial=0)"}, "")},
    "momentum": {
        "mu squared in Nesterov": ({"g + real(mu) * v if": "g + real(mu * mu) * v if"},
            "as if `mu` were `mu * mu` (in update)"),
        "lr by 1 - mu": ({"real(lr) * d": "real(lr / (1 - mu)) * d"},
            "as if `lr` were `lr / (1 - mu)` in `return (p - lr * (g + mu * v if use_nesterov else v), v)`"),
        "gradient left out of the step": ({"real(lr) * d": "real(lr) * (d - g)"},
            "as if `p` were `p + lr * g` in `return (p - lr * (g + mu * v if use_nesterov else v), v)`"),
        "square with sign": ({"v += g": "v += g * abs(g)"},
            "as if `g` were `g * abs(g)` in `v = mu * v + (g if dampening == 0 else (1 - dampening) * g)`"),
        "decay of sizes": ({"real(l2_decay) * p": "real(l2_decay) * abs(p)"},
            "as if `p` were `abs(p)` in `g = g + l2_decay * p`")}}


def step_of(routine: str, changes: dict[str, str]) -> Any:
    """The step of a routine with parts of its text replaced, every one of which has to be there; right without."""
    text = TEXTS[routine]
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    names: dict[str, Any] = {"np": np}
    exec(text, names)
    return names["step"]
