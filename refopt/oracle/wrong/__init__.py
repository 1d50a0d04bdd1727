"""Rules with one mistake, for each routine: mistakes that have been made or are likely."""

import importlib
from typing import Any

from refopt.catalog import KNOWN
from refopt.oracle.wrong.rule import Wrong


def _attribute(name: str, attribute: str, default: Any = None) -> Any:
    """Another attribute of a routine's file than its wrong rules."""
    return getattr(importlib.import_module(f"refopt.oracle.wrong.{name}"), attribute, default)


def _rules(name: str) -> dict[str, Wrong]:
    """The wrong rules of a routine; raises a TypeError that says where to write them if there are none."""
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


OF: dict[str, dict[str, Wrong]] = {name: _rules(name) for name in KNOWN}
# Further rules: another routine's mistakes, with this routine's decay.
MORE: dict[str, dict[str, Wrong]] = {name: _attribute(name, "MORE", {}) for name in KNOWN}

__all__ = ["MORE", "OF", "RULES", "Wrong"]


def __getattr__(name: str) -> Any:
    if name == "RULES":  # as functions, which take a moment to compile
        made = {
            routine: {key: wrong.of(KNOWN[routine].rule) for key, wrong in rules.items()}
            for routine, rules in OF.items()
        }
        return globals().setdefault("RULES", made)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
