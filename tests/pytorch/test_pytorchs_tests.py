"""What PyTorch's own tests ask of every optimizer (``test/test_optim.py``, ``test_lrscheduler.py``), written anew.

Those files are in no wheel. Where they compare with a sequence of their own, this compares with PyTorch's class of the
name, or holds each step to the bound (`bound`) of the numbers that its group has at that step.
"""

import copy
import io
import pickle

import pytest

from pytorch.subjects import BUSY, EVERY, LR, all_bits, class_of, drawn, each_of_pytorchs, every_class, theirs, torch
from pytorch.trials import held_step, one, pair, parameters, steps

hooks = pytest.importorskip("torch.optim.optimizer")


@each_of_pytorchs
def test_it_is_pytorchs_class(name):
    """By isinstance, signature, groups, defaults and text."""
    params = parameters()
    ours, peer = class_of(name)(params), theirs(name)(params)
    assert isinstance(ours, theirs(name)) and peer.defaults.items() <= ours.defaults.items()
    for own, group in zip(ours.param_groups, peer.param_groups, strict=True):
        assert group.items() <= own.items()
    assert repr(ours).startswith(f"{name} (") and set(repr(peer).splitlines()) <= set(repr(ours).splitlines())


@every_class
def test_a_group_that_comes_later(name):
    """``add_param_group`` between two steps changes nothing of the parameters that are there."""
    ((params, ours), (others, alone)), late = pair(name), parameters(((3,), (2, 2)), seed=1)
    steps(ours, params, range(1))
    steps(alone, others, range(3))
    ours.add_param_group({"params": late, "lr": 0.25})
    steps(ours, [*params, *late], range(1, 2))
    held_step(ours, [*params, *late], 2)
    assert len(ours.param_groups) == 2 and ours.param_groups[1]["lr"] == 0.25
    assert all_bits(params, ours) == all_bits(others, alone)


def test_a_parameter_of_two_groups_is_refused():
    params = parameters()
    optimizer = class_of("AdamW")(params)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": params[0]})
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        class_of("AdamW")([])
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        class_of("AdamW")([params[0] * 2])
    assert len(optimizer.param_groups) == 1


def test_names_of_parameters():
    """Named parameters keep their names in groups and state dictionaries."""
    model = torch.nn.Linear(3, 2)
    optimizer = class_of("AdamW")(model.named_parameters(), lr=LR)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    steps(optimizer, list(model.parameters()), range(1))
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(TypeError, match=r"AdamW: param_groups\[0\]\['params'\]\[1\] \(b\): expected one of"):
        class_of("AdamW")([("a", torch.zeros(3)), ("b", torch.zeros(3, dtype=torch.complex64))], lr=LR)


@every_class
def test_a_closure(name):
    """It runs once, with gradients on, before the step; its loss is returned."""
    generator = torch.Generator().manual_seed(5)
    model, others = [torch.nn.Parameter(x) for x in (drawn((4, 3), generator), drawn((3,), generator))], None
    others = [torch.nn.Parameter(p.detach().clone()) for p in model]
    inputs, calls = drawn((2, 4), generator), []

    def loss_of(weights):
        return ((inputs @ weights[0] + weights[1]) ** 2).sum()

    ours, plain = class_of(name)(model, lr=LR, **BUSY[name]), class_of(name)(others, lr=LR, **BUSY[name])

    def closure():
        assert torch.is_grad_enabled()
        calls.append(None)
        ours.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for step in range(3):
        returned = ours.step(closure)
        plain.zero_grad()
        loss = loss_of(others)
        loss.backward()
        assert plain.step() is None
        assert torch.equal(returned, loss) and len(calls) == step + 1
    assert all_bits(model, ours) == all_bits(others, plain)


@every_class
def test_hooks(name):
    """Of a step and of state dictionaries: each runs when PyTorch's would, with what PyTorch's would have."""
    params, optimizer = one(name)
    seen = []
    start = [p.detach().clone() for p in params]

    def changed():
        return any(not torch.equal(p, x) for p, x in zip(params, start, strict=True))

    handles = [
        optimizer.register_step_pre_hook(lambda one, args, kwargs: seen.append(("pre", one is optimizer, changed()))),
        optimizer.register_step_post_hook(lambda one, args, kwargs: seen.append(("post", one is optimizer, changed()))),
        optimizer.register_state_dict_pre_hook(lambda one: seen.append("state pre")),
        optimizer.register_state_dict_post_hook(lambda one, saved: saved | {"more": len(saved["state"])}),
        optimizer.register_load_state_dict_pre_hook(lambda one, saved: {k: saved[k] for k in saved if k != "other"}),
        optimizer.register_load_state_dict_post_hook(lambda one: seen.append("loaded"))]
    steps(optimizer, params, range(1))
    assert seen == [("pre", True, False), ("post", True, True)]
    saved = optimizer.state_dict()
    assert saved.pop("more") == len(saved["state"]) and seen[2:] == ["state pre"]
    optimizer.load_state_dict(saved | {"other": 1})
    assert seen[3:] == ["loaded"]
    for handle in handles:
        handle.remove()
    steps(optimizer, params, range(1, 2))
    assert len(seen) == 4 and "more" not in optimizer.state_dict()


@pytest.mark.parametrize("derived", [False, True], ids=["AdamW", "a class with a step of its own"])
def test_hooks_of_all_optimizers_and_profilers_see_each_step_once(derived):
    """A class with a step of its own is wrapped by PyTorch."""
    seen, kind = [], class_of("AdamW")
    if derived:
        kind = type("Own", (kind,), {"step": lambda self, closure=None: class_of("AdamW").step(self, closure)})
    params = parameters()
    optimizer = kind(params, lr=LR)
    handles = [register(lambda one, args, kwargs, when=when: seen.append((when, one is optimizer, len(args))))
               for when, register in (("pre", hooks.register_optimizer_step_pre_hook),
                                      ("post", hooks.register_optimizer_step_post_hook))]
    steps(optimizer, params, range(1))
    for handle in handles:
        handle.remove()
    assert seen == [("pre", True, 1), ("post", True, 1)]
    with torch.profiler.profile() as profile:
        steps(optimizer, params, range(1, 3))
    label = f"Optimizer.step#{kind.__name__}.step"
    assert [each.count for each in profile.key_averages() if each.key == label] == [2]
    steps(optimizer, params, range(3, 4))
    assert len(seen) == 2


MIXED = {"max_norm": 0.25, "masters": "fp32", "states": "8bit", "dtype": torch.bfloat16}
PICKLED = [*((name, {}) for name in EVERY), ("AdamW", MIXED)]


@pytest.mark.parametrize(("name", "how"), PICKLED)
@pytest.mark.parametrize("taken", [0, 2])
def test_copied_and_pickled(name, how, taken):
    """A deep copy and what pickle and ``torch.save`` bring back go on with the same bits, each by itself."""
    params, optimizer = one(name, **how)
    steps(optimizer, params, range(taken))
    stream = io.BytesIO()
    torch.save((params, optimizer), stream)
    stream.seek(0)
    copies = [copy.deepcopy((params, optimizer)), pickle.loads(pickle.dumps((params, optimizer))),
              torch.load(stream, weights_only=False)]
    for others, other in copies:
        assert type(other) is type(optimizer)
        assert (other.masters, other.max_norm) == (how.get("masters"), how.get("max_norm"))
        steps(other, others, range(taken, taken + 2))
    steps(optimizer, params, range(taken, taken + 2))
    assert all(all_bits(others, other) == all_bits(params, optimizer) for others, other in copies)
