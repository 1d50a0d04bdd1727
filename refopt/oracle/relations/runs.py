"""What can be held to relations: an optimizer that takes steps of lists of arrays, whatever its formula is."""

import inspect
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from refopt.catalog import ROUTINES
from refopt.checks.arguments import kind_of
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.oracle.cases import NUMBERS
from refopt.oracle.relations.memory import Placed, into
from refopt.oracle.subject import GATE, STEP, Arrays, NumPy, Wrong

LISTS = "params", "grads"
SCALARS = {slot.name: slot for row in ROUTINES.values() for slot in row.slots if slot.scalar}


class Run(Protocol):
    """Parameters that are being optimized, and their states."""

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None) -> None:
        """Take a step; ``found_inf`` that is not 0 is to skip it, and ``None`` is no gate at all."""

    def params(self) -> list[np.ndarray]:
        """Copies of the parameters."""

    def states(self) -> list[dict[str, np.ndarray]]:
        """Copies of each tensor's states, as far as they can be seen."""

    def grads(self) -> list[Any]:
        """The last gradients, as they are after the step: each with the whole that it is a part of."""

    def wholes(self) -> list[Any]:
        """What the parameters are parts of; ``None`` for those that are not written in place."""

    def save(self) -> Any:
        """What a checkpoint has beside the parameters, by way of bytes."""

    def slow(self, group: int | None = None) -> None:
        """Halve the learning rate, of a group or of all; raises NotImplementedError where that is the caller's."""


class Optimizer(Protocol):
    """What makes runs.

    Attributes:
        name: how a call has it.
        dtypes: in which it is held to relations by default.
        gated: whether it looks at ``found_inf``.
        in_place: whether it writes the arrays that it is given, so that these may be parts of others.
        recompiled: whether it may compute another list of tensors in another order.
        notes: what a reader should know.
        values: the numbers that it has, by its own names.
    """

    name: str
    dtypes: tuple[str, ...]
    gated: bool
    in_place: bool
    recompiled: bool
    notes: list[str]
    values: dict[str, Any]

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> Run:
        """A run from parameters, and from what was saved; with ``apart``, in a group for each tensor.

        Raises:
            NotImplementedError: it has no groups, or takes no such parameters.
        """


class Step:
    """A function ``step(params, grads, *states, **numbers)`` as an `Optimizer`.

    Parameters that are no number or choice of refopt's, and have no default, are states: lists of arrays like the
    parameters, of zeros, or of what ``states`` says: a number, a dtype, or a function of a parameter.
    """

    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")

    def __init__(
        self, function: Callable[..., Any], numbers: Mapping[str, Any], states: Mapping[str, Any],
        arrays: Arrays | None = None,
    ) -> None:  # fmt: skip
        self.function, self.arrays, self.initial = function, arrays or NumPy(), dict(states)
        self.name = getattr(function, "__qualname__", kind_of(function))
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            raise TypeError("check: subject: expected a function that has a signature, got none") from None
        self.numbers: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.lists: list[inspect.Parameter] = []
        self.asked: set[str] = set()
        apart = any(x.kind is x.KEYWORD_ONLY for x in parameters)  # so that numbers come by name
        for parameter in parameters:
            self._take(parameter, numbers, apart and parameter.kind is not parameter.KEYWORD_ONLY)
        found = {parameter.name for parameter in self.lists}
        if len(self.lists) < len(LISTS):
            raise TypeError(f"check: {self.name}: expected a step that takes params and grads, got one that does not")
        for what, of in (("states", self.initial.keys() - found), ("set", numbers.keys() - self.numbers.keys())):
            if of:
                known = ", ".join(sorted(found if what == "states" else self.numbers)) or "none"
                raise TypeError(f"check: {what}: expected names of {known}, got {sorted(of)[0]!r}")
        self.states = [x.name for x in self.lists[len(LISTS) :]]
        self.values |= self.numbers
        self.gated, self.recompiled = "found_inf" in self.asked, False
        self.in_place = self._writes()
        self.notes: list[str] = []

    def _take(self, parameter: inspect.Parameter, numbers: Mapping[str, Any], is_list: bool) -> None:
        """Find what a parameter is for. RAdam's rho is a list, others' a number."""
        name, plain = parameter.name, parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return
        if not plain:
            self.values[name] = parameter.default
        if name in (*GATE, STEP):
            self.asked.add(name)
        elif name in numbers:
            self.numbers[name] = numbers[name]
        elif name == "lr" or (plain and not is_list and name in NUMBERS and len(self.lists) >= len(LISTS)):
            self.numbers[name] = NUMBERS[name]
        elif plain or name in self.initial:
            self.lists.append(parameter)

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
            raise NotImplementedError("a function has no groups")
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

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None) -> None:
        of = self.of
        wholes, parts = _lists(of.arrays, grads)
        given = dict(zip([x.name for x in of.lists], [self._params, parts, *self._states.values()], strict=True))
        given = {name: list(values) for name, values in given.items()}
        gate = {"grad_factor": None, "found_inf": None, STEP: self.count + 1}
        if found_inf is not None:
            gate["found_inf"] = of.arrays.of(np.full(1, found_inf, np.float32))
        positional = [x.name for x in of.lists if x.kind is not x.KEYWORD_ONLY]
        named = {name: values for name, values in given.items() if name not in positional}
        named |= of.numbers | {name: gate[name] for name in of.asked}
        before = {name: list(values) for name, values in given.items()}
        result = of.function(*(given[name] for name in positional), **named)
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
        own = [self.of.lists[0].name, *self.of.states]
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
        raise NotImplementedError("its numbers are the caller's")

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
