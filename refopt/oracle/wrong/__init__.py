"""Rules that are wrong in one place, for each routine: what has been, or easily is, written."""

import importlib
from collections.abc import Callable

from refopt.catalog import ROUTINES
from refopt.oracle.wrong.rule import Wrong


def _rules(name: str) -> dict[str, Wrong]:
    """Those of a routine; raises TypeError if there are none, which says where to write them."""
    module, missing = f"refopt.oracle.wrong.{name}", "none there"
    rules: dict[str, Wrong] = {}
    try:
        rules = getattr(importlib.import_module(module), "RULES", {})
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        missing = "no such file"
    if not rules or not all(isinstance(rule, Wrong) for rule in rules.values()):
        expected = f"RULES, a Wrong rule or more by name, in refopt/oracle/wrong/{name}.py"
        raise TypeError(f"refopt.oracle: {name}: expected {expected}, got {missing}")
    return dict(rules)


OF: dict[str, dict[str, Wrong]] = {name: _rules(name) for name in ROUTINES}
RULES: dict[str, dict[str, Callable[..., tuple]]] = {
    routine: {name: wrong.rule for name, wrong in rules.items()} for routine, rules in OF.items()
}

__all__ = ["OF", "RULES", "Wrong"]
