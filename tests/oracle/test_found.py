"""Wrong steps, each with the law that finds it, and right ones that look like them."""

import re
from functools import partial

import numpy as np
import pytest

from oracle.bugs import step_of
from refopt import oracle

QUICK = dict(process=False, examples=0, secret=1)
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


def some(places, written=None):
    """SGD of some elements of each tensor, with the places of its results."""
    def step(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            flat, k = p.reshape(-1), places(p.size)
            flat[written(p.size) if written else k] = flat[k] - np.float32(lr) * g.reshape(-1)[k]

    return step


def in_blocks(size):
    return slice(int(np.ceil(np.float32(size) / 256)) * 256)


FOUND = {  # routine, step, dtype, the law that fails, and a part of the label or text of a case that does
    "gradient rescaled in place": ("momentum", momentum_with("g *= real(rescale_grad)", ", rescale_grad=1.0"),
        "float32", "L4", "gradients untouched, rescale_grad"),
    "gradient scaled in place": ("momentum", momentum_with("g *= real(1 if grad_factor is None else grad_factor[0])",
        ", grad_factor=None"), "float32", "L4", "gradients untouched, grad_factor"),
    "a late step": ("adamw", counting("50 if 100 <= step < 1000 or 1001 < step <= 3000 else step"), "float32", "L24",
        ""),
    "a step in bf16": ("adamw", counting(BF16), "float32", "L24", "step 3001"),
    "numbers of full tensors": ("momentum", momentum_with(EMPTY), "float32", "L14", "lr for each, one of them empty"),
    "a moment clamped": ("adamw", step_of("adamw", {"np.sqrt(v)": "np.sqrt(np.minimum(v, 65504))"}), "float16", "L10",
        "large gradients"),
    "blocks counted in fp32": ("sgd", some(in_blocks), "float32", "L5", "2**24 are right, and fp32 has no odd number"),
    "indexes in fp32": ("sgd", some(lambda size: np.arange(size, dtype=np.float32).astype(int)), "float32", "L5",
        "element 16781301 of 16781313: expected"),
    "a place of another element": ("sgd", some(np.arange, lambda size: np.arange(size) - (size > 2**24)), "float32",
        "L5", "like element 8")}


@pytest.mark.parametrize(("routine", "step", "dtype", "law", "label"), FOUND.values(), ids=FOUND)
def test_it_is_found(routine, step, dtype, law, label):
    report = oracle.check(routine, step, dtypes=[dtype], laws=[law], diagnose=False, **QUICK)
    assert [x.label for x in report.of("failed") if label in f"{x.label}: {x.text}"], str(report)


def element_by_element(size):
    for k in range(size):
        k += 1
    return slice(size)


def with_little_memory(size):
    if size > 2**24:
        raise MemoryError
    return slice(size)


@pytest.mark.parametrize(("places", "text"), [
    (element_by_element, "runs Python code for every few elements"), (with_little_memory, "has not enough memory")])
def test_a_tensor_that_takes_too_much_is_left_out(places, text):
    report = oracle.check("sgd", some(places), dtypes=["float32"], laws=["L5"], diagnose=False, **QUICK)
    assert not report.of("failed") and [x for x in report.of("skipped") if x.text.startswith(text) and x.lacks]


@pytest.mark.parametrize("late", [0, 1])
def test_the_number_of_a_step_is_exact(late):
    weight = f"(1 if step < dampened_from + {late} else real(1 - dampening))"
    step = step_of("momentum", {"use_nesterov=False": "dampening, step, dampened_from=2", "v += g":
        f"v += {weight} * g", "g + real(mu) * v if use_nesterov else v": "v"})
    named = dict(dtypes=["float32"], laws=["L1"], diagnose=False, set={"dampened_from": 2})
    report = oracle.check("momentum", step, **named, **QUICK)
    assert ("step 2" in {x.label for x in report.of("failed")}) == bool(late), str(report)


def bits(rng, size, most=2**16):
    return rng.integers(0, most, size)


NOISE = {"right": (bits, ""), "15 bits": (partial(bits, most=2**15), "towards 0"),
         "one draw": (lambda rng, n: np.full(n, 2**15), "to 1/8 of a unit"),
         "each fourth": (lambda rng, n: np.repeat(bits(rng, n), 4)[:n], "repeats after 1$"),
         "a period": (lambda rng, n: np.resize(bits(rng, 4096), n), "repeats after 4096")}


@pytest.mark.parametrize(("noise", "text"), NOISE.values(), ids=NOISE)
def test_stochastic_rounding(noise, text):
    """The right one has the stream of the seed that data might have."""
    def step(params, grads, *, lr, rounding="nearest", seed=0):
        rng = np.random.default_rng(seed)
        for p, g in zip(params, grads, strict=True):
            x = p.astype(np.float32) - np.float32(lr) * g.astype(np.float32)
            if rounding == "stochastic":
                word = x.view(np.uint32) + noise(rng, x.size).astype(np.uint32).reshape(x.shape)
                x = (word & 0xFFFF0000).view(np.float32)
            p[...] = x.astype(p.dtype)

    report = oracle.check("sgd", step, dtypes=["bfloat16"], laws=["L13"], diagnose=False, **QUICK)
    texts = [x.text for x in report.of("failed") if x.label == "unbiased"]
    assert len(texts) == bool(text) and all(re.search(text, x) for x in texts), texts


def test_numbers_are_python_floats_unless_they_are_said_to_be_of_numpy():
    def step(params, grads, *, lr, l2_decay=0.0):
        return [p - lr * (g + l2_decay * p) for p, g in zip(params, grads, strict=True)]

    report = oracle.check("sgd", step, dtypes=["float32"], **QUICK)
    assert report.ok and "numbers of np.float64 promote results" in str(report), str(report)


def test_an_average_of_weight_0_may_be_a_lerp():
    p, g, v = (np.full((1, 1), x, np.float32) for x in (1, 0.001, 1.7))
    expected = oracle.expect("muon", params=[p], grads=[g], velocities=[v], lr=0.1, mu=0.0)["velocities"][0]
    assert v + (g - v) != g and expected.ratio(v + (g - v)) <= 1


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


def tails(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        n, real = p.size, p.dtype.type
        flat, grad = p.ravel(), g.ravel()
        flat[: n - n % 8] -= real(lr) * grad[: n - n % 8]
        if n % 8:
            flat[-8:] -= real(lr) * grad[-8:]
        p[...] = flat.reshape(p.shape)


NAMED = {  # routine, step, dtype, laws, and the cause
    "decay of the rounded": ("adamw", narrow(of="decay"), "float16", ["L11"], "decay of the rounded parameter, not of"),
    "stepped apart": ("adamw", narrow(of="own"), "bfloat16", ["L11"], "moved from its own rounded value, not"),
    "cut": ("adamw", narrow(cut=True), "bfloat16", ["L1"], "params cut to 16 bits, rounded towards 0, not to nearest"),
    "LARS, vectors": ("lars_momentum", step_of("lars_momentum", {"n > 0": "n > 0 and p.ndim > 1"}), "float32",
        ["L1", "L4"], "no trust ratio: the learning rate unchanged, for tensors of one axis"),
    "gradient not widened": ("sgd", lambda params, grads, *, lr: [*map(lambda p, g: p - lr * g, params, grads)],
        "float32", ["L10"], "computed in its dtype: it is not widened"),
    "an overlapping tail": ("sgd", tails, "float32", ["L1"], "the last 8 elements updated at once as a tail"),
    "a schedule": ("adamw", step_of("adamw", {"-= real(lr / first)": "-= real(min(1, step / 10) * lr / first)"}),
        "float32", ["L1"], "a factor that depends on the step: 0.1 in step 1, 0.2 in step 2"),
    "largest": ("novograd", step_of("novograd", {"n = np.dot(g.ravel(), g.ravel())": "n = abs(g).max(initial=0) ** 2"}),
        "float32", ["L1"], "norms of the largest of the elements alone (infinity norm)"),
    "kept by step": ("adamw", step_of("adamw", {"def step": "KEPT = {}\n\n\ndef step", "1 - beta2**step":
        "KEPT.setdefault(step, 1 - beta2**step)"}), "float32", ["L1"], "kept by step alone"),
    "a step in fp16": ("adamw", counting(BF16), "float32", ["L24"],
        "bias correction of the step rounded to bfloat16")}


@pytest.mark.parametrize(("routine", "step", "dtype", "laws", "text"), NAMED.values(), ids=NAMED)
def test_it_is_named(routine, step, dtype, laws, text):
    report = oracle.check(routine, step, dtypes=[dtype], laws=laws, process=False, secret=1)
    assert report.causes and text in report.causes[0].text, str(report)
