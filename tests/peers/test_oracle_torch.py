"""`refopt.oracle.check` of PyTorch's optimizers on the CPU: right ones pass, and what is wrong is found."""

from types import SimpleNamespace

import pytest

from peers.trials import check, right
from refopt import oracle
from refopt.oracle.subjects import arrays

torch = pytest.importorskip("torch")


def test_fused_sgd_keeps_memory_as_it_was_where_its_first_step_is_skipped():
    """``torch.empty_like`` makes the momentum, and a skipped step does not write it."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # empty tensors are NaN
    try:
        report = check("momentum", torch.optim.SGD, fused=True, dtypes=["float32"], laws=["L8"], process=False)
    finally:
        torch.use_deterministic_algorithms(before)
    failed = report.of("failed")
    assert failed and all("first" in item.label for item in failed)
    assert all("without the skipped one, got nan" in item.text for item in failed)
    for routine, name in (("sgd", "SGD"), ("adamw", "AdamW")):
        named = {"dtypes": ["float32"], "laws": ["L8", "L9"], "examples": 0}
        other = check(routine, getattr(torch.optim, name), fused=True, **named)
        assert not other.failed_laws, other
        assert {"in the first step", "grad_factor"} <= {item.label for item in other.of("passed")}


def test_dampening_without_momentum_is_named():
    """Which PyTorch leaves alone there."""
    report = right("sgd", torch.optim.SGD, dtypes=["float32"], laws=["L1"], dampening=0.5, examples=0)
    assert "dampening=0.5: the rule of sgd needs 0" in report.notes


@pytest.mark.parametrize(("name", "broad"), [("lr", 0.01), ("lr_decay", 0.1), *(
    pytest.param(*row, marks=pytest.mark.slow) for row in (("eps", 0.7), ("weight_decay", 0.1)))])
def test_fused_adagrad_rounds_its_numbers(name, broad):
    """To the parameter's dtype; numbers of at most 8 bits, as `verdicts` has them, show nothing of it."""
    exact = {"lr": 0.125, "eps": 0.125, "weight_decay": 0.125, "lr_decay": 0.0}
    given = dict(fused=True, laws=["L1"], examples=0, diagnose=False, dtypes=["bfloat16"]) | exact | {name: broad}
    assert check("adagrad", torch.optim.Adagrad, **given).wrong == ["L1"]


def test_fused_adagrad_loses_its_epsilon():
    """By default it is 1e-10, which fp16 has not: a parameter without a gradient so far becomes NaN."""
    given = dict(fused=True, eps=1e-10, laws=["L1"], examples=0, diagnose=False)
    report = check("adagrad", torch.optim.Adagrad, dtypes=["float16"], weight_decay=0.0, lr_decay=0.0, **given)
    zero = [item.text for item in report.of("failed") if item.label == "everything zero"]
    assert zero and "got nan" in zero[0]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_radam_subtracts_what_is_nearly_equal_in_double(seed):
    """Which the bound has room for, whatever the parameters are."""
    given = {"laws": ["L1"], "seed": seed, "examples": 2}
    report = right("radam", torch.optim.RAdam, dtypes=["float32", "float64"], **given)
    assert report.largest["float32"]["params"] < 0.5 and report.largest["float64"]["params"] < 0.6
    report = right("radam", torch.optim.RAdam, dtypes=["float64"], laws=["L1"], betas=(0.9, 0.999), examples=0)


class Plain(torch.optim.Optimizer):
    """Adam with names of its own."""

    def __init__(self, params, lr, beta1=0.9, beta2=0.99, tiny=1e-8):
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "tiny": tiny})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["beta1"], group["beta2"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"] += (1 - beta1) * (p.grad - state["m"])
                state["v"] += (1 - beta2) * (p.grad**2 - state["v"])
                mean, square = state["m"] / (1 - beta1 ** state["t"]), state["v"] / (1 - beta2 ** state["t"])
                p -= group["lr"] * mean / (square.sqrt() + group["tiny"])


def test_other_names():
    named = {"step": "t", "moment1": "m", "moment2": "v", "epsilon": "tiny"}
    report = right("adam", Plain, names=named, dtypes=["float32"], laws=["L1"], examples=0)
    assert not any("beta1" in note or "epsilon" in note for note in report.notes)


DEVICES = [
    (lambda device: check("adamw", torch.optim.AdamW, device=device), "nowhere", "cuda:99", "meta"),
    (lambda device: check(None, torch.optim.AdamW, device=device), "nowhere"),
    (lambda device: oracle.identify(torch.optim.AdamW, device=device), "nowhere"),
    (lambda device: oracle.compare(torch.optim.AdamW, torch.optim.Adam, device=device), "nowhere"),
    (lambda device: check("sgd", lambda params, grads, lr: None, arrays="torch", device=device), "nowhere")]


@pytest.mark.parametrize(("asked", "device"), [(asked, device) for asked, *devices in DEVICES for device in devices])
def test_a_device_that_is_not_there_is_refused(asked, device):
    """Before any law: none would have been tried."""
    with pytest.raises(ValueError, match=f"device: expected one that PyTorch can use, got '{device}': "):
        asked(device)


def test_a_gpu_that_is_too_old_is_refused(monkeypatch):
    """As by every other entry, with its name and compute capability; all that take a device ask `arrays.Torch`."""
    about = SimpleNamespace(name="Tesla P100", major=6, minor=0, multi_processor_count=56, L2_cache_size=4 << 20)
    monkeypatch.setattr(torch, "zeros", lambda *args, **named: torch.ones(1))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    expected = "check: device: expected compute capability 7.5 or later, got Tesla P100, compute capability 6.0"
    with pytest.raises(ValueError, match=f"^{expected}$"):
        arrays.Torch("cuda")
    about.major = 8
    assert arrays.Torch("cuda").device.type == "cuda"


class Marked(torch.optim.Optimizer):
    """Heavy ball, which tells by a mark in its group, and one beside its state, that states are there."""

    def __init__(self, params, lr=0.1, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum, "ready": False})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not group["ready"] or "kept" not in state:
                    state["momentum_buffer"], state["kept"] = torch.zeros_like(p), None
                state["momentum_buffer"].mul_(group["momentum"]).add_(p.grad)
                p.sub_(group["lr"] * state["momentum_buffer"])
            group["ready"] = True


def test_states_are_there_for_what_tells_it_by_a_mark():
    report = right("momentum", Marked, dtypes=["float32"], laws=["L1"], examples=0)
    assert {*report.largest["float32"]} == {"params", "velocities"}


def test_tensors_in_groups_of_their_own_have_numbers_of_their_own():
    report = check("sgd", torch.optim.SGD, laws=["L14"], dtypes=["float32"])
    passed = {item.label for item in report.of("passed")}
    assert not report.failed_laws and {"lr for each tensor", "lr for each of 111"} <= passed


def test_a_factor_that_fp32_does_not_have_is_not_compared_in_fp64():
    report = check("adam", torch.optim.Adam, fused=True, laws=["L9"], dtypes=["float64"])
    assert not report.failed_laws and "grad_scale is fp32 in PyTorch" in report.details(), str(report)
