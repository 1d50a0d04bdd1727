"""optax optimizers: functions of numbers that return a ``GradientTransformation``.

A case's states are put into the state that ``init`` makes, by field name, at any depth: fields are those of named
tuples, data classes and dictionaries. Initial states are left to optax. Updates are added by
``optax.apply_updates``.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks.arguments import chosen, flag, is_number, kind_of, number
from refopt.checks.dtypes import arithmetic
from refopt.oracle.cases import COUNTED, scalar_after
from refopt.oracle.cases import number as usual
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.subject import Lacks
from refopt.oracle.subjects.names import refusing
from refopt.oracle.subjects.optax import EXPECTED, OptaxOptimizer, OptaxRun
from refopt.oracle.subjects.optax_peers import PEERS, SWITCHED
from refopt.oracle.subjects.shared import as_told, check_dtypes, is_initial

COUNT, FLUSHES = "count", "flush_to_zero"
HYPERPARAMS = "hyperparams"  # the field of inject_hyperparams with the numbers


def numbers_of(row: Routine, names: Mapping[str, str]) -> dict[str, str]:
    """A function's names for the numbers of a routine."""
    return {ours: names.get(ours, theirs) for ours, theirs in PEERS[row.name].numbers.items()}


class OptaxRoutine(OptaxOptimizer):
    """A function of numbers that returns a ``GradientTransformation``, as a `Subject`.

    Attributes:
        fixed: refopt's numbers and choices that it fixes.
        dtypes: those in which it is checked by default.
        always: optional states that it always has.
        notes: remarks for the reader of a report.
    """

    def __init__(
        self, row: Routine, make: Callable[..., Any], name: str, *, options: Mapping[str, Any], names: Mapping[str, str]
    ) -> None:
        peer = PEERS[row.name]
        self.row, self.numbers = row, numbers_of(row, names)
        self.states = {ours: names.get(ours, theirs) for ours, theirs in peer.states.items()}
        self.switches, self.negative = peer.switches, peer.negative
        super().__init__(make, options, name)
        self.fixed = self._fixed(peer.choices)
        self.always = tuple(ours for ours, theirs in self.switches.items() if options.get(theirs))
        self.notes = [
            "L2 within the bound, not bit for bit: XLA compiles each list separately",
            "subnormal numbers count as 0, as in XLA",
            "16-bit dtypes on request: each operation is rounded to the parameter's dtype",
        ]
        self.notes += self._other_rules(peer.only)
        optional = [slot.name for slot in row.slots if slot.optional and slot.name in self.states]
        fields = self._fields(dict.fromkeys(self.numbers.values(), 0.5) | {self.numbers.get("use_nesterov", ""): False})
        self.counts = COUNT in fields
        self.always += tuple(x for x in optional if x not in self.switches and self.states[x] in fields)
        self.known = {ours for ours, theirs in self.states.items() if theirs in fields or ours in self.switches}
        self.lacking = self._lacking(fields)

    def usual(self) -> dict[str, Any]:
        """The numbers of a routine without a default."""
        known = {self.numbers[h.name]: float(usual(h)) for h in self.row.hypers if h.name in self.numbers}
        return {name: x for name, x in known.items() if self.accepts.get(name) is inspect.Parameter.empty}

    def _fixed(self, choices: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers and choices that the options or the rule fix."""
        fixed = {ours: x for ours, x in choices.items() if self.numbers.get(ours) not in self.accepts}
        fixed |= {ours: self._option(ours, x) for ours, x in self.numbers.items() if x in self.options}
        return fixed | {FLUSHES: True}  # XLA sets processors so that subnormal numbers are 0

    def _other_rules(self, only: Mapping[str, Any]) -> Iterator[str]:
        """Options that make its rule differ from the routine's."""
        for option, value in only.items():
            if option in self.accepts and (held := self.values[option]) != value:
                yield f"{option}={held!r}: the rule of {self.row.name} needs {value!r}"

    def _lacking(self, fields: set[str]) -> str:
        """The state that it lacks, by name; empty if it has all."""
        lacking = ""
        for slot in self.row.slots[2:-1]:
            theirs = self.states.get(slot.name, "")
            unused = slot.name == "velocity" and self.fixed.get("mu") == 0
            if theirs and theirs not in fields and not slot.optional and not slot.scalar and not unused:
                has = ", ".join(sorted(fields)) or "none"
                lacking = f"no {theirs} for {slot.name} in its state, which has {has}: names={{{slot.name!r}: ...}}"
        return lacking

    def _option(self, ours: str, theirs: str) -> Any:
        """A number or choice among the options. optax uses ``None`` for no momentum."""
        value, where = self.options[theirs], f"check: {self.name}: {theirs}"
        if theirs in SWITCHED:
            return SWITCHED[theirs][flag(where, value)]
        if ours in self.row.choices:
            values = self.row.choices[ours]
            if isinstance(values[0], bool):
                return flag(where, value)
            return chosen(where, int(value) if is_number(value) and value == int(value) else value, values)
        if callable(value):
            expected = "a number, since a function of learning_rate can make its own schedule"
            raise TypeError(f"{where}: expected {expected}, got {kind_of(value)}")
        return 0.0 if value is None else number(where, value)

    def _fields(self, numbers: dict[str, Any]) -> set[str]:
        """The names in the state for a small parameter."""
        with refusing(self.name, EXPECTED):
            state = self.made(numbers).init([self.arrays.jax.numpy.ones((4, 4) if self.row.matrix_arguments else 1)])
        return {name for name, _ in self._leaves(state)}

    def _leaves(self, state: Any) -> dict[tuple[str, int | None], Any]:
        """The arrays of a state by field name and, in a list, the index of the parameter."""
        leaves: dict[tuple[str, int | None], Any] = {}
        for path, leaf in self.arrays.jax.tree_util.tree_flatten_with_path(state)[0]:
            leaves.setdefault(_place(path), leaf)
        return leaves

    def takes(self, what: str) -> bool:
        slot = next((slot for slot in self.row.slots if slot.name == what), None)
        if slot is None:
            return self.numbers.get(what) in self.accepts and what not in self.fixed
        if slot.optional:
            switch = self.switches.get(what)
            return what in self.always or (switch in self.accepts and self.options.get(switch, True))
        return what in ("params", "grads") or what in self.known or self._follows(what)

    def _follows(self, slot: str) -> bool:
        """Whether a scalar follows from the step count."""
        return self.counts and slot in COUNTED and slot in self.row.scalars

    def call(self, case: Case) -> Any:
        """How a script calls it."""
        from refopt.oracle.subjects.calls import of_optax

        return of_optax(self, case)

    def run(self, case: Case) -> Outcome:
        if self.lacking:
            raise NotImplementedError(self.lacking)
        check_dtypes(case, self.dtypes)
        numbers = [self._named(case, step) for step in case.steps]
        run = OptaxRun(self, case.params, None, numbers[0])
        with run.width():
            paths = [path for path, _ in run.tree.tree_flatten_with_path(run.state)[0]]
            if any(x != numbers[0] for x in numbers) and any(HYPERPARAMS in map(_name, path) for path in paths):
                raise Lacks("steps with changing numbers, which its state keeps")
            filled = self._filled(run.state, case)
            if not is_initial(case, self.states):
                run.state = filled
            for named in numbers:
                run.transformation = self.made(named)
                run.step(case.grads)
            return self._outcome(case, run._params, self._leaves(run.state))

    def _named(self, case: Case, step: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers of a step by optax's names, rounded to the arithmetic."""
        if any(isinstance(x, list) for x in step.values()):
            raise Lacks("numbers in lists")
        real: Any = arithmetic(case.params[0].dtype.name) if len(case) else np.float64
        values = {name: as_told(self.row, name, real(x)) for name, x in step.items()} | case.choices
        named = {theirs: values[ours] for ours, theirs in self.numbers.items() if ours in values}
        for theirs in named.keys() & SWITCHED.keys():
            named[theirs] = next(x for x, choice in SWITCHED[theirs].items() if choice == named[theirs])
        return named | {theirs: case.slots[ours] is not None for ours, theirs in self.switches.items()}

    def _filled(self, state: Any, case: Case) -> Any:
        """The state with a case's arrays put in."""
        lists = case.lists()
        ours_of = {theirs: ours for ours, theirs in self.states.items()}

        def value(path: tuple, held: Any) -> Any:
            name, i = _place(path)
            if name == COUNT:
                return self.arrays.jax.numpy.full_like(held, case.count - 1)
            ours = ours_of.get(name)
            if ours is None:
                return held
            x = None if i is None else self._signed(ours, lists[ours][i])
            if x is None or x.size != held.size:
                raise NotImplementedError(f"{name}: expected a list of arrays like the parameters, got {held.shape}")
            if x.dtype != held.dtype:
                raise Lacks(f"{name} in {x.dtype}, which optax keeps in {held.dtype}")
            return self.arrays.of(x.reshape(held.shape))

        return self.arrays.jax.tree_util.tree_map_with_path(value, state)

    def _signed(self, ours: str, x: Any) -> Any:
        """A slot with optax's sign: optax adds some velocities that refopt subtracts."""
        return -x if ours in self.negative else x

    def _outcome(self, case: Case, params: list, leaves: Mapping[tuple[str, int | None], Any]) -> Outcome:
        got: Outcome = {"params": [self.arrays.back(p) for p in params]}
        lists, last = case.lists(), case.replace(steps=case.steps[-1:])
        for slot in case.routine.slots[2:-1]:
            known, theirs = lists[slot.name], self.states.get(slot.name, "")
            if known and all(x is not None and (theirs, i) in leaves for i, x in enumerate(known)):
                arrays = [self.arrays.back(leaves[theirs, i]) for i in range(len(known))]
                got[slot.name] = [
                    self._signed(slot.name, x.reshape(like.shape)) for x, like in zip(arrays, known, strict=True)
                ]
            elif self._follows(slot.name):
                got[slot.name] = [
                    scalar_after(slot.name, last.numbers_of(i), int(leaves[COUNT, None]), x.dtype.type)
                    for i, x in enumerate(known)
                ]
        return got


def _name(key: Any) -> Any:
    """The name of a tuple's field or a dictionary's entry."""
    return getattr(key, "name", getattr(key, "key", None))


def _place(path: tuple) -> tuple[str, int | None]:
    """The last field name on the path to a leaf, and the index in a list directly under it."""
    for k in reversed(range(len(path))):
        name = _name(path[k])
        if isinstance(name, str):
            return name, getattr(path[-1], "idx", None) if k == len(path) - 2 else None
    return "", None
