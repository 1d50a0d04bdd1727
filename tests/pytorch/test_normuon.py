"""NorMuon in groups of Muon: the bits of `cpu.merged_normuon`, beside groups of Muon and AdamW, and its states."""

import copy

import numpy as np
import pytest

from pytorch.subjects import class_of, torch
from refopt import cpu
from refopt.cpu import Blocks

SHAPES = (6, 9), (9, 4), (2, 3, 8), (5,)


def made(dtype=torch.float32, **named):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    groups = [{"params": params[:1], "beta2": 0.9, **named}, {"params": params[1:2]},
              {"params": params[2:3], "beta2": 0.5, "blocks": Blocks(columns=2, of="experts")},
              {"params": params[3:], "use_muon": False, "lr": 1e-3}]
    return params, class_of("Muon")(groups, lr=0.1, ns_steps=2)


def stepped(params, optimizer, seed):
    torch.manual_seed(seed)
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer.step()
    return [param.grad.float().numpy() for param in params]


def test_the_bits_are_those_of_the_reference():
    """For two steps; groups without ``beta2`` are Muon's, and others AdamW's."""
    params, optimizer = made()
    mine = [p.detach().numpy().copy() for p in params[:3]]
    velocities = [np.zeros_like(x) for x in mine]
    rows = [np.zeros((6, 1), np.float32), None, np.zeros((2, 3, 2), np.float32)]
    for seed in range(2):
        grads = stepped(params, optimizer, seed)
        for i, named in ((0, {"beta2": 0.9}), (2, {"beta2": 0.5, "blocks": Blocks(columns=2, of="experts")})):
            cpu.normuon(mine[i], grads[i], velocities[i], rows[i], lr=0.1, iterations=2, **named)
        cpu.muon(mine[1], grads[1], velocities[1], lr=0.1, iterations=2)
    for i in range(3):
        state = optimizer.state[params[i]]
        assert params[i].detach().numpy().tobytes() == mine[i].tobytes()
        assert rows[i] is None or state["second_momentum_buffer"].numpy().tobytes() == rows[i].tobytes()
    assert "second_momentum_buffer" not in optimizer.state[params[1]] and "exp_avg" in optimizer.state[params[3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_goes_on(dtype):
    """Averages of rows are fp32, whatever the parameter is, also after PyTorch's casts."""
    params, optimizer = made(dtype)
    stepped(params, optimizer, 1)
    others, other = made(dtype)
    for x, y in zip(others, params, strict=True):
        x.data.copy_(y.data)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each in ((params, optimizer), (others, other)):
        stepped(*each, 2)
    for x, y in zip(params, others, strict=True):
        assert torch.equal(x, y)
        held = [of.state[z].get("second_momentum_buffer") for of, z in ((optimizer, x), (other, y))]
        assert held[0] is held[1] is None or (held[0].dtype == torch.float32 and torch.equal(*held))


@pytest.mark.parametrize(("peer", "text"), [
    ({"beta2": None}, r"Muon: param_groups\[0\]\['beta2'\]: expected a number, as the optimizer has, .* got None"),
    ({}, r"state\[0\]: expected 'second_momentum_buffer', which its steps need, got momentum_buffer")])
def test_a_checkpoint_of_muon_is_refused(peer, text):
    """It has no averages; of PyTorch's class, nor the option."""
    params, optimizer = made(beta2=None)
    stepped(params, optimizer, 0)
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["beta2"]
    saved["param_groups"][0] |= peer
    with pytest.raises(ValueError, match=text):
        made()[1].load_state_dict(saved)


def test_a_state_of_another_shape_is_refused():
    params, optimizer = made()
    stepped(params, optimizer, 0)
    optimizer.state[params[0]]["second_momentum_buffer"] = torch.zeros(9, 1)
    with pytest.raises(ValueError, match=r"second_momentum_buffer.*expected shape \(6, 1\)"):
        stepped(params, optimizer, 1)
