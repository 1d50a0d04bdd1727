"""optax optimizers: transformations, and functions of numbers that return one.

A case's states are put into the state that ``init`` makes, by field name, at any depth: fields are those of named
tuples, data classes and dictionaries. Initial states are left to optax. Updates are added by
``optax.apply_updates``.
"""

import contextlib
import inspect
import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks.arguments import chosen, flag, is_number, kind_of, number
from refopt.checks.dtypes import arithmetic
from refopt.checks.optional import library
from refopt.oracle.cases import COUNTED, NUMBERS, scalar_after
from refopt.oracle.cases import number as usual
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.memory import Placed
from refopt.oracle.subject import Lacks, Wrong
from refopt.oracle.subjects.arrays import Jax
from refopt.oracle.subjects.names import public_name, refusing
from refopt.oracle.subjects.optax_peers import NEGATIVE, PEERS, SWITCHED
from refopt.oracle.subjects.shared import LibraryRun, as_told, check_dtypes, is_initial, renamed
from refopt.state.peers import Peer

RATE, EXPECTED = "learning_rate", "a GradientTransformation"
COUNT, FLUSHES = "count", "flush_to_zero"
HYPERPARAMS = "hyperparams"  # the field of inject_hyperparams with the numbers


class OptaxOptimizer:
    """A ``GradientTransformation``, or a function of numbers that returns one.

    Attributes:
        accepts: the possible options: defaults by name.
        values: the numbers of a function, by optax's names.
        fixed: refopt's numbers and choices that it fixes.
        always: optional states that it always has.
        notes: remarks for the reader of a report.
    """

    dtypes = "float32", "float64"
    gated, in_place, recompiled = False, False, True
    peers = tuple(PEERS.values())

    def __init__(self, row: Routine | None, make: Any, options: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self.row: Any = row
        self.arrays, self.optax = Jax(), library("optax")
        self.make, self.options = make, dict(options)
        self.accepts, self.values = dict[str, Any](), dict[str, Any]()
        self.notes = ["XLA compiles each list separately: together and alone within the tolerance, not bit for bit"]
        if is_one(make):
            self.transformation, self.name = make, kind_of(make)
            return
        self.name = public_name(make, self.options, {"names": names} if names else {})
        peer = Peer({}, {}) if row is None else renamed(PEERS[row.name], names)
        self.numbers = peer.numbers
        parameters = inspect.signature(make).parameters.values()
        self.accepts = {x.name: x.default for x in parameters}
        unknown = sorted(self.options.keys() - self.accepts)
        if unknown and not any(x.kind is x.VAR_KEYWORD for x in parameters):
            expected = ", ".join(sorted(self.accepts))
            raise TypeError(f"check: {self.name}: expected options of {expected}, got {unknown[0]}")
        self.values = {**self.accepts, **self._usual(), **self.options}
        with refusing(self.name, EXPECTED):
            self.transformation = self.made(self._usual())
        if row is not None:
            self._as_routine(peer)

    def _usual(self) -> dict[str, Any]:
        """Numbers without a default, as Python floats: a NumPy rate would make everything fp64."""
        if self.row is None:
            return {RATE: float(NUMBERS["lr"])} if RATE in self.accepts else {}
        known = {self.numbers[h.name]: float(usual(h)) for h in self.row.hypers if h.name in self.numbers}
        return {name: x for name, x in known.items() if self.accepts.get(name) is inspect.Parameter.empty}

    def _as_routine(self, peer: Peer) -> None:
        """Find the states, and what the options or the rule fix."""
        row, self.states = self.row, peer.states
        self.switches, self.negative = peer.switches, NEGATIVE.get(row.name)
        self.fixed = {ours: x for ours, x in peer.choices.items() if self.numbers.get(ours) not in self.accepts}
        self.fixed |= {ours: self._option(ours, x) for ours, x in self.numbers.items() if x in self.options}
        self.fixed[FLUSHES] = True  # XLA sets processors so that subnormal numbers are 0
        self.notes = [
            "L2 within the bound, not bit for bit: XLA compiles each list separately",
            "subnormal numbers count as 0, as in XLA",
            "16-bit dtypes on request: each operation is rounded to the parameter's dtype",
        ]
        for option, value in peer.only.items():
            if option in self.accepts and (held := self.values[option]) != value:
                self.notes.append(f"{option}={held!r}: the rule of {row.name} needs {value!r}")
        optional = [slot.name for slot in row.slots if slot.optional and slot.name in self.states]
        fields = self._fields(dict.fromkeys(self.numbers.values(), 0.5) | {self.numbers.get("use_nesterov", ""): False})
        self.counts = COUNT in fields
        self.always = tuple(ours for ours, theirs in self.switches.items() if self.options.get(theirs))
        self.always += tuple(x for x in optional if x not in self.switches and self.states[x] in fields)
        self.known = {ours for ours, theirs in self.states.items() if theirs in fields or ours in self.switches}
        self.lacking = ""  # the state that it lacks, by name
        for slot in row.slots[2:-1]:
            theirs = self.states.get(slot.name, "")
            unused = slot.name == "velocity" and self.fixed.get("mu") == 0
            if theirs and theirs not in fields and not slot.optional and not slot.scalar and not unused:
                has = f"which has {', '.join(sorted(fields)) or 'none'}"
                self.lacking = f"no {theirs} for {slot.name} in its state, {has}: names={{{slot.name!r}: ...}}"

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

    def made(self, numbers: Mapping[str, Any]) -> Any:
        """The transformation with some numbers, as far as the options do not set them."""
        transformation = self.make(**{name: x for name, x in numbers.items() if name in self.accepts} | self.options)
        if not is_one(transformation):
            raise Wrong(f"expected {EXPECTED}, got {kind_of(transformation)}")
        return transformation

    def called(self, routine: str) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """Its names for the numbers of a routine, and those that it fixes."""
        peer = PEERS.get(routine, Peer({}, {}))  # of a routine that Optax lacks, none
        return peer.numbers, peer.choices

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> "OptaxRun":
        if apart:
            raise Lacks("a transformation has no groups")
        return OptaxRun(self, params, saved)

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
        return -x if ours == self.negative else x

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


class OptaxRun(LibraryRun):
    """A run of a transformation. A checkpoint is the leaves of its state."""

    def __init__(self, of: OptaxOptimizer, params: Sequence[Any], saved: bytes | None = None, numbers: Any = None):
        self.jax, self.tree = of.arrays.jax, of.arrays.jax.tree_util
        self.wide = any(getattr(p, "whole", p).dtype == np.float64 for p in params)
        with self.width():
            super().__init__(of, params)
            self.transformation = of.transformation if numbers is None else of.made(numbers)
            try:
                self.state = self.transformation.init(self._params)
            except (TypeError, ValueError) as error:  # raised when nothing is joined
                if params:
                    raise
                raise Lacks("an empty list of parameters") from error
            if saved is not None:
                leaves, structure = self.tree.tree_flatten(self.state)
                loaded = [self._loaded(x, leaf) for x, leaf in zip(pickle.loads(saved), leaves, strict=True)]
                self.state = self.tree.tree_unflatten(structure, loaded)

    def width(self) -> Any:
        """A context with fp64, if the parameters are fp64."""
        return self.jax.enable_x64(True) if self.wide else contextlib.nullcontext()

    def step(self, grads: Sequence[Any], found_inf: float | None = None, refill: bool = False) -> None:
        if any(g is None for g in grads):
            raise Lacks("a tensor without a gradient")
        with self.width():
            updates, self.state = self.transformation.update(self._given(grads, refill), self.state, self._params)
            self._params = self.of.optax.apply_updates(self._params, updates)

    def states(self) -> list[dict[str, np.ndarray]]:
        of: list[dict[str, np.ndarray]] = [{} for _ in self._params]
        for path, leaf in self.tree.tree_flatten_with_path(self.state)[0]:
            index = getattr(path[-1], "idx", None) if path else None
            if index is not None and index < len(of) and np.size(leaf) == self._params[index].size:
                of[index][self.tree.keystr(path[:-1])] = self._saved(leaf)
        return of

    def save(self) -> bytes:
        return pickle.dumps([self._saved(x) for x in self.tree.tree_leaves(self.state)])

    def _saved(self, leaf: Any) -> np.ndarray:
        return np.array(self.jax.random.key_data(leaf) if self._is_key(leaf) else leaf)

    def _loaded(self, x: np.ndarray, leaf: Any) -> Any:
        array = self.jax.numpy.asarray(x)
        return self.jax.random.wrap_key_data(array) if self._is_key(leaf) else array

    def _is_key(self, leaf: Any) -> bool:
        """Whether it is a key of a random generator, a dtype that NumPy lacks."""
        dtypes = self.jax.dtypes
        return hasattr(leaf, "dtype") and dtypes.issubdtype(leaf.dtype, dtypes.prng_key)


def is_one(x: Any) -> bool:
    """Whether something is a transformation."""
    return hasattr(x, "init") and hasattr(x, "update")


def of_optax(
    row: Routine | None, subject: Any, names: Mapping[str, str], options: Mapping[str, Any], device: str | None
) -> OptaxOptimizer | None:
    """The optimizer of a transformation or a function of a learning rate; ``None`` for anything else."""
    if is_one(subject):
        if row is not None:
            raise TypeError("check: subject: expected a function of learning_rate that makes one, got a transformation")
        return OptaxOptimizer(row, subject, {}, names)
    try:
        if isinstance(subject, partial):
            bound = inspect.signature(subject.func).bind_partial(*subject.args, **subject.keywords).arguments
            subject, options = subject.func, bound | dict(options)
        taken = list(inspect.signature(subject).parameters)
    except (TypeError, ValueError):
        return None
    numbers = {"lr": RATE} if row is None else renamed(PEERS[row.name], names).numbers
    of_params = {"params", "grads"} & {*taken} or (row is not None and [*taken, ""][0] not in numbers.values())
    if of_params or numbers["lr"] not in taken:
        return None
    if device is not None:
        raise ValueError(f"check: device: expected none except for torch, got {device!r} for optax")
    return OptaxOptimizer(row, subject, options, names)


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
