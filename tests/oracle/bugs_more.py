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
        "old second moment not decayed": ("", {SECOND: "v += real(1 - beta2) * g * g"}),
        "beta1 in the second moment": ("", {SECOND: "v[...] = real(beta1) * v + real(1 - beta1) * g * g"}),
        "decay by lr squared": ("", {DECAY: "p *= real(1 - lr * lr * coeff)"}),
        "epsilon squared in the root": ("", {ROOT: "np.sqrt(v / real(second) + real(epsilon)**2)"}),
        "beta1 in the second correction": ("", {"1 - beta2**step": "1 - beta1**step"}),
        "first correction multiplied": ("", {STEP: "p -= real(lr * first) * m / denominator"}),
        "gradient clipped by element": ("", {REAL: REAL + "        g = np.clip(g, -1, 1)\n"}),
        "gradient clipped by norm": ("", {REAL: REAL + "        g = g * min(1, 1 / np.linalg.norm(g))\n"}),
        "update clipped": ("", {STEP: "p -= real(lr) * np.clip(m / real(first) / denominator, -1, 1)"}),
        "first moment corrected in place": ("", {STEP: "m /= real(first)\n        p -= real(lr) * m / denominator"}),
        "tail of 8 lost": ("", {REAL: REAL + "        k = p.size // 8 * 8\n"
                                "        p, g, m, v = (x.reshape(-1)[:k] for x in (p, g, m, v))\n"}),
        "second correction one ahead": ("", {"1 - beta2**step": "1 - beta2**(step + 1)"}),
    }),
    "lamb": (LAMB, {
        "ratio clipped at 10": ("", {"p -= real(lr) * ratio": "p -= real(lr) * min(ratio, real(10))"}),
        "weight norm clamped to 10": ("", {NORMS: NORMS + "\n        p_norm = min(p_norm, real(10))"}),
        "norms of absolute values": ("", {NORMS: "p_norm, r_norm = abs(p).sum(), abs(r).sum()"}),
        "decay decoupled": ("", {" + real(weight_decay) * p\n": "\n",
                                 "p -= real(lr)": "p *= real(1 - lr * weight_decay)\n        p -= real(lr)"}),
        "gradient clipped by norm": ("", {REAL: REAL + "        g = g / max(1, np.linalg.norm(g))\n"}),
        "epsilon at the norm": ("", {"p_norm / r_norm if": "p_norm / (r_norm + real(epsilon)) if"}),
        "root of one norm forgotten": ("", {"np.linalg.norm(p.ravel()),": "np.dot(p.ravel(), p.ravel()),"}),
        "beta1 in the second correction": ("", {"real(1 - beta2**step)": "real(1 - beta1**step)"}),
        "decay times lr": ("", {"real(weight_decay) * p": "real(lr * weight_decay) * p"}),
        "ratio without the decay": ("", {"r = hat": "a = hat", " + real(weight_decay) * p\n":
                                         "\n        r = a + real(weight_decay) * p\n", "ratio * r":
                                         "(ratio * a + real(weight_decay) * p)"}),
        "root of the ratio": ("", {"p_norm / r_norm if": "np.sqrt(p_norm / r_norm) if"}),
        "norm of half": ("", {NORMS: NORMS + "\n        p_norm = np.linalg.norm(p.ravel()[:(p.size + 1) // 2])"}),
    }),
    "lars_momentum": (LARS, {
        "local rate clipped at lr": ("", {LOCAL: LOCAL + "\n            local = min(local, real(lr))"}),
        "epsilon at the weight norm": ("", {"* w / (n + wd * w + eps)": "* (w + eps) / (n + wd * w)"}),
        "decay of the gradient norm": ("", {"n + wd * w": "n + wd * n"}),
        "decay by lr": ("", {"(g + wd * p)\n        p -= v": "g\n        p *= 1 - real(lr) * wd\n        p -= v"}),
        "norm of the velocity": ("", {"np.linalg.norm(g.ravel())": "np.linalg.norm(v.ravel())"}),
        "rate on all of the velocity": ("", {VELOCITY: "v[...] = local * (real(mu) * v + g + wd * p)"}),
        "root of the gradient norm forgotten": ("", {"np.linalg.norm(g.ravel())": "np.dot(g.ravel(), g.ravel())"}),
        "velocity not kept": ("", {"v[...] =": "v ="}),
        "means for sums": ("", {"np.linalg.norm(p.ravel()), np.linalg.norm(g.ravel())":
                                "np.sqrt(np.mean(p * p)), np.sqrt(np.mean(g * g))"}),
        "1 - mu for mu": ("", {"real(mu)": "real(1 - mu)"}),
        "no step for zero norms": ("", {"local = real(lr)\n": "local = real(0)\n"}),
        "sign of the velocity": ("", {VELOCITY: "v[...] = real(mu) * v - local * (g + wd * p)"}),
    }),
    "novograd": (NOVOGRAD, {
        "epsilon in the sum": ("", {"n = np.dot(g.ravel(), g.ravel())":
                                    "n = np.dot(g.ravel(), g.ravel()) + real(epsilon)"}),
        "beta1 in the second moment": ("", {"real(beta2) * v + real(1 - beta2)": "real(beta1) * v + real(1 - beta1)"}),
        "decay times lr": ("", {"real(weight_decay)": "real(lr * weight_decay)"}),
        "corrected": ("", {"weight_decay):": "weight_decay, step):", "real(lr) * m": "real(lr / (1 - beta1**step)) * m"}),
        "maximum": ("", {"real(beta2) * v + real(1 - beta2) * n": "np.maximum(real(beta2) * v, n)"}),
        "moment left out": ("", {"real(lr) * m": "real(lr) * d"}),
        "old moment": ("", {"m[...] = real(beta1)": "old = m.copy()\n        m[...] = real(beta1)",
                            "real(lr) * m": "real(lr) * old"}),
        "Nesterov": ("", {"real(lr) * m": "real(lr) * (d + real(beta1) * m)"}),
        "norm of the parameter": ("", {"np.dot(g.ravel(), g.ravel())": "np.dot(p.ravel(), p.ravel())"}),
        "norm of 256": ("", {"np.dot(g.ravel(), g.ravel())": "np.dot(g.ravel()[:256], g.ravel()[:256])"}),
        "beta2 in the moment": ("", {"real(beta1) * m": "real(beta2) * m"}),
        "second moment not kept": ("", {"v[...] =": "v ="}),
    }),
    "momentum": (MOMENTUM, {
        "decay subtracted": ("", {"g + real(l2_decay) * p": "g - real(l2_decay) * p"}),
        "1 - mu for mu": ("", {"v *= real(mu)": "v *= real(1 - mu)"}),
        "mu on the gradient in Nesterov": ("", {"g + real(mu) * v if": "real(mu) * g + v if"}),
        "decay times lr": ("", {"real(l2_decay)": "real(lr * l2_decay)"}),
        "gradient clipped by element": ("", {REAL: REAL + "        g = np.clip(g, -1, 1)\n"}),
        "gradient clipped by norm": ("", {REAL: REAL + "        g = g / max(1, np.linalg.norm(g))\n"}),
        "256 elements": ("", {REAL: REAL + "        p, g, v = (x.reshape(-1)[:256] for x in (p, g, v))\n"}),
        "velocity decayed afterwards": ("", {"p -= real(lr) * d": "p -= real(lr) * d\n        v *= real(mu)",
                                             "v *= real(mu)\n        v += g": "v += g"}),
        "decay by sign": ("", {"real(l2_decay) * p": "real(l2_decay) * np.sign(p)"}),
        "uphill": ("", {"p -= real(lr)": "p += real(lr)"}),
        "mu forgotten in Nesterov": ("", {"g + real(mu) * v if": "g + v if"}),
        "dampened but for the first step": ("", {"use_nesterov=False):": "use_nesterov=False, step):",
                                                 "v += g": "v += g if step == 1 else real(1 - mu) * g"}),
    }),
}  # fmt: skip

SECOND_SET = {
    "adamw": (ADAMW, {
        "product of gradient and average": ("", {"real(1 - beta2) * g * g": "real(1 - beta2) * g * m"}),
        "decay by the root of lr": ("", {DECAY: "p *= real(1 - lr**0.5 * coeff)"}),
        "correction of five steps alone": ("", {"1 - beta1**step, 1 - beta2**step":
                                                "(1 - beta1**step, 1 - beta2**step) if step <= 5 else (1.0, 1.0)"}),
        "first moment in fp16": ("", {"m += real(1 - beta1) * (g - m)":
                                      "m[...] = (m + real(1 - beta1) * (g - m)).astype(np.float16)"}),
        "both kinds of decay": ("", {DECAY: "g = g + real(coeff) * p\n        " + DECAY}),
        "step counted by tensors": ("", {"1 - beta1**step, 1 - beta2**step":
                                         "1 - beta1**(step + i), 1 - beta2**(step + i)"}),
        "first square as it is": ("", {SECOND: SECOND + " if step > 1 else g * g"}),
        "sign of the average": ("", {STEP: "p -= real(lr) * np.sign(m)"}),
    }),
    "lamb": (LAMB, {
        "larger of root and epsilon": ("", {"(np.sqrt(var) + real(epsilon))": "np.maximum(np.sqrt(var), real(epsilon))"}),
        "norm of the decayed parameter": ("", {"np.linalg.norm(p.ravel()),":
                                               "np.linalg.norm(((1 - real(lr * weight_decay)) * p).ravel()),"}),
        "ratio of the tensor before": ("", {"    for p, g, m, v in": "    last = None\n    for p, g, m, v in",
            "        p -= real(lr) * ratio": "        ratio, last = ratio if last is None else last, ratio\n"
            "        p -= real(lr) * ratio"}),
        "ratio to the sum of norms": ("", {"p_norm / r_norm if": "p_norm / (p_norm + r_norm) if"}),
        "first moment not corrected": ("", {"m / real(1 - beta1**step)": "m"}),
        "direction clipped": ("", {"        p_norm, r_norm": "        r = np.clip(r, -1, 1)\n        p_norm, r_norm"}),
        "ratio at least 1": ("", {"p -= real(lr) * ratio": "p -= real(lr) * max(ratio, real(1))"}),
        "old moments": ("", {REAL: REAL + "        n, w = m.copy(), v.copy()\n", "hat = m": "hat = n", "var = v": "var = w"}),
    }),
    "lars_momentum": (LARS, {
        "lr out of the velocity": ("", {VELOCITY: "v[...] = real(mu) * v + local / real(lr) * (g + wd * p)",
                                        "p -= v": "p -= real(lr) * v"}),
        "norm of the decayed gradient": ("", {"(n + wd * w + eps)": "(np.linalg.norm((g + wd * p).ravel()) + eps)"}),
        "epsilon squared": ("", {"wd * w + eps": "wd * w + eps * eps"}),
        "local rate at most 1": ("", {"real(lr) * real(lars_coeff) * w / (n + wd * w + eps)":
                                      "real(lr) * min(real(1), real(lars_coeff) * w / (n + wd * w + eps))"}),
        "decay squared in the denominator": ("", {"wd * w + eps": "wd * wd * w + eps"}),
        "velocity clipped": ("", {VELOCITY: "v[...] = np.clip(real(mu) * v + local * (g + wd * p), -0.1, 0.1)"}),
        "norm of the second half": ("", {"np.linalg.norm(p.ravel())": "np.linalg.norm(p.ravel()[p.size // 2:])"}),
        "sign of the gradient lost": ("", {"(g + wd * p)": "(abs(g) + wd * p)"}),
    }),
    "novograd": (NOVOGRAD, {
        "larger of norm and epsilon": ("", {"(np.sqrt(v) + real(epsilon))": "np.maximum(np.sqrt(v), real(epsilon))"}),
        "second moment not decayed": ("", {"real(beta2) * v": "v"}),
        "gradient clipped by norm": ("", {REAL: REAL + "        g = g / max(1, np.linalg.norm(g))\n"}),
        "decay of the moment": ("", {"real(weight_decay) * p": "real(weight_decay) * m"}),
        "second moment corrected": ("", {"weight_decay):": "weight_decay, step):",
                                         "np.sqrt(v)": "np.sqrt(v / real(1 - beta2**step))"}),
        "averaged after the first step": ("", {"weight_decay):": "weight_decay, step):", "m + d":
                                               "m + (d if step == 1 else real(1 - beta1) * d)"}),
        "norm of the decayed gradient": ("", {"n = np.dot(g.ravel(), g.ravel())":
                                              "n = np.sum((g + real(weight_decay) * p)**2)"}),
        "sign of the moment": ("", {"real(lr) * m": "real(lr) * np.sign(m)"}),
    }),
    "momentum": (MOMENTUM, {
        "lr on the velocity": ("", {"v *= real(mu)": "v *= real(mu * lr)"}),
        "decay of the velocity": ("", {"real(l2_decay) * p": "real(l2_decay) * v"}),
        "step clipped": ("", {"real(lr) * d": "real(lr) * np.clip(d, -1, 1)"}),
        "velocity without memory": ("", {"v += g": "v[...] = g"}),
        "both kinds of decay": ("", {"real(lr) * d": "real(lr) * (d + real(l2_decay) * p)"}),
        "gradient normalized": ("", {REAL: REAL + "        g = g / np.linalg.norm(g)\n"}),
        "every second element": ("", {REAL: REAL + "        p, g, v = (x.reshape(-1)[::2] for x in (p, g, v))\n"}),
        "velocity of the other sign": ("", {"v *= real(mu)": "v *= -real(mu)"}),
    }),
}  # fmt: skip

THIRD_SET = {
    "adamw": (ADAMW, {
        "epsilon times the root of the correction": ("", {"+ real(epsilon)": "+ real(epsilon * second**0.5)"}),
        "decay of the average": ("", {DECAY: "pass", STEP: STEP + "\n        p -= real(lr * coeff) * m"}),
        "squares of clipped gradients": ("", {"real(1 - beta2) * g * g": "real(1 - beta2) * np.clip(g, -1, 1)**2"}),
        "both corrections of the first": ("", {"lr / first": "lr / (first * second)"}),
        "decay of positive parameters": ("", {DECAY: "p *= np.where(p > 0, real(1 - lr * coeff), real(1))"}),
    }),
    "lamb": (LAMB, {
        "one added to the norm": ("", {"p_norm / r_norm if": "p_norm / (r_norm + 1) if"}),
        "correction without root": ("", {"var = v / real(1 - beta2**step)": "var = v / real(1 - beta2**step)**2"}),
        "norm of the step": ("", {"np.linalg.norm(r.ravel())": "np.linalg.norm((real(lr) * r).ravel())"}),
        "first correction one ahead": ("", {"1 - beta1**step": "1 - beta1**(step + 1)"}),
        "square without root in the norm of r": ("", {"np.linalg.norm(r.ravel())": "np.dot(r.ravel(), r.ravel())"}),
    }),
    "lars_momentum": (LARS, {
        "coefficient added": ("", {"real(lr) * real(lars_coeff) * w": "real(lr) * (real(lars_coeff) + w"
                                   , "+ eps)": "+ eps))"}),
        "larger of norm and epsilon": ("", {"(n + wd * w + eps)": "max(n + wd * w, eps)"}),
        "root of the local rate": ("", {LOCAL: LOCAL.replace("local = ", "local = np.sqrt(") + ")"}),
        "dampened": ("", {"+ local *": "+ real(1 - mu) * local *"}),
        "mu in the step": ("", {"p -= v": "p -= real(mu) * v"}),
    }),
    "novograd": (NOVOGRAD, {
        "epsilon after the division": ("", {"g / (np.sqrt(v) + real(epsilon))": "g / np.sqrt(v) + real(epsilon)"}),
        "1 - beta1 in the second moment": ("", {"real(1 - beta2) * n": "real(1 - beta1) * n"}),
        "divided twice": ("", {"d = g / (np.sqrt(v) + real(epsilon))":
                               "d = g / (np.sqrt(v) + real(epsilon))**2"}),
        "step by 1 - beta1": ("", {"real(lr) * m": "real(lr * (1 - beta1)) * m"}),
        "largest square": ("", {"np.dot(g.ravel(), g.ravel())": "(g * g).max(initial=0)"}),
    }),
    "momentum": (MOMENTUM, {
        "mu squared in Nesterov": ("", {"g + real(mu) * v if": "g + real(mu * mu) * v if"}),
        "lr by 1 - mu": ("", {"real(lr) * d": "real(lr / (1 - mu)) * d"}),
        "gradient left out of the step": ("", {"real(lr) * d": "real(lr) * (d - g)"}),
        "square with sign": ("", {"v += g": "v += g * abs(g)"}),
        "decay of sizes": ("", {"real(l2_decay) * p": "real(l2_decay) * abs(p)"}),
    }),
}  # fmt: skip


def replaced(text, changes):
    """A text with each of some parts replaced, every one of which has to be there."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
