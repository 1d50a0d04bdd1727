"""Former names, which still work, with a DeprecationWarning."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

# Types of ops; the first is also an argument of ``refopt verify``.
OPS = {"scan_gradients": "check_gradients", "finish_scan": "finish_check"}


def renamed(name: str, names: Mapping[str, str], where: str, stacklevel: int = 2) -> str:
    """The current name for a former one.

    Args:
        name: a current or former name.
        names: current names by former ones.
        where: a prefix of both in the warning.
        stacklevel: of the warning, counted as by `warnings.warn` from the caller of this function.
    """
    if name not in names:
        return name
    text = f"{where}{name} has been renamed: use {where}{names[name]}"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)
    return names[name]


def renamed_attribute(module: str, name: str, names: Mapping[str, str]) -> Any:
    """The result of a module's ``__getattr__`` for a former public name."""
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(sys.modules[module], renamed(name, names, f"{module}.", stacklevel=3))
