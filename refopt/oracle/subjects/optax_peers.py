"""The optax function for each routine, with its variants, and the names of its states and numbers there."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from refopt.state.peers import NONE


class Peer(NamedTuple):
    """A routine in optax. Mappings are from refopt's names to optax's, except ``choices`` and ``only``.

    Attributes:
        states: the fields of a state.
        numbers: the arguments of a function that are numbers, and the choices that it leaves to its caller.
        choices: the choices and numbers with which the routine's rule is optax's, unless an argument changes it.
        switches: the arguments that turn on an optional state.
        only: the value that an argument must have, by optax's name, for the rule to be the routine's.
        negative: the states with the opposite sign there, since optax adds updates.
    """

    states: Mapping[str, str]
    numbers: Mapping[str, str]
    choices: Mapping[str, Any] = NONE
    switches: Mapping[str, str] = NONE
    only: Mapping[str, Any] = NONE
    negative: tuple[str, ...] = ()


LR = {"lr": "learning_rate"}
BETAS = LR | {"beta1": "b1", "beta2": "b2", "epsilon": "eps"}
ROOT = {"epsilon_root": "eps_root"}
DECAY = {"weight_decay": "weight_decay"}
MOMENTS = {"moment1": "mu", "moment2": "nu"}
PLAIN = {"nesterov": False}
CORRECTED = {"bias_correction_mu": True, "bias_correction_nu": True}
PEERS = {
    "sgd": Peer({}, LR, only={"momentum": None}),
    "momentum": Peer({"velocities": "trace"}, LR | {"mu": "momentum", "use_nesterov": "nesterov"}),
    "adam": Peer(
        MOMENTS | {"moment2_max": "nu_max"}, BETAS | ROOT, {"epsilon_at": "corrected", "max_of": "corrected"},
        only=PLAIN | CORRECTED,
    ),
    "adamw": Peer(MOMENTS, BETAS | ROOT | {"coeff": "weight_decay"}, {"epsilon_at": "corrected"}, only=PLAIN),
    "lion": Peer({"moment": "mu"}, LR | {"beta1": "b1", "beta2": "b2", "coeff": "weight_decay"}),
    "rmsprop": Peer(
        {"mean_square": "nu", "velocity": "trace", "mean_grad": "mu"},
        LR | {"rho": "decay", "mu": "momentum", "epsilon": "eps", "epsilon_at": "eps_in_sqrt"},
        {"epsilon_at": "inside"}, {"mean_grad": "centered"},
        only=PLAIN | {"initial_scale": 0.0, "bias_correction": False}, negative=("velocity",),
    ),
    "adadelta": Peer(
        {"avg_squared_grad": "e_g", "avg_squared_update": "e_x"},
        LR | DECAY | {"rho": "rho", "epsilon": "eps"}, {"decay": "l2"},
    ),
    "lamb": Peer(MOMENTS, BETAS | DECAY, {"always_adapt": True}, only={"eps_root": 0.0}),
    "novograd": Peer(
        {"moment": "mu", "second_moment": "nu"}, BETAS | DECAY,
        {"grad_averaging": False, "first_norm": "by_number"}, only={"eps_root": 0.0},
    ),
    "lars_momentum": Peer(
        {"velocities": "trace"},
        LR | {"mu": "momentum", "lars_coeff": "trust_coefficient", "lars_weight_decay": "weight_decay",
              "epsilon": "eps"},
        {"adapt": "norms", "grad_norm": "decayed"}, only=PLAIN, negative=("velocities",),
    ),
    "adagrad": Peer(
        {"moment": "sum_of_squares"}, LR | {"epsilon": "eps", "initial_accumulator": "initial_accumulator_value"},
        {"epsilon_at": "inside"},
    ),
    "adamax": Peer({"moment": "mu", "inf_norm": "nu"}, BETAS | DECAY, {"epsilon_at": "gradient", "decay": "decoupled"}),
    # Without a schedule.
    "nadam": Peer(
        MOMENTS, BETAS | DECAY, {"decay_base": 0.0, "decay": "decoupled"}, only={"nesterov": True, "eps_root": 0.0}
    ),
    "muon": Peer(
        {"velocities": "mu"},
        LR | DECAY | {"mu": "beta", "epsilon": "eps", "iterations": "ns_steps", "use_nesterov": "nesterov"},
        {"lookahead": "corrected", "outputs": "columns", "epsilon_is": "added", "compute": "float32"},
        only={"adaptive": False, "preconditioning": "frobenius", "consistent_rms": None},
    ),
    "radam": Peer(MOMENTS, BETAS | ROOT | {"threshold": "threshold"}, {"epsilon_at": "corrected"}, only=PLAIN),
}
# The routines that an optax function implements; several, if an argument decides.
FUNCTIONS = {
    "sgd": ("sgd", "momentum"), "adam": ("adam", "nadam"), "amsgrad": ("adam",), "adamw": ("adamw",),
    "lion": ("lion",), "rmsprop": ("rmsprop",), "adadelta": ("adadelta",), "lamb": ("lamb",),
    "novograd": ("novograd",), "lars": ("lars_momentum",), "adagrad": ("adagrad",), "adamax": ("adamax",),
    "adamaxw": ("adamax",), "nadam": ("nadam",), "nadamw": ("nadam",), "radam": ("radam",),
}
# The arguments of a routine that the function lacks.
WITHOUT = {
    ("adam", "adam"): CORRECTED.keys(), ("amsgrad", "adam"): PLAIN.keys(), ("adam", "nadam"): DECAY.keys(),
    ("nadam", "nadam"): DECAY.keys(), ("adamax", "adamax"): DECAY.keys(),
}
# Arguments whose values are those of a choice.
SWITCHED: Mapping[str, Mapping[bool, str]] = {"eps_in_sqrt": {True: "inside", False: "outside"}}
# Arguments that select tensors or dtypes and do not change the rule.
FREE = "mask", "weight_decay_mask", "trust_ratio_mask", "mu_dtype", "accumulator_dtype"
