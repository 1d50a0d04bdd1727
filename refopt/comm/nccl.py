"""Ranks that are processes with a GPU each and communicate through NCCL, by nccl4py.

    python -m refopt.comm.launch -n 2 train.py        # where train.py says: world = comm.nccl.connect()

Takes the device arrays that `refopt.gpu` takes: those of Numba, CuPy, PyTorch and others. Calls are enqueued on
the communicator's stream and return before they are done, so the arrays must not be freed until then;
`NcclCommunicator.synchronize` waits for them, with a timeout. The order in which NCCL adds depends on the size of the
array and on the links between the GPUs; with two ranks there is only one order, and the bits are those of the local
engine.

Nothing waits forever. GPU work is polled, and a thread watches calls in which NCCL itself waits, such as the first
between two ranks, which connects them. A rank that waits for long leaves a list of its last collectives in the
rendezvous directory, so that the report can say which rank has not made a call, or has made a different one. After the
timeout, `ncclCommAbort` ends the pending work, and the communicator can no longer be used.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

from refopt.checks import Array, arguments
from refopt.comm.calls import DTYPES, Call
from refopt.comm.interface import CommError, Communicator, group_name
from refopt.comm.rendezvous import VARIABLE, Rendezvous
from refopt.gpu.arrays import describer

try:
    import nccl.core as nc
    from cuda.bindings import driver
    from cuda.core import Device
    from nccl.bindings import nccl as calls

    from refopt.gpu.streams import checked, handle_of
except ImportError as error:
    _missing = str(error)
else:
    _missing = ""
    _CODES = {name: int(getattr(nc, name.upper())) for name in DTYPES}
    _SUM = int(nc.SUM)

SUCCESS, IN_PROGRESS = 0, 7  # of ncclResult_t
_REMEMBERED = 64  # collectives in the list that a waiting rank leaves
_QUIET = 0.2  # seconds of waiting before a rank reports it
_SPIN = 2e-3  # seconds of polling without sleeping between polls
_NAP = 1e-4
_LOOK = 0.05  # seconds between looks at the others' reports
_SETTLE = 0.5  # seconds in which the others may still report
_PATIENCE = 20.0  # seconds that an abort may take


def connect(
    rank: int | None = None,
    size: int | None = None,
    store: str | os.PathLike | None = None,
    *,
    timeout: float = 60.0,
    stream: Any = 0,
    blocking: bool = True,
) -> NcclCommunicator:
    """The communicator of all processes, each on its current CUDA device. All of them call it.

    Args:
        rank: of this process; by default ``RANK`` in the environment.
        size: the number of processes; ``WORLD_SIZE``.
        store: a new directory that all can access; ``REFOPT_RENDEZVOUS``. The launcher sets all three.
        timeout: seconds that a call may take, or the wait for it.
        stream: the stream for calls, of Numba, PyTorch, CuPy or cuda.core, or a handle; the legacy default stream if
            not given. Arrays must be ready on it.
        blocking: whether NCCL's host calls may block, as in PyTorch. Otherwise NCCL passes each call to its own thread,
            and is polled until it has accepted the call, which takes longer.
    """
    if _missing:
        raise ImportError(f"refopt.comm.nccl needs nccl4py and CUDA ({_missing}): pip install 'refopt[nccl]'")
    timeout = arguments.number("nccl.connect: timeout", timeout, above=0)
    blocking = arguments.flag("nccl.connect: blocking", blocking)
    size = _whole("size", size, "WORLD_SIZE", 1)
    rank = _whole("rank", rank, "RANK", 0, size - 1)
    meeting = Rendezvous(_given("store", store, VARIABLE), rank, size, timeout)
    Device().set_current()
    meeting.exchange("connect", b"")  # so that NCCL starts only when all have arrived
    if rank == 0:
        meeting.put("unique-id", bytes(nc.get_unique_id()))
    identity = nc.UniqueId.from_bytes(meeting.get("unique-id", 0))
    waiting = f"rank {rank}: connect: not done in {timeout:g} s"
    with _leaving_after(timeout + _PATIENCE, waiting):  # there is nothing to abort yet
        communicator = nc.Communicator.init(size, rank, identity, nc.NCCLConfig(blocking=blocking))
    return NcclCommunicator(communicator, rank, range(size), "", meeting, "", timeout, handle_of(stream))


def _whole(name: str, value: Any, variable: str, least: int, most: int | None = None) -> int:
    """A number that is given, or the environment's text of one."""
    raw = _given(name, value, variable)
    text = value is None and raw.strip().isdecimal()
    return arguments.whole(f"nccl.connect: {name}", int(raw) if text else raw, least, most)


def _given(name: str, value: Any, variable: str) -> Any:
    if value is None and variable not in os.environ:
        raise ValueError(f"nccl.connect: {name}: expected a value, or {variable} in the environment, got neither")
    return os.environ[variable] if value is None else value


class NcclCommunicator(Communicator):
    """The communicator that `connect` returns.

    Attributes:
        stream: the handle of the stream on which calls are enqueued; may be set between calls.
        timeout: seconds that a call may take.
    """

    def __init__(
        self,
        communicator: Any,
        rank: int,
        members: Sequence[int],
        name: str,
        meeting: Rendezvous,
        key: str,
        timeout: float,
        stream: int,
    ) -> None:
        super().__init__(rank, members, name)
        self.timeout, self.stream = timeout, stream
        self._nccl, self._meeting, self._key = communicator, meeting, key
        self._recent: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED)
        self._describe_device = describer("gpu")
        self._handle = calls.Comm(communicator.ptr)
        self._settle("connect")
        self._token = int(checked(driver.cuMemAlloc(4)))  # what a barrier sums
        self._within: tuple[str, float] | None = None  # the call that NCCL is in, and since when
        self._leaving = threading.Lock()  # a call does not end while it is being aborted
        threading.Thread(target=self._look_after, daemon=True).start()

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until all calls so far are done on the GPU.

        Raises:
            CommError: after the timeout, or if NCCL or another rank has given up. The communicator is then aborted.
        """
        self._require_open("synchronize")
        self._wait(self._idle, "synchronize", timeout)

    def abort(self) -> None:
        """End pending GPU work, and tell the other ranks, whose calls then raise."""
        if not self._over:
            self._stop(f"rank {self.members[self.rank]} called abort()")

    def close(self) -> None:
        """Wait for all calls, and free everything. All ranks close it."""
        if self._over:
            return
        self.synchronize()
        with self._looked_after("close"):
            self._nccl.finalize()
        self._settle("close")
        with self._looked_after("close"):
            self._nccl.destroy()
        self._over = "it is closed"
        checked(driver.cuMemFree(self._token))
        self._say("closed", "")

    def _describe(self, value: Any, where: str) -> tuple[Array, Any]:
        return self._describe_device(value, where), None

    def _execute(self, batch: list[Call]) -> None:
        self._recent += [(call.number, call.text) for call in batch if call.collective]
        waiting = str(batch[0]) if len(batch) == 1 else " and ".join(map(str, batch))
        moving = [call for call in batch if call.elements or call.operation == "barrier"]
        with self._looked_after(waiting):
            if len(moving) > 1:
                calls.group_start()
            try:
                for call in moving:
                    self._enqueue(call)
            finally:
                if len(moving) > 1:
                    calls.group_end()
        self._settle(waiting)
        if batch[0].operation == "barrier":
            self._wait(self._idle, waiting)

    def _enqueue(self, call: Call) -> None:
        source, target = (0 if end is None else end.address for end in (call.source, call.target))
        comm, stream, count, code = self._handle, self.stream, call.elements, _CODES.get(call.dtype, 0)
        match call.operation:
            case "barrier":
                calls.all_reduce(self._token, self._token, 1, _CODES["int32"], _SUM, comm, stream)
            case "all_reduce":
                calls.all_reduce(source, target, count, code, _SUM, comm, stream)
            case "reduce":
                calls.reduce(source, source, count, code, _SUM, call.peer, comm, stream)
            case "broadcast":
                both = source or target
                calls.broadcast(both, both, count, code, call.peer, comm, stream)
            case "reduce_scatter":
                calls.reduce_scatter(source, target, count // self.size, code, _SUM, comm, stream)
            case "all_gather":
                calls.all_gather(source, target, count, code, comm, stream)
            case "send":
                calls.send(source, count, code, call.peer, comm, stream)
            case "recv":
                calls.recv(target, count, code, call.peer, comm, stream)

    def _group(self, call: Call, ranks: tuple[int, ...]) -> Self | None:
        self._recent.append((call.number, call.text))
        self._wait(self._idle, str(call))  # NCCL splits a communicator only while no work is pending
        mine = self.rank in ranks
        with self._looked_after(str(call)):
            part = self._nccl.split(0 if mine else None, ranks.index(self.rank) if mine else 0)
        self._settle(str(call))
        if not mine:
            return None
        members = [self.members[rank] for rank in ranks]
        key = f"{self._key}group-{call.number}-"
        place = ranks.index(self.rank)
        return type(self)(part, place, members, group_name(members), self._meeting, key, self.timeout, self.stream)

    def _exchange(self, call: Call, data: bytes) -> list[bytes]:
        self._recent.append((call.number, call.text))
        key = f"{self._key}agree-{call.number}"
        self._meeting.put(f"{key}.{self.rank}", data)
        names = [f"{key}.{rank}" for rank in range(self.size)]
        self._wait(lambda: all(self._meeting.peek(name) is not None for name in names), str(call))
        return [self._meeting.peek(name) or b"" for name in names]

    def _idle(self) -> bool:
        """Whether all that was enqueued on the stream is done."""
        (error,) = driver.cuStreamQuery(self.stream)
        if error == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        checked((error,))
        return True

    def _settle(self, waiting: str) -> None:
        """Wait until NCCL has accepted the last call; nothing may be enqueued before."""
        self._wait(lambda: True, waiting)

    def _wait(self, done: Callable[[], bool], waiting: str, timeout: float | None = None) -> None:
        """Poll until NCCL has nothing in progress and ``done()``; give up after the timeout or if another rank has."""
        timeout = self.timeout if timeout is None else timeout
        start = time.monotonic()
        look = start + _QUIET
        while True:
            if self._over:
                raise CommError(self._over)
            state = calls.comm_get_async_error(self._handle)
            if state not in (SUCCESS, IN_PROGRESS):
                self._fail(f"{waiting}: NCCL reports {nc.get_error_string(state)}: {self._nccl.get_last_error()}")
            if state == SUCCESS and done():
                return
            now = time.monotonic()
            if now >= look:
                if look == start + _QUIET:
                    self._say("waits", json.dumps(list(self._recent)))
                look = now + _LOOK
                if reason := self._given_up():
                    self._fail(f"{waiting}: {reason}")
            if now - start > timeout:
                self._fail(f"{waiting}: not done in {timeout:g} s; {self._others()}")
            if now - start > _SPIN:
                time.sleep(_NAP)

    @contextlib.contextmanager
    def _looked_after(self, waiting: str) -> Iterator[None]:
        """Make the thread watch the enclosed code, in which NCCL may wait; raises if the thread aborts."""
        self._within = waiting, time.monotonic()
        reason = ""
        try:
            yield
        except Exception as error:
            reason = f"{waiting}: {error}"
        with self._leaving:
            self._within = None
        if self._over:
            raise CommError(self._over)
        if reason:
            self._fail(reason)

    def _look_after(self) -> None:
        """The thread's work: abort if NCCL has been in a call for too long, or another rank has given up."""
        while not self._over:
            time.sleep(_LOOK)
            within = self._within
            if within is None or (took := time.monotonic() - within[1]) < _QUIET:
                continue
            self._say("waits", json.dumps(list(self._recent)))
            reason = self._given_up()
            if not reason and took > self.timeout:
                reason = f"not done in {self.timeout:g} s; {self._others()}"
            with self._leaving:
                if reason and self._within is within:
                    self._stop(f"rank {self.members[self.rank]}: {within[0]}: {reason}")

    def _given_up(self) -> str:
        """Why another rank has given up; empty if none has."""
        for peer in range(self.size):
            if peer != self.rank and (reason := self._hear("aborted", peer)) is not None:
                return reason
        return ""

    def _others(self) -> str:
        """Which ranks have not made a call that this rank has made, or have made a different one."""
        deadline = time.monotonic() + _SETTLE
        while True:
            silent = {peer: self._compare(peer) for peer in range(self.size) if peer != self.rank}
            silent = {peer: said for peer, said in silent.items() if said}
            if not silent or time.monotonic() > deadline:
                break
            time.sleep(_LOOK)
        if not silent:
            return "all ranks wait in the same call"
        return "; ".join(f"rank {peer} {said}" for peer, said in silent.items())

    def _compare(self, peer: int) -> str:
        """How another rank's last collectives differ from this rank's; empty if they do not."""
        mine = dict(self._recent)
        said = self._hear("waits", peer)
        if self._hear("closed", peer) is not None:
            return "has closed its communicator"
        if said is None:
            return "was silent"
        theirs = {int(number): text for number, text in json.loads(said)}
        for number in sorted(mine.keys() & theirs.keys()):
            if mine[number] != theirs[number]:
                return f"has {theirs[number]} as call {number}, this rank {mine[number]}"
        last = max(theirs, default=-1)
        if mine and last < max(mine):
            heard = f"{theirs[last]}, call {last}" if theirs else "no call"
            return f"was last heard from in {heard}"
        return ""

    def _say(self, what: str, text: str) -> None:
        self._meeting.put(f"{self._key}{what}.{self.rank}", text.encode())

    def _hear(self, what: str, peer: int) -> str | None:
        data = self._meeting.peek(f"{self._key}{what}.{peer}")
        return None if data is None else data.decode()

    def _fail(self, reason: str) -> NoReturn:
        self._stop(f"rank {self.members[self.rank]}: {reason}")
        raise CommError(self._over)

    def _stop(self, reason: str) -> None:
        """Abort; if the abort itself hangs, leave the process."""
        self._over = reason
        self._say("aborted", reason)

        with _leaving_after(_PATIENCE, f"{reason}\nncclCommAbort did not return in {_PATIENCE} s"):
            self._nccl.abort()


@contextlib.contextmanager
def _leaving_after(seconds: float, reason: str) -> Iterator[None]:
    """Leave the process, with a report, if the enclosed code takes longer."""

    def leave() -> None:
        print(reason, file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
