"""More bugs, written before anybody looked at which hypotheses there are. ``reason`` says what names each."""

from oracle.bugs import ADAMW, LAMB, LARS, MOMENTUM, NOVOGRAD

DECAY = "p *= real(1 - lr * coeff)"
SECOND = "v[...] = real(beta2) * v + real(1 - beta2) * g * g"
STEP = "p -= real(lr / first) * m / denominator"
ROOT = "np.sqrt(v) / real(second**0.5) + real(epsilon)"
VELOCITY = "v[...] = real(mu) * v + local * (g + wd * p)"
LOCAL = "local = real(lr) * real(lars_coeff) * w / (n + wd * w + eps)"
NORMS = "p_norm, r_norm = np.linalg.norm(p.ravel()), np.linalg.norm(r.ravel())"
REAL = "real = p.dtype.type\n"

# By routine, the right step, and by name of a bug what is replaced by what, and what of the reason has to match.
FIRST = {
    "adamw": (ADAMW, {
        "old second moment not decayed": (
            "as if `beta2 * u` were `u` (in moments_one_by_one)",
            {SECOND: "v += real(1 - beta2) * g * g"}),
        "beta1 in the second moment": (
            "beta1 for beta2, but not in its powers",
            {SECOND: "v[...] = real(beta1) * v + real(1 - beta1) * g * g"}),
        "decay by lr squared": (
            "coeff * lr for coeff",
            {DECAY: "p *= real(1 - lr * lr * coeff)"}),
        "epsilon squared in the root": (
            "as if `sqrt(u / (1 - beta2_pow)) + epsilon` were `sqrt(u / (1 - beta2_pow) + epsilon * epsilon)` (in descend_as_in_the_paper)",  # noqa: E501
            {ROOT: "np.sqrt(v / real(second) + real(epsilon)**2)"}),
        "beta1 in the second correction": (
            "as if `beta2_pow` were `beta1_pow` (in update)",
            {"1 - beta2**step": "1 - beta1**step"}),
        "first correction multiplied": (
            "as if `m / (1 - beta1_pow)` were `m * (1 - beta1_pow)` (in descend_as_in_the_paper)",
            {STEP: "p -= real(lr * first) * m / denominator"}),
        "gradient clipped by element": (
            "gradient clipped by element to 1",
            {REAL: REAL + "        g = np.clip(g, -1, 1)\n"}),
        "gradient clipped by norm": (
            "gradient clipped to a norm of 1",
            {REAL: REAL + "        g = g * min(1, 1 / np.linalg.norm(g))\n"}),
        "update clipped": (
            "as if `d` were `clip(d, -1, 1)` in `return p - lr * d`",
            {STEP: "p -= real(lr) * np.clip(m / real(first) / denominator, -1, 1)"}),
        "first moment corrected in place": (
            "as if `m` were `m / (1 - beta1_pow)` (in update)",
            {STEP: "m /= real(first)\n        p -= real(lr) * m / denominator"}),
        "tail of 8 lost": (
            "elements that are not written: they are as they were",
            {REAL: REAL + "        k = p.size // 8 * 8\n"
                                "        p, g, m, v = (x.reshape(-1)[:k] for x in (p, g, m, v))\n"}),
        "second correction one ahead": (
            "beta2_pow one step early: of t + 1",
            {"1 - beta2**step": "1 - beta2**(step + 1)"}),
    }),
    "lamb": (LAMB, {
        "ratio clipped at 10": (
            "as if `ratio` were `min(ratio, 10)` (in rule)",
            {"p -= real(lr) * ratio": "p -= real(lr) * min(ratio, real(10))"}),
        "weight norm clamped to 10": (
            "as if `param_norm` were `min(param_norm, 10)` (in trust_ratio)",
            {NORMS: NORMS + "\n        p_norm = min(p_norm, real(10))"}),
        "norms of absolute values": (
            "norms of sizes of the elements (1-norm) for their squares",
            {NORMS: "p_norm, r_norm = abs(p).sum(), abs(r).sum()"}),
        "decay decoupled": (
            "decay after the norm: not in the direction",
            {" + real(weight_decay) * p\n": "\n",
                                 "p -= real(lr)": "p *= real(1 - lr * weight_decay)\n        p -= real(lr)"}),
        "gradient clipped by norm": (
            "gradient clipped to a norm of 1",
            {REAL: REAL + "        g = g / max(1, np.linalg.norm(g))\n"}),
        "epsilon at the norm": (
            "as if `direction_norm` were `direction_norm + epsilon` (in trust_ratio)",
            {"p_norm / r_norm if": "p_norm / (r_norm + real(epsilon)) if"}),
        "root of one norm forgotten": (
            "as if `sqrt(sum_of_squares(p))` were `sum_of_squares(p)` (in rule)",
            {"np.linalg.norm(p.ravel()),": "np.dot(p.ravel(), p.ravel()),"}),
        "beta1 in the second correction": (
            "as if `beta2_pow` were `beta1_pow` (in rule)",
            {"real(1 - beta2**step)": "real(1 - beta1**step)"}),
        "decay times lr": (
            "weight_decay * lr for weight_decay",
            {"real(weight_decay) * p": "real(lr * weight_decay) * p"}),
        "ratio without the decay": (
            "trust ratio not on the decay, whose norm it counts",
            {"r = hat": "a = hat", " + real(weight_decay) * p\n":
                                         "\n        r = a + real(weight_decay) * p\n", "ratio * r":
                                         "(ratio * a + real(weight_decay) * p)"}),
        "root of the ratio": (
            "as if `ratio` were `sqrt(ratio)` (in rule)",
            {"p_norm / r_norm if": "np.sqrt(p_norm / r_norm) if"}),
        "norm of half": (
            "as if `p` were `the first half of p alone` in `norms = (sqrt(sum_of_squares(p)), sqrt(sum_of_squares(r)))`",  # noqa: E501
            {NORMS: NORMS + "\n        p_norm = np.linalg.norm(p.ravel()[:(p.size + 1) // 2])"}),
    }),
    "lars_momentum": (LARS, {
        "local rate clipped at lr": (
            "as if `local` were `min(local, lr)` (in lars_with)",
            {LOCAL: LOCAL + "\n            local = min(local, real(lr))"}),
        "epsilon at the weight norm": (
            "",
            {"* w / (n + wd * w + eps)": "* (w + eps) / (n + wd * w)"}),
        "decay of the gradient norm": (
            "as if `param_norm` were `grad_norm` (in local_lr)",
            {"n + wd * w": "n + wd * n"}),
        "decay by lr": (
            "decay on the parameter by lr, not in the velocity",
            {"(g + wd * p)\n        p -= v": "g\n        p *= 1 - real(lr) * wd\n        p -= v"}),
        "norm of the velocity": (
            "as if `g` were `v` (in lars_with)",
            {"np.linalg.norm(g.ravel())": "np.linalg.norm(v.ravel())"}),
        "rate on all of the velocity": (
            "as if `mu * v + (...)` were `local_lr * (mu * v) + (...)` (in update)",
            {VELOCITY: "v[...] = local * (real(mu) * v + g + wd * p)"}),
        "root of the gradient norm forgotten": (
            "as if `sqrt(squares(g))` were `squares(g)` (in lars_with)",
            {"np.linalg.norm(g.ravel())": "np.dot(g.ravel(), g.ravel())"}),
        "velocity not kept": (
            "velocities not written",
            {"v[...] =": "v ="}),
        "means for sums": (
            "norms of the elements with the mean of squares for their sum",
            {"np.linalg.norm(p.ravel()), np.linalg.norm(g.ravel())":
                                "np.sqrt(np.mean(p * p)), np.sqrt(np.mean(g * g))"}),
        "1 - mu for mu": (
            "1 - mu for mu",
            {"real(mu)": "real(1 - mu)"}),
        "no step for zero norms": (
            "as if `lr` were `0` (in local_lr)",
            {"local = real(lr)\n": "local = real(0)\n"}),
        "sign of the velocity": (
            "minus lr for lr",
            {VELOCITY: "v[...] = real(mu) * v - local * (g + wd * p)"}),
    }),
    "novograd": (NOVOGRAD, {
        "epsilon in the sum": (
            "as if `each n` were `n + epsilon` in `return n if v == 0 else beta2 * v + (1 - beta2) * n`",
            {"n = np.dot(g.ravel(), g.ravel())":
                                    "n = np.dot(g.ravel(), g.ravel()) + real(epsilon)"}),
        "beta1 in the second moment": (
            "beta1 for beta2",
            {"real(beta2) * v + real(1 - beta2)": "real(beta1) * v + real(1 - beta1)"}),
        "decay times lr": (
            "weight_decay * lr for weight_decay",
            {"real(weight_decay)": "real(lr * weight_decay)"}),
        "corrected": (
            "as if `m` were `m / (1 - beta1**t)` in `return (p - lr * m, m, v)`",
            {"weight_decay):": "weight_decay, step):", "real(lr) * m": "real(lr / (1 - beta1**step)) * m"}),
        "maximum": (
            "as if `beta2 * v + (1 - beta2) * n` were `maximum(beta2 * v, n)` (in average)",
            {"real(beta2) * v + real(1 - beta2) * n": "np.maximum(real(beta2) * v, n)"}),
        "moment left out": (
            "as if `m` were `d` in `return (p - lr * m, m, v)`",
            {"real(lr) * m": "real(lr) * d"}),
        "old moment": (
            "`m` as it was before the step in `return (p - lr * m, m, v)` (in rule)",
            {"m[...] = real(beta1)": "old = m.copy()\n        m[...] = real(beta1)",
                            "real(lr) * m": "real(lr) * old"}),
        "Nesterov": (
            "as if `m` were `m * beta1 + d` in `return (p - lr * m, m, v)`",
            {"real(lr) * m": "real(lr) * (d + real(beta1) * m)"}),
        "norm of the parameter": (
            "as if `g` were `p` (in rule)",
            {"np.dot(g.ravel(), g.ravel())": "np.dot(p.ravel(), p.ravel())"}),
        "norm of 256": (
            "norms of the first 256 elements of the elements alone",
            {"np.dot(g.ravel(), g.ravel())": "np.dot(g.ravel()[:256], g.ravel()[:256])"}),
        "beta2 in the moment": (
            "beta2 for beta1",
            {"real(beta1) * m": "real(beta2) * m"}),
        "second moment not kept": (
            "second_moment not advanced",
            {"v[...] =": "v ="}),
    }),
    "momentum": (MOMENTUM, {
        "decay subtracted": (
            "minus l2_decay for l2_decay",
            {"g + real(l2_decay) * p": "g - real(l2_decay) * p"}),
        "1 - mu for mu": (
            "as if `mu` were `1 - mu` in `v = mu * v + (g if dampening == 0 else (1 - dampening) * g)`",
            {"v *= real(mu)": "v *= real(1 - mu)"}),
        "mu on the gradient in Nesterov": (
            "as if `g + mu * v` were `mu * g + v` (in update)",
            {"g + real(mu) * v if": "real(mu) * g + v if"}),
        "decay times lr": (
            "l2_decay * lr for l2_decay",
            {"real(l2_decay)": "real(lr * l2_decay)"}),
        "gradient clipped by element": (
            "gradient clipped by element to 1",
            {REAL: REAL + "        g = np.clip(g, -1, 1)\n"}),
        "gradient clipped by norm": (
            "gradient clipped to a norm of 1",
            {REAL: REAL + "        g = g / max(1, np.linalg.norm(g))\n"}),
        "256 elements": (
            "elements that are not written: they are as they were",
            {REAL: REAL + "        p, g, v = (x.reshape(-1)[:256] for x in (p, g, v))\n"}),
        "velocity decayed afterwards": (
            "velocities: mu on the new gradient as well; params: as if `mu * v` were `v` (in update)",
            {"p -= real(lr) * d": "p -= real(lr) * d\n        v *= real(mu)",
                                             "v *= real(mu)\n        v += g": "v += g"}),
        "decay by sign": (
            "as if `p` were `sign(p)` in `g = g + l2_decay * p`",
            {"real(l2_decay) * p": "real(l2_decay) * np.sign(p)"}),
        "uphill": (
            "minus lr for lr",
            {"p -= real(lr)": "p += real(lr)"}),
        "mu forgotten in Nesterov": (
            "as if `mu * v` were `v` (in update)",
            {"g + real(mu) * v if": "g + v if"}),
        "dampened but for the first step": (
            "gradient dampened by 1 - mu, from step 2 on",
            {"use_nesterov=False):": "use_nesterov=False, step):",
                                                 "v += g": "v += g if step == 1 else real(1 - mu) * g"}),
    }),
}  # fmt: skip

SECOND_SET = {
    "adamw": (ADAMW, {
        "product of gradient and average": (
            "as if `g` were `m` (in moments_one_by_one)",
            {"real(1 - beta2) * g * g": "real(1 - beta2) * g * m"}),
        "decay by the root of lr": (
            "as if `lr` were `sqrt(lr)` (in update)",
            {DECAY: "p *= real(1 - lr**0.5 * coeff)"}),
        "correction of five steps alone": (
            "no bias correction, from step 6 on",
            {"1 - beta1**step, 1 - beta2**step":
                                                "(1 - beta1**step, 1 - beta2**step) if step <= 5 else (1.0, 1.0)"}),
        "first moment in fp16": (
            "moment1 rounded to float16 before its use",
            {"m += real(1 - beta1) * (g - m)":
                                      "m[...] = (m + real(1 - beta1) * (g - m)).astype(np.float16)"}),
        "both kinds of decay": (
            "coeff * p added to the gradient as well",
            {DECAY: "g = g + real(coeff) * p\n        " + DECAY}),
        "step counted by tensors": (
            "bias correction counted up by each tensor: of t + i",
            {"1 - beta1**step, 1 - beta2**step":
                                         "1 - beta1**(step + i), 1 - beta2**(step + i)"}),
        "first square as it is": (
            "second moment without the factor 1 - beta2, in the first step alone",
            {SECOND: SECOND + " if step > 1 else g * g"}),
        "sign of the average": (
            "as if `d` were `sign(d)` in `return p - lr * d`",
            {STEP: "p -= real(lr) * np.sign(m)"}),
    }),
    "lamb": (LAMB, {
        "larger of root and epsilon": (
            "as if `sqrt(u / (1 - beta2_pow)) + epsilon` were `maximum(sqrt(u / (1 - beta2_pow)), epsilon)` (in direction)",  # noqa: E501
            {"(np.sqrt(var) + real(epsilon))": "np.maximum(np.sqrt(var), real(epsilon))"}),
        "norm of the decayed parameter": (
            "as if `param_norm` were `param_norm * (1 - lr * weight_decay)` (in trust_ratio)",
            {"np.linalg.norm(p.ravel()),":
                                               "np.linalg.norm(((1 - real(lr * weight_decay)) * p).ravel()),"}),
        "ratio of the tensor before": (
            "",
            {"    for p, g, m, v in": "    last = None\n    for p, g, m, v in",
            "        p -= real(lr) * ratio": "        ratio, last = ratio if last is None else last, ratio\n"
            "        p -= real(lr) * ratio"}),
        "ratio to the sum of norms": (
            "as if `direction_norm` were `direction_norm + param_norm` (in trust_ratio)",
            {"p_norm / r_norm if": "p_norm / (p_norm + r_norm) if"}),
        "first moment not corrected": (
            "no bias correction of the first moment",
            {"m / real(1 - beta1**step)": "m"}),
        "direction clipped": (
            "as if `(...) + weight_decay * p` were `clip(((...) + weight_decay * p), -1, 1)` (in direction)",
            {"        p_norm, r_norm": "        r = np.clip(r, -1, 1)\n        p_norm, r_norm"}),
        "ratio at least 1": (
            "as if `ratio` were `max(ratio, 1)` (in rule)",
            {"p -= real(lr) * ratio": "p -= real(lr) * max(ratio, real(1))"}),
        "old moments": (
            "step by the old moments, which are advanced after it",
            {REAL: REAL + "        n, w = m.copy(), v.copy()\n", "hat = m": "hat = n", "var = v": "var = w"}),
    }),
    "lars_momentum": (LARS, {
        "lr out of the velocity": (
            "lr outside of the velocity, the rest of the local rate in it",
            {VELOCITY: "v[...] = real(mu) * v + local / real(lr) * (g + wd * p)",
                                        "p -= v": "p -= real(lr) * v"}),
        "norm of the decayed gradient": (
            "norm of g + wd * p for the sum of their norms in the denominator",
            {"(n + wd * w + eps)": "(np.linalg.norm((g + wd * p).ravel()) + eps)"}),
        "epsilon squared": (
            "epsilon squared, or applied twice",
            {"wd * w + eps": "wd * w + eps * eps"}),
        "local rate at most 1": (
            "as if `local` were `min(local, lr)` (in lars_with)",
            {"real(lr) * real(lars_coeff) * w / (n + wd * w + eps)":
                                      "real(lr) * min(real(1), real(lars_coeff) * w / (n + wd * w + eps))"}),
        "decay squared in the denominator": (
            "as if `lars_weight_decay` were `lars_weight_decay * lars_weight_decay` (in local_lr)",
            {"wd * w + eps": "wd * wd * w + eps"}),
        "velocity clipped": (
            "as if `each v` were `clip(v, -0.1, 0.1)` in `return (p - v, v)`",
            {VELOCITY: "v[...] = np.clip(real(mu) * v + local * (g + wd * p), -0.1, 0.1)"}),
        "norm of the second half": (
            "as if `p if norm_of == 'master' else stored('params', p)` were `the second half of (p if norm_of == 'master' else stored('params', p)) alone` (in lars_with)",  # noqa: E501
            {"np.linalg.norm(p.ravel())": "np.linalg.norm(p.ravel()[p.size // 2:])"}),
        "sign of the gradient lost": (
            "gradient replaced by its size",
            {"(g + wd * p)": "(abs(g) + wd * p)"}),
    }),
    "novograd": (NOVOGRAD, {
        "larger of norm and epsilon": (
            "epsilon ignored: taken as 0",
            {"(np.sqrt(v) + real(epsilon))": "np.maximum(np.sqrt(v), real(epsilon))"}),
        "second moment not decayed": (
            "as if `beta2 * v` were `v` (in average)",
            {"real(beta2) * v": "v"}),
        "gradient clipped by norm": (
            "gradient clipped to a norm of 1",
            {REAL: REAL + "        g = g / max(1, np.linalg.norm(g))\n"}),
        "decay of the moment": (
            "as if `p` were `m` (in rule)",
            {"real(weight_decay) * p": "real(weight_decay) * m"}),
        "second moment corrected": (
            "as if `v` were `v / (1 - beta2**t)` (in rule)",
            {"weight_decay):": "weight_decay, step):",
                                         "np.sqrt(v)": "np.sqrt(v / real(1 - beta2**step))"}),
        "averaged after the first step": (
            "grad_averaging=True, from step 2 on",
            {"weight_decay):": "weight_decay, step):", "m + d":
                                               "m + (d if step == 1 else real(1 - beta1) * d)"}),
        "norm of the decayed gradient": (
            "as if `g` were `g + weight_decay * p` in `v = average(v, sum_of_squares(g), beta2=beta2)`",
            {"n = np.dot(g.ravel(), g.ravel())":
                                              "n = np.sum((g + real(weight_decay) * p)**2)"}),
        "sign of the moment": (
            "as if `m` were `sign(m)` in `return (p - lr * m, m, v)`",
            {"real(lr) * m": "real(lr) * np.sign(m)"}),
    }),
    "momentum": (MOMENTUM, {
        "lr on the velocity": (
            "as if `v` were `v * lr` in `v = mu * v + (g if dampening == 0 else (1 - dampening) * g)`",
            {"v *= real(mu)": "v *= real(mu * lr)"}),
        "decay of the velocity": (
            "as if `p` were `v` (in update)",
            {"real(l2_decay) * p": "real(l2_decay) * v"}),
        "step clipped": (
            "as if `v` were `clip(v, -1, 1)` in `return (p - lr * (g + mu * v if use_nesterov else v), v)`",
            {"real(lr) * d": "real(lr) * np.clip(d, -1, 1)"}),
        "velocity without memory": (
            "velocities not read: taken as 0",
            {"v += g": "v[...] = g"}),
        "both kinds of decay": (
            "as if `v` were `v + l2_decay * p` in `return (p - lr * (g + mu * v if use_nesterov else v), v)`",
            {"real(lr) * d": "real(lr) * (d + real(l2_decay) * p)"}),
        "gradient normalized": (
            "gradient divided by its norm",
            {REAL: REAL + "        g = g / np.linalg.norm(g)\n"}),
        "every second element": (
            "elements that are not written: they are as they were",
            {REAL: REAL + "        p, g, v = (x.reshape(-1)[::2] for x in (p, g, v))\n"}),
        "velocity of the other sign": (
            "as if `v` were `-v` in `v = mu * v + (g if dampening == 0 else (1 - dampening) * g)`",
            {"v *= real(mu)": "v *= -real(mu)"}),
    }),
}  # fmt: skip

THIRD_SET = {
    "adamw": (ADAMW, {
        "epsilon times the root of the correction": (
            "",
            {"+ real(epsilon)": "+ real(epsilon * second**0.5)"}),
        "decay of the average": (
            "",
            {DECAY: "pass", STEP: STEP + "\n        p -= real(lr * coeff) * m"}),
        "squares of clipped gradients": (
            "as if `each g` were `clip(g, -1, 1)` in `u = beta2 * u + (1 - beta2) * g * g`",
            {"real(1 - beta2) * g * g": "real(1 - beta2) * np.clip(g, -1, 1)**2"}),
        "both corrections of the first": (
            "as if `m` were `m / (1 - beta2_pow)` (in update)",
            {"lr / first": "lr / (first * second)"}),
        "decay of positive parameters": (
            "",
            {DECAY: "p *= np.where(p > 0, real(1 - lr * coeff), real(1))"}),
    }),
    "lamb": (LAMB, {
        "one added to the norm": (
            "",
            {"p_norm / r_norm if": "p_norm / (r_norm + 1) if"}),
        "correction without root": (
            "as if `sqrt(u / (1 - beta2_pow))` were `sqrt(u) / (1 - beta2_pow)` (in direction)",
            {"var = v / real(1 - beta2**step)": "var = v / real(1 - beta2**step)**2"}),
        "norm of the step": (
            "as if `param_norm` were `param_norm / lr` (in trust_ratio)",
            {"np.linalg.norm(r.ravel())": "np.linalg.norm((real(lr) * r).ravel())"}),
        "first correction one ahead": (
            "beta1_pow one step early: of t + 1",
            {"1 - beta1**step": "1 - beta1**(step + 1)"}),
        "square without root in the norm of r": (
            "as if `sqrt(sum_of_squares(r))` were `sum_of_squares(r)` (in rule)",
            {"np.linalg.norm(r.ravel())": "np.dot(r.ravel(), r.ravel())"}),
    }),
    "lars_momentum": (LARS, {
        "coefficient added": (
            "",
            {"real(lr) * real(lars_coeff) * w": "real(lr) * (real(lars_coeff) + w"
                                   , "+ eps)": "+ eps))"}),
        "larger of norm and epsilon": (
            "as if `(...) + epsilon` were `maximum(grad_norm + lars_weight_decay * param_norm, epsilon)` (in local_lr)",
            {"(n + wd * w + eps)": "max(n + wd * w, eps)"}),
        "root of the local rate": (
            "as if `(...) / (...) + epsilon` were `sqrt(((...) / (...) + epsilon))` (in local_lr)",
            {LOCAL: LOCAL.replace("local = ", "local = np.sqrt(") + ")"}),
        "dampened": (
            "gradient dampened by 1 - mu",
            {"+ local *": "+ real(1 - mu) * local *"}),
        "mu in the step": (
            "as if `v` were `v * mu` in `return (p - v, v)`",
            {"p -= v": "p -= real(mu) * v"}),
    }),
    "novograd": (NOVOGRAD, {
        "epsilon after the division": (
            "as if `g / (sqrt(v) + epsilon)` were `g / sqrt(v) + epsilon` (in direction)",
            {"g / (np.sqrt(v) + real(epsilon))": "g / np.sqrt(v) + real(epsilon)"}),
        "1 - beta1 in the second moment": (
            "as if `beta2` were `beta1` in `return n if v == 0 else beta2 * v + (1 - beta2) * n`",
            {"real(1 - beta2) * n": "real(1 - beta1) * n"}),
        "divided twice": (
            "as if `sqrt(v) + epsilon` were `(sqrt(v) + epsilon) ** 2` in `return g / (sqrt(v) + epsilon) + weight_decay * p`",  # noqa: E501
            {"d = g / (np.sqrt(v) + real(epsilon))":
                               "d = g / (np.sqrt(v) + real(epsilon))**2"}),
        "step by 1 - beta1": (
            "as if `m` were `m - beta1 * m` in `return (p - lr * m, m, v)`",
            {"real(lr) * m": "real(lr * (1 - beta1)) * m"}),
        "largest square": (
            "",
            {"np.dot(g.ravel(), g.ravel())": "(g * g).max(initial=0)"}),
    }),
    "momentum": (MOMENTUM, {
        "mu squared in Nesterov": (
            "as if `mu` were `mu * mu` (in update)",
            {"g + real(mu) * v if": "g + real(mu * mu) * v if"}),
        "lr by 1 - mu": (
            "as if `v` were `v / (1 - mu)` in `return (p - lr * (g + mu * v if use_nesterov else v), v)`",
            {"real(lr) * d": "real(lr / (1 - mu)) * d"}),
        "gradient left out of the step": (
            "as if `p` were `p + lr * g` in `return (p - lr * (g + mu * v if use_nesterov else v), v)`",
            {"real(lr) * d": "real(lr) * (d - g)"}),
        "square with sign": (
            "as if `g` were `g * abs(g)` in `v = mu * v + (g if dampening == 0 else (1 - dampening) * g)`",
            {"v += g": "v += g * abs(g)"}),
        "decay of sizes": (
            "as if `p` were `abs(p)` in `g = g + l2_decay * p`",
            {"real(l2_decay) * p": "real(l2_decay) * abs(p)"}),
    }),
}  # fmt: skip


def replaced(text, changes):
    """A text with each of some parts replaced, every one of which has to be there."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
