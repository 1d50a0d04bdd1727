"""A subject whose steps run in another process: the laws, and all that they compare, stay in this one."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from refopt.oracle.cases import Case
from refopt.oracle.exact.cases import Outcome
from refopt.oracle.literals import library_named
from refopt.oracle.memory import Placed
from refopt.oracle.observing import Seen
from refopt.oracle.process.memory import Sender, outcome_back
from refopt.oracle.process.remote import Remote
from refopt.oracle.script import Call
from refopt.oracle.subject import Ended


class RemoteSubject(Remote):
    """A `Subject`, of another process.

    Attributes:
        replaced: whether the last run put other arrays into the lists.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.replaced = False
        self.known: dict[Any, Any] = {}
        self.last = 0  # number of a run
        self.dropped: list[int] = []

    def begin(self) -> None:
        self.sender = Sender()

    def __getattr__(self, name: str) -> Any:
        if name == "stores" and self.__dict__.get("described", {}).get("has_stores"):
            return self._stores
        return super().__getattr__(name)

    def takes(self, what: str) -> bool:
        return bool(self._ask("takes", what))

    def _stores(self, dtype: str) -> Any:
        return self._ask("stores", dtype)

    def call(self, case: Case) -> Call:
        """How a script calls it."""
        packed, memories = Sender().pack(case)
        fields, of = self.value(self.asked(("call", packed), memories)[0])
        return Call(**fields, of=library_named(*of))

    def _ask(self, what: str, argument: str) -> Any:
        """An answer that stays the same."""
        if (what, argument) not in self.known:
            self.known[what, argument] = self.value(self.asked((what, (argument,)), None)[0])
        return self.known[what, argument]

    def run(self, case: Case) -> Outcome:
        """Take the steps of a case there, and write what they write here."""
        sent, self.replaced = self._run("run", case)
        return outcome_back(case, sent)

    def observe(self, case: Case, rest: bool) -> Seen:
        """The same, and what they do beside."""
        seen = self._run("rest" if rest else "observe", case)
        later = seen.later and outcome_back(case, seen.later)
        return seen._replace(got=outcome_back(case, seen.got), later=later)

    def _run(self, what: str, case: Case) -> Any:
        self.anew()
        packed, memories = self.sender.pack(case)
        started = time.monotonic()
        answer, after = self.asked((what, packed), memories, answers=2)
        self.longest = max(self.longest, time.monotonic() - started)
        self.sender.take_back(memories, after)
        return self.value(answer)

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> "RemoteRun":
        self.last += 1
        self.of_run("start", self.last, list(params), saved, apart)
        return RemoteRun(self, self.last)

    def soil(self, shapes: Sequence[tuple[int, ...]], dtype: str, k: int) -> None:
        """Leave numbers in memory that is free there."""
        self.of_run("soil", 0, list(shapes), dtype, k)

    def of_run(self, what: str, run: int, *arguments: Any) -> Any:
        """What a method returns there, or raises; of the optimizer, or of a run by its number."""
        dropped, self.dropped = self.dropped, []
        started = time.monotonic()
        (answer,) = self.asked(("of_runs", (dropped, what, run, arguments)))
        self.longest = max(self.longest, time.monotonic() - started)
        return self.value(answer)


class RemoteRun:
    """A `Run` of another process, which has it until it is forgotten here."""

    def __init__(self, of: RemoteSubject, number: int) -> None:
        self.of, self.number, self.worker = of, number, of.worker

    def __del__(self) -> None:
        self.of.dropped.append(self.number)

    def _ask(self, what: str, *arguments: Any) -> Any:
        if self.of.worker is not self.worker:
            raise Ended("the end of its process in an earlier call", [])
        return self.of.of_run(what, self.number, *arguments)

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None, refill: bool = False) -> None:
        self._ask("step", list(grads), found_inf, refill)

    def add(self, params: Sequence[Placed]) -> None:
        self._ask("add", list(params))

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
