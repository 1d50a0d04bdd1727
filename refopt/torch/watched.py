"""The states by parameter, in dictionaries that record whether an entry has been set or removed.

A plan is bound to the tensors of the states. It reads what is written to these tensors, but must learn when one is
replaced; a dictionary that records it costs a step nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any


class Changes:
    """Whether an entry of some dictionaries has been set or removed."""

    __slots__ = ("any",)

    def __init__(self) -> None:
        self.any = False


class State(dict[Any, Any]):
    """The state of a parameter. Copied or pickled, it is a plain dict."""

    __slots__ = ("_changes",)

    def __init__(self, changes: Changes, entries: Mapping[Any, Any] = {}) -> None:
        super().__init__(entries)
        self._changes = changes

    def put(self, entries: Mapping[Any, Any]) -> None:
        """Set entries that the plan already has, without recording a change."""
        super().update(entries)

    def empty(self) -> None:
        """Remove all entries, without recording a change."""
        super().clear()

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class States(defaultdict[Any, Any]):
    """The states by parameter, as ``Optimizer.state`` is: one that is asked for is there. Copied, it is a plain one."""

    def __init__(self, states: Mapping[Any, Any] = {}) -> None:
        super().__init__(dict)
        self._changes = Changes()
        for param, state in states.items():
            self[param] = state
        self._changes.any = False

    @property
    def changed(self) -> bool:
        """Whether an entry has been set or removed since `keep`."""
        return self._changes.any

    def keep(self) -> None:
        """Record that a plan has the current entries."""
        self._changes.any = False

    def of(self, param: Any) -> State:
        """The state of a parameter; one that has none gets none before `put`."""
        state = self.get(param)
        return State(self._changes) if state is None else state

    def put(self, param: Any, state: State) -> None:
        """Set a state that a plan already has, without recording a change."""
        super().__setitem__(param, state)

    def __missing__(self, param: Any) -> State:
        state = State(self._changes)
        self.put(param, state)
        return state

    def __setitem__(self, param: Any, state: Any) -> None:
        self._changes.any = True
        super().__setitem__(param, State(self._changes, state) if isinstance(state, dict) else state)

    update = MutableMapping.update  # which calls `__setitem__`

    def __ior__(self, states: Any) -> Any:
        self.update(states)
        return self

    def setdefault(self, param: Any, state: Any = None) -> Any:
        """As that of a dict."""
        if param not in self:
            self[param] = state
        return self[param]

    def copy(self) -> Any:
        """A plain one of the same entries."""
        return self | {}

    __copy__ = copy

    def __or__(self, others: Any) -> Any:
        return defaultdict(self.default_factory, {**self, **others})

    def __ror__(self, others: Any) -> Any:
        return defaultdict(self.default_factory, {**others, **self})

    def __reduce__(self) -> Any:
        return defaultdict, (dict, dict(self))


def _telling(kind: type, name: str) -> Callable[..., Any]:
    method = getattr(kind, name)

    def told(self: Any, *args: Any, **named: Any) -> Any:
        self._changes.any = True
        return method(self, *args, **named)

    told.__name__, told.__doc__ = name, method.__doc__
    return told


for _name in "__delitem__", "clear", "pop", "popitem":
    setattr(States, _name, _telling(defaultdict, _name))
for _name in "__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update":
    setattr(State, _name, _telling(dict, _name))
