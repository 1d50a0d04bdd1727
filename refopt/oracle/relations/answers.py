"""What a child answers of an optimizer: it has the runs, and does with them what is asked."""

import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.process.child import is_failure, raised
from refopt.oracle.relations.memory import soiled
from refopt.oracle.relations.runs import Optimizer, Run

SMALL = 2**16  # bytes of a step that is kept, to see whether one that raises still works at all
DESCRIBED = "name", "dtypes", "gated", "in_place", "recompiled", "notes"


class OptimizerAnswers:
    """What is asked of an `Optimizer`: to start runs, and of these what their methods do."""

    def __init__(self, optimizer: Optimizer, channel: Connection) -> None:
        self.optimizer, self.channel = optimizer, channel
        self.runs: dict[int, Run] = {}
        self.begun: dict[int, list[Any]] = {}  # how a run was started, as long as no step is known to be good
        self.good: tuple[list[Any], list[Any]] | None = None

    def described(self) -> dict[str, Any]:
        return {name: getattr(self.optimizer, name) for name in DESCRIBED}

    def to(self, what: str, argument: Any) -> Callable[[], None]:
        dropped, number, arguments = argument
        for key in dropped:
            self.runs.pop(key, None)
            self.begun.pop(key, None)
        try:
            with np.errstate(all="ignore"):
                data = pickle.dumps(("value", self._done(what, number, arguments)))
        except BaseException as error:
            told = raised(error, spoiled=is_failure(error) and self._is_spoiled())
            return lambda: self.channel.send(("raised", told))
        return lambda: self.channel.send_bytes(data)

    def _done(self, what: str, number: int, arguments: Sequence[Any]) -> Any:
        if what == "soil":
            shapes, dtype, k = arguments
            return soiled(shapes, numpy_dtype(dtype), k)
        mine = _copied(arguments) if self.good is None and what in ("start", "step") else None
        if what == "start":
            self.runs[number] = self.optimizer.start(*arguments)
            if mine:
                self.begun[number] = mine
            return None
        value = getattr(self.runs[number], what)(*arguments)
        if what == "step" and mine and number in self.begun:
            self.good = self.begun[number], mine
            self.begun.clear()
        return value

    def _is_spoiled(self) -> bool:
        """Whether a step that was well before raises something now."""
        if self.good is None:
            return False
        begun, given = (_copied(arguments) for arguments in self.good)
        try:
            with np.errstate(all="ignore"):
                self.optimizer.start(*begun).step(*given)
        except BaseException as error:
            return is_failure(error)
        return False


def _copied(arguments: Sequence[Any]) -> list[Any]:
    """Arguments of a start or a step, with arrays of their own; none of many bytes."""
    placed = arguments[0]
    if sum(x.whole.nbytes for x in placed if x is not None) > SMALL:
        return []
    return [[x and x.copy() for x in placed], *arguments[1:]]
