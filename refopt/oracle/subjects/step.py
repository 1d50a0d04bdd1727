"""A function of lists of arrays as an `Optimizer`, whatever its formula is."""

import inspect
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.catalog import KNOWN
from refopt.checks.arguments import kind_of
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.oracle.cases import NUMBERS
from refopt.oracle.memory import Placed, into
from refopt.oracle.subject import GATE, STEP, Arrays, Lacks, Run, Wrong

LISTS = "params", "grads"
SCALARS = {slot.name: slot for row in KNOWN.values() for slot in row.slots if slot.scalar}


class Step:
    """A function ``step(params, grads, *states, **numbers)`` as an `Optimizer`.

    Attributes:
        lists: its arguments that are lists of arrays, and whether each is given by name: parameters, gradients, states.
        positional: those that are not, in the order of the call.
        numbers: what it is given by name.
        values: those, and its defaults.
    """

    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")
    recompiled = False

    def __init__(
        self, function: Callable[..., Any], name: str, arrays: Arrays, lists: Mapping[str, bool],
        numbers: Mapping[str, Any], values: Mapping[str, Any], initial: Mapping[str, Any], asked: Iterable[str],
        positional: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.function, self.name, self.arrays, self.lists = function, name, arrays, dict(lists)
        self.numbers, self.values, self.initial, self.asked = dict(numbers), dict(values), dict(initial), {*asked}
        self.positional = [x for x, named in self.lists.items() if not named] if positional is None else positional
        self.states = [*self.lists][len(LISTS) :]
        self.gated = "found_inf" in self.asked
        self.in_place = self._writes()
        self.notes: list[str] = []

    def _writes(self) -> bool:
        """Whether an array of the library shares memory with NumPy's, so that guards around it can be seen."""
        held = np.zeros(1, np.float32)
        mine = self.arrays.of(held)
        return isinstance(mine, np.ndarray) or hasattr(mine, "as_strided")

    def first(self, name: str, like: Placed, i: int) -> np.ndarray:
        """A state before the first step."""
        p = like.view()
        if name in SCALARS and name not in self.initial:  # such as powers, which refopt keeps for each tensor
            of = SCALARS[name].initial
            return np.full(1, self.values[of] if isinstance(of, str) else of, arithmetic(p.dtype.name))
        of = self.initial.get(name, 0.0)
        if callable(of):
            return np.asarray(of(p))
        fortran = p.ndim > 1 and p.flags.f_contiguous and not p.flags.c_contiguous
        order: Any = "F" if fortran else "C"
        if isinstance(of, str):
            return np.zeros(p.shape, numpy_dtype(of), order)
        return np.full(p.shape, of, p.dtype, order)

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> Run:
        if apart:
            raise Lacks("a function has no groups")
        return StepRun(self, params, saved)


class StepRun:
    """A run of a `Step`."""

    def __init__(self, of: Step, params: Sequence[Placed], saved: bytes | None) -> None:
        self.of, self.count = of, 0
        self._wholes, self._params = _lists(of.arrays, params)
        if saved is None:
            states = {name: [of.first(name, p, i) for i, p in enumerate(params)] for name in of.states}
        else:
            self.count, states = pickle.loads(saved)
        self._states = {name: [of.arrays.of(x) for x in values] for name, values in states.items()}
        self._grads: list[Any] = []

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None, refill: bool = False) -> None:
        of = self.of
        if refill and not of.in_place:
            raise Lacks("its arrays cannot be written")
        if refill and self._grads:
            wholes, parts = ([both[k] for both in self._grads] for k in (0, 1))
            for part, grad in zip(parts, grads, strict=True):
                part[...] = of.arrays.of(grad.view().copy()) if grad is not None else 0
        else:
            wholes, parts = _lists(of.arrays, grads)
        given = dict(zip(of.lists, [self._params, parts, *self._states.values()], strict=True))
        given = {name: list(values) for name, values in given.items()}
        gate = {"grad_factor": None, "found_inf": None, STEP: self.count + 1}
        if found_inf is not None:
            gate["found_inf"] = of.arrays.of(np.full(1, found_inf, np.float32))
        named = {name: values for name, values in given.items() if name not in of.positional}
        named |= of.numbers | {name: gate[name] for name in of.asked}
        before = {name: list(values) for name, values in given.items()}
        result = of.function(*(given[name] for name in of.positional), **named)
        if result is not None:
            self._returned(result)
        else:
            kept = all(x is y for name, values in before.items() for x, y in zip(values, given[name], strict=True))
            if not kept:
                raise Wrong("the lists: expected as they were, since a step writes arrays, got other arrays in them")
        self._grads = list(zip(wholes, parts, strict=True))
        self.count += not found_inf  # NaN is no 0 either

    def _returned(self, result: Any) -> None:
        """New lists in place of those that there are."""
        names = ["params", *self.of.states]
        own = [next(iter(self.of.lists)), *self.of.states]
        if isinstance(result, Mapping):
            new = {names[own.index(name)] if name in own else name: values for name, values in result.items()}
        elif isinstance(result, tuple) and len(result) == len(names):
            new = dict(zip(names, result, strict=True))
        elif isinstance(result, list) and len(result) == len(self._params):
            new = {"params": result}
        else:
            raise Wrong(f"returned: expected None, or lists of {', '.join(own)}, got {kind_of(result)}")
        for name, values in new.items():
            if name not in names or len(values) != len(self._params):
                raise Wrong(f"returned: expected lists of {', '.join(own)}, of {len(self._params)} each, got {name!r}")
        self._params = list(new.pop("params", self._params))
        self._states |= {name: list(values) for name, values in new.items()}

    def add(self, params: Sequence[Placed]) -> None:
        raise Lacks("a function has no groups")

    def params(self) -> list[np.ndarray]:
        return [_copy(self.of.arrays.back(x)) for x in self._params]

    def states(self) -> list[dict[str, np.ndarray]]:
        back = {name: [_copy(self.of.arrays.back(x)) for x in values] for name, values in self._states.items()}
        return [{name: values[i] for name, values in back.items()} for i in range(len(self._params))]

    def grads(self) -> list[Any]:
        return [(_back(self.of.arrays, whole), _back(self.of.arrays, part)) for whole, part in self._grads]

    def wholes(self) -> list[Any]:
        return [_back(self.of.arrays, whole) for whole in self._wholes]

    def slow(self, group: int | None = None) -> None:
        raise Lacks("its numbers are the caller's")

    def save(self) -> bytes:
        by_tensor = self.states()
        return pickle.dumps((self.count, {name: [x[name] for x in by_tensor] for name in self.of.states}))


def _lists(arrays: Arrays, placed: Iterable[Placed | None]) -> tuple[list[Any], list[Any]]:
    """Wholes and parts; arrays that are one and the same in NumPy are so in the library."""
    made: dict[int, tuple[Any, Any]] = {}
    wholes, parts = [], []
    for one in placed:
        both = (None, None) if one is None else made.setdefault(id(one), into(arrays, one))
        wholes.append(both[0])
        parts.append(both[1])
    return wholes, parts


def _copy(x: Any) -> np.ndarray:
    return np.array(x, order="C")


def _back(arrays: Arrays, x: Any) -> Any:
    return None if x is None else _copy(arrays.back(x))


def step_of(
    function: Callable[..., Any], numbers: Mapping[str, Any], states: Mapping[str, Any], arrays: Arrays
) -> Step:
    """A function of no routine.

    Parameters that are no number or choice of refopt's, and have no default, are states: lists of arrays like the
    parameters, of zeros, or of what ``states`` says: a number, a dtype, or a function of a parameter.

    Raises:
        TypeError: it has no signature, takes no ``params`` and ``grads``, or not what is said of its states or numbers.
    """
    name = getattr(function, "__qualname__", kind_of(function))
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise TypeError("check: subject: expected a function that has a signature, got none") from None
    lists: dict[str, bool] = {}
    told: dict[str, Any] = {}
    asked: set[str] = set()
    apart = any(x.kind is x.KEYWORD_ONLY for x in parameters)  # so that numbers come by name
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
    """Whether a parameter is a number of refopt's: RAdam's rho is a list, others' a number."""
    return required and by_name and name in NUMBERS and lists >= len(LISTS)
