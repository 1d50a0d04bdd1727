"""From a number of steps to the scalars that a routine carries, and back (numerics, N9).

The power that is stored after n steps is the n + 1st running product of its base, each rounded to the arithmetic type.
The products only fall, so a power tells its step, until they fall no further: the last ones stay where they are.
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
    """The running products of a base, block by block, to where they stay."""
    product, factors = base.dtype.type(1), np.full(_BLOCK, base)
    while True:
        block = np.multiply.accumulate(np.concatenate([[product], factors]))[1:]
        yield block
        product = block[-1]
        if product * base == product:
            return


# Typed, since fp32 and fp64 numbers of one value are one key otherwise.
@lru_cache(typed=True)
def power_after(base: Any, steps: int) -> Any:
    """The power of a base that is stored after so many steps; ``base`` is a number of the arithmetic type."""
    for k, block in enumerate(_products(base)):
        if steps < (k + 1) * _BLOCK:
            return block[steps - k * _BLOCK]
    return block[-1]


@lru_cache(typed=True)
def steps_of(power: Any, base: Any) -> tuple[int, float] | None:
    """After how many steps a base has this power, at least and at most; None if it never has."""
    for k, block in enumerate(_products(base)):
        if (hits := np.flatnonzero(block == power)).size:
            steps = k * _BLOCK + int(hits[0])
            return steps, math.inf if power * base == power else steps
        if block[-1] < power:
            return None
    return None


@lru_cache(typed=True)
def rho_after(beta2: Any, steps: int) -> Any:
    """The rho of RAdam that is stored after so many steps."""
    powers = (power for block in _products(beta2) for power in block)
    rho, power = beta2.dtype.type(1), next(powers)
    for _ in range(steps):
        before, power = (rho, power), next(powers, power)
        rho = next_rho(rho, beta2, power)
        if (rho, power) == before:
            break
    return rho
