"""The routine of the catalogue for a parameter group, with the choices, numbers and states from its options.

Options are those of PyTorch's class of the name. One function for each class, from a group to a `Formula`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from refopt.catalog import KNOWN, Routine
from refopt.cpu import Blocks
from refopt.cpu.newton_schulz import as_tuples
from refopt.state.peers import MUON, NORMUON, OWN, PEERS, SWITCHED

Group = Mapping[str, Any]


class Formula(NamedTuple):
    """The step of a group.

    Attributes:
        routine: its name in `refopt.catalog.KNOWN`.
        choices: of the routine.
        numbers: of the routine, one for all tensors of the group.
        states: by the routine's slot, the key in PyTorch's state of a parameter. A slot without one is scratch.
        counts: whether PyTorch's state has the number of steps.
        first: numbers that differ in a tensor's first step.
        initial: by the routine's slot, the value of a state before the first step if it is not 0.
        by_step: the factor of a number, as a function of a tensor's step, from 1 on.
        blocks: of a routine for matrices, how it cuts a tensor of the group into matrices.
        masters: the kind of masters of 16-bit parameters.
        coded: whether states have 8 bits.
        lazy: whether sparse gradients update only the rows that they name.
    """

    routine: str
    choices: dict[str, Any]
    numbers: dict[str, float]
    states: dict[str, str]
    counts: bool = True
    first: Mapping[str, float] = {}
    initial: Mapping[str, float] = {}
    by_step: Mapping[str, Callable[[int], float]] = {}
    blocks: Blocks | None = None
    masters: str | None = None
    coded: bool = False
    lazy: bool = False

    @property
    def row(self) -> Routine:
        """The routine's row."""
        return KNOWN[self.routine]

    @property
    def kind(self) -> tuple:
        """What parameters of one plan have in common."""
        choices, states = tuple(self.choices.items()), tuple(self.states.items())
        return self.routine, choices, states, bool(self.first), bool(self.by_step), self.coded

    def number_at(self, name: str, step: int) -> float:
        """The value of a number in a tensor's step, from 1 on."""
        if step == 1 and name in self.first:
            return self.first[name]
        return self.numbers[name] * (self.by_step[name](step) if name in self.by_step else 1)


PEERS_OF_ALL = PEERS | OWN | {"muon": MUON, "normuon": NORMUON}


def plain(value: Any) -> Any:
    """An option, or the number in a tensor of one element, for which the host waits if it is on a GPU."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def formula(routine: str, group: Group) -> Formula:
    """The step of a group of one routine: `refopt.state.peers` maps its options."""
    peer, row, flat = PEERS_OF_ALL[routine], KNOWN[routine], dict(group)
    if "beta1" in peer.numbers:
        flat["beta1"], flat["beta2"] = group["betas"]
    given = {ours: plain(flat[theirs]) for ours, theirs in peer.numbers.items()}
    numbers = {hyper.name: given[hyper.name] for hyper in row.hypers if hyper.name in given}
    choices = {name: _choice(name, x) for name, x in given.items() if name in row.choices} | {**peer.choices}
    choices = {name: x for name, x in choices.items() if x != row.choices[name][0]}
    states = {slot: key for slot, key in peer.states.items() if slot not in peer.switches or group[peer.switches[slot]]}
    return Formula(routine, choices, numbers, states, peer.counts)


def _choice(name: str, option: Any) -> Any:
    """The choice of a routine that an option stands for."""
    return next((choice for choice, on in SWITCHED.get(name, {}).items() if on == bool(option)), bool(option))


def sgd(group: Group) -> Formula:
    """``torch.optim.SGD``; without momentum it is a different routine."""
    found = formula("momentum" if group["momentum"] else "sgd", group)
    return found._replace(first={"dampening": 0.0}) if found.numbers.get("dampening") else found


def adam(group: Group) -> Formula:
    """``torch.optim.Adam`` and ``AdamW``, which differ in how weights decay."""
    return formula("adamw" if group["decoupled_weight_decay"] else "adam", group)


def adagrad(group: Group) -> Formula:
    """``torch.optim.Adagrad``."""
    fall = plain(group["lr_decay"])
    by_step = {"lr": lambda step: 1 / (1 + (step - 1) * fall)} if fall else {}
    initial = {"moment": plain(group["initial_accumulator_value"])}
    return formula("adagrad", group)._replace(initial=initial, by_step=by_step)


def rmsprop(group: Group) -> Formula:
    """``torch.optim.RMSprop``; without momentum PyTorch keeps no velocity."""
    found = formula("rmsprop", group)
    states = {slot: key for slot, key in found.states.items() if slot != "velocity" or group["momentum"] > 0}
    return found._replace(states=states)


def nadam(group: Group) -> Formula:
    """``torch.optim.NAdam``."""
    found = formula("nadam", group)
    return found._replace(numbers=found.numbers | {"decay_base": 0.96 ** found.numbers["decay_base"]})


def muon(group: Group) -> Formula:
    """``torch.optim.Muon``; NorMuon for a group with ``beta2``; AdamW for a group that does not use it."""
    if not group["use_muon"]:
        return formula("adamw", group)
    found = formula("muon" if group["beta2"] is None else "normuon", group)
    of_all = {"adjust_lr": group["adjust_lr_fn"] or "original", "iterations": group["ns_steps"]}
    of_all |= {"coefficients": as_tuples(group["ns_coefficients"]), "restarts": as_tuples(group["restarts"])}
    of_all |= {"compute": group["compute"]}
    return found._replace(choices=found.choices | of_all, blocks=Blocks(*group["blocks"]))
