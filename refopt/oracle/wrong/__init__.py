"""Rules that are wrong in one place, for each routine: what has been, or easily is, written."""

import importlib
from collections.abc import Callable
from typing import Any

from refopt.catalog import KNOWN
from refopt.oracle.wrong.rule import Wrong


def _attribute(name: str, attribute: str, default: Any = None) -> Any:
    """What a routine's file has beside its wrong rules."""
    return getattr(importlib.import_module(f"refopt.oracle.wrong.{name}"), attribute, default)


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


OF: dict[str, dict[str, Wrong]] = {name: _rules(name) for name in KNOWN}
RULES: dict[str, dict[str, Callable[..., tuple]]] = {
    routine: {name: wrong.rule for name, wrong in rules.items()} for routine, rules in OF.items()
}
# Further rules, by another routine's with something on top; the rule with ``squares`` for sums of squares, where there
# are norms; and the rule as papers have it, where `refopt.cpu` has it in pieces.
MORE: dict[str, dict[str, Wrong]] = {name: _attribute(name, "MORE", {}) for name in KNOWN}
WITH_SQUARES: dict[str, Callable[..., tuple]] = {
    name: rule for name in KNOWN if (rule := _attribute(name, "WITH_SQUARES"))
}
IN_PAPERS: dict[str, Callable[..., tuple]] = {
    name: rule for name in KNOWN if (rule := _attribute(name, "IN_PAPERS"))
}

__all__ = ["IN_PAPERS", "MORE", "OF", "RULES", "WITH_SQUARES", "Wrong"]
