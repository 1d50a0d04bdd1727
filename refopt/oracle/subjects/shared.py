"""What adapters of several libraries share: functions on cases, and runs that place arrays and keep gradients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.oracle.cases import Dtypes, alike
from refopt.oracle.exact.cases import Case
from refopt.oracle.memory import Placed, into
from refopt.oracle.subject import Lacks
from refopt.oracle.variants import initial_of
from refopt.state.peers import Peer


def check_dtypes(case: Case, usual: Sequence[str], stores: Callable[[str], Dtypes] = alike) -> None:
    """Refuse unsupported dtypes: a gradient whose dtype differs from the parameter's, unusual ones in a list.

    ``stores`` gives the dtypes of a tensor's slots by that of the parameter.
    """
    params = {x.dtype.name for x in case.params}
    if len(params) > 1 and params - {*usual}:
        raise Lacks("16-bit arithmetic mixed with another")
    for i in range(len(case)):
        of = case.tensor(i)
        param, grad, state, master = stores(of["params"].dtype.name)
        own = {"params": param, "grads": grad, "master_params": master} | dict.fromkeys(case.routine.states, state)
        if any(of[name] is not None and of[name].dtype.name != dtype for name, dtype in own.items()):
            raise Lacks("gradients or states of another dtype than the optimizer's")


def is_initial(case: Case, states: Iterable[str]) -> bool:
    """Whether no step has been taken and the states have their initial values."""
    if case.count != 1:
        return False
    for slot in case.routine.slots:
        if slot.name in states:
            if slot.scalar:
                first = 0.0 if isinstance(slot.initial, str) else slot.initial
            else:
                first = initial_of(case.routine, slot.name, case.steps[0])
            for x in case.lists()[slot.name]:
                if x is not None and x.tobytes() != np.full(x.shape, first, x.dtype).tobytes():
                    return False
    return True


def as_told(row: Routine, name: str, x: Any) -> float:
    """A number of a routine as a Python int or float."""
    return int(x) if any(hyper.name == name and hyper.whole for hyper in row.hypers) else float(x)


def renamed(peer: Peer, names: Mapping[str, str]) -> Peer:
    """A row of the table with other names for some states and numbers."""
    states = {ours: names.get(ours, theirs) for ours, theirs in peer.states.items()}
    return peer._replace(states=states, numbers={x: names.get(x, theirs) for x, theirs in peer.numbers.items()})


class LibraryRun:
    """A `Run` on arrays of a library, ``of.arrays``. Subclasses add `step`, `states` and `save`."""

    def __init__(self, of: Any, params: Sequence[Any]) -> None:
        self.of = of
        self._wholes, self._params = self._lists(params)
        self._grads: list[tuple[Any, Any]] = []

    def _lists(self, placed: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        """Whole arrays and views; an array that occurs twice is shared in the library, too."""
        made: dict[int, tuple[Any, Any]] = {}
        pairs = [(None, None) if x is None else made.setdefault(id(x), self._placed(x)) for x in placed]
        return [whole for whole, _ in pairs], [part for _, part in pairs]

    def _placed(self, placed: Any) -> tuple[Any, Any]:
        """A placed array, or an array of a case, in the library."""
        return (None, self.of.arrays.of(placed)) if isinstance(placed, np.ndarray) else into(self.of.arrays, placed)

    def _given(self, grads: Sequence[Any], refill: bool = False) -> list[Any]:
        """The gradients of a step, which are kept for `grads`; new arrays, which cannot be those of the last step."""
        if refill:
            raise Lacks("its gradients are new arrays in each step")
        wholes, parts = self._lists(grads)
        self._grads = list(zip(wholes, parts, strict=True))
        return parts

    def add(self, params: Sequence[Placed]) -> None:
        raise Lacks("has no groups")

    def params(self) -> list[np.ndarray]:
        return [self._copy(x) for x in self._params]

    def closed(self, grads: Sequence[Placed]) -> None:
        raise Lacks("takes no closure")

    def put(self, params: Sequence[np.ndarray]) -> None:
        """Write parameters, as their owner may between two steps."""
        if not self.of.in_place:
            raise Lacks("its parameters are new arrays in each step")
        for p, x in zip(self._params, params, strict=True):
            (p.detach() if hasattr(p, "detach") else p)[...] = self.of.arrays.of(x.copy())

    def grads(self) -> list[Any]:
        return [(self._copy(whole), self._copy(part)) for whole, part in self._grads]

    def wholes(self) -> list[Any]:
        return [self._copy(x) for x in self._wholes]

    def slow(self, group: int | None = None) -> None:
        raise Lacks("keeps no learning rate")

    def _copy(self, x: Any) -> Any:
        return None if x is None else np.array(self.of.arrays.back(x), order="C")
