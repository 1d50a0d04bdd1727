"""Rules with one mistake, for each routine: mistakes that have been made or are likely."""

import importlib
from typing import Any

from refopt.catalog import KNOWN
from refopt.oracle.wrong.options import OF_DECAY
from refopt.oracle.wrong.rule import Wrong


def _module(name: str) -> Any:
    """The file with the wrong rules of a routine; raises a TypeError that says where to write them."""
    module, missing = f"refopt.oracle.wrong.{name}", "none there"
    found: Any = None
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        missing = "no such file"
    rules = getattr(found, "RULES", None)
    if not rules or not all(isinstance(rule, Wrong) for rule in rules.values()):
        expected = f"RULES, one or more Wrong rules by name, in refopt/oracle/wrong/{name}.py"
        raise TypeError(f"refopt.oracle: {name}: expected {expected}, got {missing}")
    return found


OF: dict[str, dict[str, Wrong]] = {
    name: _module(name).RULES | (OF_DECAY if "decay" in row.choices else {}) for name, row in KNOWN.items()
}
# Further rules: another routine's mistakes, with this routine's decay, or those that differ by their rounding errors.
MORE: dict[str, dict[str, Wrong]] = {name: getattr(_module(name), "MORE", {}) for name in KNOWN}

__all__ = ["MORE", "OF", "Wrong"]
