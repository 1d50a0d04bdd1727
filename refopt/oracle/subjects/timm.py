"""Which optimizer of timm a routine is, as `refopt.state.peers` has it for PyTorch's."""

from collections.abc import Mapping
from typing import Any

from refopt.oracle.subjects.torch_peers import TORCH
from refopt.state.peers import ADAM, BETAS, LR, MOMENTS, PEERS, Peer

OFF: dict[str, Any] = {"caution": False, "corrected_weight_decay": False, "maximize": False}
DECAY: dict[str, str] = {"weight_decay": "weight_decay"}
LAMB = Peer(
    MOMENTS, BETAS | DECAY,
    OFF | {"max_grad_norm": None, "trust_clip": False, "decoupled_decay": False, "bias_correction": True,
           "grad_averaging": True},
)  # fmt: skip
LARS = Peer(
    {"velocities": "momentum_buffer"},
    LR | {"mu": "momentum", "lars_coeff": "trust_coeff", "lars_weight_decay": "weight_decay", "epsilon": "eps"},
    {"dampening": 0, "nesterov": False, "trust_clip": False}, choices={"adapt": "decay_and_norms"}, counts=False,
)  # fmt: skip
LION = Peer(
    {"moment": "exp_avg"}, LR | {"beta1": "beta1", "beta2": "beta2", "coeff": "weight_decay"}, OFF, counts=False
)
NOVOGRAD = Peer(
    {"moment": "exp_avg", "second_moment": "exp_avg_sq"}, BETAS | DECAY | {"grad_averaging": "grad_averaging"},
    {"amsgrad": False, "decoupled_decay": False}, counts=False,
)  # fmt: skip
ADAMW = PEERS["adamw"]._replace(only=OFF | {"clipping_threshold": None})
# By routine, and by the name of the class.
TIMM: dict[tuple[str, str], Peer] = {
    ("lamb", "Lamb"): LAMB._replace(numbers=dict(LAMB.numbers) | {"always_adapt": "always_adapt"}),
    ("lars_momentum", "Lars"): LARS,
    ("lion", "Lion"): LION,
    ("novograd", "NvNovoGrad"): NOVOGRAD,
    ("adamw", "AdamWLegacy"): ADAMW,
    # Decay apart from the gradient: momentum's rule only where it is 0.
    ("momentum", "SGDW"): Peer(
        {"velocities": "momentum_buffer"}, LR | {"mu": "momentum", "use_nesterov": "nesterov"},
        OFF | {"dampening": 0, "weight_decay": 0}, counts=False,
    ),
    ("rmsprop", "RMSpropTF"): PEERS["rmsprop"]._replace(
        only={"weight_decay": 0, "lr_in_momentum": True, "caution": False}, choices={"epsilon_at": "inside"}
    ),
    ("nadam", "NAdamW"): Peer(MOMENTS, BETAS, OFF | {"weight_decay": 0, "clipping_threshold": None}),
    ("radam", "RAdamLegacy"): Peer(MOMENTS, BETAS, {"weight_decay": 0}),
    ("adam", "AdamWLegacy"): ADAM._replace(only=OFF | {"weight_decay": 0, "clipping_threshold": None}),
}  # fmt: skip
# What optimizers derived from PyTorch's are expected to be, of routines that PyTorch itself has not.
USUAL = {"lamb": LAMB, "lars_momentum": LARS, "lion": LION, "novograd": NOVOGRAD}


def peer_of(routine: str, kind: type | None, options: Mapping[str, Any]) -> tuple[Peer, tuple[str, ...]]:
    """The row of the table for a class, and the states that it keeps without lr."""
    name = kind.__name__ if kind is not None and kind.__module__.startswith("timm.optim") else ""
    peer = TIMM.get((routine, name)) or TORCH.get(routine) or PEERS.get(routine) or USUAL[routine]
    if name == "Lars" and options.get("always_adapt"):
        peer = peer._replace(choices={"adapt": "norms"})
    return peer, () if name == "RMSpropTF" else ("velocity", "velocities") if name == "Lars" else ("velocity",)
