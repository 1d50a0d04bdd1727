"""Adagrad: epsilon in the root, a rate that falls, sums that start above 0, weight decay.

::

    lr' = lr / (1 + (step_number - 1) * lr_decay)       step_number is the number of the step, from 1: PyTorch
    p   = p - lr' * g' / sqrt(s + epsilon)        epsilon_at="inside": optax
    p   = p - lr' * g' / (sqrt(s) + epsilon)      epsilon_at="outside": refopt, PyTorch

Before the first step s is ``initial_accumulator``; in optax that is 0.1 by default.
"""

import numpy as np

from refopt import catalog
from refopt.checks.rows import Hyper
from refopt.cpu.adagrad import rule as adagrad_rule
from refopt.oracle.variants.variant import (
    DECAY,
    MAXIMIZE,
    OF_DECAY,
    STEP_NUMBER,
    WEIGHT_DECAY,
    Variants,
    advanced,
    extended,
    prepared,
)


def epsilon_in_the_root(p, g, s, *, lr, epsilon):
    s = s + g * g
    return p - lr * g / np.sqrt(s + epsilon), s


def rule(
    p, g, s, step_number, *, lr, epsilon, lr_decay, epsilon_at, initial_accumulator, weight_decay, decay, maximize
):
    if lr_decay != 0:
        lr = lr / (1 + (step_number - 1) * lr_decay)
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    if epsilon_at == "inside":
        return *epsilon_in_the_root(p, g, s, lr=lr, epsilon=epsilon), advanced(step_number)
    return *adagrad_rule(p, g, s, lr=lr, epsilon=epsilon), advanced(step_number)


ADAGRAD = Variants(
    extended(
        catalog.ADAGRAD, hypers=[Hyper("lr_decay", 0.0), Hyper("initial_accumulator", 0.0), WEIGHT_DECAY],
        choices={"epsilon_at": ("outside", "inside")} | DECAY | MAXIMIZE, slots=[STEP_NUMBER],
    ),
    rule,
    OF_DECAY | {
        "epsilon_at=inside": "epsilon inside the root, as optax's Adagrad has it",
        "epsilon_at=outside": "epsilon outside the root, as PyTorch's Adagrad has it",
    },
    matters={"decay": "weight_decay"}, counted=("lr_decay",), initial={"moment": "initial_accumulator"},
)  # fmt: skip
