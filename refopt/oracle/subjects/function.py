"""A Python function of lists of arrays as a routine."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any

from refopt.catalog import Routine
from refopt.checks.arguments import kind_of
from refopt.oracle.cases import choices_of, numbers_of
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.subject import GATE, LIBRARIES, STEP, Arrays, NumPy
from refopt.oracle.subjects.arrays import Jax
from refopt.oracle.subjects.step import Step
from refopt.oracle.variants import by_request, initial_of
from refopt.state.peers import NONE

SINGLE = "param", "parameter", "grad", "gradient"


class Function(Step):
    """A Python function ``step(params, grads, *states, **numbers)`` of lists of arrays.

    It takes slots in the catalogue's order, or by refopt's names; numbers, choices, the gate, and ``step``, the number
    of the step from 1, by name. It writes its arrays, or returns new lists: a list of parameters, a tuple of lists of
    the written slots that it takes, in the catalogue's order, or a mapping by name. The states of its runs are the
    routine's before the first step.
    """

    is_function = True

    def __init__(
        self, row: Routine, function: Callable[..., Any], arrays: Arrays | None = None, names: Mapping[str, str] = NONE
    ) -> None:
        """``names`` are the function's names for what it takes, by refopt's names, where they differ."""
        self.names, self.ours = dict(names), {theirs: ours for ours, theirs in names.items()}
        self.row, self.name = row, getattr(function, "__qualname__", kind_of(function))
        known = {*row.slot_names, *(hyper.name for hyper in row.hypers), *row.choices, *GATE, STEP}
        self.positional: list[str] = []
        self.named: set[str] = set()
        self.everything = False
        self.fixed = {"flush_to_zero": True} if isinstance(arrays, Jax) else {}  # by XLA
        self.replaced = False  # whether the last run put other arrays into the lists
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            raise TypeError("check: subject: expected a function with a signature, got none") from None
        for name in self.ours.keys() - {x.name for x in parameters}:
            raise ValueError(f"check: names: expected names of the step's arguments, got {name!r}")
        for parameter in parameters:
            self._take(parameter, known)
        if self.everything:
            self.named |= known - {*self.positional, STEP} - by_request(row.name)
        for name in ("params", "grads", *(h.name for h in row.hypers if h.default is None)):
            if not self.takes(name):
                got = f"the class {self.name}, an instance of which may be one" if isinstance(function, type) else "one"
                raise TypeError(f"check: subject: expected a step that takes {name}, got {got} that does not")
        numbers = choices_of(row) | numbers_of(row)
        lists = {slot.name: slot.name in self.named for slot in row.slots
                 if slot.name in self.positional or (slot.name in self.named and not slot.optional)}
        first = {slot.name: initial_of(row, slot.name, numbers) for slot in row.slots[2:]
                 if slot.name in lists and not slot.scalar}
        taken = {name: x for name, x in numbers.items() if name in self.named}
        asked = self.named & {*GATE, STEP}
        super().__init__(function, self.name, arrays or NumPy(), lists, taken, numbers, first, asked, self.positional)

    def _take(self, parameter: inspect.Parameter, known: set[str]) -> None:
        """Classify a parameter: a slot by position, or anything by name."""
        required = [slot.name for slot in self.row.slots if not slot.optional]
        name = self.ours.get(parameter.name, parameter.name)
        if name in SINGLE:
            raise TypeError(f"check: subject: expected a step of lists, params and grads, got one that takes {name!r}")
        left = [x for x in required if x not in self.positional]
        if parameter.kind is parameter.VAR_POSITIONAL:
            self.positional += left
        elif parameter.kind is parameter.VAR_KEYWORD:
            self.everything = True
        elif parameter.kind is parameter.KEYWORD_ONLY or self.named:
            self._name(name, known, parameter.default is not parameter.empty)
        elif name in self.row.slot_names and name not in self.positional:
            self.positional.append(name)
        elif name not in known and left and parameter.default is parameter.empty:
            self.positional.append(left[0])
        else:
            self._name(name, known, parameter.default is not parameter.empty)

    def _name(self, name: str, known: set[str], default: bool) -> None:
        if name in known:
            self.named.add(name)
        elif not default:
            expected = ", ".join(sorted(known - {*self.positional}))
            near = "".join(f"; did you mean {x}?" for x in get_close_matches(name, known, 1))
            raise TypeError(f"check: subject: expected parameters named {expected}, got {name!r}{near}")

    def takes(self, what: str) -> bool:
        return what in self.positional or what in self.named

    @property
    def libraries(self) -> list[str]:
        """The array libraries that the function's module has imported, if it gets NumPy arrays."""
        if not isinstance(self.arrays, NumPy):
            return []
        known = getattr(self.function, "__globals__", {}).values()
        imported = {x.__name__.partition(".")[0] for x in known if isinstance(x, ModuleType)}
        return list(dict.fromkeys(library for name, library in LIBRARIES.items() if name in imported))

    def run(self, case: Case) -> Outcome:
        lists = {name: _each(self.arrays.of, values) for name, values in case.slots.items() if self.takes(name)}
        written = [slot.name for slot in self.row.slots if slot.written and lists.get(slot.name) is not None]
        self.replaced = False
        for k, step in enumerate(case.steps):
            options = self._options(case.choices | step, case.count + k)
            lists, replaced = self.called(lists, options, written)
            self.replaced |= replaced
        self.again = partial(self._outcome, lists, len(case))
        return self.again()

    def _outcome(self, slots: Mapping[str, Any], count: int) -> Outcome:
        """The arrays in the lists of the last step."""
        return {
            slot.name: _each(self.arrays.back, slots[slot.name]) or [None] * count
            for slot in self.row.slots if slot.written and slot.name in slots
        }

    def _options(self, given: dict[str, Any], step: int) -> dict[str, Any]:
        """The arguments by name, other than lists, for a step with that number."""
        options = dict.fromkeys(GATE) | {STEP: step} | given
        options |= {name: self.arrays.of(x) for name, x in options.items() if name in GATE and x is not None}
        return {name: value for name, value in options.items() if name in self.named}


def _each(function: Callable[[Any], Any], values: Sequence[Any] | None) -> list[Any] | None:
    """Apply a function to each array that is present."""
    return None if values is None else [None if x is None else function(x) for x in values]
