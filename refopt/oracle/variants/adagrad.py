"""Adagrad: epsilon in the root, a rate that falls, sums that start above 0.

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
from refopt.oracle.variants.variant import STEP_NUMBER, Variants, advanced, after_options, extended


def epsilon_in_the_root(p, g, s, *, lr, epsilon):
    s = s + g * g
    return p - lr * g / np.sqrt(s + epsilon), s


def rule(p, g, s, step_number, *, lr, lr_decay, epsilon_at, initial_accumulator, **numbers):
    if lr_decay != 0:
        lr = lr / (1 + (step_number - 1) * lr_decay)
    if epsilon_at == "inside":
        return *after_options(epsilon_in_the_root, p, g, s, lr=lr, **numbers), advanced(step_number)
    return *adagrad_rule(p, g, s, lr=lr, **numbers), advanced(step_number)


ADAGRAD = Variants(
    extended(
        catalog.ADAGRAD, hypers=[Hyper("lr_decay", 0.0), Hyper("initial_accumulator", 0.0)],
        choices={"epsilon_at": ("outside", "inside")}, slots=[STEP_NUMBER],
    ),
    rule,
    {
        "epsilon_at=inside": "epsilon inside the root, as in optax's Adagrad",
        "epsilon_at=outside": "epsilon outside the root, as in PyTorch's Adagrad",
    },
    counted=("lr_decay",), initial={"moment": "initial_accumulator"},
)
