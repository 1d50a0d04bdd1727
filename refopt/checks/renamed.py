"""Names of before: they still work, with a DeprecationWarning."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

# Types of ops; the first is a word of ``refopt verify``, too.
OPS = {"scan_gradients": "check_gradients", "finish_scan": "finish_check"}


def renamed(name: str, names: Mapping[str, str], where: str, stacklevel: int = 2) -> str:
    """The name of today for one of before.

    Args:
        name: of today or of before.
        names: those of today, by those of before.
        where: what stands before both in the warning.
        stacklevel: of the warning, as `warnings.warn` counts, from the caller of this function.
    """
    if name not in names:
        return name
    text = f"{where}{name} has been renamed: use {where}{names[name]}"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)
    return names[name]


def renamed_attribute(module: str, name: str, names: Mapping[str, str]) -> Any:
    """What a module's ``__getattr__`` answers for a public name of before."""
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(sys.modules[module], renamed(name, names, f"{module}.", stacklevel=3))
