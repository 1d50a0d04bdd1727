"""The ``torch.optim`` class for each routine, and the names of its states and numbers there."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from refopt.catalog import Routine
from refopt.checks.arguments import flag, listed, number, shown
from refopt.state.saved import host_of

NONE: Mapping[str, Any] = MappingProxyType({})


class Peer(NamedTuple):
    """The PyTorch optimizer for a routine. Mappings are from refopt's names to PyTorch's.

    Attributes:
        states: the tensors of a parameter's state.
        numbers: the numbers of a group, and its switches that correspond to choices of the routine.
        only: the values that a group must have, by PyTorch's names, for its rule to be the routine's.
        switches: the switches of a group that correspond to optional states.
        choices: the choices of the routine with which its rule is PyTorch's.
        counts: whether a parameter's state has a step count.
    """

    states: Mapping[str, str]
    numbers: Mapping[str, str]
    only: Mapping[str, Any] = NONE
    switches: Mapping[str, str] = NONE
    choices: Mapping[str, Any] = NONE
    counts: bool = True


# A choice whose values are a switch.
SWITCHED: Mapping[str, Mapping[Any, bool]] = MappingProxyType({"decay": {"l2": False, "decoupled": True}})
FLAGS = "use_nesterov", "maximize", *SWITCHED
LATER = "nesterov", "maximize", "decoupled_weight_decay"  # switches that groups of older versions of PyTorch lack: off
FREE = ("lr_at",)  # it decides what the state holds; either value is PyTorch's rule
UP = {"maximize": "maximize"}
LR = {"lr": "lr"}
DECAY = {"weight_decay": "weight_decay"}
EITHER_DECAY = DECAY | {"decay": "decoupled_weight_decay"}
BETAS = LR | {"beta1": "beta1", "beta2": "beta2", "epsilon": "eps"}
MOMENTS = {"moment1": "exp_avg", "moment2": "exp_avg_sq"}
ADAM = Peer(
    MOMENTS | {"moment2_max": "max_exp_avg_sq"}, BETAS | UP | EITHER_DECAY, {}, {"moment2_max": "amsgrad"},
    {"epsilon_at": "corrected"},
)
PEERS = {
    "sgd": Peer(
        {}, LR | UP | {"l2_decay": "weight_decay"}, {"momentum": 0, "dampening": 0, "nesterov": False}, counts=False,
    ),
    "momentum": Peer(
        {"velocities": "momentum_buffer"},
        LR | UP
        | {"mu": "momentum", "l2_decay": "weight_decay", "use_nesterov": "nesterov", "dampening": "dampening"},
        {}, counts=False,
    ),
    "adam": ADAM,
    "adamw": ADAM._replace(numbers=BETAS | UP | {"coeff": "weight_decay"}, only={"decoupled_weight_decay": True}),
    # The sum includes its initial value, which is refused, since the way back would lose it.
    "adagrad": Peer(
        {"moment": "sum"}, LR | UP | DECAY | {"epsilon": "eps"}, {"lr_decay": 0, "initial_accumulator_value": 0}
    ),
    "rmsprop": Peer(
        {"mean_square": "square_avg", "velocity": "momentum_buffer", "mean_grad": "grad_avg"},
        LR | UP | DECAY | {"rho": "alpha", "mu": "momentum", "epsilon": "eps"}, {}, {"mean_grad": "centered"},
        {"epsilon_at": "outside", "lr_at": "step"},
    ),
    "adadelta": Peer(
        {"avg_squared_grad": "square_avg", "avg_squared_update": "acc_delta"},
        LR | UP | DECAY | {"rho": "rho", "epsilon": "eps"}, {},
    ),
    "adamax": Peer(
        {"moment": "exp_avg", "inf_norm": "exp_inf"}, BETAS | UP | DECAY, {}, choices={"epsilon_at": "gradient"}
    ),
    "nadam": Peer(
        MOMENTS | {"mu_product": "mu_product"}, BETAS | UP | EITHER_DECAY | {"decay_base": "momentum_decay"}, {}
    ),
    "radam": Peer(MOMENTS, BETAS | UP | EITHER_DECAY, {}),
}

# Classes of `refopt.torch` that PyTorch lacks.
OWN = {
    "lars_momentum": Peer(
        {"velocities": "momentum_buffer"},
        LR | {"mu": "momentum", "lars_coeff": "trust_coefficient", "lars_weight_decay": "weight_decay",
              "epsilon": "eps"},
        {}, choices={"adapt": "norms"}, counts=False,
    ),
    "lamb": Peer(MOMENTS, BETAS | DECAY | {"always_adapt": "always_adapt"}, {}),
    "lion": Peer(
        {"moment": "exp_avg"}, LR | {"beta1": "beta1", "beta2": "beta2", "coeff": "weight_decay"}, {}, counts=False
    ),
    "novograd": Peer(
        {"moment": "exp_avg", "second_moment": "exp_avg_sq"},
        BETAS | DECAY | {"grad_averaging": "grad_averaging"}, {}, counts=False,
    ),
}
# Of parameters that are matrices.
MUON = Peer(
    {"velocities": "momentum_buffer"},
    LR | DECAY | {"mu": "momentum", "epsilon": "eps", "use_nesterov": "nesterov"}, {}, counts=False,
)
NORMUON = MUON._replace(
    states={**MUON.states, "row_moment": "second_momentum_buffer"}, numbers={**MUON.numbers, "beta2": "beta2"}
)

# Entries of groups of several optimizers, which do not change the rules of some.
ANYBODYS = "weight_decay", "maximize", "decoupled_weight_decay"
THEIRS = {"betas"} | {
    name for peer in PEERS.values() for name in (*peer.numbers.values(), *peer.only, *peer.switches.values())
}


def peer_of(where: str, routine: Routine) -> Peer:
    """The row of the table."""
    if routine.name not in PEERS:
        raise ValueError(f"{where}: routine: expected one of {', '.join(PEERS)}, got {routine.name!r}")
    return PEERS[routine.name]


def to_group(
    where: str, routine: Routine, numbers: Mapping[str, Any], present: Mapping[str, Any], peer: Peer | None = None
) -> dict[str, Any]:
    """A PyTorch group without its parameters, from a tensor's numbers and states; raises if there is none.

    ``peer`` replaces the optimizer of ``torch.optim``.
    """
    peer = peer or PEERS[routine.name]
    default = {name: values[0] for name, values in routine.choices.items() if name not in peer.numbers}
    for name, value in {"rescale_grad": 1.0, **default, **peer.choices}.items():
        neutral = name in FREE or (routine.name == "adamax" and name == "epsilon_at" and numbers["epsilon"] == 0)
        if numbers[name] != value and not neutral:
            raise ValueError(f"{where}: {name}: expected {value}, which PyTorch has, got {numbers[name]}")
    if routine.name == "momentum":
        _check_dampening(where, numbers, "for PyTorch")
    group = {theirs: SWITCHED.get(ours, {}).get(numbers[ours], numbers[ours]) for ours, theirs in peer.numbers.items()}
    if "coeff" in peer.numbers and "weight_decay" in group:
        group["weight_decay"] *= numbers.get("lr_ratio", 1.0)
    if "decay_base" in peer.numbers:
        group["momentum_decay"] = _momentum_decay(where, numbers["decay_base"])
    group |= {**peer.only, **{theirs: ours in present for ours, theirs in peer.switches.items()}}
    if "beta1" in group:
        group["betas"] = group.pop("beta1"), group.pop("beta2")
    return group


def from_group(where: str, routine: Routine, group: Mapping[str, Any]) -> dict[str, Any]:
    """A PyTorch group's numbers by refopt's names, and its switches by PyTorch's; raises for another rule.

    Numbers and switches that only other optimizers of the table have are refused. Those that none of them has are
    ignored: how a step is run (``foreach``), and entries of schedulers and callers.
    """
    peer = PEERS[routine.name]
    flat = dict(group)
    if "beta1" in peer.numbers:
        flat["beta1"], flat["beta2"] = _pair(f"{where}: betas", flat.pop("betas", None))
    _check_rule(where, routine, peer, flat)
    limits = {hyper.name: hyper.below for hyper in routine.hypers}
    numbers: dict[str, Any] = {}
    for ours, theirs in {**peer.numbers, **{name: name for name in peer.switches.values()}}.items():
        kind = "True or False" if ours in (*peer.switches.values(), *FLAGS) else "a number"
        if theirs not in flat and theirs not in LATER:
            raise TypeError(f"{where}: {theirs}: expected {kind}, got none")
        value = host_of(label := f"{where}: {theirs}", flat.get(theirs, False))
        if kind != "a number":
            on = flag(label, value)
            numbers[ours] = next((name for name, x in SWITCHED.get(ours, {}).items() if x == on), on)
        else:
            below = limits[ours] if ours != "decay_base" and limits[ours] < math.inf else None
            numbers[ours] = number(label, value, 0, below=below, finite=True)
    if "decay_base" in numbers:
        numbers["decay_base"] = 0.96 ** numbers["decay_base"]
    if routine.name == "momentum":
        _check_dampening(where, numbers, "which is refopt's rule")
    return numbers


def _check_dampening(where: str, numbers: Mapping[str, Any], why: str) -> None:
    """Refuse dampening without momentum, where PyTorch has none, and with Nesterov's, where PyTorch forbids it."""
    if numbers.get("dampening") and (numbers["mu"] == 0 or numbers["use_nesterov"]):
        beside = "a momentum of 0" if numbers["mu"] == 0 else "Nesterov's momentum"
        raise ValueError(f"{where}: dampening: expected 0 with {beside}, {why}, got {numbers['dampening']}")


def _check_rule(where: str, routine: Routine, peer: Peer, flat: Mapping[str, Any]) -> None:
    """Refuse a group whose rule differs from the routine's."""
    own = {*peer.numbers.values(), *peer.only, *peer.switches.values(), *ANYBODYS}
    if foreign := sorted(name for name in flat.keys() & THEIRS if name not in own):
        name = foreign[0]
        raise TypeError(f"{where}: {name}: expected none, since {routine.name} lacks it, got {shown(flat[name])}")
    for name, value in peer.only.items():
        got = host_of(f"{where}: {name}", flat.get(name, value))
        check = flag if isinstance(value, bool) else number
        if check(f"{where}: {name}", got) != value:
            raise ValueError(f"{where}: {name}: expected {value}, which is refopt's rule, got {shown(got)}")


def _pair(where: str, value: Any) -> list[Any]:
    """Both betas."""
    pair = listed(where, value, "two numbers")
    if len(pair) != 2:
        raise ValueError(f"{where}: expected two numbers, got {len(pair)}")
    return pair


def _momentum_decay(where: str, base: float) -> float:
    """The exponent of 0.96 that gives the base, with the fewest sufficient digits."""
    if not 0 < base <= 1:
        raise ValueError(f"{where}: decay_base: expected a number above 0 and at most 1, for PyTorch, got {base}")
    exact = math.log(base) / math.log(0.96) + 0.0
    rounded = (float(f"{exact:.{digits}g}") for digits in range(1, 18))
    return next((short for short in rounded if 0.96**short == base), exact)
