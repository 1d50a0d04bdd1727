"""A subject whose step runs in another process."""

import time
from typing import Any

from refopt.oracle.cases import Case
from refopt.oracle.exact.cases import Outcome
from refopt.oracle.literals import library_named
from refopt.oracle.observing import Seen
from refopt.oracle.process.answers import SubjectAnswers
from refopt.oracle.process.memory import Sender, outcome_back
from refopt.oracle.process.remote import Remote
from refopt.oracle.script import Call


class RemoteSubject(Remote):
    """A `Subject`, of another process.

    Attributes:
        replaced: whether the last run put other arrays into the lists.
    """

    answers = SubjectAnswers

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.replaced = False
        self.known: dict[Any, Any] = {}

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
