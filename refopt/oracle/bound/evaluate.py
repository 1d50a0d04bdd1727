"""The rules of `refopt.cpu` themselves, evaluated on numbers that carry their errors.

Nothing is derived a second time: `rebound` makes a copy of a rule that runs the same code, in which sums of squares,
whose order is not known, have the allowance of `bound.sums`. Roots, maxima and signs follow from how `Bounded`
numbers compare and choose.
"""

import functools
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks import flat
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu import reduce
from refopt.cpu.merged import exact
from refopt.cpu.muon import updates
from refopt.cpu.newton_schulz import by_gram
from refopt.cpu.normuon import row_updates
from refopt.oracle.bound import iterations
from refopt.oracle.bound.bounded import CURRENT, Arithmetic, Bounded, size
from refopt.oracle.bound.branches import every_way
from refopt.oracle.variants.muon import through_bf16


def _sum_of_squares(x: Any) -> Any:
    return x.sum_of_squares() if hasattr(x, "sum_of_squares") else reduce.sum_of_squares(x)


PRIMITIVES: dict[Any, Any] = {
    reduce.sum_of_squares: _sum_of_squares, updates: iterations.updates, row_updates: iterations.row_updates,
    by_gram: iterations.by_gram, through_bf16: lambda x: as_stored(x, numpy_dtype("bfloat16")),
}


def _names(code: CodeType) -> set[str]:
    """All names that a function and its inner functions look up."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def copied(function: Any, other: Callable[[Any], Any]) -> Any:
    """A function with the same code, with the globals that it looks up and its defaults replaced."""
    names = dict(function.__globals__)
    for name in _names(function.__code__) & names.keys():
        if names[name] is not function:
            names[name] = other(names[name])
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = {name: other(value) for name, value in (function.__kwdefaults__ or {}).items()}
    return copy


def is_ours(value: Any) -> bool:
    """Whether a value is a refopt function."""
    return isinstance(value, FunctionType) and value.__module__.partition(".")[0] == "refopt"


@functools.cache
def rebound(function: Any) -> Any:
    """A function that runs the same code over bounded numbers, as do the functions that it calls."""
    if isinstance(function, functools.partial):
        keywords = {name: _replaced(value) for name, value in function.keywords.items()}
        own = PRIMITIVES.get(function.func) or rebound(function.func)
        return functools.partial(own, *function.args, **keywords)
    return copied(function, _replaced)


def _replaced(value: Any) -> Any:
    """The replacement of a rule's global or default: refopt functions run over bounded numbers, the rest is unchanged.
    """
    if isinstance(value, functools.partial):
        return rebound(value)
    if isinstance(value, FunctionType) and value in PRIMITIVES:
        return PRIMITIVES[value]
    return rebound(value) if is_ours(value) else value


def as_stored(x: Any, dtype: np.dtype) -> Any:
    """The value read back from a slot with fewer bits; the bound, if x has one, also covers code that uses x itself."""
    if not isinstance(x, Bounded) or np.dtype(dtype) == x.dtype:
        return x
    digits, least = iterations.BITS[np.dtype(dtype).name]
    reach = size(x.value) + x.error
    error = x.error + 2.0**-digits * reach + 2.0 ** (least - 1) * (reach > 0)
    return Bounded(x.value, error, x.arithmetic).signed_as(x)


def rounded_off(numbers: Mapping[str, Any], real: Any) -> list[str]:
    """The names of a step's numbers that the arithmetic has to round."""
    return [name for name, x in numbers.items() if name != "seed" and float(real(x)) != float(x)]


def evaluate(
    routine: Routine, arrays: Mapping[str, Any], numbers: Mapping[str, float], choices: Mapping[str, Any],
    arithmetic: Arithmetic, *, scalars: Mapping[str, Bounded] | None = None, after: Mapping[str, Any] | None = None,
    rule: Callable[..., tuple] | None = None,
) -> dict[str, Bounded]:
    """The results of one step for one tensor, before they are stored.

    Args:
        routine: a row of the catalogue.
        arrays: an array or ``None`` for each slot, dense, of any shape.
        numbers: the routine's numbers, one each, and ``grad_factor`` if there is one; they are rounded as in N2.
        choices: the named choices.
        arithmetic: fp32 or fp64, and its roundings per operation.
        scalars: values that replace those in the slots of scalars.
        after: the states after the step, where they are known, for rules that read them again.
        rule: a rule that replaces that of `refopt.cpu`.

    Returns:
        The flat numbers of each written slot: "params" (the exact ones, if there is a master), states, and scalars.
    """
    given, named = inputs_of(routine, arrays, numbers, choices, arithmetic, scalars, after)
    run = rebound(rule or routine.rule)
    token = CURRENT.set(arithmetic)
    try:
        with np.errstate(all="ignore"):
            ways = every_way(lambda: run(*given, **named))
    finally:
        CURRENT.reset(token)
    with np.errstate(all="ignore"):
        united = [None if x[0] is None else x[0].covering(*x[1:]) for x in zip(*ways, strict=True)]
    return {name: x for name, x in zip(("params", *routine.carried), united, strict=True) if x is not None}


def inputs_of(
    routine: Routine, arrays: Mapping[str, Any], numbers: Mapping[str, float], choices: Mapping[str, Any],
    arithmetic: Any, scalars: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """What a rule takes by position and by name, from the arguments of `evaluate`, as numbers of the arithmetic."""
    real, lift = arithmetic.real, arithmetic.exact
    held: dict[str, Any] = {name: None if x is None else flat(x) for name, x in arrays.items()}
    choices, own = routine.parted(choices)
    values = _values(routine, numbers, choices, arithmetic)
    g = lift(held["grads"].astype(real))
    both = {name: values.pop(name) for name in ("rescale_grad", "grad_factor") if name in values}
    if factors := [x for name, x in both.items() if real(numbers[name]) != 1]:
        g = functools.reduce(lambda x, y: x * y, factors) * g
    p = lift(exact(held["params"], held.get("master_params"), real))

    def read(name: str) -> Any:
        if scalars and name in scalars:
            return scalars[name]
        x = held.get(name)
        return None if x is None else lift(x.reshape(-1)[0] if name in routine.scalars else x.astype(real))

    if routine.matrix_arguments:
        lists = {name: [x] for name, x in arrays.items()}
        values |= routine.matrix_arguments(routine, lists, {**numbers, **choices}, **own)[0]
    if not routine.elementwise:  # the rule reads again what it has stored
        states = {name: x for name, x in (after or {}).items() if name in routine.states and x is not None}
        again = {name: lift(flat(x).astype(real)) for name, x in (states | {"params": held["params"]}).items()}  # type: ignore[union-attr]
        values["stored"] = lambda name, x: again[name] if name in again else as_stored(x, held[name].dtype)
    return [p, g, *map(read, routine.carried)], values


def _values(
    routine: Routine, numbers: Mapping[str, float], choices: Mapping[str, Any], arithmetic: Any
) -> dict[str, Any]:
    """The numbers in the arithmetic, and the choices."""
    counts = [hyper.name for hyper in routine.hypers if hyper.whole]
    values: dict[str, Any] = {name: arithmetic.number(x) for name, x in numbers.items() if name not in counts}
    values |= {name: numbers[name] for name in counts if name != "seed"}
    values |= {name: value for name, value in choices.items() if name != "rounding"}
    for hyper in routine.hypers:
        averages = hyper.below == 1 or (hyper.name == "mu" and choices.get("average"))
        if arithmetic.regroups and averages and hyper.name in values:
            values[hyper.name].terms = 1.0  # the weight of an average, which may be 1 - (1 - b)
    return values
