"""An optimizer whose runs are in another process: the laws, and all that they compare, stay in this one."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from refopt.oracle.process import Remote
from refopt.oracle.relations.answers import OptimizerAnswers
from refopt.oracle.relations.memory import Placed
from refopt.oracle.subject import Ended


class RemoteOptimizer(Remote):
    """An `Optimizer` of another process."""

    answers = OptimizerAnswers

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.last = 0
        self.dropped: list[int] = []

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> "RemoteRun":
        self.last += 1
        self.ask("start", self.last, list(params), saved, apart)
        return RemoteRun(self, self.last)

    def soil(self, shapes: Sequence[tuple[int, ...]], dtype: str, k: int) -> None:
        """Leave numbers in memory that is free there."""
        self.ask("soil", 0, list(shapes), dtype, k)

    def ask(self, what: str, run: int, *arguments: Any) -> Any:
        """What a method returns there, or raises; of the optimizer, or of a run by its number."""
        dropped, self.dropped = self.dropped, []
        started = time.monotonic()
        (answer,) = self.asked((what, (dropped, run, arguments)))
        self.longest = max(self.longest, time.monotonic() - started)
        return self.value(answer)


class RemoteRun:
    """A `Run` of another process, which has it until it is forgotten here."""

    def __init__(self, of: RemoteOptimizer, number: int) -> None:
        self.of, self.number, self.worker = of, number, of.worker

    def __del__(self) -> None:
        self.of.dropped.append(self.number)

    def _ask(self, what: str, *arguments: Any) -> Any:
        if self.of.worker is not self.worker:
            raise Ended("the end of its process in an earlier call", [])
        return self.of.ask(what, self.number, *arguments)

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None) -> None:
        self._ask("step", list(grads), found_inf)

    def params(self) -> list[np.ndarray]:
        return self._ask("params")

    def states(self) -> list[dict[str, np.ndarray]]:
        return self._ask("states")

    def grads(self) -> list[Any]:
        return self._ask("grads")

    def wholes(self) -> list[Any]:
        return self._ask("wholes")

    def save(self) -> bytes:
        return self._ask("save")

    def slow(self, group: int | None = None) -> None:
        self._ask("slow", group)
