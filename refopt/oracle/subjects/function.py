"""A function of lists of arrays as a `Subject`, as a routine or without a formula."""

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from refopt.catalog import KNOWN, Routine
from refopt.checks.arguments import kind_of
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.cpu import Blocks
from refopt.oracle.cases import CODED, NUMBERS, choices_of, numbers_of, usual
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.memory import Placed
from refopt.oracle.subject import GATE, LIBRARIES, STEP, Arrays, Lacks, NumPy, Run, Wrong
from refopt.oracle.subjects.arrays import Jax
from refopt.oracle.subjects.shared import LibraryRun
from refopt.oracle.variants import by_request, initial_of
from refopt.state.peers import NONE

LISTS = "params", "grads"
SCALARS = {slot.name: slot for row in KNOWN.values() for slot in row.slots if slot.scalar}
BY_ROW = {slot.name for row in KNOWN.values() for slot in row.slots if slot.by_row}

class Function:
    """A function ``step(params, grads, *states, **numbers)`` of lists of arrays.

    It takes numbers, choices, the gate, and ``step``, the number of the step from 1, by name. It writes its arrays, or
    returns new lists: a list of parameters, a tuple of lists of parameters and of the written slots or the states that
    it takes, in order, or a mapping by name.

    As a routine it takes slots in the catalogue's order, or by refopt's names. The states of its runs are the routine's
    before the first step. Without a routine, arguments that are not numbers or choices of refopt, and have no default,
    are states: lists of arrays like the parameters, of zeros, or as in ``states``: a number, a dtype, or a function of
    a parameter.

    Attributes:
        positional: the lists that are passed by position, in order.
        named: all that it takes by name.
        lists: its arguments that are lists of arrays in runs: parameters, gradients, states.
        numbers: the numbers that it gets in runs, by name.
        values: these and its defaults.
        initial: its states before the first step.
        replaced: whether the last case put other arrays into the lists.
    """

    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")
    is_function, recompiled = True, False

    def __init__(
        self, row: Routine | None, function: Callable[..., Any], arrays: Arrays | None = None,
        numbers: Mapping[str, Any] = NONE, states: Mapping[str, Any] = NONE,
        names: Mapping[str, str] = NONE,
    ) -> None:
        """Raises TypeError if it has no signature, or lacks lists, declared states or numbers, or is not understood."""
        self.row, self.function, self.arrays = row, function, arrays or NumPy()
        self.name = getattr(function, "__qualname__", kind_of(function))
        self.names: dict[str, str] = dict(names)
        self.ours = {theirs: ours for ours, theirs in names.items()}
        self.fixed = {"flush_to_zero": True} if isinstance(arrays, Jax) else {}  # by XLA
        self.notes: list[str] = []
        self.positional: list[str] = []
        self.named: set[str] = set()
        self.replaced, self.coded = False, frozenset[str]()
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            raise TypeError("check: subject: expected a function with a signature, got none") from None
        for name in self.ours.keys() - {x.name for x in parameters}:
            raise ValueError(f"check: names: expected names of the step's arguments, got {name!r}")
        if row is None:
            self._as_it_is(parameters, numbers, states)
        else:
            self._as_routine(row, parameters, states)
        self.states = self.lists[len(LISTS) :]
        self.gated = "found_inf" in self.named
        mine = self.arrays.of(np.zeros(1, np.float32))
        # If they share memory with NumPy, guards around them are visible.
        self.in_place = isinstance(mine, np.ndarray) or hasattr(mine, "as_strided")

    def _as_routine(self, row: Routine, parameters: Sequence[inspect.Parameter], states: Mapping[str, Any]) -> None:
        """Find what it takes of a routine."""
        known = {*row.slot_names, *(hyper.name for hyper in row.hypers), *row.choices, *GATE, STEP}
        for parameter in parameters:
            self._take(row, parameter, known)
        if any(x.kind is x.VAR_KEYWORD for x in parameters):
            self.named |= known - {*self.positional, STEP} - by_request(row.name)
        for name in ("params", "grads", *(h.name for h in row.hypers if h.default is None)):
            if not self.takes(name):
                made = f"the class {self.name}, an instance of which may be one"
                got = made if isinstance(self.function, type) else "one"
                raise TypeError(f"check: subject: expected a step that takes {name}, got {got} that does not")
        self.coded = frozenset(states)
        self.dtypes = CODED if states else self.dtypes
        self.values = choices_of(row) | (numbers_of(row, number=usual) if states else numbers_of(row))
        slots = [slot for slot in row.slots if slot.name in self.positional or
                 (slot.name in self.named and not slot.optional)]
        self.lists = [slot.name for slot in slots]
        self.initial = {x.name: initial_of(row, x.name, self.values) for x in slots[2:] if not x.scalar}
        self.initial |= {name: x for name, x in states.items() if name in self.lists}
        self.numbers = {name: x for name, x in self.values.items() if name in self.named}

    def _take(self, row: Routine, parameter: inspect.Parameter, known: set[str]) -> None:
        """Classify a parameter: a slot by position, or anything by name."""
        left = [x.name for x in row.slots if not x.optional and x.name not in self.positional]
        name, required = self.ours.get(parameter.name, parameter.name), parameter.default is parameter.empty
        if name in ("param", "parameter", "grad", "gradient"):
            raise TypeError(f"check: subject: expected a step of lists, params and grads, got one that takes {name!r}")
        if parameter.kind is parameter.VAR_POSITIONAL:
            self.positional += left
        elif parameter.kind is parameter.VAR_KEYWORD:
            return
        elif parameter.kind is not parameter.KEYWORD_ONLY and not self.named and (
            (name in row.slot_names and name not in self.positional) or (name not in known and left and required)
        ):
            self.positional.append(name if name in row.slot_names else left[0])
        elif name in known:
            self.named.add(name)
        elif required:
            expected = ", ".join(sorted(known - {*self.positional}))
            near = "".join(f"; did you mean {x}?" for x in get_close_matches(name, known, 1))
            raise TypeError(f"check: subject: expected parameters named {expected}, got {name!r}{near}")

    def _as_it_is(
        self, parameters: Sequence[inspect.Parameter], numbers: Mapping[str, Any], states: Mapping[str, Any]
    ) -> None:
        """Find its lists and numbers without a routine."""
        self.lists, self.numbers, self.initial = [], {}, dict(states)
        apart = any(x.kind is x.KEYWORD_ONLY for x in parameters)  # then numbers are passed by name
        for one in parameters:
            name, by_name, required = one.name, one.kind is one.KEYWORD_ONLY, one.default is one.empty
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                continue
            # RAdam's rho is a list, that of others a number.
            usual = required and (by_name or not apart) and name in NUMBERS and len(self.lists) >= len(LISTS)
            if name in (*GATE, STEP):
                self.named.add(name)
            elif name in numbers or name == "lr" or usual:
                self.numbers[name] = numbers.get(name, NUMBERS.get(name))
            elif required or name in states:
                self.lists.append(name)
                self.positional += [] if by_name else [name]
        if len(self.lists) < len(LISTS):
            raise TypeError(f"check: {self.name}: expected a step that takes params and grads, got one that does not")
        known: dict[str, tuple[Any, Any]] = {"states": (states, self.lists), "set": (numbers, self.numbers)}
        for what, (given, taken) in known.items():
            if of := given.keys() - {*taken}:
                expected = f"expected names of {', '.join(sorted(taken)) or 'none'}"
                raise TypeError(f"check: {what}: {expected}, got {sorted(of)[0]!r}")
        self.values = {x.name: x.default for x in parameters if x.default is not x.empty} | self.numbers

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

    def first(self, name: str, like: Placed | np.ndarray) -> np.ndarray:
        """A state before the first step."""
        p = like if isinstance(like, np.ndarray) else like.view()
        if name in SCALARS and name not in self.initial:  # such as powers, one per tensor in refopt
            of = SCALARS[name].initial
            return np.full(1, self.values[of] if isinstance(of, str) else of, arithmetic(p.dtype.name))
        of = self.initial.get(name, 0.0)
        if name in BY_ROW and not callable(of):
            return np.full(Blocks().row_shape(p.shape), of, arithmetic(p.dtype.name))
        if callable(of):
            return np.array(of(p))
        fortran = p.ndim > 1 and p.flags.f_contiguous and not p.flags.c_contiguous
        order: Any = "F" if fortran else "C"
        if isinstance(of, str):
            return np.zeros(p.shape, numpy_dtype(of), order)
        return np.full(p.shape, of, p.dtype, order)

    def called(
        self, lists: Mapping[str, Any], named: Mapping[str, Any], written: Sequence[str]
    ) -> tuple[dict[str, Any], bool]:
        """The lists after a call, or returned ones, and whether it put other arrays into the given lists."""
        given = {name: None if values is None else [*values] for name, values in lists.items()}
        by_name: dict[str, Any] = {x: values for x, values in given.items() if x not in self.positional} | dict(named)
        theirs = {self.names.get(name, name): x for name, x in by_name.items()}
        result = self.function(*(given[name] for name in self.positional), **theirs)
        if result is not None:
            return {**lists, **lists_of(result, written, len(lists[written[0]]))}, False
        return dict(lists), not all([_same(values, given[name]) for name, values in lists.items()])

    def run(self, case: Case) -> Outcome:
        lists = {name: _each(self.arrays.of, values) for name, values in case.slots.items() if self.takes(name)}
        coded = [name for name in self.coded if lists.get(name)]
        lists |= {name: [self.arrays.of(self.first(name, p)) for p in case.params] for name in coded}
        written = [slot.name for slot in case.routine.slots if slot.written and lists.get(slot.name) is not None]
        self.replaced = False
        for k, step in enumerate(case.steps):
            given: dict[str, Any] = dict.fromkeys(GATE) | {STEP: case.count + k} | case.choices | step
            given |= {name: self.arrays.of(given[name]) for name in GATE if given[name] is not None}
            options = {name: value for name, value in given.items() if name in self.named}
            lists, replaced = self.called(lists, options, written)
            self.replaced |= replaced
        self.again = partial(self._outcome, case, lists)
        return self.again()

    def _outcome(self, case: Case, slots: Mapping[str, Any]) -> Outcome:
        """The arrays in the lists of the last step."""
        return {
            slot.name: _each(self.arrays.back, slots[slot.name]) or [None] * len(case)
            for slot in case.routine.slots if slot.written and slot.name in slots and slot.name not in self.coded
        }

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> Run:
        if apart:
            raise Lacks("a function has no groups")
        return FunctionRun(self, params, saved)


def _each(function: Callable[[Any], Any], values: Sequence[Any] | None) -> list[Any] | None:
    """Apply a function to each array that is present."""
    return None if values is None else [None if x is None else function(x) for x in values]


class FunctionRun(LibraryRun):
    """A run of a `Function`."""

    def __init__(self, of: Function, params: Sequence[Placed], saved: bytes | None) -> None:
        super().__init__(of, params)
        self.count = 0
        if saved is None:
            states = {name: [of.first(name, p) for p in params] for name in of.states}
        else:
            self.count, states = pickle.loads(saved)
        self._states = {name: [of.arrays.of(x) for x in values] for name, values in states.items()}

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None, refill: bool = False) -> None:
        of = self.of
        if refill and not of.in_place:
            raise Lacks("its arrays cannot be written")
        if refill and self._grads:
            parts = [part for _, part in self._grads]
            for part, grad in zip(parts, grads, strict=True):
                part[...] = of.arrays.of(grad.view().copy()) if grad is not None else 0
        else:
            parts = self._given(grads)
        lists = dict(zip(of.lists, [self._params, parts, *self._states.values()], strict=True))
        gate = {"grad_factor": None, "found_inf": None, STEP: self.count + 1}
        if found_inf is not None:
            gate["found_inf"] = of.arrays.of(np.full(1, found_inf, np.float32))
        first = of.lists[0]
        named = of.numbers | {name: x for name, x in gate.items() if name in of.named}
        after, replaced = of.called(lists, named, [first, *of.states])
        if replaced:
            raise Wrong("the lists: expected the same arrays, since a step writes into them, got other arrays")
        self._params, self._states = after[first], {name: after[name] for name in of.states}
        self.count += not found_inf  # NaN is not 0 either

    def states(self) -> list[dict[str, np.ndarray]]:
        back = {name: [self._copy(x) for x in values] for name, values in self._states.items()}
        return [{name: values[i] for name, values in back.items()} for i in range(len(self._params))]

    def save(self) -> bytes:
        by_tensor = self.states()
        return pickle.dumps((self.count, {name: [x[name] for x in by_tensor] for name in self.of.states}))


def _same(before: Any, now: Any) -> bool:
    """Whether a list still has the same arrays."""
    return before is None or (len(before) == len(now) and all(x is y for x, y in zip(before, now, strict=True)))


def lists_of(result: Any, names: Sequence[str], count: int) -> dict[str, list[Any]]:
    """The lists that a step has returned, with ``count`` arrays each, by name; parameters come first."""
    expected = f"returned: expected None or lists for {', '.join(names)}"
    if isinstance(result, Mapping):
        new = dict(result)
    elif isinstance(result, tuple) and len(result) == len(names):
        new = dict(zip(names, result, strict=True))
    elif isinstance(result, list) and (len(names) == 1 or len(result) == count):
        new = {names[0]: result}
    else:
        raise Wrong(f"{expected}, got {_of_so_many(result)}")
    for name, values in new.items():
        if name not in names:
            raise Wrong(f"{expected}, got one of {name!r}")
        if not isinstance(values, Sequence) or len(values) != count:
            many = "one array" if count == 1 else f"{count} arrays"
            raise Wrong(f"returned: {name}: expected a list of {many}, got {_of_so_many(values)}")
    return {name: list(values) for name, values in new.items()}


def _of_so_many(value: Any) -> str:
    return f"{kind_of(value)} of {len(value)}" if isinstance(value, Sequence) else kind_of(value)
