"""Which of the functions that PyTorch has for the same step a call of it takes: a loop, a list of tensors, or fused."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

KINDS = {"_fused_": "fused", "_multi_tensor_": "foreach", "_single_tensor_": "a loop"}


@contextlib.contextmanager
def paths_of(subject: Any) -> Iterator[dict[str, None]]:
    """Note the functions of an optimizer's module that run while it is entered."""
    ran: dict[str, None] = {}
    step = getattr(getattr(subject, "kind", None), "step", None)
    module = sys.modules.get(getattr(step, "__module__", None) or "")
    own = [x for x in vars(module or sys) if x.startswith(tuple(KINDS))] if step is not None else []
    before = {name: getattr(module, name) for name in own}

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(*arguments: Any, **named: Any) -> Any:
            ran[name] = None
            return function(*arguments, **named)

        return noted

    for name, function in before.items():
        setattr(module, name, noting(name, function))
    try:
        yield ran
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def kind_of_path(name: str) -> str:
    """What a function is for: "fused", "foreach" or "a loop"."""
    return next(kind for prefix, kind in KINDS.items() if name.startswith(prefix))
