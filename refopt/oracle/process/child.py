"""The child process: a loop that answers requests about a subject until the other side closes."""

import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import signal
import sys
import types
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import numpy as np

from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.long import long_step
from refopt.oracle.memory import soiled
from refopt.oracle.observing import observe, starts, surroundings, watch_threads
from refopt.oracle.process.memory import Packed, Receiver
from refopt.oracle.running import state_dict_of, why_not
from refopt.oracle.subject import Lacks, Wrong
from refopt.oracle.subjects import subject_of
from refopt.oracle.variants import ROUTINES

ANSWERS = Lacks, NotImplementedError, Wrong  # deliberate ones of a step
SMALL = 2**16  # the most bytes kept to test whether a step that raises still works at all
OPTIONAL = (
    "dtypes", "fixed", "excused", "notes", "always", "is_function", "libraries", "gated", "in_place", "recompiled"
)
KINDS: tuple[type[BaseException], ...] = (*ANSWERS, KeyboardInterrupt, TypeError, ValueError)


class Task(NamedTuple):
    """The task of a child: to adapt a subject, and to answer requests about it.

    Attributes:
        routine: the name of the row; ``None`` without one.
        named: further arguments of `subject_of`.
    """

    routine: str | None
    subject: Any
    named: dict[str, Any]

    @property
    def where(self) -> str:
        """The function that errors name."""
        return self.named.get("where", "check")

    def made(self) -> Any:
        return subject_of(ROUTINES[self.routine] if self.routine else None, self.subject, **self.named)


class Held(NamedTuple):
    """What a child keeps under a number, as an argument."""

    number: int


class Raised(NamedTuple):
    """An error that a step has raised.

    Attributes:
        kind: its class, or the base class among `KINDS`; otherwise Exception.
        name, module: of its class.
        text: its message.
        spoiled: whether a call that succeeded before now fails, too.
    """

    kind: type[BaseException]
    name: str
    module: str
    text: str
    spoiled: bool = False


def spawned(connection: int, *ends: int) -> NoReturn:
    """The main function of a child that was not forked; the first message is its task."""
    channel = Connection(connection)
    live(channel, ends, lambda: pickle.loads(channel.recv_bytes()))


def live(channel: Connection, ends: tuple[int, ...], task: Callable[[], Task], threads: bool = True) -> NoReturn:
    """Answer until the other side closes. Signals and output of this process do not reach the other side."""
    try:
        _settle(*ends)
        _serve(channel, task, threads)
    except BaseException:
        with contextlib.suppress(BaseException):
            sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _serve(channel: Connection, task: Callable[[], Task], threads: bool) -> None:
    try:
        of = task()
        _try_threads(threads)
        channel.send(("ready", None))
        made = of.made()
    except BaseException as error:
        channel.send(("raised", raised(error)))
        return
    answers = SubjectAnswers(made)
    channel.send(("value", answers.described()))
    pid = os.getpid()
    while True:
        try:
            request = channel.recv()
        except (EOFError, OSError):
            return
        answer = answers.to(*request)
        if os.getpid() != pid:  # a process that the step has forked, and that has returned
            os._exit(1)
        flush()
        channel.send_bytes(answer)


def _settle(stdout: int, stderr: int) -> None:
    """Set up the end, streams and signals of a child process."""
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


def flush() -> None:
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


def is_failure(error: BaseException) -> bool:
    """Whether an error is neither a deliberate answer of the step nor Ctrl-C."""
    return not isinstance(error, (*ANSWERS, KeyboardInterrupt))


def raised(error: BaseException, spoiled: bool = False) -> Raised:
    """An error in a form that can be sent."""
    kind = next((of for of in KINDS if isinstance(error, of)), Exception)
    try:
        text = str(error)
    except Exception:
        text = ""
    return Raised(kind, type(error).__name__, type(error).__module__, text, spoiled)


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
