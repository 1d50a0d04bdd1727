"""Which of PyTorch's functions for the same step a call takes: a loop, a list of tensors, or fused."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

PREFIXES = "_fused_", "_multi_tensor_", "_single_tensor_"


@contextlib.contextmanager
def paths_of(subject: Any) -> Iterator[dict[str, None]]:
    """Note the functions of an optimizer's module that run while it is entered."""
    ran: dict[str, None] = {}
    before = known_paths(subject)

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(*arguments: Any, **named: Any) -> Any:
            ran[name] = None
            return function(*arguments, **named)

        return noted

    for (module, name), function in before.items():
        setattr(sys.modules[module], name, noting(name, function))
    try:
        yield ran
    finally:
        for (module, name), function in before.items():
            setattr(sys.modules[module], name, function)


def known_paths(subject: Any) -> dict[tuple[str, str], Callable[..., Any]]:
    """The functions for a step in the modules of an optimizer's class and its base classes."""
    classes = getattr(getattr(subject, "kind", None), "__mro__", ())
    modules = {x.__module__ for x in classes} & {*sys.modules}
    named = ((module, name, x) for module in sorted(modules) for name, x in vars(sys.modules[module]).items())
    return {(module, name): x for module, name, x in named if name.startswith(PREFIXES) and inspect.isfunction(x)}
