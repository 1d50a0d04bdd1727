"""The parent's side: how a child process can be made, messages to it, deadlines, and how it has ended."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

from refopt.oracle.process import child
from refopt.oracle.process.child import Task
from refopt.oracle.subject import Ended

FORK, SPAWN, ALONE = "fork", "spawn", "fork, with one thread of PyTorch"
DEVICES = "/dev/nvidia-uvm", "/dev/kfd"  # open in a process that has used a GPU
START = 180.0  # seconds for a new interpreter to import what the step needs
THREADS = 10.0  # for a forked one to show that its threads run
LINES, POLL, GRACE = 12, 0.5, 2.0
OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep  # frames in here do not concern the step
KEPT = 2**14  # the most characters kept of its last output


def ways(task: Any) -> tuple[list[str], list[str]]:
    """The possible ways, the better ones first, and why the others are impossible.

    A forked child has everything of this process without imports, and takes some milliseconds. Fork is impossible once
    a GPU has been used, or JAX has started its threads. A new interpreter must find the step by its name.
    """
    against = {FORK: "; ".join(_against_fork()), SPAWN: "; ".join(_against_spawn(task))}
    return [way for way in (FORK, SPAWN) if not against[way]], [text for text in against.values() if text]


def _against_fork() -> Iterator[str]:
    if sys.platform != "linux":
        yield "processes can be forked safely only on Linux"
    if used := used_device():
        yield f"this process has used a GPU ({used}), which a fork of it cannot"
    bridge = sys.modules.get("jax._src.xla_bridge")
    with contextlib.suppress(Exception):
        if bridge is not None and bridge.backends_are_initialized():
            yield "JAX has started threads, which a fork does not have"


def used_device() -> str:
    """The evidence that this process has used a GPU; empty if it has not."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return "torch.cuda is initialized"
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{fd}")
                if path.startswith(DEVICES):
                    return f"it has {path} open"
    return ""


def _against_spawn(task: Any) -> Iterator[str]:
    if sys.platform != "linux" or not sys.executable:
        yield "a new interpreter is started only on Linux"
        return
    try:
        data = pickle.dumps(task)
    except Exception as error:
        text = " ".join(str(error).split())
        yield f"a new interpreter cannot import the step ({type(error).__name__}: {text})"
        return
    if b"__main__" in data:
        yield "a new interpreter cannot import the step, which is in __main__"


class Worker:
    """A child process and the connections to it.

    Attributes:
        quiet: whether its output is held back until it has answered.
    """

    def __init__(self, task: Task, way: str, quiet: bool = False) -> None:
        self.quiet, self.tail = quiet, ""
        self.status: int | None = None
        self.channel, theirs = Pipe()
        pipes = {name: os.pipe() for name in ("stdout", "stderr")}
        self.streams = {read: name for name, (read, _) in pipes.items()}
        ends = tuple(write for _, write in pipes.values())
        try:
            spawned = way == SPAWN
            self.pid = self._spawn(task, theirs, ends) if spawned else self._fork(task, theirs, ends, way != ALONE)
        finally:
            theirs.close()
            for end in ends:
                os.close(end)

    def _fork(self, task: Task, channel: Connection, ends: tuple[int, ...], threads: bool) -> int:
        def given() -> Task:
            self._close()  # the parent's ends
            return task

        child.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about threads: the child does not use their locks
            pid = os.fork()
        if not pid:
            child.live(channel, ends, given, threads)
        return pid

    def _spawn(self, task: Task, channel: Connection, ends: tuple[int, ...]) -> int:
        numbers = channel.fileno(), *ends
        code = "import sys; sys.path[:] = {!r}; from refopt.oracle.process import child; child.spawned({}, {}, {})"
        command = [sys.executable, "-c", code.format(sys.path, *numbers)]
        popen = subprocess.Popen(command, pass_fds=numbers, stdin=subprocess.DEVNULL)
        popen.returncode = 0  # `_reaped` waits for it instead
        self.channel.send_bytes(pickle.dumps(task))
        return popen.pid

    def ask(self, message: Any, seconds: float) -> bytes:
        """Send a message, unless it is ``None``, and return the answer; raises `Ended`."""
        until = time.monotonic() + seconds
        try:
            if message is not None:
                self.channel.send(message)
            while self.channel not in self._ready(min(until - time.monotonic(), POLL), self.channel):
                if time.monotonic() >= until:
                    self._over(f"nothing within {seconds:g} s, and ended it", signal.SIGABRT)
                if self._reaped():
                    self._over("")
            self.quiet = False
            return self.channel.recv_bytes()
        except (EOFError, OSError) as error:
            self._over(type(error).__name__)

    def _ready(self, seconds: float, *more: Connection) -> list[Any]:
        """What can be read within some seconds; output is forwarded to that of this process."""
        ready = wait([*more, *self.streams], max(0.0, seconds))
        for fd in self.streams.keys() & {*ready}:
            data = os.read(fd, 2**16)
            stream = getattr(sys, self.streams[fd])
            if not data:
                os.close(fd)
                del self.streams[fd]
            text = data.decode(errors="replace")
            self.tail = (self.tail + text)[-KEPT:]
            if stream is not None and not self.quiet:
                stream.write(text)
                stream.flush()
        return ready

    def _over(self, what: str, signum: int = 0) -> NoReturn:
        """End it, if it has not ended, and raise `Ended` with the cause and its last output."""
        late = bool(signum)
        if late and not self._reaped():  # on this signal faulthandler prints its stack
            os.kill(self.pid, signum)
        until = time.monotonic() + GRACE
        while not self._reaped() and time.monotonic() < until:
            self._ready(0.01)
        self.close()
        assert self.status is not None
        raise Ended(what if late else _of_status(self.status, what), _last(self.tail), late=late)

    def _reaped(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def close(self) -> None:
        """End it."""
        while not self._reaped():
            os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.002)
        self._ready(0.0)
        self._close()

    def _close(self) -> None:
        self.channel.close()
        for fd in self.streams:
            os.close(fd)
        self.streams = {}


def _of_status(status: int, what: str) -> str:
    if status >= 0:
        return f"the end of its process, with exit code {status}"
    try:
        name = signal.Signals(-status)
        return f"the end of its process by {name.name}, {signal.strsignal(name)}"
    except ValueError:
        return f"the end of its process by signal {-status}" + (f", {what}" if what else "")


def _last(text: str) -> list[str]:
    """The last lines that a process has printed, without stack frames outside of the step."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    kept, ours = [], False
    for line in lines:
        ours = line.startswith('File "') and (ours or OWN in line)
        if not ours and not line.startswith(("Extension modules", "Stack (most", "Current thread")):
            kept.append(line)
    return kept[-LINES:]
