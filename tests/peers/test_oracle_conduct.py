"""Laws of conduct for optimizers of libraries: right ones hold them, cheats fail, and what ran is said."""

import importlib
import threading
import time

import numpy as np
import pytest

from peers.test_oracle_shapes import OwnStep
from peers.trials import check

torch = pytest.importorskip("torch")
optax = pytest.importorskip("optax")

LAWS = ["L1", "L4", "L16", "L17", "L19", "L20", "L21", "L22", "L23"]
RUNS = {  # what is asked for, and what runs then
    ("adamw", "AdamW", "fused"): "_fused_", ("momentum", "SGD", "foreach"): "_multi_tensor_",
    ("momentum", "SGD", "loop"): "_single_tensor_"}
MORE = {("momentum", "SGD", "fused"): "_fused_", ("adamw", "AdamW", "foreach"): "_multi_tensor_",
        ("adamw", "AdamW", "loop"): "_single_tensor_"}


def held(routine, subject, **named):
    return check(routine, subject, dtypes=["float32"], laws=LAWS, examples=0, diagnose=False, **named)


@pytest.mark.parametrize("run", [*RUNS.items(), *(pytest.param(row, marks=pytest.mark.slow) for row in MORE.items())])
def test_of_pytorch(run):
    (routine, name, how), ran = run
    expected = {"L4": "it reads no strides"} if how == "fused" else None
    report = held(routine, getattr(torch.optim, name), expected_failures=expected,
                  **({"foreach": False} if how == "loop" else {how: True}))
    report.raise_if_failed()
    assert any(x.startswith(f"what ran, float32: {ran}") for x in report.notes)


def test_optax():
    held("momentum", optax.sgd).raise_if_failed()


class Loop(torch.optim.AdamW):
    """Asked for fused, it loops."""

    def __init__(self, params, **named):
        super().__init__(params, **named | {"fused": False})


class Own(OwnStep, torch.optim.AdamW):
    """Asked for fused, it takes a step of its own."""


@pytest.mark.parametrize(("make", "got"),
                         [(Loop, "got _single_tensor_adam"), (Own, "got none of the existing ones")])
def test_fused_is_shown(make, got):
    report = check("adamw", make, dtypes=["float32"], laws=["L1", "L22"], examples=0, fused=True, amsgrad=False,
                   maximize=False)
    assert report.failed_laws == ["L22"] and f"expected _fused_* to run, since fused=True, {got}" in report.details()


class Late(torch.optim.SGD):
    """Its work is done by a thread that nobody waits for."""

    def step(self, closure=None):
        def work():
            time.sleep(0.02)
            torch.optim.SGD.step(self)

        threading.Thread(target=work).start()


def test_work_that_is_not_waited_for():
    report = check("sgd", Late, dtypes=["float32"], laws=["L20"], diagnose=False)
    assert report.failed_laws == ["L20"] and "when all its work had ended" in report.details()


class Lazy(torch.Tensor):
    """Computes when it is read."""

    def cpu(self):
        return self.as_subclass(torch.Tensor).cpu() - 1


def test_tensors_that_compute_when_read():
    def step(params, grads, *, lr):
        return [p.as_subclass(Lazy) for p in params]

    report = check("sgd", step, arrays="torch", dtypes=["float32"], laws=["L1"], diagnose=False)
    assert "expected torch.Tensor itself, got Lazy, which may compute when it is read" in report.details()


def sets_the_default_dtype(params, grads, *, lr):
    """Found by its name, so that it has a process of its own whatever other tests have started in this one."""
    torch.set_default_dtype(torch.float64)
    for p, g in zip(params, grads, strict=True):
        p -= np.float32(lr) * g


def test_the_default_dtype_of_torch():
    named = {"arrays": "torch", "dtypes": ["float32"], "laws": ["L23"], "diagnose": False, "process": True}
    report = check("sgd", sets_the_default_dtype, **named)
    assert "torch's default dtype: expected torch.float32 unchanged, got torch.float64" in report.details()

    def draws(params, grads, *, lr):
        torch.rand(1)

    assert "torch's generator: expected" in check("sgd", draws, **named | {"process": False}).details()
    def toggles(params, grads, *, lr):
        torch.set_grad_enabled(not torch.is_grad_enabled())

    try:
        assert "torch's grad mode: expected" in check("sgd", toggles, **named | {"process": False}).details()
    finally:
        torch.set_grad_enabled(True)


def test_functions_of_a_module_are_its_own_again_after_an_error():
    class Raising(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no")

    module = importlib.import_module("torch.optim.sgd")
    before = module._single_tensor_sgd
    assert check("sgd", Raising, dtypes=["float32"], laws=["L19"], diagnose=False).wrong == ["L19"]
    assert module._single_tensor_sgd is before


def test_going_on_with_another_rate_leaves_the_same_bits():
    class Resumed(torch.optim.SGD):
        """Rounds otherwise from a checkpoint on that has another rate than its own."""

        off = False

        def load_state_dict(self, saved):
            self.off = saved["param_groups"][0]["lr"] != self.param_groups[0]["lr"]
            super().load_state_dict(saved)

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in (p for p in group["params"] if p.grad is not None):
                    wide = (p.double() - group["lr"] * p.grad.double()).float()
                    p.copy_(wide if self.off else p - group["lr"] * p.grad)

    assert check(None, Resumed, laws=["L16"], dtypes=["float32"], process=False, lr=0.1).failed_laws == ["L16"]
