"""timm's optimizers, on PyTorch's CPU tensors: independent code, each of several steps within the formula's bound.

LAMB divides sqrt(v) by the root of its correction, for the root of the corrected v: a root and a quotient either way,
and the correction's error is halved. Its first moment moves by lerp, m + (1 - beta1) * (g - m), with 1 - beta1 much
smaller than beta1. Lion decays by a factor that is worked out in double.

LARS has lr outside of the velocity. With one lr, a power of 2, its velocity times lr is refopt's, bit for bit.
"""

import functools
import importlib
import importlib.util
import sys

import numpy as np
import pytest

from benchmarks.findings.imports import packages_of_timm
from peers.trials import Row, both_tests_of

ONE_RATE = {"lr": 0.125}
OF_LAMB = {"max_grad_norm": None}
ROWS = [Row("lars_momentum", "default", "lars.Lars", {"always_adapt": True}, ONE_RATE),
        Row("lars_momentum", "adapt=decay_and_norms", "lars.Lars", {}, ONE_RATE),
        Row("lars_momentum", "no decay", "lars.Lars", {"always_adapt": True}, ONE_RATE),
        Row("lion", "default", "lion.Lion"), Row("lion", "no decay", "lion.Lion"),
        Row("lamb", "default", "lamb.Lamb", OF_LAMB),
        Row("lamb", "always_adapt=True", "lamb.Lamb", OF_LAMB | {"always_adapt": True}),
        Row("lamb", "no decay", "lamb.Lamb", OF_LAMB), Row("novograd", "default", "nvnovograd.NvNovoGrad"),
        Row("novograd", "grad_averaging=True", "nvnovograd.NvNovoGrad", {"grad_averaging": True}),
        Row("novograd", "no decay", "nvnovograd.NvNovoGrad")]
THEIR_NAMES = {"lr": "lr", "epsilon": "eps", "mu": "momentum", "lars_coeff": "trust_coeff",
               "lars_weight_decay": "weight_decay", "coeff": "weight_decay", "weight_decay": "weight_decay"}
STATES = {"lars_momentum": {"momentum_buffer": "velocities"},
          "lion": {"exp_avg": "moment"}, "lamb": {"exp_avg": "moment1", "exp_avg_sq": "moment2"},
          "novograd": {"exp_avg": "moment", "exp_avg_sq": "second_moment"}}


@pytest.fixture(scope="module")
def timm():
    """A function that imports an optimizer of timm's, as in ``lamb.Lamb``.

    timm itself imports torchvision; packages that only say where its files are stand in for it meanwhile.
    """
    pytest.importorskip("torch")
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    with pytest.MonkeyPatch.context() as patch:
        for name, package in packages_of_timm().items():
            patch.setitem(sys.modules, name, package)

        def load(name):
            module, _, optimizer = name.partition(".")
            return getattr(importlib.import_module(f"timm.optim.{module}"), optimizer)

        yield load


class OfTimm:
    def __init__(self, timm, row, x, numbers):
        import torch

        self.torch, self.row, self.numbers = torch, row, self.named(numbers)
        if "beta1" in numbers:
            self.numbers["betas"] = numbers["beta1"], numbers["beta2"]
        self.param = torch.nn.Parameter(torch.from_numpy(x))
        self.optimizer = timm(row.peer)([self.param], **self.numbers, **row.switches)

    @staticmethod
    def named(numbers):
        return {THEIR_NAMES[name]: value for name, value in numbers.items() if name in THEIR_NAMES}

    def step(self, g, numbers):
        self.optimizer.param_groups[0].update(self.named(numbers))
        self.param.grad = self.torch.from_numpy(g.copy())
        before = self.torch.get_default_dtype()
        self.torch.set_default_dtype(self.param.dtype)  # the type of NovoGrad's second moment
        try:
            self.optimizer.step()
        finally:
            self.torch.set_default_dtype(before)
        states = self.optimizer.state[self.param]
        stored = {name: states[of].numpy() for of, name in STATES[self.row.routine].items()}
        if self.row.routine == "lars_momentum":
            stored["velocities"] = stored["velocities"] * np.array(numbers["lr"], g.dtype)
        return stored | {"params": self.param.detach().numpy()}


@pytest.fixture
def make(timm):
    return functools.partial(OfTimm, timm)


test_within_the_bound, test_other_numbers_are_outside = both_tests_of(ROWS)
