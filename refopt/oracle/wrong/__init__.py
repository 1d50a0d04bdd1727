"""Rules that are wrong in one place, for each routine: what has been, or easily is, written."""

import importlib
from collections.abc import Callable

from refopt.catalog import ROUTINES
from refopt.oracle.wrong.rule import Wrong

OF: dict[str, dict[str, Wrong]] = {
    name: dict(importlib.import_module(f"refopt.oracle.wrong.{name}").RULES) for name in ROUTINES
}
RULES: dict[str, dict[str, Callable[..., tuple]]] = {
    routine: {name: wrong.rule for name, wrong in rules.items()} for routine, rules in OF.items()
}

__all__ = ["OF", "RULES", "Wrong"]
