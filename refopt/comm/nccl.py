"""Ranks that are processes with a GPU each and meet through NCCL, by nccl4py.

    python -m refopt.comm.launch -n 2 train.py        # where train.py says: world = comm.nccl.connect()

Takes the device arrays that `refopt.gpu` takes: those of Numba, CuPy, PyTorch and others. Calls are enqueued on
the communicator's stream and return before they are done, so the arrays must not be freed until then;
`NcclCommunicator.synchronize` waits for them, with a time-out. In which order NCCL adds depends on the size of the
array and on how the GPUs are linked; with two ranks there is one order only, and the bits are those of the local
engine.

Nothing waits for ever. NCCL's communicators are nonblocking ones: what would block, such as connecting to a rank that
never comes, is polled, and given up when the time is up. A rank that waits for long leaves a list of its last
collectives in the rendezvous directory, so that the report can say which rank has not come to which call, or has made
another in its place. Then `ncclCommAbort` ends what is on the GPU, and the communicator can be used no more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

from refopt.checks import Array
from refopt.comm.calls import Call
from refopt.comm.interface import CommError, Communicator, group_name
from refopt.comm.rendezvous import VARIABLE, Rendezvous
from refopt.gpu.arrays import describer

try:
    import nccl.core as nc
    from cuda.bindings import driver
    from cuda.core import Device

    from refopt.gpu.driver import checked, handle_of
except ImportError as error:
    _missing = str(error)
else:
    _missing = ""

SUCCESS, IN_PROGRESS = 0, 7  # of ncclResult_t
_REMEMBERED = 64  # collectives in the list that a waiting rank leaves
_QUIET = 0.2  # seconds of waiting before a rank says so
_SPIN = 2e-3  # seconds of polling before there is a nap between polls
_NAP = 1e-4
_LOOK = 0.05  # seconds between looks at what the others say
_SETTLE = 0.5  # seconds in which the others may still say so
_PATIENCE = 20.0  # seconds that an abort may take


def connect(
    rank: int | None = None,
    size: int | None = None,
    store: str | os.PathLike | None = None,
    *,
    timeout: float = 60.0,
    stream: Any = 0,
    blocking: bool = False,
) -> NcclCommunicator:
    """The communicator of all processes, each on its current CUDA device. All of them call it.

    Args:
        rank: this process; by default ``RANK`` of the environment.
        size: how many there are; ``WORLD_SIZE``.
        store: a fresh directory that all of them reach; ``REFOPT_RENDEZVOUS``. The launcher sets all three.
        timeout: seconds that a call may take, or the wait for it.
        stream: what calls are enqueued on: a stream of Numba, PyTorch, CuPy or cuda.core, or a handle; the legacy
            default stream if not given. Arrays must be ready on it.
        blocking: make NCCL's host calls wait themselves. Then only what is on the GPU has a time-out.
    """
    if _missing:
        raise ImportError(f"refopt.comm.nccl needs nccl4py and CUDA ({_missing}): pip install 'refopt[nccl]'")
    if not timeout > 0:
        raise ValueError(f"nccl.connect: timeout: expected a number of seconds above 0, got {timeout!r}")
    rank = int(_given("rank", rank, "RANK"))
    size = int(_given("size", size, "WORLD_SIZE"))
    meeting = Rendezvous(_given("store", store, VARIABLE), rank, size, timeout)
    Device().set_current()
    meeting.exchange("connect", b"")  # so that NCCL starts only once all are there
    if rank == 0:
        meeting.put("unique-id", bytes(nc.get_unique_id()))
    identity = nc.UniqueId.from_bytes(meeting.get("unique-id", 0))
    made = nc.Communicator.init(size, rank, identity, nc.NCCLConfig(blocking=blocking))
    return NcclCommunicator(made, rank, range(size), "", meeting, "", timeout, handle_of(stream))


def _given(name: str, value: Any, variable: str) -> Any:
    if value is None and variable not in os.environ:
        raise ValueError(f"nccl.connect: {name}: expected a value, or {variable} in the environment, got neither")
    return os.environ[variable] if value is None else value


class NcclCommunicator(Communicator):
    """What `connect` returns.

    Attributes:
        stream: the handle of the stream that calls are enqueued on; may be set between calls.
        timeout: seconds that a call may take.
    """

    def __init__(
        self,
        made: Any,
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
        self._nccl, self._meeting, self._key = made, meeting, key
        self._recent: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED)
        self._describe_device = describer("gpu")
        self._settle("connect")
        made.rank, made.device  # noqa: B018 (nccl4py asks NCCL once, which it must not do within a batch)
        self._token = _View(checked(driver.cuMemAlloc(4)), 1, "int32")  # what a barrier adds up

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until all calls so far are done on the GPU.

        Raises:
            CommError: when the time is up, or NCCL or another rank has given up. The communicator is then aborted.
        """
        self._require_open("synchronize")
        self._wait(self._idle, "synchronize", timeout)

    def abort(self) -> None:
        """End what is on the GPU, and tell the other ranks, whose calls then raise."""
        if not self._over:
            self._stop(f"rank {self.members[self.rank]} called abort()")

    def close(self) -> None:
        """Wait for all calls, and give everything back. All ranks close it."""
        if self._over:
            return
        self.synchronize()
        self._nccl.finalize()
        self._settle("close")
        self._over = "it is closed"
        self._nccl.destroy()
        checked(driver.cuMemFree(self._token.address))
        self._say("closed", "")

    def _describe(self, value: Any, where: str) -> tuple[Array, Any]:
        array = self._describe_device(value, where)
        if array.dtype == "bfloat16":
            import ml_dtypes  # noqa: F401 (so that np.dtype knows the name)
        return array, _View(array.address, array.size, array.dtype)

    def _execute(self, calls: list[Call]) -> None:
        self._recent += [(call.number, call.text) for call in calls if call.collective]
        waiting = " and ".join(map(str, calls))
        moving = [call for call in calls if call.elements or call.operation == "barrier"]
        if len(moving) > 1:
            with nc.group():
                for call in moving:
                    self._enqueue(call)
        elif moving:
            self._enqueue(moving[0])
        self._settle(waiting)
        if calls[0].operation == "barrier":
            self._wait(self._idle, waiting)

    def _enqueue(self, call: Call) -> None:
        source, target = (end.data if end is not None else None for end in (call.source, call.target))
        n, stream = self._nccl, self.stream
        match call.operation:
            case "barrier":
                n.allreduce(self._token, self._token, nc.SUM, stream=stream)
            case "all_reduce":
                n.allreduce(source, target, nc.SUM, stream=stream)
            case "reduce":
                n.reduce(source, source, nc.SUM, call.peer, stream=stream)
            case "broadcast":
                both = source or target
                n.broadcast(both, both, call.peer, stream=stream)
            case "reduce_scatter":
                n.reduce_scatter(source, target, nc.SUM, stream=stream)
            case "all_gather":
                n.allgather(source, target, stream=stream)
            case "send":
                n.send(source, call.peer, stream=stream)
            case "recv":
                n.recv(target, call.peer, stream=stream)

    def _group(self, call: Call, ranks: tuple[int, ...]) -> Self | None:
        self._recent.append((call.number, call.text))
        self._wait(self._idle, str(call))  # NCCL splits a communicator only while nothing is under way
        mine = self.rank in ranks
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
        """Wait until NCCL has taken in the last call; nothing may be enqueued before."""
        self._wait(lambda: True, waiting)

    def _wait(self, done: Callable[[], bool], waiting: str, timeout: float | None = None) -> None:
        """Poll until NCCL has nothing in progress and ``done()``; give up when time is up or somebody else has."""
        timeout = self.timeout if timeout is None else timeout
        start = time.monotonic()
        look = start + _QUIET
        while True:
            state = int(self._nccl.get_async_error())
            if state not in (SUCCESS, IN_PROGRESS):
                self._fail(f"{waiting}: NCCL reports {nc.get_error_string(state)}: {self._nccl.get_last_error()}")
            if state == SUCCESS and done():
                return
            now = time.monotonic()
            if now >= look:
                if look == start + _QUIET:
                    self._say("waits", json.dumps(list(self._recent)))
                look = now + _LOOK
                for peer in range(self.size):
                    if peer != self.rank and (reason := self._hear("aborted", peer)) is not None:
                        self._fail(f"{waiting}: {reason}")
            if now - start > timeout:
                self._fail(f"{waiting}: not done in {timeout} s; {self._others()}")
            if now - start > _SPIN:
                time.sleep(_NAP)

    def _others(self) -> str:
        """Which ranks have not come to a call that this rank has made, or have made another in its place."""
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
            return "was not heard from"
        theirs = {int(number): text for number, text in json.loads(said)}
        for number in sorted(mine.keys() & theirs.keys()):
            if mine[number] != theirs[number]:
                return f"has {theirs[number]} as call {number}, this rank {mine[number]}"
        last = max(theirs, default=-1)
        if mine and last < max(mine):
            return f"was last heard of in {theirs.get(last, 'no call')}, call {last}"
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
        """Abort. If that itself does not end, neither would anything after it: report and leave the process."""
        self._over = reason
        self._say("aborted", reason)

        def leave() -> None:
            print(f"{reason}\nncclCommAbort did not return in {_PATIENCE} s", file=sys.stderr, flush=True)
            os._exit(1)

        timer = threading.Timer(_PATIENCE, leave)
        timer.daemon = True
        timer.start()
        self._nccl.abort()
        timer.cancel()


class _View:
    """An array as nccl4py takes it. It goes by the dtype's name, since bfloat16 has no type string of its own."""

    def __init__(self, address: int, size: int, dtype: str) -> None:
        self.address = int(address)
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": dtype,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }
