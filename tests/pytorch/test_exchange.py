"""State dictionaries in both directions between a class and PyTorch's: no bit is lost, and the layout is PyTorch's."""

import copy
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytorch.subjects import BUSY, LR, PYTORCHS, all_bits, bits, class_of, each_of_pytorchs, every_class, theirs, torch
from pytorch.trials import held_step, in_groups, in_turn, parameters, steps

taken_steps = pytest.mark.parametrize("taken", [0, 1, 6])


def made(kind, name, params, **others):
    return kind(name)(in_groups(params), lr=LR, **BUSY[name], **others)


def copied(params):
    return [torch.nn.Parameter(p.detach().clone(memory_format=torch.preserve_format)) for p in params]


def layout(saved):
    """What a state dictionary is made of: keys, shapes and dtypes, and the numbers of groups."""
    states = {
        i: {name: (tuple(x.shape), x.dtype, x.device) if isinstance(x, torch.Tensor) else type(x)
            for name, x in sorted(entry.items())}
        for i, entry in saved["state"].items()}
    return states, saved["param_groups"]


OFF = [("RMSprop", {"momentum": 0.0, "centered": False}), ("SGD", {"momentum": 0.0}), ("AdamW", {"amsgrad": False})]


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in PYTORCHS), *OFF])
@taken_steps
def test_the_layout_is_pytorchs(name, options, taken):
    """After as many steps: the same keys, shapes, dtypes and groups, but for the arguments that PyTorch has not."""
    params, of_peer = parameters(), parameters()
    options = BUSY[name] | options
    ours, peer = (kind(name)(in_groups(x), lr=LR, **options) for kind, x in ((class_of, params), (theirs, of_peer)))
    in_turn(range(taken), (params, ours), (of_peer, peer))
    (states, own), (expected, known) = layout(ours.state_dict()), layout(peer.state_dict())
    assert states == expected
    assert all(group.items() <= mine.items() for group, mine in zip(known, own, strict=True))


@each_of_pytorchs
@taken_steps
@pytest.mark.parametrize("kinds", [(class_of, theirs), (theirs, class_of)], ids=["through PyTorch", "through here"])
def test_there_and_back(name, taken, kinds):
    """What a class has saved, the other has loaded and saved again, it goes on from with the bits of never leaving."""
    own, other = kinds
    params = parameters()
    stays = made(own, name, params)
    steps(stays, params, range(taken))
    away, others = copied(params), copied(params)
    abroad, back = made(other, name, away), made(own, name, others)
    abroad.load_state_dict(copy.deepcopy(stays.state_dict()))
    assert all_bits(away, abroad) == all_bits(params, stays)
    back.load_state_dict(copy.deepcopy(abroad.state_dict()))
    for step in range(taken, taken + 2):
        in_turn([step], (others, back), (params, stays))
        assert all_bits(others, back) == all_bits(params, stays)


@each_of_pytorchs
def test_pytorch_goes_on_from_here(name):
    """With a step that is within the bound from what has been saved."""
    params = parameters()
    ours = made(class_of, name, params)
    steps(ours, params, range(3))
    of_peer = copied(params)
    peer = made(theirs, name, of_peer)
    peer.load_state_dict(copy.deepcopy(ours.state_dict()))
    held_step(peer, of_peer, 3)


@every_class
def test_what_is_saved_is_what_the_next_step_starts_from(name):
    """A load replaces states that a step has been taken with, those of the very same optimizer too."""
    params = parameters()
    optimizer = made(class_of, name, params)
    steps(optimizer, params, range(1))
    saved, values = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in params]
    steps(optimizer, params, range(1, 3))
    first = all_bits(params, optimizer)
    with torch.no_grad():
        for p, x in zip(params, values, strict=True):
            p.copy_(x)
    optimizer.load_state_dict(saved)
    steps(optimizer, params, range(1, 3))
    assert all_bits(params, optimizer) == first


@every_class
def test_numbers_of_groups_are_loaded(name):
    """A state dictionary brings rates and decays with it."""
    params = parameters()
    optimizer, others = made(class_of, name, params), parameters()
    optimizer.param_groups[0]["lr"] = 0.5
    other = class_of(name)(in_groups(others))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert [group["lr"] for group in other.param_groups] == [0.5, 0.25]
    in_turn(range(2), (params, optimizer), (others, other))
    assert all_bits(params, optimizer) == all_bits(others, other)


@each_of_pytorchs
def test_states_that_only_some_have(name):
    """A parameter without a gradient so far has the state that PyTorch's has, through both directions as well."""
    params, of_peer = parameters(), parameters()
    ours, peer = made(class_of, name, params), made(theirs, name, of_peer)
    for one, tensors in ((ours, params), (peer, of_peer)):
        steps(one, tensors, [0], only={0, 3})
    assert layout(ours.state_dict())[0] == layout(peer.state_dict())[0]
    others = copied(of_peer)
    back = made(class_of, name, others)
    back.load_state_dict(copy.deepcopy(peer.state_dict()))
    for step in (1, 2):
        held_step(back, others, step)
    if "step" in back.state[others[0]]:
        assert [int(back.state[p]["step"]) for p in others] == [3, 2, 2, 3]


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "Adadelta", "NAdam", "RAdam", "RMSprop", "Adagrad"])
def test_a_number_of_steps_that_is_no_tensor(name):
    """As PyTorch saved it before 1.12."""
    params = parameters()
    optimizer = made(class_of, name, params)
    steps(optimizer, params, range(2))
    saved, others = copy.deepcopy(optimizer.state_dict()), copied(params)
    for entry in saved["state"].values():
        entry["step"] = int(entry["step"])
    other = made(class_of, name, others)
    other.load_state_dict(saved)
    in_turn(range(2, 4), (params, optimizer), (others, other))
    assert all_bits(params) == all_bits(others)


@pytest.mark.parametrize("count", [100, 10_000, 2_000_000])
@pytest.mark.parametrize("name", ["AdamW", "RAdam", "NAdam"])
def test_late(name, count):
    """A run goes on after as many steps as runs have, beside PyTorch's."""
    start = made(theirs, name, parameters())
    steps(start, [p for group in start.param_groups for p in group["params"]], range(1))
    saved = copy.deepcopy(start.state_dict())
    for entry in saved["state"].values():
        entry["step"].fill_(count)
    results = []
    for kind in (class_of, theirs):
        params = parameters()
        optimizer = made(kind, name, params)
        optimizer.load_state_dict(copy.deepcopy(saved))
        steps(optimizer, params, range(1, 3))
        assert {int(optimizer.state[p]["step"]) for p in params} == {count + 2}
        results.append(params)
    torch.testing.assert_close(*([p.detach() for p in params] for params in results), rtol=2e-6, atol=1e-7)


@every_class
@pytest.mark.parametrize("how", ["in place", "replaced", "cleared"])
def test_states_that_a_caller_writes(name, how):
    """What is in ``optimizer.state`` is what the next step takes: tensors written in place, others, or none."""
    params = parameters()
    optimizer = made(class_of, name, params)
    steps(optimizer, params, range(2))
    if how == "cleared":
        optimizer.state.clear()
        if name == "Adagrad":  # which makes its states once
            for p in params:
                optimizer.state[p].update(step=torch.tensor(0.0), sum=torch.full_like(p, 0.5))
    for p in params:
        for key, x in optimizer.state[p].items() if how != "cleared" else ():
            written = x + 2 if key == "step" else x * 0.5
            if how == "in place":
                x.copy_(written)
            else:
                optimizer.state[p][key] = written
    held_step(optimizer, params, 2)


@each_of_pytorchs
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_states_of_another_dtype(name, dtype):
    """fp32 states that are loaded for parameters of another dtype keep all digits; PyTorch's class narrows them."""
    params = parameters()
    saved_from = made(theirs, name, params)
    steps(saved_from, params, range(2))
    saved, others, of_peer = saved_from.state_dict(), *(
        [torch.nn.Parameter(p.detach().to(getattr(torch, dtype))) for p in params] for _ in range(2))
    ours, peer = made(class_of, name, others), made(theirs, name, of_peer)
    ours.load_state_dict(copy.deepcopy(saved))
    peer.load_state_dict(copy.deepcopy(saved))
    if dtype == "float64":
        assert all_bits(others, ours) == all_bits(of_peer, peer)
    else:
        assert all_bits(others, ours) == (all_bits(others), all_bits(params, saved_from)[1])


def test_what_does_not_fit_is_refused():
    """With PyTorch's errors, and nothing is changed."""
    params = parameters()
    optimizer = made(class_of, "AdamW", params)
    steps(optimizer, params, range(1))
    known = all_bits(params, optimizer)
    saved = optimizer.state_dict()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(saved | {"param_groups": saved["param_groups"][:1]})
    less = copy.deepcopy(saved)
    less["param_groups"][0]["params"] = [0]
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        optimizer.load_state_dict(less)
    assert all_bits(params, optimizer) == known and bits(params[0]) == known[0][0]
    without = copy.deepcopy(saved)
    del without["state"][0]["max_exp_avg_sq"]
    with pytest.raises(ValueError, match=r"state\[0\]: expected 'max_exp_avg_sq'"):  # by the options that are loaded
        class_of("AdamW")(in_groups(parameters())).load_state_dict(without)


QUANTISED = "__bnb_optimizer_quant_state__"


def bitsandbytes_state(x):
    """A state of PyTorch's in the layout of bitsandbytes."""
    return {"step": int(x["step"]), QUANTISED: {"state1": x["exp_avg"], "state2": x["exp_avg_sq"]}}


def of_page(name):
    """A function that docs/torch.md shows."""
    text = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    known = {"torch": torch}
    exec(re.search(rf"^def {name}\(.*?^    return saved\n", text, re.DOTALL | re.MULTILINE)[0], known)
    return known[name]


@pytest.mark.parametrize("source", ["apex", "bitsandbytes"])
def test_checkpoints_of_other_libraries(source):
    """In the layouts that they save: refused as they are, and what the page makes of them goes on as PyTorch's do."""
    params, others = parameters(), parameters()
    plain, optimizer = theirs("AdamW")(params, lr=LR), class_of("AdamW")(others, lr=LR)
    in_turn(range(3), (params, plain))
    saved = copy.deepcopy(plain.state_dict())
    (group,), states = saved["param_groups"], saved["state"]
    if source == "apex":
        common = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay", "params")}
        saved = {"param_groups": [common | {"bias_correction": True, "step": 3}],
                 "state": {i: {"exp_avg": x["exp_avg"], "exp_avg_sq": x["exp_avg_sq"]} for i, x in states.items()}}
    elif torch.cuda.is_available() or not find_spec("bitsandbytes"):  # its states are on the CPU here
        saved = {"param_groups": saved["param_groups"], "state": {i: bitsandbytes_state(x) for i, x in states.items()}}
    else:
        import bitsandbytes

        peers = parameters()
        peer = bitsandbytes.optim.AdamW32bit(peers, lr=LR)
        steps(peer, peers, [0])
        made = peer.state_dict()
        for i, x in states.items():  # of its layout, with the numbers of PyTorch's
            assert made["state"][i].keys() == bitsandbytes_state(x).keys()
            assert made["state"][i][QUANTISED].keys() == bitsandbytes_state(x)[QUANTISED].keys()
            made["state"][i] = bitsandbytes_state(x)
        saved = made
    with torch.no_grad():
        for p, q in zip(params, others, strict=True):
            q.copy_(p)
    with pytest.raises(ValueError, match=r"AdamW: load_state_dict: state\[0\]: expected '(step|exp_avg)', as"):
        optimizer.load_state_dict(saved)
    optimizer.load_state_dict(of_page(f"of_{source}")(saved))
    assert all(optimizer.state[q]["step"] == 3 for q in others)
    in_turn([3], (params, plain), (others, optimizer))
    torch.testing.assert_close([p.detach() for p in others], [p.detach() for p in params], rtol=1e-6, atol=1e-6)
