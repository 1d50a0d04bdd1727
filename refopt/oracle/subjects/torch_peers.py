"""The classes of ``torch.optim`` and timm for each routine, with variants: more than `refopt.state` can take over.

PyTorch's names for the numbers of variants are added to those of `refopt.state.peers`. Some numbers and choices are
tried only if an option of the class asks for them, since they fix others: Nesterov's momentum takes no dampening.
"""

from collections.abc import Mapping
from typing import Any

from refopt.cpu.muon import COEFFICIENTS
from refopt.state.peers import ADAM, BETAS, DECAY, LR, MOMENTS, MUON, NONE, NORMUON, OWN, PEERS, UP, Peer

ON_REQUEST = "dampening", "initial_accumulator"


# Arguments that leave the rule as it is: how a step is run.
FREE = "foreach", "fused", "capturable", "differentiable"


def _with(routine: str, more: Mapping[str, str] = NONE, choices: Mapping[str, Any] = NONE) -> Peer:
    """A row of the table with more numbers and choices, which a group then no longer has to fix."""
    peer = PEERS[routine]
    only = {name: value for name, value in peer.only.items() if name not in more.values()}
    return peer._replace(numbers={**peer.numbers, **more}, only=only, choices={**peer.choices, **choices})


TORCH = PEERS | {
    "muon": MUON._replace(
        numbers={**MUON.numbers, "iterations": "ns_steps", "adjust_lr": "adjust_lr_fn"},
        only={"ns_coefficients": COEFFICIENTS},
    ),
    "momentum": _with("momentum", choices={"dampened_from": 2}),
    "adagrad": _with("adagrad", {"lr_decay": "lr_decay", "initial_accumulator": "initial_accumulator_value"}),
}
# The class for each routine.
CLASSES = {
    "sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop",
    "adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam", "muon": "Muon",
}
OFF: dict[str, Any] = {"caution": False, "corrected_weight_decay": False, "maximize": False}
LAMB = Peer(
    MOMENTS, BETAS | DECAY,
    OFF | {"max_grad_norm": None, "trust_clip": False, "decoupled_decay": False, "bias_correction": True,
           "grad_averaging": True},
)
LARS = Peer(
    {"velocities": "momentum_buffer"},
    LR | {"mu": "momentum", "lars_coeff": "trust_coeff", "lars_weight_decay": "weight_decay", "epsilon": "eps"},
    {"dampening": 0, "nesterov": False, "trust_clip": False}, choices={"adapt": "decay_and_norms"}, counts=False,
)
LION = Peer(
    {"moment": "exp_avg"}, LR | {"beta1": "beta1", "beta2": "beta2", "coeff": "weight_decay"}, OFF, counts=False
)
NOVOGRAD = Peer(
    {"moment": "exp_avg", "second_moment": "exp_avg_sq"}, BETAS | DECAY | {"grad_averaging": "grad_averaging"},
    {"amsgrad": False, "decoupled_decay": False, "corrected_weight_decay": False}, counts=False,
)
UNCLIPPED = {"caution": False, "corrected_weight_decay": False, "clipping_threshold": None}
# The timm optimizer for each routine, by routine and by the name of the class.
TIMM: dict[tuple[str, str], Peer] = {
    ("lamb", "Lamb"): LAMB._replace(
        numbers={**LAMB.numbers, "always_adapt": "always_adapt"},
        only={name: x for name, x in LAMB.only.items() if name != "maximize"},
    ),
    ("lars_momentum", "Lars"): LARS,
    ("lion", "Lion"): LION,
    ("novograd", "NvNovoGrad"): NOVOGRAD,
    ("adamw", "AdamWLegacy"): TORCH["adamw"]._replace(only=UNCLIPPED),
    ("adam", "AdamWLegacy"): ADAM._replace(
        numbers=BETAS | DECAY | UP, only=UNCLIPPED, choices={**ADAM.choices, "decay": "decoupled"}
    ),
    ("momentum", "SGDW"): Peer(
        {"velocities": "momentum_buffer"},
        LR | UP | {"mu": "momentum", "l2_decay": "weight_decay", "use_nesterov": "nesterov"},
        {"dampening": 0, "caution": False, "corrected_weight_decay": False}, choices={"decay": "decoupled"},
        counts=False,
    ),
    ("rmsprop", "RMSpropTF"): PEERS["rmsprop"]._replace(
        numbers=LR | DECAY | {"rho": "alpha", "mu": "momentum", "epsilon": "eps", "decay": "decoupled_decay"},
        only={"lr_in_momentum": True, "caution": False, "corrected_weight_decay": False},
        choices={"epsilon_at": "inside", "lr_at": "velocity"},
    ),
    # Without a schedule.
    ("nadam", "NAdamW"): Peer(
        MOMENTS, BETAS | DECAY | UP, UNCLIPPED, choices={"decay_base": 0.0, "decay": "decoupled"}
    ),
    ("radam", "RAdamLegacy"): Peer(MOMENTS, BETAS | DECAY, {}, choices={"decay": "decoupled"}),
}
# What classes derived from PyTorch's are expected to look like, for routines that PyTorch lacks.
USUAL = {"lamb": LAMB, "lars_momentum": LARS, "lion": LION, "normuon": NORMUON, "novograd": NOVOGRAD}


def peer_of(routine: str, kind: type | None, options: Mapping[str, Any]) -> tuple[Peer, tuple[str, ...]]:
    """The row of the table for a class, and the states that it keeps without lr."""
    if kind is not None and kind.__module__.startswith("refopt.torch") and routine in OWN:
        return OWN[routine], ()
    name = kind.__name__ if kind is not None and kind.__module__.startswith("timm.optim") else ""
    peer = TIMM.get((routine, name)) or TORCH.get(routine) or PEERS.get(routine) or USUAL[routine]
    if name == "Lars":
        peer = peer._replace(choices={"adapt": "norms" if options.get("always_adapt") else "decay_and_norms"})
    return peer, ("velocities",) if name == "Lars" else ()
