"""Planted bugs with their true causes: what a diagnosis is measured by.

    PYTHONPATH=tests python -m oracle.corpus [TEXT ...]

holds each, or those whose names have one of some texts, to all laws, and prints whether the cause that the report gives
is the true one, none, or a false one.
"""

import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from oracle.bugs import DECAY, FIRST, KNOWN, REAL, ROOT, SECOND, SECOND_SET, TEXTS, THIRD_SET, VELOCITY, step_of
from oracle.mutants.table import MUTANTS
from refopt import oracle

TINY = "\n        for x in (p, m, v):\n            x[abs(x) < 2.0**-126] = 0"
# To 12 bits, to nearest: approximations of processors err either way.
ROUGH = "    def rough(x):\n        return (x.view(np.uint32) + 0x800 & 0xFFFFF000).view(np.float32)\n\n"
ALL = "    norm = lambda xs: real(np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in xs)))\n"
FIRST_LR = {"def step": "KEPT = {}\n\n\ndef step", REAL: REAL + "        lr = KEPT.setdefault('lr', lr)\n"}
COUNTED = "first, second = 1 - beta1**step, 1 - beta2**step"


class Planted(NamedTuple):
    """A bug: its step, and a pattern that a true cause matches."""

    name: str
    routine: str
    make: Callable[[], Any]
    truth: str


# Each is explained by one of the hypotheses alone.
NEW = {
    "flush to zero": ("adamw", {"* m / denominator": "* m / denominator" + TINY}, "subnormal.*(zero|0)"),
    "fast root": ("adamw", {"    for i, (": ROUGH + "    for i, (", "np.sqrt(v)": "rough(np.sqrt(v))"},
        "fast|approximat"),
    "fast reciprocal": ("adagrad", {"    for p,": ROUGH + "    for p,", "real(lr) * g / (np.sqrt(s) + real(epsilon))":
        "real(lr) * g * rough(1 / (np.sqrt(s) + real(epsilon)))"}, "fast|approximat"),
    "one norm, LAMB": ("lamb", {}, "norm.*all tensors"),
    "one norm, LARS": ("lars_momentum", {}, "norm.*all tensors"),
    "one norm, NovoGrad": ("novograd", {}, "norm.*all tensors"),
    "epsilon outside the roots": ("adadelta", {"np.sqrt(x + eps) / np.sqrt(s + eps)":
        "(np.sqrt(x) + eps) / (np.sqrt(s) + eps)"}, "epsilon outside.*root"),
    "epsilon outside the divisor's root": ("adadelta", {"np.sqrt(s + eps)": "(np.sqrt(s) + eps)"},
        "epsilon outside.*root|sqrt\\(s\\) \\+ epsilon"),
    "lr of the first call": ("momentum", FIRST_LR, "lr .*first call"),
    "betas of the first call": ("adamw", {"def step": "KEPT = {}\n\n\ndef step", "    for i, (":
        "    beta1, beta2 = KEPT.setdefault('betas', (beta1, beta2))\n    for i, ("}, "beta1 and beta2 .*first call"),
    "gradient decayed in place": ("momentum", {"g = g + real(l2_decay) * p": "g += real(l2_decay) * p"},
        "gradient.* overwritten"),
    "gradient scaled in place": ("adagrad", {"s += g * g": "s += g * g\n        g *= real(lr)",
        "real(lr) * g /": "g /"}, "gradient.* overwritten"),
    "default beta2 in the correction": ("adamw", {"1 - beta2**step": "1 - 0.999**step"}, "beta2.*0.999.*power"),
    "counter in bf16": ("adamw", {COUNTED: "step = min(step, 256)\n        " + COUNTED}, "256"),
    "counter of 8 bits": ("adamw", {COUNTED: "step = step % 256\n        " + COUNTED}, "256"),
    "index of 16 bits": ("momentum", {REAL: REAL + "        p, g, v = (x.ravel(order='K') for x in (p, g, v))\n"
        "        k = max(p.size - 65536, 0)\n        p, g, v = p[:65536], g[:65536], v[:65536]\n",
        "p -= real(lr) * d": "p -= real(lr) * d\n        v[:k] = real(mu) * v[:k] + g[:k]\n"
        "        p[:k] -= real(lr) * v[:k]"}, "2\\*\\*16|65,?536"),
    "states of one shape shared": ("momentum", {"    for p,":
        "    same = {}\n    for p, s in zip(params, velocities):\n"
        "        same.setdefault(p.shape, s)\n    velocities = [same[p.shape] for p in params]\n    for p,"},
        "velocities.* shared"),
    "states of the gradient": ("momentum", {"v *= real(mu)\n        v += g": "g += real(mu) * v\n        v = g",
        "g = g + real(l2_decay) * p": "g += real(l2_decay) * p", "d = g + real(mu) * v if use_nesterov else v": "d = v",
        "p -= real(lr) * d": "p -= real(lr) * d\n    return params, grads"}, "velocities aliases the gradient"),
    "numbers of the first tensor": ("adamw", {REAL: REAL + "        lr = lr[0] if isinstance(lr, list) else lr\n"},
        "lr of the first")}


def one_norm(routine: str) -> Any:
    """A step whose norms are those of all tensors at once."""
    text = TEXTS[routine]
    if routine == "lamb":
        head, tail = text.split("        p_norm, r_norm =")
        body = tail.partition("\n")[2]
        text = head.replace("    for p,", "    kept = []\n    for p,") + "        kept.append((p, r))\n"
        text += "    real = params[0].dtype.type if params else float\n" + ALL
        text += "    p_norm, r_norm = norm([p for p, _ in kept]), norm([r for _, r in kept])\n    for p, r in kept:\n"
        text += "        real = p.dtype.type\n" + body
    else:
        two = "w, n = np.linalg.norm(p.ravel()), np.linalg.norm(g.ravel())"
        ours = {"lars_momentum": (two, "w, n = every"),
                "novograd": ("n = np.dot(g.ravel(), g.ravel())", "n = every[1] * every[1]")}
        first = "    real = params[0].dtype.type if params else float\n" + ALL
        first += "    every = norm(params), norm(grads)\n    for p,"
        text = text.replace(*ours[routine]).replace("    for p,", first, 1)
    names: dict[str, Any] = {"np": __import__("numpy")}
    exec(text, names)
    return names["step"]


ALSO = {"root of one norm forgotten": r"param_norm (\* param_norm|\*\* 2)", "beta1 in the second correction":
        "beta1 instead of beta2, in its powers only", "gradient left out of the step": "as if `v` were `v - g`",
        "lr by 1 - mu": r"as if `v` were `v / \(1 - mu\)` in `return \(p - lr"}


def _texts(table: dict, routine: str, *names: str) -> list[Planted]:
    return [Planted(f"{routine}: {name}", routine, partial(step_of, routine, table[routine][name][0]),
                    f"{re.escape(table[routine][name][1].partition(' (in ')[0])}|{ALSO.get(name, '$.')}")
            for name in names]


OLD = [
    *_texts(KNOWN, "adamw", "step from 0", "old second moment", "second moment in bf16",
        "first moment not kept", "decay and no correction"), *_texts(KNOWN, "lars_momentum", "lr twice"),
    *_texts(KNOWN, "novograd", "first norm averaged"), *_texts(KNOWN, "momentum", "fp16 velocity"),
    *_texts(FIRST, "adamw", "old second moment not decayed", "first correction multiplied",
        "gradient clipped by element", "update clipped", "second correction one ahead",
        "beta1 in the second correction"),
    *_texts(FIRST, "lamb", "ratio clipped at 10", "decay decoupled", "root of one norm forgotten",
        "epsilon at the norm"),
    *_texts(FIRST, "lars_momentum", "velocity not kept", "decay of the gradient norm"),
    *_texts(FIRST, "novograd", "corrected", "second moment not kept"), *_texts(FIRST, "momentum", "decay subtracted",
        "uphill", "dampened but for the first step"), *_texts(SECOND_SET, "adamw", "first moment in fp16",
        "both kinds of decay", "step counted by tensors", "correction of ten steps alone"),
    *_texts(SECOND_SET, "momentum", "gradient normalized"),
    *_texts(SECOND_SET, "lamb", "old moments"), *_texts(THIRD_SET, "novograd", "1 - beta1 in the second moment"),
    *_texts(THIRD_SET, "momentum", "lr by 1 - mu", "gradient left out of the step")]
# Of the library, with what a report has to say.
LIBRARY = {
    "LAMB: no trust ratio": "no trust ratio", "LARS: no coefficient": "lars_coeff ignored",
    "momentum: Nesterov never": "use_nesterov=False", "Adadelta: no rate": "lr ignored",
    "PyTorch: the count of steps in bf16": "256", "tensors of one shape share a state": "shared",
    "moments swapped in the table": "moment1 and moment2 (swapped|exchanged)", "masters not read": "masters not read",
    "Apex: LAMB's update in the gradient": "gradient.* overwritten", "one norm of all tensors": "norm.*all tensors",
    "the new moment stored before its use": "beta1 \\* beta2 instead of beta1|moment",
    "tensors beyond the 110th dropped": "110", "the learning rate of the first tensor": "(lr|numbers) of the first",
    "the decay of the last tensor": "l2_decay of the last"}

PLANTED = [
    *(Planted(name, routine, partial(one_norm, routine) if name.startswith("one norm") else
              partial(step_of, routine, changes), truth) for name, (routine, changes, truth) in NEW.items()),
    Planted("betas swapped", "adamw", partial(step_of, "adamw", {"    for i, (":
        "    beta1, beta2 = beta2, beta1\n    for i, ("}), "beta1 and beta2 swapped"),
    Planted("AdamW without decay", "adamw", partial(step_of, "adamw", {DECAY: "pass"}), "coeff ignored|no .*decay"),
    Planted("AdamW, epsilon in the root", "adamw", partial(step_of, "adamw", {ROOT:
        "np.sqrt(v / real(second) + real(epsilon))"}), "epsilon inside"),
    Planted("AdamW, squares in the other order of betas", "adamw", partial(step_of, "adamw", {SECOND:
        "v[...] = real(beta1) * v + real(1 - beta1) * g * g"}), "beta1 instead of beta2"),
    Planted("LARS, velocity without the rate", "lars_momentum", partial(step_of, "lars_momentum", {VELOCITY:
        "v[...] = real(mu) * v + (g + wd * p)", "p -= v": "p -= local * v"}), "(rate|lr).*outside|local"),
    *OLD, *(Planted(x.name, x.routine, x.step, LIBRARY[x.name]) for x in MUTANTS if x.name in LIBRARY
            and x.dtypes == ("float32",))]


def headline(report: Any) -> tuple[str, bool]:
    """The first cause that a report gives, and whether it is said as more than a possibility."""
    causes = getattr(report, "causes", None)
    if causes is not None:
        return (causes[0].text, causes[0].certain) if causes else ("", False)
    full = [item.reasons[0] for item in report.items if item.reasons and item.reasons[0][1] >= 0.9995]
    return (full[0][0], True) if full else ("", False)


def verdict(planted: Planted, report: Any) -> str:
    """Whether the cause that a report gives is "true", "none" or "false"."""
    text, _ = headline(report)
    return "none" if not text else "true" if re.search(planted.truth, text) else "false"


def held(planted: Planted, **named: Any) -> Any:
    """A planted bug, held to all laws."""
    return oracle.check(planted.routine, planted.make(), **dict(dtypes=["float32"], process=False, secret=1) | named)


def main(only: list[str]) -> int:
    counts: Counter[str] = Counter()
    for planted in PLANTED:
        if not only or any(text in planted.name for text in only):
            start = time.process_time()
            report = held(planted)
            seconds = time.process_time() - start
            found = verdict(planted, report)
            counts[found] += 1
            laws = " ".join(report.failed_laws)
            print(f"{found:6}{seconds:6.1f}  {planted.name}: {headline(report)} [{laws}]", flush=True)
    print(counts)
    return counts["false"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
