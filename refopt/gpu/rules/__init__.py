"""The rules of the elementwise optimizers, as their kernels evaluate them: ``refopt.cpu`` line by line.

A function of the arithmetic type, the routine's choices and the optional states that are there makes the
`Rule` of each.
"""

from collections.abc import Callable
from typing import NamedTuple


class Rule(NamedTuple):
    """Three device functions.

    ``rule(p, g, *states, k)`` takes one element to its new p and states. ``prepare(h, s)`` makes k, what all
    elements of a tensor have in common, from the tensor's hyperparameters and scalars, each in the
    catalogue's order; without it k is h. ``advance(h, s)`` gives the scalars of the next step.
    """

    rule: Callable
    prepare: Callable | None = None
    advance: Callable | None = None
