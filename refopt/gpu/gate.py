"""How a step uses the results of a gradient check without waiting on the host."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from refopt.gpu.target import device_function
from refopt.gpu.vectors import load_of


@lru_cache
def gate(real: Any, factor: str | None) -> tuple[Callable, Callable]:
    """Two device functions of an address, 0 for an array that is not given.

    ``found(found_at)`` is whether the step must change nothing; ``factor_of(factor_at)`` is the number by which to
    multiply every gradient, widened from its dtype ``factor``. ``None`` is for a kernel that never gets either, and
    needs no registers for them.
    """
    zero, one = real(0), real(1)
    if factor is None:
        return device_function(lambda found_at: False), device_function(lambda factor_at: one)
    load_found, load_factor = load_of("float32"), load_of(factor)

    @device_function
    def found(found_at):
        return found_at != 0 and load_found(found_at) != zero

    @device_function
    def factor_of(factor_at):
        if factor_at != 0:
            return real(load_factor(factor_at))
        return one

    return found, factor_of
