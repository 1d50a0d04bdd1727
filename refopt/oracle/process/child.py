"""The side of the step: a loop that answers what it is asked of its subject, until nobody asks any more."""

import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import signal
import sys
import types
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import numpy as np

from refopt.oracle.cases import Case
from refopt.oracle.observing import Seen, observe, surroundings, watch_threads
from refopt.oracle.process.memory import Packed, Receiver, outcome_sent
from refopt.oracle.script import call_of
from refopt.oracle.subject import Wrong
from refopt.oracle.variants import ROUTINES

SMALL = 2**16  # bytes of a case that is kept, to see whether a step that raises still works at all
OPTIONAL = "dtypes", "fixed", "notes", "always", "compiles_each_list", "is_function", "libraries"


class Task(NamedTuple):
    """What a child is for: a subject is made by ``make(row, subject, **named)``."""

    make: Callable[..., Any]
    routine: str
    subject: Any
    named: dict[str, Any]


class Raised(NamedTuple):
    """What a step has raised.

    Attributes:
        kind: "refused", "wrong", "interrupted", or "other".
        name, module: of its class.
        text: what it says.
        spoiled: whether a case that was well before raises something now, too.
    """

    kind: str
    name: str
    module: str
    text: str
    spoiled: bool = False


def spawned(connection: int, *ends: int) -> NoReturn:
    """The whole of a child that was not forked; what it is for is the first message."""
    with contextlib.suppress(BaseException):
        channel = Connection(connection)
        live(channel, ends, lambda: pickle.loads(channel.recv_bytes()))
    os._exit(1)


def live(channel: Connection, ends: tuple[int, ...], task: Callable[[], Task], threads: bool = True) -> None:
    """Answer until the other side goes away. Neither signals nor what is printed reach that side's."""
    _settle(*ends)
    try:
        of = task()
        _try_threads(threads)
        channel.send(("ready", None))
        subject = of.make(ROUTINES[of.routine], of.subject, **of.named)
    except BaseException as error:
        channel.send(("raised", _raised(error)))
        return
    answers = Answers(subject, channel)
    channel.send(("value", answers.described()))
    pid = os.getpid()
    while True:
        try:
            request = channel.recv()
        except (EOFError, OSError):
            return
        answer = answers.to(*request)
        if os.getpid() != pid:  # a process that the step has forked, and let return
            os._exit(1)
        _flush()
        answer()


def _settle(stdout: int, stderr: int) -> None:
    """Ends, streams and signals of a process that is another's."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin, sys.stdout, sys.stderr = (_stream(fd, mode) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    faulthandler.enable(file=2, all_threads=False)
    gc.freeze()


def _stream(fd: int, mode: str) -> Any:
    return open(fd, mode, closefd=False, buffering=1, errors="replace")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _try_threads(wanted: bool) -> None:
    """Use PyTorch's threads, which hang in a child of a process that has used them; or use one thread."""
    torch = sys.modules.get("torch")
    if isinstance(torch, types.ModuleType) and hasattr(torch, "set_num_threads"):
        if wanted:
            torch.ones(2**17).sin().sum()
        else:
            torch.set_num_threads(1)


class Answers:
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
            raised = _raised(error)
            return lambda: self.channel.send(("raised", raised))
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
            raised = _raised(error, raising=self._is_spoiled() if _is_failure(error) else False)
            return lambda: self._send(("raised", raised), packed)
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
            return _is_failure(error)
        return False

    def _call(self, packed: Packed, blob: bytes) -> Any:
        """How a script calls the subject, without what cannot be sent."""
        call = call_of(self.subject, Receiver().unpack(packed, blob))
        arrays = getattr(self.subject, "arrays", None)
        fields = {name: x for name, x in call._asdict().items() if name != "of"}
        return fields, (type(arrays).__name__, str(getattr(arrays, "device", "cpu")))


def _is_failure(error: BaseException) -> bool:
    return not isinstance(error, NotImplementedError | KeyboardInterrupt | Wrong)


def _raised(error: BaseException, raising: bool = False) -> Raised:
    kinds = {NotImplementedError: "refused", Wrong: "wrong", KeyboardInterrupt: "interrupted"}
    kind = next((name for of, name in kinds.items() if isinstance(error, of)), "other")
    try:
        text = str(error)
    except Exception:
        text = ""
    return Raised(kind, type(error).__name__, type(error).__module__, text, raising)
