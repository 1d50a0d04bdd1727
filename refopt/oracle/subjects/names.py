"""Names of classes and functions, and of their arguments."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from refopt.checks.arguments import kind_of
from refopt.oracle.subject import Wrong
from refopt.state.peers import NONE


def accepted(cls: type, first: int = 2) -> dict[str, Any]:
    """The arguments of a class's constructor, and of base classes if it passes them on: defaults by name.

    Arguments before number ``first``, ``self`` and the parameters, are left out.
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
    """The defaults of a class's or function's arguments, by name, from number ``first`` on, counted with ``self``."""
    if isinstance(make, type):
        return accepted(make, first)
    parameters = list(inspect.signature(make).parameters.values())[first - 1 :]
    return {x.name: x.default for x in parameters if x.kind != x.VAR_KEYWORD}


def makes(
    base: type, function: Callable[..., Any], given: Sequence[Any], rate: Mapping[str, Any], options: Mapping[str, Any]
) -> bool:
    """Whether a function returns an optimizer, given arguments, options, and a learning rate if it takes one."""
    try:
        known = names_of(function, len(given) + 1)
        named = {name: x for name, x in rate.items() if name in known} | dict(options)
        inspect.signature(function).bind(*given, **named)
        return isinstance(function(*given, **named), base)
    except Exception:  # whatever a user's function raises: it may be a step
        return False


@contextlib.contextmanager
def refusing(name: str, expected: str = "an optimizer") -> Iterator[None]:
    """Turn errors of a function that makes an optimizer into a TypeError that names it.

    Numbers that the optimizer does not take are a ValueError.
    """
    try:
        yield
    except Exception as error:
        kind = ValueError if isinstance(error, NotImplementedError) else TypeError
        own = isinstance(error, Wrong | NotImplementedError)
        what = str(error) if own else f"expected {expected}, got {kind_of(error)}: {error}"
        raise kind(f"check: {name}: {what}") from error


def public_name(thing: Callable[..., Any], options: Mapping[str, Any], told: Mapping[str, Any] = NONE) -> str:
    """The shortest name that a package exports it under, with the options, as users write them.

    ``told`` are arguments of `check`; if it has one of an option's name, the option is bound by `functools.partial`.
    """
    function = getattr(thing, "func", thing)  # of a partial
    path = (getattr(function, "__module__", None) or "").split(".")
    name = getattr(thing, "__qualname__", kind_of(thing))
    for k in range(1, len(path) + 1):
        own = vars(sys.modules.get(".".join(path[:k]), sys))
        alias = name if own.get(name) is thing else next((x for x, value in own.items() if value is thing), None)
        if alias and not alias.startswith("_"):
            name = ".".join([*path[:k], alias]) if path[0] != "__main__" else alias
            break
    mine, more = ([f"{k}={getattr(x, '__qualname__', repr(x))}" for k, x in given.items()] for given in (options, told))
    if inspect.signature(sys.modules["refopt.oracle"].check).parameters.keys() & options.keys():
        name, mine = f"partial({', '.join([name, *mine])})", []
    return ", ".join([name, *mine, *more])
