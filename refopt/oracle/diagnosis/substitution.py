"""Functions that call another in the place of one."""

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from refopt.oracle.bound.evaluate import PRIMITIVES


def _inner(function: Any) -> Iterator[Any]:
    """The functions of refopt that one calls, or has as defaults."""
    values = [function.__globals__.get(name) for name in function.__code__.co_names]
    for value in (*values, *(function.__kwdefaults__ or {}).values()):
        ours = isinstance(value, FunctionType) and value.__module__.partition(".")[0] == "refopt"
        if ours and value not in PRIMITIVES and value is not function:
            yield value


def reached(function: Any, found: dict[Any, None] | None = None) -> dict[Any, None]:
    """A function, and those of refopt that it calls, and these call."""
    found = {} if found is None else found
    if function not in found:
        found[function] = None
        for value in _inner(function):
            reached(value, found)
    return found


def substituted(function: Any, old: Any, new: Any) -> Any:
    """A function that calls ``new`` wherever it, or what it calls, called ``old``."""
    if function is old:
        return new
    if old not in reached(function):
        return function
    names = dict(function.__globals__)

    def other(value: Any) -> Any:
        ours = isinstance(value, FunctionType) and value.__module__.partition(".")[0] == "refopt"
        return substituted(value, old, new) if ours and value is not function and value not in PRIMITIVES else value

    names |= {name: other(names[name]) for name in function.__code__.co_names if name in names}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = {name: other(value) for name, value in (function.__kwdefaults__ or {}).items()}
    return made
