"""Scripts of failures of PyTorch's and optax's optimizers: they run without refopt, and show what is wrong."""

import importlib
import os
import subprocess
import sys

import pytest

from refopt import oracle

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
LIBRARIES = [
    ("sgd", "torch.optim:SGD", "bfloat16", "L1", {"fused": True}),
    ("nadam", "torch.optim:NAdam", "float64", "L1", {}),
    ("radam", "optax:radam", "float32", "L1", {}),
]
MINE = [
    ("adamw", "Wrong", "float32", "L1", {}),
    ("adamw", "Wrong", "float32", "L14", {}),
    ("adamw", "Wrong", "float32", "L8", {"fused": True}),
    ("adamw", "wrong_chain", "float32", "L1", {}),
    ("momentum", "wrong_momentum", "bfloat16", "L1", {"arrays": "torch"}),
    ("momentum", "wrong_momentum", "float32", "L4", {"arrays": "torch"}),
    ("sgd", "wrong_sgd", "float32", "L1", {"arrays": "jax"}),
]


def script_of(routine, subject, dtype, law, named):
    report = oracle.check(routine, subject, dtypes=[dtype], laws=[law], examples=0, diagnose=False, **named)
    assert report.wrong == [law], report
    text = report.script()
    assert "refopt" not in text
    return text


def run(text, folder):
    """A script where refopt cannot be imported: the last line of what it prints."""
    (folder / "shown.py").write_text("import sys\nsys.modules['refopt'] = None\n" + text)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "shown.py"], capture_output=True, text=True, env=alone, cwd=folder)
    return done.returncode, (done.stdout.splitlines() or [done.stderr])[-1]


@pytest.mark.parametrize(("routine", "spec", "dtype", "law", "named"), LIBRARIES)
def test_of_libraries(routine, spec, dtype, law, named, tmp_path):
    module, _, name = spec.partition(":")
    text = script_of(routine, getattr(importlib.import_module(module), name), dtype, law, named)
    status, last = run(text, tmp_path)
    assert status == 1 and last.startswith("wrong elements: ") and last != "wrong elements: 0"


@pytest.mark.parametrize(("routine", "name", "dtype", "law", "named"), MINE)
def test_of_ones_own(routine, name, dtype, law, named, tmp_path, monkeypatch):
    """It shows what is wrong, and that what is right is right."""
    (tmp_path / "own_steps.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_steps", raising=False)
    text = script_of(routine, getattr(importlib.import_module("own_steps"), name), dtype, law, named)
    status, last = run(text, tmp_path)
    assert status == 1 and last.startswith("wrong elements: ") and last != "wrong elements: 0"
    mended = text.replace(name, name.replace("Wrong", "Right").replace("wrong", "right"))
    assert mended != text
    assert run(mended, tmp_path) == (0, "wrong elements: 0")


def test_of_a_dtype_that_is_another(tmp_path, monkeypatch):
    (tmp_path / "own_steps.py").write_text(
        "def wide(params, grads, *, lr):\n    return [p.double() - lr * g for p, g in zip(params, grads)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_steps", raising=False)
    wide = importlib.import_module("own_steps").wide
    status, _ = run(script_of("sgd", wide, "float32", "L1", {"arrays": "torch"}), tmp_path)
    assert status == 1
