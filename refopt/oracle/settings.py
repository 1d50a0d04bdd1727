"""Numbers and choices that are built into a step, as its caller declares them; and names that a caller chooses."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from refopt.catalog import Routine
from refopt.checks.arguments import chosen, flag, is_number, kind_of, names, shown
from refopt.cpu.newton_schulz import as_tuples


def all_chosen(where: str, given: Any, known: Iterable[str]) -> list[str]:
    """Names that a caller lists, each of some known ones; raises TypeError or ValueError, naming the index."""
    return [chosen(f"{where}[{i}]", x, known) for i, x in enumerate(names(where, given))]


def settings_of(where: str, row: Routine, given: Any, apart: Sequence[str] = (), flags: Sequence[str] = ()) -> Any:
    """Numbers and choices of a routine by name, as a caller has set them; raises TypeError or ValueError.

    Args:
        where: the function that errors name.
        apart: names that are passed through unchanged.
        flags: further names that it accepts.
    """
    hypers = {hyper.name: hyper for hyper in row.hypers if hyper.name not in apart}
    choices = {name: values for name, values in row.choices.items() if name not in apart}
    own = [name for name in row.own if name not in row.of_each]
    if not isinstance(given, Mapping):
        raise TypeError(f"{where}: set: expected numbers and choices by name, got {kind_of(given)}")
    set_: dict[str, Any] = {}
    for name, value in given.items():
        at = f"{where}: set[{name!r}]"
        if name in choices:
            set_[name] = chosen(at, value, choices[name])
        elif name in flags:
            set_[name] = flag(at, value)
        elif name in own:
            set_[name] = as_tuples(value)  # cases with equal choices are made once
        elif name not in hypers:
            known = ", ".join([*hypers, *choices, *own, *flags])
            raise ValueError(f"{where}: set: expected names of {known}, got {shown(name)}")
        elif not is_number(value) or not hypers[name].allows(float(value)):
            raise ValueError(f"{at}: expected a number that {row.name} takes, got {shown(value)}")
        else:
            set_[name] = float(value)
    return set_
