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
    with pytest.raises(ValueError, match=r"AdamW: load_state_dict: state\[0\]: expected '(step|exp_avg)', which"):
        optimizer.load_state_dict(saved)
    optimizer.load_state_dict(of_page(f"of_{source}")(saved))
    assert all(optimizer.state[q]["step"] == 3 for q in others)
    in_turn([3], (params, plain), (others, optimizer))
    torch.testing.assert_close([p.detach() for p in others], [p.detach() for p in params], rtol=1e-6, atol=1e-6)
