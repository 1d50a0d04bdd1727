"""Ranks that are processes and communicate through MPI, by mpi4py. NumPy arrays only: copy device arrays first.

    mpiexec -n 4 python train.py        # where train.py says: world = comm.mpi.connect()

Nothing waits forever. Every MPI call is nonblocking and is polled until it is done or times out; a rank that gives up
raises a `CommError`, and at its exit aborts the MPI job, since the others may wait for it. MPICH ends a job in which a
rank calls ``os._exit(0)`` with status 0 and without a word: check that each rank has reached its end.

With ``watch``, a rank announces each collective to every other rank, and moves data only once all have announced the
same. So all ranks report a mismatched collective at once, and name a rank that never reaches one. The cost is a message
of 128 bytes to each rank for each collective, and that every collective, even a broadcast, then waits for all ranks: it
is meant for tests and debugging, and is on by default for up to 8 ranks. Without it, ranks whose calls differ may get
wrong data or wait until the timeout. ``send`` and ``recv`` are only compared by their bytes.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

import numpy as np

try:
    from mpi4py import MPI
except ImportError as error:
    hint = "pip install 'refopt[mpi]'"
    raise ImportError(f"refopt.comm.mpi needs mpi4py and an MPI library ({error}): {hint}") from error

from refopt import checks
from refopt.checks import Array
from refopt.checks.arguments import flag, number
from refopt.comm import sums
from refopt.comm.calls import SUMS, Call, Payload
from refopt.comm.interface import CommError, Communicator, group_name, listed
from refopt.comm.watch import Watch, poll

ALGORITHMS = "rank_order", "native"
WATCHED = 8  # ranks up to which watch is the default
_GRACE = 2.0  # seconds that a failed rank waits for the others to report too, before it aborts them
_DRAIN = 0.2  # seconds for mpiexec to pass on output; an abort loses the rest
_MOMENT = 0.2  # seconds for which a rank that has found a fault listens to the others
_LATE = 1.0  # seconds in which a message of a rank that has ended may still arrive

_open: list[MpiCommunicator] = []


def connect(
    communicator: Any = None, *, algorithm: str = "rank_order", timeout: float = 60.0, watch: bool | None = None
) -> MpiCommunicator:
    """The communicator of all processes of this MPI job. All of them call it.

    Args:
        communicator: of mpi4py, if not ``COMM_WORLD``; a duplicate is used.
        algorithm: ``"rank_order"``: each rank adds a slice in rank order, as the local engine does, bit for bit;
            ``"native"``: MPI's own reductions, in an order that MPI chooses; not for 16-bit floats.
        timeout: seconds that a call may take.
        watch: whether to announce collectives before they move data; by default, for up to 8 ranks.
    """
    sums.check_algorithm("mpi.connect", algorithm, ALGORITHMS)
    timeout = number("mpi.connect: timeout", timeout, above=0)
    parent = MPI.COMM_WORLD if communicator is None else communicator
    watch = parent.Get_size() <= WATCHED if watch is None else flag("mpi.connect: watch", watch)
    return MpiCommunicator(parent, range(parent.Get_size()), "", algorithm, timeout, watch)


class MpiCommunicator(Communicator):
    """The communicator that `connect` returns."""

    def __init__(
        self, parent: Any, members: Sequence[int], name: str, algorithm: str, timeout: float, watch: bool
    ) -> None:
        super().__init__(parent.Get_rank(), members, name)
        self.algorithm, self.timeout = algorithm, timeout
        self._failed = False
        self._watch: Watch | None = None
        _open.append(self)
        self._data, request = parent.Idup()
        self._wait(request, "connect")
        if watch:
            notices, request = parent.Idup()
            self._wait(request, "connect")
            self._watch = Watch(notices, self.rank, self.size)

    def abort(self) -> None:
        """End all processes of the MPI job, including this one."""
        MPI.COMM_WORLD.Abort(1)

    def close(self) -> None:
        """Free the MPI communicators. All ranks close it."""
        if self._over:
            return
        self._meet(Call("close", number=self._next_number()), always=True)
        self._over = "it is closed"
        _open.remove(self)
        self._data.Free()
        if self._watch is not None:
            self._watch.close()

    def _describe(self, value: Any, where: str) -> tuple[Array, Any]:
        described = checks.host_array(value, where)
        operation = where.partition(":")[0]
        if self.algorithm == "native" and operation in SUMS and described.dtype in ("float16", "bfloat16"):
            raise TypeError(f'{where}: expected no 16-bit float with algorithm="native", got {described.dtype}')
        return described, value.reshape(-1) if value.flags.c_contiguous else None

    def _execute(self, calls: list[Call]) -> None:
        posted = [(call, self._post(call)) for call in calls if not call.collective]
        for call in calls:
            if call.collective:
                self._meet(call)
                self._collective(call)
        for call, request in posted:
            status = MPI.Status()
            self._wait(request, call, status)
            if call.target is not None and status.Get_count(MPI.BYTE) != call.nbytes:
                self._fail(f"in {call}{self._of}: expected {call.nbytes} bytes, got {status.Get_count(MPI.BYTE)}")

    def _post(self, call: Call) -> Any:
        if call.source is not None:
            return self._data.Isend(_bytes(call.source.data), call.peer)
        assert call.target is not None
        return self._data.Irecv(_bytes(call.target.data), call.peer)

    def _collective(self, call: Call) -> None:
        data, root = self._data, call.peer
        source: Any = call.source.data if call.source is not None else None
        target: Any = call.target.data if call.target is not None else None

        def wait(request: Any) -> None:
            self._wait(request, call)

        if call.operation == "barrier":
            wait(data.Ibarrier())
        elif call.operation == "broadcast":
            wait(data.Ibcast(_bytes(source if target is None else target), root))
        elif call.operation == "all_gather":
            wait(data.Iallgather(_bytes(source.copy()), _bytes(target)))  # a copy, since it may be part of the target
        elif self.algorithm == "native":
            self._native(call, wait)
        else:
            cuts = sums.slices(source.size, self.size)
            mine = self._sum(source, cuts, wait)
            lengths = [source.itemsize * (cut.stop - cut.start) for cut in cuts]
            if call.operation == "reduce_scatter":
                target[...] = mine
            elif call.operation == "all_reduce":
                wait(data.Iallgatherv(_bytes(mine), _parts(target, lengths)))
            else:
                wait(data.Igatherv(_bytes(mine), None if target is None else _parts(target, lengths), root))

    def _sum(self, source: np.ndarray, cuts: list[slice], wait: Callable[[Any], None]) -> np.ndarray:
        """This rank's slice of the sum: every rank gets its slice of every other, and adds them in rank order."""
        own = cuts[self.rank].stop - cuts[self.rank].start
        parts = np.empty((self.size, own), source.dtype)
        lengths = [source.itemsize * (cut.stop - cut.start) for cut in cuts]
        each = [source.itemsize * own] * self.size
        wait(self._data.Ialltoallv(_parts(source, lengths), _parts(parts.reshape(-1), each)))
        return sums.rank_order(list(parts))

    def _native(self, call: Call, wait: Callable[[Any], None]) -> None:
        source, target = call.source, call.target
        assert source is not None
        if call.operation == "all_reduce":
            wait(self._data.Iallreduce(MPI.IN_PLACE, source.data))
        elif call.operation == "reduce":
            ends = (MPI.IN_PLACE, target.data) if target is not None else (source.data, None)
            wait(self._data.Ireduce(*ends, root=call.peer))
        else:
            assert target is not None
            wait(self._data.Ireduce_scatter_block(_apart(source, target), target.data))

    def _group(self, call: Call, ranks: tuple[int, ...]) -> Self | None:
        self._meet(call, always=True)  # so that Split, which blocks, finds all ranks there
        mine = self.rank in ranks
        part = self._data.Split(0 if mine else MPI.UNDEFINED, ranks.index(self.rank) if mine else 0)
        if not mine:
            return None
        members = [self.members[rank] for rank in ranks]
        name, watch = group_name(members), self._watch is not None
        communicator = type(self)(part, members, name, self.algorithm, self.timeout, watch)
        part.Free()
        return communicator

    def _exchange(self, call: Call, data: bytes) -> list[bytes]:
        self._meet(call)
        lengths = np.zeros(self.size, np.int64)
        self._wait(self._data.Iallgather(np.array([len(data)], np.int64), lengths), call)
        everything = np.empty(lengths.sum(), np.uint8)
        mine = np.frombuffer(data, np.uint8)
        self._wait(self._data.Iallgatherv(_bytes(mine), _parts(everything, lengths.tolist())), call)
        ends = np.cumsum(lengths)
        return [everything[end - n : end].tobytes() for end, n in zip(ends, lengths, strict=True)]

    def _meet(self, call: Call, always: bool = False) -> None:
        """Wait until all ranks have announced the same call; without watch, only if they must meet."""
        watch, deadline = self._watch, time.monotonic() + self.timeout
        if watch is None:
            if always:
                self._wait(self._data.Ibarrier(), call)
            return
        mine = watch.call(call.number, call.text)

        def heard() -> dict[int, str]:
            watch.listen()
            said = {peer: watch.said(peer, call.number) for peer in watch.others}
            return {peer: text for peer, text in said.items() if text is not None}

        def amiss() -> dict[int, str]:
            said = heard()
            away = {peer: reason for peer, reason in watch.gone.items() if peer not in said}
            return away | {peer: f"waits in {text}" for peer, text in said.items() if text != mine}

        poll(lambda: len(heard()) == len(watch.others) or bool(amiss()), deadline)
        if amiss():
            poll(lambda: len(heard() | amiss()) == len(watch.others), time.monotonic() + _MOMENT)
            others = "; ".join(f"{self._name(peer)} {what}" for peer, what in sorted(amiss().items()))
            self._fail(f"waits in {call}{self._of}; {others}")
        missing = [peer for peer in watch.others if peer not in heard()]
        if missing:
            last = "; ".join(f"{self._name(peer)} was last heard from in {watch.last[peer]}" for peer in missing)
            names = listed([self.members[peer] for peer in missing])
            self._fail(f"waits in {call}{self._of}; heard nothing from {names} in {self.timeout:g} s; {last}")

    def _wait(self, request: Any, call: Call | str, status: Any = None) -> None:
        """Poll a request; fail when the time is up, or when the other end has ended."""
        peer = call.peer if isinstance(call, Call) and not call.collective else None
        ended = 0.0

        def done() -> bool:
            nonlocal ended
            try:
                if request.Test(status):
                    return True
            except MPI.Exception as error:
                self._fail(f"waits in {call}{self._of}; {error}")
            if self._watch is not None and peer is not None:
                self._watch.listen()
                if peer in self._watch.gone:
                    ended = ended or time.monotonic()
                    if time.monotonic() - ended > _LATE:
                        self._fail(f"waits in {call}{self._of}; {self._name(peer)} {self._watch.gone[peer]}")
            return False

        if not poll(done, time.monotonic() + self.timeout):
            self._fail(f"waits in {call}{self._of}; not done in {self.timeout:g} s")

    def _fail(self, reason: str) -> NoReturn:
        self._over, self._failed = reason, True
        if self._watch is not None:
            self._watch.fail(reason)
        raise CommError(f"{self._name(self.rank)} {reason}")

    def _name(self, rank: int) -> str:
        return f"rank {self.members[rank]}"

    @property
    def _of(self) -> str:
        return f" of {self.name}" if self.name else ""


def _bytes(data: np.ndarray) -> list[Any]:
    """A one-dimensional array as bytes: MPI has no bfloat16, and needs no type to move data."""
    return [data.view(np.uint8), MPI.BYTE]


def _parts(data: np.ndarray, lengths: list[int]) -> list[Any]:
    """A one-dimensional array as consecutive parts of ``lengths`` bytes."""
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    return [data.view(np.uint8), lengths, starts, MPI.BYTE]


def _apart(source: Payload, target: Payload) -> np.ndarray:
    """The source; a copy of it if the target is a part of it, which MPI does not allow."""
    return source.data.copy() if np.may_share_memory(source.data, target.data) else source.data


@atexit.register
def _leave() -> None:
    """Tell the others that this rank ends. After a failure, wait briefly for their reports, then end them."""
    if MPI.Is_finalized():
        return
    for communicator in _open:
        if communicator._watch is not None:
            communicator._watch.end()
    failed = [communicator for communicator in _open if communicator._failed]
    if failed:
        poll(lambda: all(_all_ended(communicator._watch) for communicator in failed), time.monotonic() + _GRACE)
        time.sleep(_DRAIN)
        MPI.COMM_WORLD.Abort(1)


def _all_ended(watch: Watch | None) -> bool:
    if watch is None:
        return False
    watch.listen()
    return len(watch.ended) == len(watch.others)
