"""The child process: a loop that answers requests until the other side closes."""

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

from refopt.oracle.subject import Lacks, Wrong
from refopt.oracle.variants import ROUTINES

ANSWERS = Lacks, NotImplementedError, Wrong  # deliberate ones of a step
KINDS: tuple[type[BaseException], ...] = (*ANSWERS, KeyboardInterrupt, TypeError, ValueError)


class Task(NamedTuple):
    """The task of a child: to adapt a subject, and to answer requests about it.

    Attributes:
        make: called as ``make(row, subject, **named)``.
        routine: the name of the row; ``None`` without one.
        answers: called with the made object, returns an object: ``described()`` describes what was made, and
            ``to(*request)`` does what is requested and returns the answer.
    """

    make: Callable[..., Any]
    routine: str | None
    subject: Any
    named: dict[str, Any]
    answers: Callable[[Any], Any]

    @property
    def where(self) -> str:
        """The function that errors name."""
        return self.named.get("where", "check")

    def made(self) -> Any:
        return self.make(self.routine and ROUTINES[self.routine], self.subject, **self.named)


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
    answers = of.answers(made)
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
