"""Conversion between step counts and a routine's scalars (numerics, N9).

The power stored after n steps is the n + 1st running product of its base, each rounded to the arithmetic type. The
products decrease, so a power determines its step, until they reach a minimum and stay constant.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from refopt.catalog import ROUTINES
from refopt.cpu.radam import next_rho

BASES = {
    slot.name: slot.initial
    for routine in ROUTINES.values() for slot in routine.slots if isinstance(slot.initial, str)
}
_BLOCK = 1 << 14


def _products(base: Any) -> Iterator[np.ndarray]:
    """The running products of a base, block by block, until they are constant."""
    product, factors = base.dtype.type(1), np.full(_BLOCK, base)
    while True:
        block = np.multiply.accumulate(np.concatenate([[product], factors]))[1:]
        yield block
        product = block[-1]
        if product * base == product:
            return


# Typed, since otherwise equal fp32 and fp64 numbers would share a cache key.
@lru_cache(typed=True)
def power_after(base: Any, steps: int) -> Any:
    """The power of a base stored after a number of steps; ``base`` has the arithmetic type."""
    for k, block in enumerate(_products(base)):
        if steps < (k + 1) * _BLOCK:
            return block[steps - k * _BLOCK]
    return block[-1]


@lru_cache(typed=True)
def steps_of(power: Any, base: Any) -> tuple[int, float] | None:
    """The smallest and largest step count at which a base has this power; None if there is none."""
    for k, block in enumerate(_products(base)):
        if (hits := np.flatnonzero(block == power)).size:
            steps = k * _BLOCK + int(hits[0])
            return steps, math.inf if power * base == power else steps
        if block[-1] < power:
            return None
    return None


@lru_cache(typed=True)
def rho_after(beta2: Any, steps: int) -> Any:
    """RAdam's rho stored after a number of steps."""
    powers = (power for block in _products(beta2) for power in block)
    rho, power = beta2.dtype.type(1), next(powers)
    for _ in range(steps):
        before, power = (rho, power), next(powers, power)
        rho = next_rho(rho, beta2, power)
        if (rho, power) == before:
            break
    return rho
