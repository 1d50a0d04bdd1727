"""Wrong steps, each with the law that finds it, and right ones that look like them."""

import re
from functools import partial

import numpy as np
import pytest

from oracle.bugs import step_of
from refopt import oracle
from refopt.cpu.muon import momentum
from refopt.oracle.bound import bounded
from refopt.oracle.bound.bounded import Arithmetic
from refopt.oracle.bound.evaluate import _values
from refopt.oracle.variants import ROUTINES

QUICK = dict(process=False, examples=0, secret=1)
DECAY, STEP = "p *= real(1 - lr * coeff)", "p -= real(lr / first) * m / denominator"
COUNTED = "first, second = 1 - beta1**step, 1 - beta2**step"

BF16 = "float(np.array(step).astype('bfloat16'))"


def counting(text):
    """AdamW whose corrections are of another step than it is given."""
    return step_of("adamw", {COUNTED: f"step = {text}\n        {COUNTED}"})


def momentum_with(of_gradient, taken=""):
    text = "def step(params, grads, velocities, *, lr, mu, l2_decay" + taken + "):\n"
    text += "    for i, (p, g, v) in enumerate(zip(params, grads, velocities)):\n        real = p.dtype.type\n"
    text += f"        {of_gradient}\n        v[...] = real(mu) * v + (g + real(l2_decay) * p)\n"
    names = {"np": np}
    exec(text + "        p -= real(lr[i] if isinstance(lr, list) else lr) * v\n", names)
    return names["step"]


EMPTY = "lr = [x for x, g in zip(lr, grads) if g.size] + [0] if i == 0 and isinstance(lr, list) else lr"
FOUND = {  # routine, step, dtype, the law that fails, and the label of a case that does
    "gradient rescaled in place": ("momentum", momentum_with("g *= real(rescale_grad)", ", rescale_grad=1.0"),
        "float32", "L4", "gradients untouched, rescale_grad"),
    "gradient scaled in place": ("momentum", momentum_with("g *= real(1 if grad_factor is None else grad_factor[0])",
        ", grad_factor=None"), "float32", "L4", "gradients untouched, grad_factor"),
    "a late step": ("adamw", counting("50 if 100 <= step < 1000 or 1001 < step <= 3000 else step"), "float32", "L24",
        ""),
    "one late step": ("adamw", counting("3008 if step == 3001 else step"), "float32", "L24", "step 3001"),
    "a step in bf16": ("adamw", counting(BF16), "float32", "L24", "step 3001"),
    "numbers of full tensors": ("momentum", momentum_with(EMPTY), "float32", "L14", "lr for each, one of them empty"),
    "a moment clamped": ("adamw", step_of("adamw", {"np.sqrt(v)": "np.sqrt(np.minimum(v, 65504))"}), "float16", "L10",
        "large gradients"),
}


@pytest.mark.parametrize(("routine", "step", "dtype", "law", "label"), FOUND.values(), ids=FOUND)
def test_it_is_found(routine, step, dtype, law, label):
    report = oracle.check(routine, step, dtypes=[dtype], laws=[law], diagnose=False, **QUICK)
    assert [x.label for x in report.of("failed") if x.label.startswith(label)], str(report)


def dampened(late, params, grads, velocities, *, lr, mu, dampening, l2_decay, step, dampened_from=2):
    for p, g, v in zip(params, grads, velocities, strict=True):
        real = p.dtype.type
        g = g + real(l2_decay) * p
        v[...] = real(mu) * v + (g if step < dampened_from + late else real(1 - dampening) * g)
        p -= real(lr) * v


@pytest.mark.parametrize("late", [0, 1])
def test_the_number_of_a_step_is_exact(late):
    def step(params, grads, velocities, *, lr, mu, dampening, l2_decay, step, dampened_from=2):
        dampened(late, params, grads, velocities, lr=lr, mu=mu, dampening=dampening, l2_decay=l2_decay, step=step,
                 dampened_from=dampened_from)

    named = dict(dtypes=["float32"], laws=["L1"], diagnose=False, set={"dampened_from": 2})
    report = oracle.check("momentum", step, **named, **QUICK)
    assert ("step 2" in {x.label for x in report.of("failed")}) == bool(late), str(report)


def stochastic(noise, params, grads, *, lr, rounding="nearest", seed=0):
    rng = np.random.default_rng(seed)
    for p, g in zip(params, grads, strict=True):
        x = p.astype(np.float32) - np.float32(lr) * g.astype(np.float32)
        if rounding == "stochastic":
            word = x.view(np.uint32) + noise(rng, x.size).astype(np.uint32).reshape(x.shape)
            x = (word & 0xFFFF0000).view(np.float32)
        p[...] = x.astype(p.dtype)


def bits(rng, size, most=2**16):
    return rng.integers(0, most, size)


NOISE = {
    "right": (bits, ""), "15 bits": (partial(bits, most=2**15), "towards 0"),
    "high": (lambda rng, n: bits(rng, n) | 0xF000, "away from 0"),
    "one draw": (lambda rng, n: np.full(n, 2**15), "to 1/8 of a unit"),
    "each fourth": (lambda rng, n: np.repeat(bits(rng, n), 4)[:n], "repeats after 1$"),
    "a period": (lambda rng, n: np.resize(bits(rng, 4096), n), "repeats after 4096"),
}


@pytest.mark.parametrize("name", NOISE)
def test_stochastic_rounding(name):
    """The right one has the stream of the seed that data might have."""
    noise, text = NOISE[name]

    def step(params, grads, *, lr, rounding="nearest", seed=0):
        stochastic(noise, params, grads, lr=lr, rounding=rounding, seed=seed)

    report = oracle.check("sgd", step, dtypes=["bfloat16"], laws=["L13"], diagnose=False, **QUICK)
    texts = [x.text for x in report.of("failed") if x.label == "unbiased"]
    assert len(texts) == bool(text) and all(re.search(text, x) for x in texts), texts


def test_numbers_are_python_floats_unless_they_are_said_to_be_of_numpy():
    def step(params, grads, *, lr, l2_decay=0.0):
        return [p - lr * (g + l2_decay * p) for p, g in zip(params, grads, strict=True)]

    report = oracle.check("sgd", step, dtypes=["float32"], **QUICK)
    assert report.ok and "NumPy promotes results to float64" in str(report), str(report)


def test_skips_that_decide_say_how_to_accept_them():
    def step(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            if not (p.flags.c_contiguous and g.flags.c_contiguous):
                raise NotImplementedError("strides")
            p -= p.dtype.type(lr) * g

    report = oracle.check("sgd", step, dtypes=["float32"], laws=["L1", "L4"], diagnose=False, **QUICK)
    assert not report.ok and "(allow_skips=['L4'] accepts this)" in str(report).splitlines()[0]


def test_an_average_of_weight_0_may_be_a_lerp():
    of = Arithmetic(np.float32, regroups=True)
    numbers = {"mu": 0.0, "iterations": 5}
    mu = _values(ROUTINES["muon"], numbers, {"average": True}, of)["mu"]
    g, v = (of.exact(np.float64(np.float32(x))) for x in (0.001, 1.7))
    token = bounded.CURRENT.set(of)
    after = momentum(g, v, mu=mu, use_nesterov=False, average=True)[0]
    bounded.CURRENT.reset(token)
    lerp = np.float32(1.7) + (np.float32(0.001) - np.float32(1.7))
    assert 0 < abs(lerp - after.value) <= after.error


def narrowed(params, grads, moment1, moment2, lr, beta1, beta2, epsilon, coeff, step, master_params, of="", cut=False):
    """AdamW with masters, which has read the rounded parameter for ``of``, or cuts the new one."""
    for i, (p, g, m, v) in enumerate(zip(params, grads, moment1, moment2, strict=True)):
        real = np.float32
        low = p.astype(real)
        w = low if master_params is None or master_params[i] is None else master_params[i]
        g, mm, vv = g.astype(real), m.astype(real), v.astype(real)
        mm, vv = real(beta1) * mm + real(1 - beta1) * g, real(beta2) * vv + real(1 - beta2) * g * g
        u = real(lr) * (mm / real(1 - beta1**step)) / (np.sqrt(vv / real(1 - beta2**step)) + real(epsilon))
        new = w - real(lr * coeff) * (low if of == "decay" else w) - u
        own = low - real(lr * coeff) * low - u if of == "own" else new
        if cut:
            own = (own.view(np.uint32) & 0xFFFF0000).view(np.float32)
        if w is not low:
            w[...] = new
        p[...], m[...], v[...] = own.astype(p.dtype), mm.astype(m.dtype), vv.astype(v.dtype)


def narrow(**how):
    def step(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step, master_params=None):
        narrowed(params, grads, moment1, moment2, lr, beta1, beta2, epsilon, coeff, step, master_params, **how)

    return step


def lion(params, grads, moment, *, lr, beta1, beta2, coeff):
    for p, g, m in zip(params, grads, moment, strict=True):
        real = p.dtype.type
        c = real(beta1) * m + real(1 - beta1) * g
        p *= real(1 - lr * coeff)
        p -= real(lr) * np.where(c > 0, real(1), real(-1))
        m[...] = real(beta2) * m + real(1 - beta2) * g


def tails(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        n, real = p.size, p.dtype.type
        flat, grad = p.ravel(), g.ravel()
        flat[: n - n % 8] -= real(lr) * grad[: n - n % 8]
        if n % 8:
            flat[-8:] -= real(lr) * grad[-8:]
        p[...] = flat.reshape(p.shape)


RMS = "u = m / real(first) / denominator\n        p -= real(lr) * u / np.sqrt(np.mean(u * u)) if u.size else 0"
def narrow_products(params, grads, *, lr):
    return [p - lr * g for p, g in zip(params, grads, strict=True)]


NAMED = {  # routine, step, dtype, laws, and the cause
    "decay of the rounded": ("adamw", narrow(of="decay"), "float16", ["L11"], "decay of the rounded parameter, not of"),
    "stepped apart": ("adamw", narrow(of="own"), "bfloat16", ["L11"], "moved from its own rounded value, not"),
    "cut": ("adamw", narrow(cut=True), "bfloat16", ["L1"], "params cut to 16 bits, rounded towards 0, not to nearest"),
    "LARS, vectors": ("lars_momentum", step_of("lars_momentum", {"n > 0": "n > 0 and p.ndim > 1"}), "float32",
        ["L1", "L4"], "no trust ratio: the learning rate unchanged, for tensors of one axis"),
    "decay, matrices": ("adamw", step_of("adamw", {DECAY: "p *= real(1 - lr * coeff * (p.ndim > 1))"}), "float32",
        ["L1", "L4"], "coeff ignored: taken as 0, for tensors of one axis"),
    "LARS, one norm": ("lars_momentum", step_of("lars_momentum", {"norm(g.ravel())": "norm((g + wd * p).ravel())"}),
        "float32", ["L1"], "norm of g + wd * p instead of the gradient's"),
    "gradient not widened": ("sgd", narrow_products, "float32", ["L10"], "computed in its dtype: it is not widened"),
    "sign of 0": ("lion", lion, "float32", ["L1"], "sign of zero taken as -1"),
    "an overlapping tail": ("sgd", tails, "float32", ["L1"], "the last 8 elements updated at once as a tail"),
    "an rms": ("adamw", step_of("adamw", {STEP: RMS}), "float32", ["L1"], "`d` were `d / its rms`"),
    "kept by step": ("adamw", step_of("adamw", {"def step": "KEPT = {}\n\n\ndef step", "1 - beta2**step":
        "KEPT.setdefault(step, 1 - beta2**step)"}), "float32", ["L1"], "kept by step alone"),
    "a step in fp16": ("adamw", counting(BF16), "float32", ["L24"],
        "bias correction of the step rounded to bfloat16"),
}


@pytest.mark.parametrize(("routine", "step", "dtype", "laws", "text"), NAMED.values(), ids=NAMED)
def test_it_is_named(routine, step, dtype, laws, text):
    report = oracle.check(routine, step, dtypes=[dtype], laws=laws, process=False, secret=1)
    assert report.causes and text in report.causes[0].text, str(report)
