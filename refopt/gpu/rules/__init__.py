"""The rules of the optimizers: what each does to one element, with the same results as ``refopt.cpu``.

An elementwise optimizer has a `Rule`, one that needs norms of whole tensors a `NormRule`.

Each routine's rule is in the file of its name. A function of the same name makes it, from the arithmetic type, the
names of all slots that are given, including optional states, and the routine's choices except ``rounding``. `rule_of`
looks it up by the routine's name in the catalogue, so there is no list to add it to.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from refopt.catalog import ROUTINES, Routine
from refopt.gpu.instructions import sqrt
from refopt.gpu.target import device_function

__all__ = [
    "RULES", "NormRule", "Rule", "decay_and_sign", "device_function", "larger", "moments", "next_powers", "rule_of",
    "sqrt",
]


@device_function
def numbers(h, s):
    """The default of ``prepare``: the numbers unchanged."""
    return h


class Rule(NamedTuple):
    """Three device functions. Their constants must have the arithmetic type: a bare 1 becomes a double on a GPU.

    ``rule(p, g, *states, k)`` returns the new p and states of one element, in the catalogue's order, as a tuple. g
    is already rescaled. ``prepare(h, s)`` returns k, which all elements of a tensor share; by default k is h.
    ``advance(h, s)`` returns the scalars of the next step.

    h has the routine's numbers for one tensor, in the catalogue's order, and ends with rescale_grad, by which g has
    already been multiplied. s has the tensor's scalars, such as the powers of beta.
    """

    rule: Callable
    prepare: Callable = numbers
    advance: Callable | None = None


class NormRule(NamedTuple):
    """The parts of the two launches of `refopt.gpu.norms` that depend on the optimizer.

    In the first launch:
        reads: the slots that it reads. "params" is the exact parameter, so the master if there is one;
            "stored_params" the parameter as it is stored.
        normed: ``normed(*elements, k)`` returns a tuple of the one or two numbers whose squares are summed over the
            tensor. The elements are those of ``reads``, in that order; k is h, followed by s.
        moments: ``moments(*elements, k)``, if given, returns a tuple of the new elements of the states in ``reads``.
            ``normed`` then takes them as stored, so rounded to their dtypes.
    In the block that has the sums of a tensor:
        close: ``close(sums, k)`` returns a tuple of the tensor's numbers for the second launch, followed by its new
            scalars. If there is one norm, ``sums[0]`` is its square.
        numbers: the names of these numbers, and so how many there are.
    In the second launch:
        updates: the slots that it reads.
        rule: ``rule(*elements, k)`` returns a tuple of the new parameter and the new elements of the states that the
            first launch has not written. Here k is h, followed by the numbers.

    h and s are as in `Rule`, except that ``rescale_grad`` in h is multiplied by the factor of the step, if any.
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
    """The larger of two numbers; y if either is NaN."""
    return x if x > y else y


@device_function
def next_powers(h, s):
    """The next step's powers of beta1 and beta2, for rules whose numbers begin with lr, beta1 and beta2."""
    return s[0] * h[1], s[1] * h[2]


def decay_and_sign(real: type, decay: str, maximize: bool) -> tuple[Callable, Callable]:
    """What `refopt.cpu.weight_decay` does before a rule, as two device functions.

    ``share(lr, weight_decay)``, for ``prepare``, is the number that all elements share; ``prepared(p, g, share)`` are
    the parameter and the gradient that the rule starts from.
    """
    zero, one, decoupled = real(0), real(1), decay == "decoupled"

    @device_function
    def share(lr, weight_decay):
        return one - lr * weight_decay if decoupled else weight_decay

    # Without decay the factor of p is 1, which changes no bit; adding 0 * p to g would if g is -0 or p is not finite.
    @device_function
    def decoupled_from(p, g, by):
        return p * by, -g if maximize else g

    @device_function
    def in_gradient(p, g, by):
        return p, (-g if maximize else g) + by * p if by != zero else (-g if maximize else g)

    return share, decoupled_from if decoupled else in_gradient


def rule_of(routine: Routine) -> Callable[..., Any]:
    """The function that makes a routine's `Rule` or `NormRule`, in the module of the routine's name.

    Raises:
        TypeError: there is no such function; the message says which one to write in which file.
    """
    name, missing = routine.name, "function"
    module = f"{__name__}.{name}"
    rule = None
    try:
        rule = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name != module:  # the module exists, but imports one that does not
            raise
        missing = "file"
    if not callable(rule):
        parameters = ", ".join(["real", "present", *(choice for choice in routine.choices if choice != "rounding")])
        kind = "Rule" if routine.elementwise else "NormRule"
        expected = f"expected a function {name}({parameters}) in refopt/gpu/rules/{name}.py, which returns its {kind}"
        raise TypeError(f"{routine.merged_name}: {expected}; got no such {missing}")
    return rule


RULES = {name: rule_of(routine) for name, routine in ROUTINES.items()}
