"""State dictionaries in both directions between a class and PyTorch's: no bit is lost, and the layout is PyTorch's."""

import copy
import os
import runpy
from pathlib import Path

import pytest

from pytorch.subjects import BUSY, LR, PYTORCHS, all_bits, bits, class_of, each_of_pytorchs, theirs, torch
from pytorch.trials import copied, held_step, in_groups, in_turn, one, parameters, steps, twin

taken_steps = pytest.mark.parametrize("taken", [0, 1, 6])


def made(kind, name, params, **others):
    return kind(name)(in_groups(params), lr=LR, **BUSY[name], **others)


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
def test_states_that_only_some_have(name):
    """A parameter without a gradient so far has the state that PyTorch's has, through both directions as well."""
    (params, ours), (of_peer, peer) = one(name), one(name, kind=theirs)
    in_turn([0], (params, ours), (of_peer, peer), only={0, 3})
    assert layout(ours.state_dict())[0] == layout(peer.state_dict())[0]
    others, back = twin(copy.deepcopy(peer.state_dict()), of_peer, name)
    for step in (1, 2):
        held_step(back, others, step)
    if "step" in back.state[others[0]]:
        assert [int(back.state[p]["step"]) for p in others] == [3, 2, 2, 3]


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "Adadelta", "NAdam", "RAdam", "RMSprop", "Adagrad"])
def test_a_number_of_steps_that_is_no_tensor(name):
    """As PyTorch saved it before 1.12."""
    params, optimizer = one(name)
    steps(optimizer, params, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    for entry in saved["state"].values():
        entry["step"] = int(entry["step"])
    others, other = twin(saved, params, name)
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


CONVERTERS = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "checkpoints.py"))


def test_checkpoints_of_apex():
    """In the layout that it saves: refused as it is; the page counts the steps of each parameter."""
    params = parameters()
    plain, optimizer = theirs("AdamW")(params, lr=LR), class_of("AdamW")(params, lr=LR)
    steps(plain, params, range(3))
    (group,), states = plain.state_dict()["param_groups"], plain.state_dict()["state"]
    common = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay", "params")}
    saved = {"param_groups": [common | {"bias_correction": True, "step": 3}],
             "state": {i: {"exp_avg": x["exp_avg"], "exp_avg_sq": x["exp_avg_sq"]} for i, x in states.items()}}
    with pytest.raises(ValueError, match=r"AdamW: load_state_dict: state\[0\]: expected 'step', which its steps need"):
        optimizer.load_state_dict(saved)
    optimizer.load_state_dict(CONVERTERS["of_apex"](saved))
    assert all_bits(params, optimizer) == all_bits(params, plain)
    steps(optimizer, params, [3])


@pytest.mark.skipif(torch.cuda.is_available(), reason="its states are on the CPU here")
def test_checkpoints_of_bitsandbytes():
    """In 8 bits and, of a small parameter, in 32: the numbers that it makes of them itself."""
    library = pytest.importorskip("bitsandbytes")
    params = parameters(((20, 30), (7,)))
    peer, optimizer = library.optim.AdamW8bit(params, lr=LR, min_8bit_size=16), class_of("AdamW")(params)
    steps(peer, params, range(3))
    saved = peer.state_dict()
    kept = [x["__bnb_optimizer_quant_state__"] for x in saved["state"].values()]
    with pytest.raises(ValueError, match=r"AdamW: load_state_dict: state\[0\]: expected 'exp_avg', which its"):
        optimizer.load_state_dict(saved)
    optimizer.load_state_dict(CONVERTERS["of_bitsandbytes"](saved))
    for k, key in ((1, "exp_avg"), (2, "exp_avg_sq")):
        scales, codes = kept[0][f"absmax{k}"], kept[0][f"qmap{k}"]
        whole = library.functional.dequantize_blockwise(kept[0][f"state{k}"], absmax=scales, code=codes, blocksize=256)
        assert torch.equal(optimizer.state[params[0]][key], whole)
        assert torch.equal(optimizer.state[params[1]][key], kept[1][f"state{k}"])
    assert optimizer.state[params[0]]["step"] == 3


@pytest.fixture
def flashoptim(monkeypatch):
    """The library on the CPU: Triton interprets its kernels, in one configuration, and has no functions of CUDA's."""
    library, module, tl = map(pytest.importorskip, ("flashoptim", "flashoptim.optimizers", "triton.language"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "_get_sm_count", lambda device=None: 1)
    monkeypatch.setattr(module.libdevice, "pow", lambda x, n: tl.exp2(tl.log2(x) * n))
    monkeypatch.setattr(module.libdevice, "copysign", lambda x, y: tl.where(y < 0, -x, x))
    for kernel in (module._triton_quantize_kernel, module._triton_dequantize_kernel):
        monkeypatch.setattr(kernel, "configs", kernel.configs[:1])
    return library


@pytest.mark.skipif("TRITON_INTERPRET" not in os.environ, reason="without it, flashoptim needs a GPU")
@pytest.mark.parametrize(("dtype", "masters", "width"), [(torch.float32, None, None), (torch.bfloat16, "fp32", 24)])
@pytest.mark.parametrize(("name", "more"), [("AdamW", {}), ("Lion", {}), ("SGD", {"momentum": 0.875})])
def test_there_and_back_through_flashoptim(flashoptim, name, more, dtype, masters, width):
    """It has the bytes that its kernels make of the states, and its next step is that from the numbers that return."""
    params = parameters(((7, 9), (70,)), dtype=dtype)
    here = class_of(name)(params, lr=LR, masters=masters, **more)
    peer = getattr(flashoptim, f"Flash{name}")(params, LR, compress_state_dict=False, master_weight_bits=width, **more)
    steps(here, params, range(3))
    others = copied(params)
    back = class_of(name)(others, lr=LR, masters=masters, **more)
    for source in (here, back):
        CONVERTERS["to_flashoptim"](source.state_dict(), peer)
        if source is here:  # afterwards, what both shared would count steps twice
            back.load_state_dict(CONVERTERS["of_flashoptim"](peer))
        for own, held, found in zip(*(x.state.values() for x in (here, peer, back)), strict=True):
            for key, spec in peer.quantized_state_spec.items():
                made = flashoptim.optimizers.quantize(own[key], **vars(spec))
                assert [bits(held[key].quantized), bits(held[key].scales)] == [*map(bits, made)]
                assert bits(found[key]) == bits(held[key].materialize())
            if masters:
                torch.testing.assert_close(found["master_param"], own["master_param"], rtol=2.0**-15, atol=0)
    in_turn([3], (params, peer), (others, back))
    torch.testing.assert_close(params, others)
