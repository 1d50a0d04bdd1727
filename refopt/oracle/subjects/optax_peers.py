"""The optax function for each routine, with its variants, and the names of its states and numbers there.

``states`` of a `Peer` are fields of a state, ``numbers`` arguments of a function, or choices that it leaves to its
caller; ``choices`` hold unless an argument changes them.
"""

from collections.abc import Mapping

from refopt.state.peers import Peer

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
        MOMENTS | {"moment2_max": "nu_max"}, BETAS | ROOT, PLAIN | CORRECTED,
        choices={"epsilon_at": "corrected", "max_of": "corrected"},
    ),
    "adamw": Peer(MOMENTS, BETAS | ROOT | {"coeff": "weight_decay"}, PLAIN, choices={"epsilon_at": "corrected"}),
    "lion": Peer({"moment": "mu"}, LR | {"beta1": "b1", "beta2": "b2", "coeff": "weight_decay"}),
    "rmsprop": Peer(
        {"mean_square": "nu", "velocity": "trace", "mean_grad": "mu"},
        LR | {"rho": "decay", "mu": "momentum", "epsilon": "eps", "epsilon_at": "eps_in_sqrt"},
        PLAIN | {"initial_scale": 0.0, "bias_correction": False}, {"mean_grad": "centered"}, {"epsilon_at": "inside"},
    ),
    "adadelta": Peer(
        {"avg_squared_grad": "e_g", "avg_squared_update": "e_x"},
        LR | DECAY | {"rho": "rho", "epsilon": "eps"}, choices={"decay": "l2"},
    ),
    "lamb": Peer(MOMENTS, BETAS | DECAY, {"eps_root": 0.0}, choices={"always_adapt": True}),
    "novograd": Peer(
        {"moment": "mu", "second_moment": "nu"}, BETAS | DECAY, {"eps_root": 0.0},
        choices={"grad_averaging": False, "first_norm": "by_number"},
    ),
    "lars_momentum": Peer(
        {"velocities": "trace"},
        LR | {"mu": "momentum", "lars_coeff": "trust_coefficient", "lars_weight_decay": "weight_decay",
              "epsilon": "eps"},
        PLAIN, choices={"adapt": "norms", "grad_norm": "decayed"},
    ),
    "adagrad": Peer(
        {"moment": "sum_of_squares"}, LR | {"epsilon": "eps", "initial_accumulator": "initial_accumulator_value"},
        choices={"epsilon_at": "inside"},
    ),
    "adamax": Peer(
        {"moment": "mu", "inf_norm": "nu"}, BETAS | DECAY, choices={"epsilon_at": "gradient", "decay": "decoupled"}
    ),
    # Without a schedule.
    "nadam": Peer(
        MOMENTS, BETAS | DECAY, {"nesterov": True, "eps_root": 0.0}, choices={"decay_base": 0.0, "decay": "decoupled"}
    ),
    "muon": Peer(
        {"velocities": "mu"},
        LR | DECAY | {"mu": "beta", "epsilon": "eps", "iterations": "ns_steps", "use_nesterov": "nesterov"},
        {"adaptive": False, "preconditioning": "frobenius", "consistent_rms": None},
        choices={"lookahead": "corrected", "outputs": "columns", "epsilon_is": "added", "compute": "float32"},
    ),
    "radam": Peer(MOMENTS, BETAS | ROOT | {"threshold": "threshold"}, PLAIN, choices={"epsilon_at": "corrected"}),
}
# States with the opposite sign there, since optax adds updates, by routine.
NEGATIVE = {"rmsprop": "velocity", "lars_momentum": "velocities"}
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
