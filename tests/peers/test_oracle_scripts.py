"""Scripts of failures of PyTorch's and optax's optimizers: they run without refopt, and show what is wrong."""

import importlib
import os
import subprocess
import sys

import pytest

from peers.trials import check

torch = pytest.importorskip("torch")
optax = pytest.importorskip("optax")

OWN = '''
import jax.numpy as jnp
import optax
import torch


class Right(torch.optim.AdamW):
    """Adds a half."""

    half = 0.0

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(self.half)


class Wrong(Right):
    half = 0.5


class RightCount(torch.optim.Optimizer):
    """Adam that counts its steps in each group, and adds a half from the second one on."""

    half = 0.0

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            t = group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                m, v = state["exp_avg"], state["exp_avg_sq"]
                m.lerp_(p.grad, 1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                p.addcdiv_(m / (1 - beta1**t), (v / (1 - beta2**t)).sqrt() + group["eps"], value=-group["lr"])
                p.add_(self.half * (t > 1))


class WrongCount(RightCount):
    half = 0.5


def right_chain(learning_rate, b1, b2, eps, weight_decay):
    return optax.chain(
        optax.scale_by_adam(b1, b2, eps), optax.add_decayed_weights(weight_decay), optax.scale(-learning_rate)
    )


def wrong_chain(learning_rate, b1, b2, eps, weight_decay):
    return optax.chain(
        optax.add_decayed_weights(weight_decay), optax.scale_by_adam(b1, b2, eps), optax.scale(-learning_rate)
    )


def right_momentum(params, grads, velocities, *, lr, mu, double=False):
    for p, g, v in zip(params, grads, velocities):
        v.copy_((mu * v.double() + g.double()).to(v.dtype))
        p.copy_(p.double() - (2 if double else 1) * lr * v.double())


def wrong_momentum(params, grads, velocities, *, lr, mu):
    right_momentum(params, grads, velocities, lr=lr, mu=mu, double=True)


def right_sgd(params, grads, *, lr):
    return [p - jnp.asarray(lr, p.dtype) * g for p, g in zip(params, grads)]


def wrong_sgd(params, grads, *, lr):
    return [p + jnp.asarray(lr, p.dtype) * g for p, g in zip(params, grads)]
'''
WIDE = """

def wide(params, grads, *, lr):
    return [p.double() - lr * g for p, g in zip(params, grads)]
"""
# A routine, its step, a dtype, the law that does not hold, options.
LIBRARIES = [("sgd", "torch.optim:SGD", "bfloat16", "L1", {"fused": True}),
             ("nadam", "torch.optim:NAdam", "float64", "L1", {}), ("radam", "optax:radam", "float32", "L1", {}),
             ("sgd", "own_steps:wide", "float32", "L1", {"arrays": "torch"})]
MINE = [("adamw", "own_steps:Wrong", "float32", "L1", {}), ("adam", "own_steps:WrongCount", "float32", "L1", {}),
        ("adamw", "own_steps:Wrong", "float32", "L9", {"fused": True}),
        ("adamw", "own_steps:Wrong", "float32", "L14", {}),
        ("adamw", "own_steps:Wrong", "float32", "L8", {"fused": True}),
        ("adamw", "own_steps:wrong_chain", "float32", "L1", {}),
        ("momentum", "own_steps:wrong_momentum", "bfloat16", "L1", {"arrays": "torch"}),
        ("momentum", "own_steps:wrong_momentum", "float32", "L4", {"arrays": "torch"}),
        ("sgd", "own_steps:wrong_sgd", "float32", "L1", {"arrays": "jax"})]
# Runs scripts where refopt cannot be imported: the status of each, and what it has printed last.
RUN = """
import contextlib, io, runpy, sys, traceback
sys.modules["refopt"] = None
for path in sys.argv[1:]:
    status, out = 0, io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code
        except Exception:
            status, _ = 2, print(traceback.format_exc())
    print(path, int(status or 0), *out.getvalue().splitlines()[-1:])
"""


def script_of(routine, spec, dtype, law, named):
    module, _, name = spec.partition(":")
    subject = getattr(importlib.import_module(module), name)
    report = check(routine, subject, dtypes=[dtype], laws=[law], examples=0, diagnose=False, **named)
    assert report.wrong == [law], report
    text = report.script()
    assert "refopt" not in text
    return text


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What all scripts come to, in one process: by row, and for those of one's own mended as well."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "own_steps.py").write_text(OWN + WIDE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "own_steps", raising=False)
        texts = {f"{k}.py": script_of(*row) for k, row in enumerate([*LIBRARIES, *MINE])}
    for k, (_, spec, *_) in enumerate(MINE, len(LIBRARIES)):
        name = spec.partition(":")[2]
        texts[f"{k}-mended.py"] = texts[f"{k}.py"].replace(
            name, name.replace("Wrong", "Right").replace("wrong", "right"))
        assert texts[f"{k}-mended.py"] != texts[f"{k}.py"]
    for name, text in texts.items():
        (folder / name).write_text(text)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", RUN, *texts]
    done = subprocess.run(command, capture_output=True, text=True, env=alone, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    return {name: (int(status), last) for name, status, last in lines}


@pytest.mark.parametrize(("k", "row"), [*enumerate([*LIBRARIES, *MINE])])
def test_a_script_shows_what_is_wrong(ended, k, row):
    """And for a step of one's own, that what is right is right."""
    status, last = ended[f"{k}.py"]
    assert status == 1, last
    if row[1] != "own_steps:wide":  # which has another dtype
        assert last.startswith("wrong elements: ") and last != "wrong elements: 0"
    if row in MINE:
        assert ended[f"{k}-mended.py"] == (0, "wrong elements: 0")
