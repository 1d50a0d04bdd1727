"""What trials are made of: tensors, numbers, and what slots hold before the first step."""

import functools
from typing import Any

import numpy as np

from evidence.cells import DECAYS, GRAD_FACTOR, NO_DECAY, RESCALE_GRAD, STOCHASTIC
from refopt.catalog import Hyper
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.bound import storage

# More than a tile, a tail, no dimension, no element, two dimensions.
SHAPES = [(5, 205), (300,), (), (0,), (3,), (2, 2), (6,)]
EVERY = range(len(SHAPES))
UNDECAYED, ZERO_PARAM, ZERO_GRADS, STILL = 2, 4, 5, 6  # tensors with decay 0, of zeros, with zero gradients, with lr 0
# No powers of two, and large enough to show. Numbers of tensors change from tensor to tensor and from step to step.
NUMBERS = {"lr": 0.113, "mu": 0.83, "l2_decay": 0.61, "beta1": 0.87, "beta2": 0.931, "epsilon": 0.013, "coeff": 0.29,
           "lr_ratio": 0.71, "rho": 0.913, "lars_coeff": 0.47, "lars_weight_decay": 0.53, "weight_decay": 0.57,
           "decay_base": 0.83, "dampening": 0.31}
# What scalars are before the first step: a number of the routine, or a constant.
FIRST: dict[str, Any] = {"beta1_pow": "beta1", "beta2_pow": "beta2", "momentum_decay_pow": "decay_base",
                         "mu_product": 1, "rho": 1, "second_moment": 0}


@functools.cache
def noise(t: int, tensor: int, dtype: str, seed: int = 0) -> np.ndarray:
    """A parameter, of step 0, or a gradient: of random signs and of sizes near 1.

    Some gradients are small: their squares are subnormal in fp16.
    """
    rng, shape = np.random.default_rng([t, tensor, seed]), SHAPES[tensor]
    x = np.asarray(rng.choice([-1, 1], shape) * rng.uniform(0.5, 1.5, shape))
    if t and tensor < 2:
        x.reshape(-1)[7:17] *= 2.0**-8
    return x.astype(numpy_dtype(dtype))


def parameters(dtype: str, master: str | None, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """Parameters, and what holds the exact ones beside them; remainders are of ties, but in the first tensor."""
    exact = [noise(0, i, "float32" if master else dtype, seed).copy() for i in EVERY]
    if master == "uint16":
        exact[1:] = [storage.from_words(storage.words(x) & 0xFFFF0000 | 0x8000) for x in exact[1:]]
    exact[ZERO_PARAM][...] = 0
    if master == "uint16":
        halves = [storage.split(x, master) for x in exact]
        return [param for param, _ in halves], [remainder for _, remainder in halves]
    return [x.astype(numpy_dtype(dtype)) for x in exact], exact if master else None


def gradients(t: int, dtypes: list[str], seed: int = 0) -> list[np.ndarray]:
    """Those of a step, in some dtypes by turns."""
    grads = [noise(t, i, dtypes[i % len(dtypes)], seed).copy() for i in EVERY]
    grads[ZERO_GRADS][...] = 0
    return grads


def number(hyper: Hyper, feature: str, t: int) -> Any:
    """A number of a step: one for all tensors or one for each; None for what is not given."""
    if hyper.name == "seed":
        return [1000 * t + i for i in EVERY] if feature == STOCHASTIC else None
    if hyper.name == "rescale_grad":
        return 0.37 + 0.1 * t if feature in (RESCALE_GRAD, GRAD_FACTOR) else None
    usual = hyper.usual(NUMBERS)
    if not hyper.per_tensor or hyper.name in FIRST.values():  # whose powers the formulas take
        return usual
    if hyper.name in DECAYS and feature == NO_DECAY:
        return 0.0
    values = [usual if hyper.whole else hyper.times(usual, 1 + 0.07 * i - 0.03 * t) for i in EVERY]
    values = [x if hyper.allows(x) else usual for x in values]
    for name, tensor in (("lr", STILL), *((decay, UNDECAYED) for decay in DECAYS)):
        if name == hyper.name:
            values[tensor] = 0.0
    return values
