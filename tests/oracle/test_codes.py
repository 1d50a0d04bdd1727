"""States in few bits: a format that is broken in one way is found by its law, which names the cause, and right ones
pass."""

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.checks.dtypes import CODED, GROUP, coded_bytes

LAWS = ["L1", "L2", "L16", "L29", "L30", "L31", "L32"]
KINDS = (np.int8, 127), (np.uint8, 255)  # of both moments: signed codes, and codes of the root


def loaded(state, k, bug):
    """What codes stand for: cubes times a scale, or with a bug multiples of it."""
    (kind, most), groups = KINDS[k], state.reshape(-1, CODED)
    x = groups[:, :GROUP].view(kind).astype(np.float32) / np.float32(most)
    x = groups[:, GROUP:].copy().view(np.float32) * (x if bug == "linear" else x**3)
    return np.ravel(x * x if k else x)


def store(state, x, k, bug):
    y = np.pad(np.sqrt(x) if k else x, (0, -x.size % GROUP)).reshape(-1, GROUP)
    before, scales = state.reshape(-1, CODED)[:, GROUP:].copy().view(np.float32), abs(y).max(1, keepdims=True)
    scales = {"fp16": lambda: scales.astype(np.float16).astype(np.float32),
              "floor": lambda: np.maximum(scales, np.float32(1e-5)), "grows": lambda: np.maximum(scales, before),
              "tensor": lambda: scales + 0 * scales.sum()}.get(bug, lambda: scales)()
    t = y / np.where(scales > 0, scales, 1)
    q = np.rint((t if bug == "linear" else np.cbrt(t)) * KINDS[k][1])
    q = np.maximum(q, (y > 0) & (bug != "linear")) if k else np.where((q == 0) & (bug == "zero"), 1, q)
    q = np.rint(q / 16) * 16 if bug == "coarse" else q
    q[-1] *= bug != "tail" or x.size % GROUP == 0
    groups = np.nan_to_num(q).astype(np.int16).astype(np.uint8), scales.astype(np.float32).view(np.uint8)
    state[...] = np.concatenate(groups, 1).reshape(-1)


def adamw(bug=""):
    """AdamW, with a fault in how it stores its moments."""

    def step(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step):
        for p, g, *states in zip(params, grads, moment1, moment2, strict=True):
            flat = np.ravel(np.nan_to_num(g) if bug == "hidden" else g)
            m, v = (loaded(state, k, bug)[: p.size] for k, state in enumerate(states))
            moments = [np.float32(beta1) * m + np.float32(1 - beta1) * flat,
                       np.float32(beta2) * v + np.float32(1 - beta2) * flat * flat]
            for k, state in enumerate(states):
                store(state, moments[k], k, bug)
                moments[k] = loaded(state, k, bug)[: p.size] if bug == "from codes" else moments[k]
            d = moments[0] / (1 - beta1**step) / (np.sqrt(moments[1] / (1 - beta2**step)) + epsilon)
            p[...] = p * (1 - lr * coeff) - lr * d.reshape(p.shape)

    return step


def zeros(p):
    return np.zeros(coded_bytes(p.size), np.uint8)


def checked(step, laws, **named):
    states = {"moment1": zeros, "moment2": zeros}
    with np.errstate(all="ignore"):
        return oracle.check("adamw", step, states=states, laws=laws, dtypes=["float32"], process=False, **named)


@pytest.mark.parametrize(("step", "named"), [
    (adamw(), {}), (cpu.merged_adamw, {}), (adamw("from codes"), {"tolerance": 0.1})])
def test_right_formats_pass(step, named):
    report = checked(step, LAWS, **named)
    assert report.ok and "states in groups: a large gradient affects up to 32 elements" in str(report), str(report)


BUGS = {"linear": ("L31", "the second moment rounds to 0 where the first is not"), "fp16": ("L29", "scales in fp16"),
        "floor": ("L29", "scales have a least value"), "zero": ("L30", "zero does not stay zero"),
        "tensor": ("L32", "a bad gradient spoils more than its group"), "hidden": ("L32", "a bad gradient is hidden"),
        "coarse": ("L29", "states lose too much"), "grows": ("L29", "states lose too much"),
        "tail": ("L29", "states lose too much"), "from codes": ("L1", "params[0], element")}


@pytest.mark.parametrize("bug", BUGS)
def test_a_broken_format_is_found_by_its_law(bug):
    law, cause = BUGS[bug]
    report = checked(adamw(bug), [law], diagnose=False)
    assert report.wrong == [law] and cause in str(report), str(report)
