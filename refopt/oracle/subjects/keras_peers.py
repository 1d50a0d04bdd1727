"""Keras's names for the numbers of each routine, and the numbers and choices that its optimizers fix."""

from refopt.state.peers import Peer

LR = {"lr": "learning_rate"}
L2 = {"l2_decay": "weight_decay"}
DECAY = {"weight_decay": "weight_decay"}
BETAS = LR | {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"}
COEFF = {"coeff": "weight_decay"}
UNCORRECTED = {"epsilon_at": "uncorrected"}
PEERS = {
    "sgd": Peer({}, LR | L2),
    "momentum": Peer({}, LR | L2 | {"mu": "momentum", "use_nesterov": "nesterov"}),
    "adam": Peer({}, BETAS | DECAY, choices=UNCORRECTED),
    "adamw": Peer({}, BETAS | COEFF, choices=UNCORRECTED),
    "adagrad": Peer(
        {}, LR | DECAY | {"epsilon": "epsilon", "initial_accumulator": "initial_accumulator_value"},
        choices={"epsilon_at": "inside"},
    ),
    "rmsprop": Peer(
        {}, LR | DECAY | {"rho": "rho", "mu": "momentum", "epsilon": "epsilon"},
        choices={"epsilon_at": "inside"},
    ),
    "adadelta": Peer({}, LR | DECAY | {"rho": "rho", "epsilon": "epsilon"}),
    "adamax": Peer({}, BETAS | DECAY),
    "nadam": Peer({}, BETAS | DECAY, choices={"decay_base": 0.96}),
    "lamb": Peer({}, BETAS | DECAY, choices={"always_adapt": True}),
    "lion": Peer({}, LR | {"beta1": "beta_1", "beta2": "beta_2"} | COEFF),
}
OTHER = Peer({}, BETAS | DECAY)  # for routines that Keras lacks
