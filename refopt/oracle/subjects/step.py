"""A function of lists of arrays as an `Optimizer`, whatever its formula."""

import inspect
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.catalog import KNOWN
from refopt.checks.arguments import kind_of
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.oracle.cases import NUMBERS
from refopt.oracle.memory import Placed
from refopt.oracle.subject import GATE, STEP, Arrays, Lacks, Run, Wrong
from refopt.oracle.subjects.run import LibraryRun
from refopt.state.peers import NONE

LISTS = "params", "grads"
SCALARS = {slot.name: slot for row in KNOWN.values() for slot in row.slots if slot.scalar}


class Step:
    """A function ``step(params, grads, *states, **numbers)`` as an `Optimizer`.

    Attributes:
        lists: its arguments that are lists of arrays (parameters, gradients, states), and whether each is passed by
            name.
        positional: those passed by position, in order.
        numbers: the numbers that it gets, by name.
        values: these and its defaults.
        names: what it calls its arguments, where that differs from the names here.
    """

    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")
    recompiled = False
    names: Mapping[str, str] = NONE

    def __init__(
        self, function: Callable[..., Any], name: str, arrays: Arrays, lists: Mapping[str, bool],
        numbers: Mapping[str, Any], values: Mapping[str, Any], initial: Mapping[str, Any], asked: Iterable[str],
        positional: Sequence[str] | None = None,
    ) -> None:
        self.function, self.name, self.arrays, self.lists = function, name, arrays, dict(lists)
        self.numbers, self.values, self.initial, self.asked = dict(numbers), dict(values), dict(initial), {*asked}
        self.positional = [x for x, named in self.lists.items() if not named] if positional is None else positional
        self.states = [*self.lists][len(LISTS) :]
        self.gated = "found_inf" in self.asked
        self.in_place = self._writes()
        self.notes: list[str] = []

    def _writes(self) -> bool:
        """Whether an array of the library shares memory with NumPy, so that guards around it are visible."""
        held = np.zeros(1, np.float32)
        mine = self.arrays.of(held)
        return isinstance(mine, np.ndarray) or hasattr(mine, "as_strided")

    def first(self, name: str, like: Placed, i: int) -> np.ndarray:
        """A state before the first step."""
        p = like.view()
        if name in SCALARS and name not in self.initial:  # such as powers, one per tensor in refopt
            of = SCALARS[name].initial
            return np.full(1, self.values[of] if isinstance(of, str) else of, arithmetic(p.dtype.name))
        of = self.initial.get(name, 0.0)
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
        by_name = {name: values for name, values in given.items() if name not in self.positional} | dict(named)
        theirs = {self.names.get(name, name): x for name, x in by_name.items()}
        result = self.function(*(given[name] for name in self.positional), **theirs)
        if result is not None:
            return {**lists, **lists_of(result, written, len(lists[written[0]]))}, False
        return dict(lists), any(not _same(values, given[name]) for name, values in lists.items())

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> Run:
        if apart:
            raise Lacks("a function has no groups")
        return StepRun(self, params, saved)


class StepRun(LibraryRun):
    """A run of a `Step`."""

    def __init__(self, of: Step, params: Sequence[Placed], saved: bytes | None) -> None:
        super().__init__(of, params)
        self.count = 0
        if saved is None:
            states = {name: [of.first(name, p, i) for i, p in enumerate(params)] for name in of.states}
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
        first = next(iter(of.lists))
        named = of.numbers | {name: gate[name] for name in of.asked}
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


def step_of(
    function: Callable[..., Any], numbers: Mapping[str, Any], states: Mapping[str, Any], arrays: Arrays
) -> Step:
    """A function without a routine.

    Arguments that are not numbers or choices of refopt, and have no default, are states: lists of arrays like the
    parameters, of zeros, or as in ``states``: a number, a dtype, or a function of a parameter.

    Raises:
        TypeError: it has no signature, takes no ``params`` and ``grads``, or lacks a declared state or number.
    """
    name = getattr(function, "__qualname__", kind_of(function))
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise TypeError("check: subject: expected a function with a signature, got none") from None
    lists: dict[str, bool] = {}
    told: dict[str, Any] = {}
    asked: set[str] = set()
    apart = any(x.kind is x.KEYWORD_ONLY for x in parameters)  # then numbers are passed by name
    for one in parameters:
        by_name, required = one.kind is one.KEYWORD_ONLY, one.default is one.empty
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        if one.name in (*GATE, STEP):
            asked.add(one.name)
        elif one.name in numbers:
            told[one.name] = numbers[one.name]
        elif one.name == "lr" or _is_number(one.name, required, by_name or not apart, len(lists)):
            told[one.name] = NUMBERS[one.name]
        elif required or one.name in states:
            lists[one.name] = by_name
    if len(lists) < len(LISTS):
        raise TypeError(f"check: {name}: expected a step that takes params and grads, got one that does not")
    for what, of in (("states", states.keys() - lists), ("set", numbers.keys() - told)):
        if of:
            known = ", ".join(sorted(lists if what == "states" else told)) or "none"
            raise TypeError(f"check: {what}: expected names of {known}, got {sorted(of)[0]!r}")
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    return Step(function, name, arrays, lists, told, defaults | told, states, asked)


def _is_number(name: str, required: bool, by_name: bool, lists: int) -> bool:
    """Whether an argument is a number of refopt: RAdam's rho is a list, that of others a number."""
    return required and by_name and name in NUMBERS and lists >= len(LISTS)
