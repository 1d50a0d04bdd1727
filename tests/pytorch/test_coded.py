"""States in 8 bits: the bits of `refopt.cpu`, checkpoints to and from floats, and what is refused."""

import numpy as np
import pytest

from pytorch.subjects import BUSY, EVERY, LR, PYTORCHS, all_bits, class_of, theirs, torch
from pytorch.trials import in_turn, one, parameters, steps, twin
from refopt import cpu
from refopt.cpu.codes import ROOTS, SIGNED
from refopt.cpu.remainder import split
from refopt.torch.coded import is_coded

SHAPES = (3, 40), (), (0,), (33,)
IN_8_BITS = {"states": "8bit"}


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("LARS", "LAMB", "NovoGrad")])
@pytest.mark.parametrize(("dtype", "options"), [
    ("float32", {}), ("bfloat16", {"rounding": "stochastic"}), ("bfloat16", {"masters": "remainder8"})], ids=str)
def test_checkpoints(name, dtype, options, tmp_path):
    """Saved, cast by PyTorch's class, or through floats, codes come back; as floats all go on alike."""
    params, optimizer = one(name, SHAPES, getattr(torch, dtype), **IN_8_BITS, **options)
    steps(optimizer, params, range(2))
    torch.save(optimizer.state_dict(), tmp_path / "run.pt")
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    assert all(x.numel() < 2 or (x.shape, x.dtype) == ((36 * 4,), torch.uint8)
               for key, x in saved["state"][0].items() if key != "master_param")
    floats, others, run = (twin(saved, params, name, **options, **kind) for kind in ({}, IN_8_BITS, IN_8_BITS))
    runs = [run, twin(floats[1].state_dict(), params, name, **IN_8_BITS, **options)]
    if name in PYTORCHS and name != "NAdam" and "masters" not in options:  # of which it casts numbers, too
        abroad = theirs(name)(parameters(SHAPES, dtype=getattr(torch, dtype)), **BUSY[name])
        abroad.load_state_dict(saved)
        runs.append(twin(abroad.state_dict(), params, name, **IN_8_BITS, **options))
    in_turn(range(2, 4), (params, optimizer), *runs)
    assert all(all_bits(*run) == all_bits(params, optimizer) for run in runs)
    others[1].param_groups[0]["states"] = None
    in_turn([2], floats, others)
    assert all_bits(*floats) == all_bits(*others)


def test_the_bits_are_those_of_the_reference():
    """And the floats that are loaded are those that the codes stand for."""
    options = {"masters": "remainder8", "amsgrad": False}
    params, optimizer = one("AdamW", ((70,),), torch.bfloat16, **IN_8_BITS, **options)
    p, rest = split(params[0].detach().float().numpy(), "int8")
    states = [np.zeros(36 * 3, np.uint8) for _ in range(2)]
    powers = [np.full(1, beta, np.float32) for beta in BUSY["AdamW"]["betas"]]
    for step in range(3):
        steps(optimizer, params, [step])
        g = params[0].grad.float().numpy()
        cpu.adamw(p, g, *states, *powers, master_param=rest, lr=LR, beta1=0.875, beta2=0.9375, epsilon=2.0**-10,
                  coeff=0.125, epsilon_at="corrected")
    (others,), other = twin(optimizer.state_dict(), params, "AdamW", **options)
    left = params[0].detach().view(torch.int16), optimizer.state[params[0]]["master_param"]
    assert [x.numpy().tobytes() for x in left] == [p.tobytes(), rest.tobytes()]
    for key, kind, x in zip(("exp_avg", "exp_avg_sq"), (SIGNED, ROOTS), states, strict=True):
        assert optimizer.state[params[0]][key].numpy().tobytes() == x.tobytes()
        assert other.state[others][key].tolist() == kind.decode(x, 70).tolist()


@pytest.mark.parametrize(("name", "param", "options", "message"), [
    ("AdamW", torch.ones(3), {"states": "fp8"}, "AdamW: states: expected one of None, 8bit, got 'fp8'"),
    ("LAMB", torch.ones(3), IN_8_BITS, r"LAMB: param_groups\[0\]: states: expected None, since lamb is not el"),
    ("SGD", torch.ones(3, dtype=torch.float64), IN_8_BITS, r"\['params'\]\[0\]: expected float32, float16 or bfloat16"),
    ("SGD", torch.ones(3, 2).T, IN_8_BITS, r"\['params'\]\[0\]: expected a contiguous tensor .* strides \(1, 2\)")])
def test_what_has_no_states_in_8_bits(name, param, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        class_of(name)([torch.nn.Parameter(param)], **options)


@pytest.mark.parametrize("states", [None, "8bit"])
@pytest.mark.parametrize("entry", [
    torch.zeros(35, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8), torch.zeros(36, dtype=torch.int8)], ids=str)
def test_an_entry_that_is_neither(entry, states):
    params, optimizer = one("AdamW", ((3,), (3,)), states=states)
    steps(optimizer, params, [0])
    saved, known = optimizer.state_dict(), all_bits(params, optimizer)
    saved["state"][1]["exp_avg"] = entry
    with pytest.raises(TypeError, match=r"state\[1\]\['exp_avg'\]: expected floats, or 36 bytes of a state in 8 bits"):
        optimizer.load_state_dict(saved)
    assert all_bits(params, optimizer) == known


def test_floats_are_codes_only_if_they_are_flat():
    assert [is_coded(torch.ones(shape), torch.ones(8, 4)) for shape in ((9, 4), (36,))] == [False, True]
