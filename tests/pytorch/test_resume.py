"""A training run that saves, stops, loads and goes on comes to the same bits as one that has not stopped."""

import random
from functools import partial

import pytest

from pytorch.subjects import BUSY, LR, all_bits, class_of, each_kind, every_class, torch
from pytorch.trials import one, parameters, steps, synchronise

STEPS, STOP = 6, 3


class Run:
    """A small model, its optimizer, a schedule, a scaler and a generator of data: all that a run keeps."""

    def __init__(self, make, dtype=torch.float32, scaled=False):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.LayerNorm(5), torch.nn.Tanh(),
                                         torch.nn.Linear(5, 2, bias=False)).to(dtype)
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        self.optimizer = make([{"params": decayed}, {"params": others, "weight_decay": 0.0}])
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=STEPS)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2, enabled=scaled)
        self.data = torch.Generator().manual_seed(1)
        self.dtype = dtype

    def keeps(self):
        """What has a state dictionary."""
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}

    def train(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = (self.model(torch.randn(3, 4, generator=self.data).to(self.dtype)).float() ** 2).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
        return float(loss)

    def save(self, path):
        saved = {name: x.state_dict() for name, x in self.keeps().items()} | {"data": self.data.get_state()}
        torch.save(saved, path)

    def load(self, path):
        saved = torch.load(path, weights_only=True)
        self.data.set_state(saved.pop("data"))
        for name, x in self.keeps().items():
            x.load_state_dict(saved[name])
        return self

    def bits(self):
        return all_bits(list(self.model.parameters()), self.optimizer)


def resumed(make, path, kept=None, **named):
    """The bits of a run, and of one that has been stopped, both at the end; which options of groups the file has."""
    whole, first = Run(make, **named), Run(make, **named)
    whole_loss = whole.train(STEPS)
    first.train(STOP)
    if kept:
        first.optimizer.register_state_dict_post_hook(lambda _, saved: saved | {"param_groups": [
            {name: x for name, x in group.items() if name in kept} for group in saved["param_groups"]]})
    first.save(path)
    random.seed(0)
    second = Run(make, **named)
    with torch.no_grad():  # what is not loaded shows
        for p in second.model.parameters():
            p.add_(1)
    assert second.load(path).train(STEPS - STOP) == whole_loss
    return whole.bits(), second.bits()


@every_class
@pytest.mark.parametrize("kept", [None, ("params", "lr", "initial_lr")])
def test_it_goes_on(name, kept, tmp_path):
    """By way of ``torch.save``, and ``torch.load`` of tensors and plain objects alone. Options that are not in the file
    are the optimizer's own, as those that another class lacks.
    """
    whole, second = resumed(lambda groups: class_of(name)(groups, lr=LR, **BUSY[name]), tmp_path / "run.pt", kept)
    assert whole == second


def test_sparse_adam_goes_on_as_adam():
    """Whose groups have options that its file lacks."""
    params, others = parameters(((3, 2),)), parameters(((3, 2),))
    optimizer, peer = class_of("Adam")(params, lr=1.0, sparse="rows"), torch.optim.SparseAdam(others, lr=LR)
    rows = torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 2), (3, 2), check_invariants=True)
    params[0].grad = others[0].grad = rows
    peer.step()
    synchronise(optimizer, params, peer, others)
    for each in (optimizer, peer):
        each.step()
    assert torch.allclose(*params, *others, rtol=1e-6) and optimizer.param_groups[0]["weight_decay"] == 0


@each_kind
@pytest.mark.parametrize("name", ["SGD", "AdamW", "LAMB"])
def test_it_goes_on_in_mixed_precision(name, dtype, masters, tmp_path):
    """With masters, a scaler and clipping."""
    whole, second = resumed(lambda groups: class_of(name)(groups, lr=LR, masters=masters, max_norm=0.5),
                            tmp_path / "run.pt", dtype=getattr(torch, dtype), scaled=True)
    assert whole == second


def test_numbers_of_steps_are_read_at_once(monkeypatch):
    """On a GPU the host waits for each reading."""
    params, optimizer = one("NAdam", ((3,), (), (5,)))
    steps(optimizer, params, [0])
    optimizer.load_state_dict(optimizer.state_dict())
    monkeypatch.setattr(torch.Tensor, "item", None)
    steps(optimizer, params, [1])
    assert [optimizer.state[p]["step"].tolist() for p in params] == [2, 2, 2]


def test_more_steps_than_fp32_counts(request):
    """Which PyTorch counts where its default is wider."""
    request.addfinalizer(partial(torch.set_default_dtype, torch.get_default_dtype()))
    torch.set_default_dtype(torch.float64)
    (p,) = params = parameters(((3,),))
    optimizer = class_of("Adam")(params, lr=LR)
    optimizer.state[p].update(step=torch.tensor(2.0**24 + 1), exp_avg=torch.ones_like(p), exp_avg_sq=torch.ones_like(p))
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer.state[p]["step"] == 2**24 + 2


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("door", ["one's own", "PyTorch's"])
def test_options_of_a_group_without_parameters(door, first):
    """All are restored. Of a first such group PyTorch's distributed checkpoints have none: it keeps those it has."""
    states = pytest.importorskip("torch.distributed.checkpoint.state_dict")

    def made(seed):
        model = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
        groups = [{"params": [], "lr": LR / seed, "seed": seed}, {"params": model.parameters()}]
        return model, class_of("AdamW")(groups if first else groups[::-1], lr=LR, rounding="stochastic")

    def options(optimizer):
        return [{name: x for name, x in group.items() if name != "params"} for group in optimizer.param_groups]

    (model, saved), (other, loaded) = made(2), made(4)
    model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    saved.step()
    if door == "one's own":
        loaded.load_state_dict(saved.state_dict())
    else:
        states.set_optimizer_state_dict(other, loaded, states.get_optimizer_state_dict(model, saved))
    found, expected = options(loaded), options(saved)
    if first and door == "PyTorch's":
        assert found[0] | {"lr": LR / 2, "seed": 3} == expected[0]
        found, expected = found[1:], expected[1:]
    assert found == expected
    other(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    loaded.step()
