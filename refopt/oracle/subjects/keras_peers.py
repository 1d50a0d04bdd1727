"""Keras's names for the numbers of each routine, and the numbers and choices that its optimizers fix."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from refopt.state.peers import NONE


class Peer(NamedTuple):
    """A routine in Keras.

    Attributes:
        name: of the class in ``keras.optimizers``.
        numbers: arguments of the class by refopt's names of numbers and choices.
        choices: the choices and numbers with which the routine's rule is that of Keras.
    """

    name: str
    numbers: Mapping[str, str]
    choices: Mapping[str, Any] = NONE


LR = {"lr": "learning_rate"}
L2 = {"l2_decay": "weight_decay"}
DECAY = {"weight_decay": "weight_decay"}
BETAS = LR | {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"}
COEFF = {"coeff": "weight_decay"}
UNCORRECTED = {"epsilon_at": "uncorrected"}
PEERS = {
    "sgd": Peer("SGD", LR | L2),
    "momentum": Peer("SGD", LR | L2 | {"mu": "momentum", "use_nesterov": "nesterov"}),
    "adam": Peer("Adam", BETAS | DECAY, UNCORRECTED),
    "adamw": Peer("AdamW", BETAS | COEFF, UNCORRECTED),
    "adagrad": Peer(
        "Adagrad", LR | DECAY | {"epsilon": "epsilon", "initial_accumulator": "initial_accumulator_value"},
        {"epsilon_at": "inside"},
    ),
    "rmsprop": Peer(
        "RMSprop", LR | DECAY | {"rho": "rho", "mu": "momentum", "epsilon": "epsilon"}, {"epsilon_at": "inside"}
    ),
    "adadelta": Peer("Adadelta", LR | DECAY | {"rho": "rho", "epsilon": "epsilon"}),
    "adamax": Peer("Adamax", BETAS | DECAY),
    "nadam": Peer("Nadam", BETAS | DECAY, {"decay_base": 0.96}),
    "lamb": Peer("Lamb", BETAS | DECAY, {"always_adapt": True}),
    "lion": Peer("Lion", LR | {"beta1": "beta_1", "beta2": "beta_2"} | COEFF),
}
OTHER = Peer("", BETAS | DECAY)  # for routines that Keras lacks
