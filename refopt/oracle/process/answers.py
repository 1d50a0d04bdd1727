"""What a child answers of a subject: what it takes, and what it makes of cases."""

import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from refopt.oracle.cases import Case
from refopt.oracle.observing import Seen, observe, surroundings, watch_threads
from refopt.oracle.process.child import is_failure, raised
from refopt.oracle.process.memory import Packed, Receiver, outcome_sent
from refopt.oracle.script import call_of

SMALL = 2**16  # bytes of a case that is kept, to see whether a step that raises still works at all
OPTIONAL = "dtypes", "fixed", "notes", "always", "compiles_each_list", "is_function", "libraries"


class SubjectAnswers:
    """What is asked of a subject, and what of it is answered."""

    def __init__(self, subject: Any, channel: Connection) -> None:
        self.subject, self.channel, self.receiver = subject, channel, Receiver()
        self.good: tuple[Packed, bytes] | None = None
        self.before = surroundings()
        watch_threads()

    def to(self, what: str, argument: Any) -> Callable[[], None]:
        """Do what is asked; the function that is returned answers."""
        blob = self.channel.recv_bytes() if isinstance(argument, Packed) else b""
        try:
            if what in ("run", "observe", "rest"):
                return self._run(argument, blob, what)
            value = self._call(argument, blob) if what == "call" else getattr(self.subject, what)(*argument)
            data = pickle.dumps(("value", value))
        except BaseException as error:
            told = raised(error)
            return lambda: self.channel.send(("raised", told))
        return lambda: self.channel.send_bytes(data)

    def described(self) -> dict[str, Any]:
        """What a subject says of itself."""
        known = {name: getattr(self.subject, name) for name in OPTIONAL if hasattr(self.subject, name)}
        return known | {"name": self.subject.name, "has_stores": hasattr(self.subject, "stores")}

    def _run(self, packed: Packed, blob: bytes, what: str) -> Callable[[], None]:
        case = self.receiver.unpack(packed, blob)
        try:
            value = self._ran(case) if what == "run" else self._observed(case, what == "rest")
        except BaseException as error:
            told = raised(error, spoiled=self._is_spoiled() if is_failure(error) else False)
            return lambda: self._send(("raised", told), packed)
        if len(blob) <= SMALL:
            whole = {token: (self.receiver.memories[token].size, 0) for token in packed.order}
            self.good = packed._replace(fresh=whole, dropped=[]), blob
        return lambda: self._send(("value", value), packed)

    def _ran(self, case: Case) -> Any:
        with np.errstate(all="ignore"):
            got = self.subject.run(case)
        return outcome_sent(case, got), bool(getattr(self.subject, "replaced", False))

    def _observed(self, case: Case, rest: bool) -> Seen:
        seen = observe(self.subject, case, self.before, rest)
        later = seen.later and outcome_sent(case, seen.later)
        return seen._replace(got=outcome_sent(case, seen.got), later=later)

    def _send(self, message: Any, packed: Packed) -> None:
        self.channel.send(message)
        self.channel.send_bytes(self.receiver.blob(packed))

    def _is_spoiled(self) -> bool:
        """Whether a case that was well before raises something now."""
        if self.good is None:
            return False
        try:
            with np.errstate(all="ignore"):
                self.subject.run(Receiver().unpack(*self.good))
        except BaseException as error:
            return is_failure(error)
        return False

    def _call(self, packed: Packed, blob: bytes) -> Any:
        """How a script calls the subject, without what cannot be sent."""
        call = call_of(self.subject, Receiver().unpack(packed, blob))
        arrays = getattr(self.subject, "arrays", None)
        fields = {name: x for name, x in call._asdict().items() if name != "of"}
        return fields, (type(arrays).__name__, str(getattr(arrays, "device", "cpu")))
