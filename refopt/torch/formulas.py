"""Which routine of the catalogue a parameter group is: by its options, the choices, the numbers and the states.

Options are those of PyTorch's class of the name. One function for each class, from a group to a `Formula`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from refopt.catalog import KNOWN, Routine
from refopt.cpu import Blocks

Group = Mapping[str, Any]


class Formula(NamedTuple):
    """What a group's step is.

    Attributes:
        routine: its name in `refopt.catalog.KNOWN`.
        choices: of the routine.
        numbers: of the routine, one for all tensors of the group.
        states: by the routine's slot, the key in PyTorch's state of a parameter. A slot without one is scratch.
        counts: whether PyTorch's state has the number of steps.
        first: numbers that are others in a tensor's first step.
        initial: by the routine's slot, what a state holds before the first step where that is not 0.
        by_step: what a number is multiplied by in a tensor's step of some number, from 1 on.
        blocks: of a routine for matrices, how it cuts a tensor of the group into these.
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

    @property
    def row(self) -> Routine:
        """That of the routine."""
        return KNOWN[self.routine]

    @property
    def kind(self) -> tuple:
        """What parameters of one plan have in common."""
        choices, states = tuple(self.choices.items()), tuple(self.states.items())
        return self.routine, choices, states, bool(self.first), bool(self.by_step)

    def number_at(self, name: str, step: int) -> float:
        """A number in a tensor's step of some number, from 1 on."""
        if step == 1 and name in self.first:
            return self.first[name]
        return self.numbers[name] * (self.by_step[name](step) if name in self.by_step else 1)


MOMENTS = {"moment1": "exp_avg", "moment2": "exp_avg_sq"}


def plain(value: Any) -> Any:
    """An option as it is, but the number in a tensor of one element; one on a GPU is waited for."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def numbers(group: Group, **names: str) -> dict[str, float]:
    """The group's numbers, by the routine's names for them."""
    return {ours: plain(group[theirs]) for ours, theirs in names.items()}


def adam_numbers(group: Group, **names: str) -> dict[str, float]:
    """Rate, betas and epsilon, and others."""
    beta1, beta2 = map(plain, group["betas"])
    return numbers(group, lr="lr", epsilon="eps", **names) | {"beta1": beta1, "beta2": beta2}


def sgd(group: Group) -> Formula:
    """``torch.optim.SGD``: without momentum it is another routine."""
    choices, common = {"maximize": bool(group["maximize"])}, numbers(group, lr="lr", l2_decay="weight_decay")
    if group["momentum"] == 0:
        return Formula("sgd", choices, common, {}, counts=False)
    return Formula(
        "momentum", choices | {"use_nesterov": bool(group["nesterov"])},
        common | numbers(group, mu="momentum", dampening="dampening"), {"velocities": "momentum_buffer"},
        counts=False, first={"dampening": 0.0} if group["dampening"] else {},
    )  # fmt: skip


def adam(group: Group) -> Formula:
    """``torch.optim.Adam`` and ``AdamW``, which differ in how weights decay."""
    maxima = {"moment2_max": "max_exp_avg_sq"} if group["amsgrad"] else {}
    choices = {"maximize": bool(group["maximize"])}
    if group["decoupled_weight_decay"]:
        return Formula("adamw", choices, adam_numbers(group, coeff="weight_decay"), MOMENTS | maxima)
    return Formula("adam", choices, adam_numbers(group, weight_decay="weight_decay"), MOMENTS | maxima)


def adamax(group: Group) -> Formula:
    """``torch.optim.Adamax``."""
    choices = {"maximize": bool(group["maximize"]), "epsilon_at": "gradient"}
    states = {"moment": "exp_avg", "inf_norm": "exp_inf"}
    return Formula("adamax", choices, adam_numbers(group, weight_decay="weight_decay"), states)


def adagrad(group: Group) -> Formula:
    """``torch.optim.Adagrad``."""
    fall = plain(group["lr_decay"])
    return Formula(
        "adagrad", {"maximize": bool(group["maximize"])},
        numbers(group, lr="lr", epsilon="eps", weight_decay="weight_decay"), {"moment": "sum"},
        initial={"moment": plain(group["initial_accumulator_value"])},
        by_step={"lr": lambda step: 1 / (1 + (step - 1) * fall)} if fall else {},
    )  # fmt: skip


def adadelta(group: Group) -> Formula:
    """``torch.optim.Adadelta``."""
    states = {"avg_squared_grad": "square_avg", "avg_squared_update": "acc_delta"}
    common = numbers(group, lr="lr", rho="rho", epsilon="eps", weight_decay="weight_decay")
    return Formula("adadelta", {"maximize": bool(group["maximize"])}, common, states)


def rmsprop(group: Group) -> Formula:
    """``torch.optim.RMSprop``, whose velocity is without lr; without momentum PyTorch keeps none."""
    states = {"mean_square": "square_avg"}
    states |= {"velocity": "momentum_buffer"} if group["momentum"] > 0 else {}
    states |= {"mean_grad": "grad_avg"} if group["centered"] else {}
    return Formula(
        "rmsprop", {"maximize": bool(group["maximize"]), "epsilon_at": "outside", "lr_at": "step"},
        numbers(group, lr="lr", rho="alpha", mu="momentum", epsilon="eps", weight_decay="weight_decay"), states,
    )  # fmt: skip


def nadam(group: Group) -> Formula:
    """``torch.optim.NAdam``."""
    own = adam_numbers(group, weight_decay="weight_decay") | {"decay_base": 0.96 ** plain(group["momentum_decay"])}
    return Formula("nadam", _decaying(group), own, MOMENTS | {"mu_product": "mu_product"})


def radam(group: Group) -> Formula:
    """``torch.optim.RAdam``."""
    return Formula("radam", _decaying(group), adam_numbers(group, weight_decay="weight_decay"), MOMENTS)


def _decaying(group: Group) -> dict[str, Any]:
    decay = "decoupled" if group["decoupled_weight_decay"] else "l2"
    return {"maximize": bool(group["maximize"]), "decay": decay}


def lars(group: Group) -> Formula:
    """Layer-wise adaptive rates."""
    names = {"mu": "momentum", "lars_coeff": "trust_coefficient", "lars_weight_decay": "weight_decay"}
    return Formula(
        "lars_momentum", {}, numbers(group, lr="lr", epsilon="eps", **names), {"velocities": "momentum_buffer"},
        counts=False,
    )  # fmt: skip


def lamb(group: Group) -> Formula:
    """LAMB."""
    choices = {"always_adapt": group["always_adapt"]}
    return Formula("lamb", choices, adam_numbers(group, weight_decay="weight_decay"), MOMENTS)


def lion(group: Group) -> Formula:
    """Lion."""
    beta1, beta2 = map(plain, group["betas"])
    own = numbers(group, lr="lr", coeff="weight_decay") | {"beta1": beta1, "beta2": beta2}
    return Formula("lion", {}, own, {"moment": "exp_avg"}, counts=False)


def novograd(group: Group) -> Formula:
    """NovoGrad, whose second moment is one number per tensor."""
    states = {"moment": "exp_avg", "second_moment": "exp_avg_sq"}
    choices = {"grad_averaging": group["grad_averaging"]}
    return Formula("novograd", choices, adam_numbers(group, weight_decay="weight_decay"), states, counts=False)


def muon(group: Group) -> Formula:
    """``torch.optim.Muon``."""
    coefficients = tuple(tuple(x) if isinstance(x, list | tuple) else x for x in group["ns_coefficients"])
    choices = {"use_nesterov": bool(group["nesterov"]), "adjust_lr": group["adjust_lr_fn"] or "original"}
    return Formula(
        "muon", choices | {"coefficients": coefficients, "iterations": group["ns_steps"]},
        numbers(group, lr="lr", mu="momentum", epsilon="eps", weight_decay="weight_decay"),
        {"velocities": "momentum_buffer"}, counts=False, blocks=Blocks(*group["blocks"]),
    )  # fmt: skip
