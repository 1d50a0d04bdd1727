"""The child's answers about a subject: what it takes, and the results of its cases and runs."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.long import long_step
from refopt.oracle.memory import soiled
from refopt.oracle.observing import observe, starts, surroundings, watch_threads
from refopt.oracle.process.child import Held, is_failure, raised
from refopt.oracle.process.memory import Packed, Receiver
from refopt.oracle.running import state_dict_of, why_not

SMALL = 2**16  # the most bytes kept to test whether a step that raises still works at all
OPTIONAL = (
    "dtypes", "fixed", "excused", "notes", "always", "is_function", "libraries", "gated", "in_place", "recompiled"
)


class SubjectAnswers:
    """Answers requests about a subject."""

    def __init__(self, subject: Any) -> None:
        self.subject, self.receiver = subject, Receiver()
        self.good: Callable[[], object] | None = None  # successful work, to repeat
        self.held: dict[int, Any] = {0: subject}  # runs and state dictionaries as well
        self.begun: dict[int, list[Any]] = {}  # how a run was started, until a step of one has succeeded
        self.before = surroundings()
        watch_threads()
        starts.watch()  # a step may start a process in its first call, and use it in others

    def to(
        self, what: str, number: int, kept: int, packed: Packed | None, arguments: Sequence[Any], dropped: Sequence[int]
    ) -> bytes:
        """Do what is requested, of the subject or of a run by its number: the result, or the error.

        A result is held here instead if ``kept`` is a number for it. An error says whether work that succeeded before
        then fails, too.
        """
        for key in dropped:
            self.held.pop(key, None)
            self.begun.pop(key, None)
        try:
            with np.errstate(all="ignore"):
                if packed is None:
                    value = self._done(what, number, kept, arguments)
                else:
                    value = self._of_case(what, packed, *arguments)
                return pickle.dumps(("value", value))
        except BaseException as error:
            return pickle.dumps(("raised", raised(error, spoiled=is_failure(error) and self._is_spoiled())))

    def described(self) -> dict[str, Any]:
        """The properties of a subject."""
        known = {name: getattr(self.subject, name) for name in OPTIONAL if hasattr(self.subject, name)}
        known |= {"name": self.subject.name, "why_not": why_not(self.subject)}
        return known | {"has_stores": hasattr(self.subject, "stores")}

    def _of_case(self, what: str, packed: Packed, *arguments: Any) -> Packed:
        case = self.receiver.unpack(packed)
        if what == "observe":
            value: Any = observe(self.subject, case, self.before, *arguments)
        elif what == "long_step":
            value = long_step(self.subject, case)
        else:
            value = self.subject.run(case), bool(getattr(self.subject, "replaced", False))
        if len(packed.contents) <= SMALL:
            self.good = lambda: self.subject.run(Receiver().unpack(packed))
        return self.receiver.pack(value)

    def _done(self, what: str, number: int, kept: int, arguments: Sequence[Any]) -> Any:
        if what == "soil":
            shapes, dtype, k = arguments
            return soiled(shapes, numpy_dtype(dtype), k)
        arguments = [self.held[x.number] if isinstance(x, Held) else x for x in arguments]
        mine = _copied(arguments) if self.good is None and what in ("start", "step") else []
        of = self.held[number]
        value = state_dict_of(of) if what == "state_dict" else getattr(of, what)(*arguments)
        if mine and kept:
            self.begun[kept] = mine
        elif mine and number in self.begun:
            begun = self.begun[number]
            self.good = lambda: self.subject.start(*_copied(begun)).step(*_copied(mine))
            self.begun.clear()
        if not kept:
            return value
        self.held[kept] = value
        return None

    def _is_spoiled(self) -> bool:
        """Whether work that succeeded before now fails."""
        try:
            with np.errstate(all="ignore"):
                if self.good is not None:
                    self.good()
        except BaseException as error:
            return is_failure(error)
        return False


def _copied(arguments: Sequence[Any]) -> list[Any]:
    """Copies of the arguments of a start or a step; empty if they are large."""
    placed = arguments[0]
    if sum(x.whole.nbytes for x in placed if x is not None) > SMALL:
        return []
    return [[x and x.copy() for x in placed], *arguments[1:]]
