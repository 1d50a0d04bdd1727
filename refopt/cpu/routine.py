"""How a file of this package declares its optimizer: the entry in `refopt.catalog` is read from its signature."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from refopt.checks.dtypes import REMAINDERS
from refopt.checks.rows import FRACTION, Form, Hyper, Limit, Routine, Slot
from refopt.cpu.arguments import documented

# The arguments of all routines, described in refopt/cpu/arguments.py, and the limits of their numbers.
PARAMS, GRADS = Slot("params"), Slot("grads", written=False)
MASTERS = Slot("master_params", optional=True)
SHARED = "grad_factor", "found_inf"
UNSET = frozenset({"restarts"})  # of arguments that are None by default, those that are neither lists nor shared
LIMITS = {
    **dict.fromkeys(("beta1", "beta2", "rho"), FRACTION),
    "rescale_grad": Limit(positive=True, per_tensor=False),
    "seed": Limit(below=2.0**24, whole=True),  # exact in every arithmetic type
}
ROUNDING = {"rounding": ("nearest", "stochastic")}
# The names of lists in functions of one tensor, if they differ.
SINGULAR = {"params": "param", "grads": "grad", "velocities": "velocity", "master_params": "master_param"}
NONE: Mapping[str, Any] = MappingProxyType({})


def scalars(**initial: float | str) -> tuple[Slot, ...]:
    """Slots of scalars that pass from step to step, none below 0, each with its initial value, as in `Slot`."""
    return tuple(Slot(name, scalar=True, signed=False, initial=first) for name, first in initial.items())


# The states of Adam and its variants: averages of the gradient and of its square, and the running powers of beta.
MOMENTS = Slot("moment1"), Slot("moment2", signed=False)
POWERS = scalars(beta1_pow="beta1", beta2_pow="beta2")


def routine(
    function: Callable[..., None], rule: Callable[..., tuple], *, source: str, states: Iterable[Slot] = (),
    limits: Mapping[str, Limit] = NONE, choices: Mapping[str, tuple] = NONE, launches: int = 1,
    passes: Mapping[str, int] | Callable[..., dict[str, int]] = NONE, forms: Mapping[str, Form] = NONE,
    trial: Mapping[str, float] = NONE, norms: int = 0,
    matrix_arguments: Callable[..., list[dict[str, Any]]] | None = None,
) -> Routine:
    """The row of a merged function; also completes the function's docstring with the shared arguments.

    Numbers and defaults are the signature's. An argument that is True or False by default is a choice; one that is a
    tuple by default, or is in `UNSET`, is specific to the function.

    Args:
        function: ``merged_NAME``: takes the shared arguments, and its own states, numbers and choices.
        rule: the update of one tensor, as described in `refopt.cpu.merged`.
        source: of the formula.
        states: a slot for each state and scalar, in the order of the signature; optional ones are given by keyword.
        limits: of its own numbers, unless they are just at least 0.
        choices: the values of each choice that is a word, the default first.
        launches: of a step on the device: 1 for elementwise routines.
        passes: how often a step reads or writes a slot, unless it is once for gradients and twice for all others; or
            a function of form, dtypes and choices.
        forms: the forms on the device, if there are others than by tensor and merged.
        trial: numbers for ``refopt verify``, if its usual ones would leave little of a gradient.
        norms, matrix_arguments: as in the row.

    Raises:
        TypeError: signature, docstring and row do not match.
    """
    where, parameters = f"{function.__module__}: {function.__name__}", inspect.signature(function).parameters
    slots = (PARAMS, GRADS, *states, MASTERS)
    _check_slots(where, parameters, slots)
    defaults = {x.name: x.default for x in parameters.values() if x.kind is x.KEYWORD_ONLY}
    own = {name: x for name, x in defaults.items() if x is not None}
    values = _values(where, own, choices)
    numbers = {name: x for name, x in own.items() if name not in values and not isinstance(x, tuple)}
    _expect(where, "limits", [name for name in limits if name not in numbers], [])
    usual = {"separate": Form(launches, merged=False), "merged": Form(launches)}
    each = {slot.name: 2 for slot in slots if slot.like_param} | {"grads": 1}
    row = Routine(
        name=function.__name__.removeprefix("merged_"),
        slots=slots,
        hypers=tuple(_hyper(name, default, LIMITS | dict(limits)) for name, default in numbers.items()),
        choices=values,
        forms=forms or usual,
        traffic=passes if callable(passes) else partial(_passes, each | dict(passes)),
        source=source,
        rule=rule,
        trial=trial,
        elementwise=launches == 1 and not forms,
        norms=norms,
        own={name: x for name, x in defaults.items() if isinstance(x, tuple) or name in UNSET},
        matrix_arguments=matrix_arguments,
    )
    function.__doc__ = documented(where, function.__doc__, list(parameters), source)
    return row


def _check_slots(where: str, parameters: Mapping[str, inspect.Parameter], slots: tuple[Slot, ...]) -> None:
    """Refuse a signature whose arrays differ from the row's."""
    by_position = [x.name for x in parameters.values() if x.kind is x.POSITIONAL_OR_KEYWORD]
    absent = [x.name for x in parameters.values() if x.default is None and x.name not in UNSET]
    _expect(where, "arguments by position", by_position, [slot.name for slot in slots if not slot.optional])
    _expect(where, "arguments that are None by default", absent, [*(x.name for x in slots if x.optional), *SHARED])


def _values(where: str, own: dict[str, Any], choices: Mapping[str, tuple]) -> dict[str, tuple]:
    """The values of each choice, the default first."""
    words = {name: ROUNDING.get(name) or choices.get(name, ()) for name, x in own.items() if isinstance(x, str)}
    _expect(where, "words by default", [name for name in words if name not in ROUNDING], [*choices])
    for name, values in words.items():
        _expect(where, f"{name}: default", [own[name]], [*values[:1]])
    flags = {name: (x, not x) for name, x in own.items() if isinstance(x, bool)}
    return {name: (words | flags)[name] for name in own if name in words or name in flags}


def _hyper(name: str, default: Any, limits: Mapping[str, Limit]) -> Hyper:
    return Hyper(name, None if default is inspect.Parameter.empty else float(default), *limits.get(name, ()))


def single(function: Callable[..., None], **defaults: Any) -> Callable[..., None]:
    """The function of one tensor: it calls a merged one with lists of one; some defaults may differ."""
    signature, name = inspect.signature(function), function.__name__.removeprefix("merged_")
    lists = [x for x, about in signature.parameters.items() if x not in SHARED and x not in UNSET
             and (about.default is None or about.kind is about.POSITIONAL_OR_KEYWORD)]
    plural = {SINGULAR.get(x, x): x for x in signature.parameters}
    one = [about.replace(name=x, default=defaults.get(plural[x], about.default))
           for x, about in zip(plural, signature.parameters.values(), strict=True)]

    entry = re.compile(rf"\b({'|'.join(lists)})\[0\]")

    def step(*args: Any, **named: Any) -> None:
        arguments = {plural[x]: value for x, value in bind(name, signature_of_one, args, named).items()}
        try:
            function(**defaults | arguments | {x: [arguments[x]] for x in lists if arguments.get(x) is not None})
        except (TypeError, ValueError) as error:  # of the merged function, about lists of one
            text = str(error).removeprefix("merged_")
            raise type(error)(entry.sub(lambda found: SINGULAR.get(found[1], found[1]), text)) from None

    step.__signature__ = signature_of_one = signature.replace(parameters=one)  # type: ignore[attr-defined]
    step.__name__ = step.__qualname__ = name
    step.__module__ = function.__module__
    step.__doc__ = f"One tensor: `{function.__name__}` of lists of one, with single arrays and numbers."
    return step


def bind(name: str, signature: inspect.Signature, args: tuple, named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name; raises TypeError like Python, but with the names that are known."""
    for unknown in named.keys() - signature.parameters:
        raise TypeError(f"{name}: {unknown}: expected one of {', '.join(signature.parameters)}")
    try:
        return signature.bind(*args, **named).arguments
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def _passes(passes: dict[str, int], form: Form, dtypes: tuple, **_: Any) -> dict[str, int]:
    """Reads and writes of each slot; a parameter that has a master is only written, one with a remainder is read."""
    exact = passes["params"]
    return passes | {"params": 1 if dtypes[-1] not in (None, *REMAINDERS) else exact, "master_params": exact}


def _expect(where: str, what: str, got: list, expected: list) -> None:
    if got != expected:
        shown = [", ".join(map(str, names)) or "none" for names in (expected, got)]
        raise TypeError(f"{where}: {what}: expected {shown[0]}, got {shown[1]}")
