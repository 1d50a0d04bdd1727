"""The rules of the optimizers: what each does to one element, as ``refopt.cpu`` has it line by line.

An optimizer that takes each element for itself has a `Rule`, one that needs norms of whole tensors a `NormRule`.

A routine's rule stands in the file of its name. A function of the same name makes it, of the arithmetic type, of the
names of all slots that are given, optional states among them, and of the routine's choices but ``rounding``. It is
looked up by the name of the catalogue's row, so there is no list to enter it in.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from refopt.catalog import ROUTINES, Routine
from refopt.gpu.target import device_function, sqrt

__all__ = [
    "RULES", "NormRule", "Rule", "decay_and_sign", "device_function", "larger", "moments", "next_powers", "rule_of",
    "sqrt",
]


@device_function
def numbers(h, s):
    """What a rule without anything to prepare takes."""
    return h


class Rule(NamedTuple):
    """Three device functions. Constants in them are of the arithmetic type: a bare 1 becomes a double on a GPU.

    ``rule(p, g, *states, k)`` takes one element to its new p and states, in the catalogue's order, as a tuple. g
    arrives rescaled. ``prepare(h, s)`` makes k, which all elements of a tensor have in common; without it k is h.
    ``advance(h, s)`` returns the scalars of the next step.

    h holds the routine's numbers in the catalogue's order, for the tensor in hand, and ends in rescale_grad, which
    g has been multiplied by already. s holds its scalars, such as the powers of beta.
    """

    rule: Callable
    prepare: Callable = numbers
    advance: Callable | None = None


class NormRule(NamedTuple):
    """What is an optimizer's own in the two launches of `refopt.gpu.norms`.

    In the first launch:
        reads: the slots that it reads. "params" is the exact parameter, so the master where there is one;
            "stored_params" the parameter as it is stored.
        normed: ``normed(*elements, k)`` is a tuple of the one or two numbers whose squares are summed over the tensor.
            The elements are those of ``reads``, in that order; k is h, followed by s.
        moments: ``moments(*elements, k)``, if there is one, is a tuple of the new elements of the states in ``reads``.
            ``normed`` then takes them as they are read again after they were stored.
    In the block that has the sums of a tensor:
        close: ``close(sums, k)`` is a tuple of what the second launch needs to know of the tensor, and the tensor's new
            scalars. Of one norm, ``sums[0]`` is its square.
        numbers: names for the former, which says how many there are.
    In the second launch:
        updates: the slots that it reads.
        rule: ``rule(*elements, k)`` is a tuple of the new parameter and of the new elements of those states that the
            first launch has not written. Here k is h, followed by the numbers.

    h and s are as in `Rule`, but for ``rescale_grad`` in h, which is multiplied by the factor of the step, if any.
    """

    reads: tuple[str, ...]
    normed: Callable
    close: Callable
    numbers: tuple[str, ...]
    updates: tuple[str, ...]
    rule: Callable
    moments: Callable | None = None


@device_function
def moments(g, m, u, betas):
    """The running averages of the gradient and of its square; ``betas`` has each beta and 1 - beta."""
    beta1, rest1, beta2, rest2 = betas
    return beta1 * m + rest1 * g, beta2 * u + rest2 * g * g


@device_function
def larger(x, y):
    """The larger of two numbers; y where one of them is NaN."""
    return x if x > y else y


@device_function
def next_powers(h, s):
    """The powers of beta1 and beta2, one step on; for numbers that begin with a rate and both betas."""
    return s[0] * h[1], s[1] * h[2]


def decay_and_sign(real: type, decay: str, maximize: bool) -> tuple[Callable, Callable]:
    """What `refopt.cpu.weight_decay` does before a rule, as two device functions.

    ``share(lr, weight_decay)``, for ``prepare``, is what all elements have in common, and ``prepared(p, g, share)`` the
    parameter and the gradient that the rule goes on from.
    """
    zero, one, decoupled = real(0), real(1), decay == "decoupled"

    @device_function
    def share(lr, weight_decay):
        return one - lr * weight_decay if decoupled else weight_decay

    # Without decay the factor of p is 1, and changes no bit; 0 * p added to g would, of -0 and where p is not finite.
    @device_function
    def decoupled_from(p, g, by):
        return p * by, -g if maximize else g

    @device_function
    def in_gradient(p, g, by):
        return p, (-g if maximize else g) + by * p if by != zero else (-g if maximize else g)

    return share, decoupled_from if decoupled else in_gradient


def rule_of(routine: Routine) -> Callable[..., Any]:
    """The function of a routine's name in the module of its name here, which makes its `Rule` or `NormRule`.

    Raises:
        TypeError: there is none; the text says what to write where.
    """
    name, missing = routine.name, "function"
    module = f"{__name__}.{name}"
    rule = None
    try:
        rule = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name != module:  # the module is there, and imports another that is not
            raise
        missing = "file"
    if not callable(rule):
        parameters = ", ".join(["real", "present", *(choice for choice in routine.choices if choice != "rounding")])
        kind = "Rule" if routine.elementwise else "NormRule"
        expected = f"expected a function {name}({parameters}) in refopt/gpu/rules/{name}.py, which returns its {kind}"
        raise TypeError(f"{routine.merged_name}: {expected}; got no such {missing}")
    return rule


RULES = {name: rule_of(routine) for name, routine in ROUTINES.items()}
