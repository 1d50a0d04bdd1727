"""What classes and functions are called, and what they take by name."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from refopt.checks.arguments import kind_of
from refopt.oracle.subject import Wrong


def accepted(cls: type, first: int = 2) -> dict[str, Any]:
    """What the constructor of a class takes, and those above it where it passes it on: defaults by name.

    It is read from its argument of number ``first`` on: behind ``self`` and the parameters.
    """
    defaults: dict[str, Any] = {}
    for one in cls.__mro__:
        if "__init__" not in vars(one):
            continue
        parameters = list(inspect.signature(vars(one)["__init__"]).parameters.values())[first:]
        named = (p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
        defaults = {p.name: p.default for p in named} | defaults
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return defaults


def names_of(make: Callable[..., Any], first: int = 2) -> dict[str, Any]:
    """What a class, or a function, takes by name from that argument on, counted as of a method: defaults."""
    if isinstance(make, type):
        return accepted(make, first)
    parameters = list(inspect.signature(make).parameters.values())[first - 1 :]
    return {x.name: x.default for x in parameters if x.kind != x.VAR_KEYWORD}


def makes(
    base: type, function: Callable[..., Any], given: Sequence[Any], rate: Mapping[str, Any], options: Mapping[str, Any]
) -> bool:
    """Whether a function returns an optimizer of what is given, with a learning rate if it takes one, and options."""
    try:
        known = names_of(function, len(given) + 1)
        named = {name: x for name, x in rate.items() if name in known} | dict(options)
        inspect.signature(function).bind(*given, **named)
        return isinstance(function(*given, **named), base)
    except Exception:  # whatever somebody's function raises: it is a step, or its fault shows there
        return False


@contextlib.contextmanager
def refusing(name: str, expected: str = "an optimizer") -> Iterator[None]:
    """Whatever somebody's function raises where it is to make an optimizer is a TypeError that names it.

    Numbers that the optimizer does not take are a ValueError.
    """
    try:
        yield
    except Exception as error:
        kind = ValueError if isinstance(error, NotImplementedError) else TypeError
        own = isinstance(error, Wrong | NotImplementedError)
        what = str(error) if own else f"expected {expected}, got {kind_of(error)}: {error}"
        raise kind(f"check: {name}: {what}") from error


def public_name(thing: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """The shortest name by which a package has it, and the options, as one would write them."""
    function = getattr(thing, "func", thing)  # of a partial
    path = (getattr(function, "__module__", None) or "").split(".")
    name = getattr(thing, "__qualname__", kind_of(thing))
    for k in range(1, len(path) + 1):
        own = vars(sys.modules.get(".".join(path[:k]), sys))
        alias = name if own.get(name) is thing else next((x for x, value in own.items() if value is thing), None)
        if alias and not alias.startswith("_"):
            name = ".".join([*path[:k], alias]) if path[0] != "__main__" else alias
            break
    shown = {option: value.__qualname__ if callable(value) else repr(value) for option, value in options.items()}
    return ", ".join([name, *(f"{option}={text}" for option, text in shown.items())])
