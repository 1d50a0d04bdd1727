"""PyTorch's Muon on the CPU, fp32 parameters: somebody else's code, whose bits differ where it rounds elsewhere.

PyTorch rounds to bf16 three times, the momentum, its norm and the quotient; refopt rounds the quotient alone. The
updates of 36 random matrices of 16 x 16 to 100 x 300 were measured to differ by at most 3.0 % of their norm, or 3.5 %
without Nesterov momentum (PyTorch 2.13).
"""

import numpy as np
import pytest

from refopt import cpu

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = {"momentum": "mu", "nesterov": "use_nesterov", "adjust_lr_fn": "adjust_lr", "ns_coefficients": "coefficients",
         "ns_steps": "iterations", "eps": "epsilon"}
SHAPES = (24, 64), (64, 24), (40, 40)
LR, DECAY, STEPS = 0.1, 0.1, 3


def draw(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def theirs(shape, **named):
    """PyTorch's parameter and momentum after some steps."""
    param = torch.nn.Parameter(torch.tensor(draw(shape, 0)))
    optimizer = torch.optim.Muon([param], lr=LR, weight_decay=DECAY, **named)
    for step in range(STEPS):
        param.grad = torch.tensor(draw(shape, 1 + step))
        optimizer.step()
    return param.detach().numpy(), optimizer.state[param]["momentum_buffer"].numpy()


def ours(shape, **named):
    param, velocity = draw(shape, 0), np.zeros(shape, np.float32)
    numbers = {NAMES.get(name, name): value for name, value in named.items()}
    for step in range(STEPS):
        cpu.muon(param, draw(shape, 1 + step), velocity, lr=LR, weight_decay=DECAY, **numbers)
    return param, velocity


def apart(shape, mine, **named):
    """How far the updates of both are from each other, of the norm of PyTorch's."""
    decayed = draw(shape, 0) * (1 - LR * DECAY) ** STEPS
    param = theirs(shape, **named)[0]
    return np.linalg.norm(mine - param) / np.linalg.norm(param - decayed)


CASES = [{}, {"nesterov": False}, {"momentum": 0.5}, {"adjust_lr_fn": "match_rms_adamw"}, {"ns_steps": 3},
         {"ns_coefficients": (2.0, -1.5, 0.5)}, {"eps": 30.0}]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("named", CASES, ids=str)
def test_updates_are_those_of_pytorch(shape, named):
    """Within 4 % of the update, three steps; momenta within roundings of fp32."""
    param, velocity = ours(shape, **named)
    assert apart(shape, param, **named) < 0.04
    assert np.allclose(velocity, theirs(shape, **named)[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"ns_steps": 4}, {"ns_coefficients": (3.4445, -4.7750, 2.0)}, {"momentum": 0.5},
                                   {"nesterov": False}, {"adjust_lr_fn": "match_rms_adamw"}], ids=str)
def test_other_rules_are_further_apart(wrong):
    """The tolerance tells them from each other."""
    shape = SHAPES[0]
    assert apart(shape, ours(shape, **wrong)[0]) > 0.05
