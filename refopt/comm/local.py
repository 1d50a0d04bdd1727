"""Ranks in one process: deterministic, and nothing hangs.

`run` calls a function once per rank. Each rank is a greenlet, which yields to the others only in communication calls. A
call is executed once all participating ranks have made it, so results do not depend on the order in which ranks run.
When no rank can continue, every rank gets a `CommError` that lists what each waits for. ``send`` waits for its
``recv``.

Takes NumPy arrays and arrays of the executor (`refopt.simt`), whose kernels ranks may launch. A collective counts as
work on the executor's default stream, and an observer lists it among the copies, under its own name.
"""

from __future__ import annotations

import contextvars
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from greenlet import getcurrent, greenlet

from refopt import checks
from refopt.checks import Array
from refopt.checks.arguments import RANKS, chosen, shown, whole
from refopt.checks.dtypes import name_of
from refopt.comm import sums
from refopt.comm.calls import Call
from refopt.comm.interface import CommError, Communicator, group_name
from refopt.simt import DeviceArray
from refopt.simt.outside import Schedule, in_kernel, note_copies


def run(
    function: Callable,
    size: int,
    *args: Any,
    schedule: str = "forward",
    seed: int = 0,
    algorithm: str = "rank_order",
) -> list[Any]:
    """Run ``function(comm, *args)`` on every rank.

    Args:
        function: the code of a rank; ``comm`` is its `LocalCommunicator`.
        size: the number of ranks.
        schedule: ``"forward"``, ``"reverse"`` or ``"random"``: which of the runnable ranks continues.
        seed: of the random schedule.
        algorithm: ``"rank_order"``, which defines results (numerics, N10), or ``"ring"``.

    Returns:
        What the function returned, in rank order.

    Raises:
        CommError: if the ranks' calls do not match.
        Exception: the error of a rank; the others get a `CommError` that names it.
    """
    if not callable(function):
        raise TypeError(f"local.run: function: expected a function of a communicator, got {shown(function)}")
    size = whole("local.run: size", size, 1, RANKS)
    world = _World(size, sums.check_algorithm("local.run", algorithm, sums.ALGORITHMS), _schedule(schedule, seed))
    return world.run(function, args)


def _schedule(name: Any, seed: Any) -> Schedule:
    chosen("local.run: schedule", name, ("forward", "reverse", "random"))
    return Schedule(name, whole("local.run: seed", seed, 0))


class _Pending:
    """A call in which a rank waits."""

    def __init__(self, call: Call, rank: _Rank, name: str) -> None:
        self.call, self.rank, self.name = call, rank, name
        self.result: Any = None

    def __str__(self) -> str:
        return f"{self.call}{self.name and f' of {self.name}'}"


class _Rank:
    """A rank of a run: its greenlet, and the calls in which it waits."""

    greenlet: Any = None
    waiting: list[_Pending]

    def __init__(self, number: int) -> None:
        self.number, self.state, self.result = number, "has not started", None
        self.waiting = []

    def __str__(self) -> str:
        state = f"waits in {' and '.join(map(str, self.waiting))}" if self.waiting else self.state
        return f"rank {self.number} {state}"


class _World:
    """A run: its ranks, and whose turn it is."""

    def __init__(self, size: int, algorithm: str, schedule: Schedule) -> None:
        self.ranks = [_Rank(number) for number in range(size)]
        self.algorithm, self.schedule = algorithm, schedule
        self.ready: list[_Rank] = []
        self.hub: Any = None
        self.failure = ""
        self.error: BaseException | None = None  # the first that a rank raised

    def run(self, function: Callable, args: tuple) -> list[Any]:
        self.hub = getcurrent()
        board = _Board(self, tuple(range(len(self.ranks))), "")
        for rank in self.ranks:
            rank.greenlet = greenlet(self._body, self.hub)
            rank.greenlet.gr_context = contextvars.copy_context()  # a greenlet starts with an empty one
        self.ready = self.schedule.order(list(self.ranks))
        try:
            while self.ready:
                rank = self._next()
                if rank.state == "has not started":
                    rank.state = "runs"
                    rank.greenlet.switch(rank, function, LocalCommunicator(self, board, rank.number), args)
                else:
                    rank.greenlet.switch()
                if not self.ready and not self.failure and any(rank.waiting for rank in self.ranks):
                    self.fail(f"no rank can continue: {'; '.join(map(str, self.ranks))}")
        finally:
            self.failure = self.failure or "the run has ended"
        if self.error is not None:
            raise self.error
        return [rank.result for rank in self.ranks]

    def _next(self) -> _Rank:
        random = self.schedule.random
        return self.ready.pop(0 if random is None else random.randrange(len(self.ready)))

    def _body(self, rank: _Rank, function: Callable, comm: LocalCommunicator, args: tuple) -> None:
        try:
            rank.result = function(comm, *args)
            rank.state = "has returned"
        except BaseException as error:
            rank.state = f"has raised {type(error).__name__}"
            if self.error is None:
                self.error = error
                error.add_note(f"in rank {rank.number} of {len(self.ranks)}")
            if not self.failure:
                self.fail(f"rank {rank.number} raised {type(error).__name__}: {error}")

    def fail(self, reason: str) -> None:
        """Stop all ranks from waiting or starting."""
        self.failure = reason
        self.ready = self.schedule.order([rank for rank in self.ranks if rank.state == "runs"])
        self.ready = [rank for rank in self.ready if rank.greenlet is not getcurrent()]

    def park(self, rank: _Rank) -> None:
        """Let the others run; returns when the rank's calls are done, or raises if they cannot be."""
        self.hub.switch()
        if rank.waiting:
            raise CommError(self.failure)


class _Board:
    """The part of a communicator that its ranks share: the calls that wait for others."""

    def __init__(self, world: _World, members: tuple[int, ...], name: str) -> None:
        self.world, self.members, self.name = world, members, name
        self.collectives: list[deque[_Pending]] = [deque() for _ in members]
        self.ends: dict[tuple[str, int, int], deque[_Pending]] = defaultdict(deque)  # send or recv, from, to

    def post(self, rank: int, pending: _Pending) -> None:
        """Register a rank's call, and execute what is now complete."""
        call = pending.call
        if call.collective:
            self.collectives[rank].append(pending)
            while all(self.collectives) and len({waiting[0].call.text for waiting in self.collectives}) == 1:
                self._done(self._perform, [waiting.popleft() for waiting in self.collectives])
            return
        assert call.peer is not None
        ends = (rank, call.peer) if call.operation == "send" else (call.peer, rank)
        self.ends[call.operation, *ends].append(pending)
        sent, received = self.ends["send", *ends], self.ends["recv", *ends]
        while sent and received and _fit(sent[0].call, received[0].call):
            self._done(_move, [sent.popleft(), received.popleft()])

    def _done(self, perform: Callable[[list[_Pending]], None], met: list[_Pending]) -> None:
        perform(met)
        for pending in met:
            pending.rank.waiting.remove(pending)
            if not pending.rank.waiting:
                self.world.ready.append(pending.rank)

    def _perform(self, met: list[_Pending]) -> None:
        """Execute a collective. All sources are read before anything is written."""
        calls = [pending.call for pending in met]
        parts, targets = _ends(calls)
        algorithm, root = self.world.algorithm, calls[0].peer
        match calls[0].operation:
            case "all_reduce":
                _write(targets, [sums.total(parts, algorithm)] * len(targets))
            case "reduce":
                _write(targets, [sums.total(parts, algorithm, root)] * len(targets))
            case "reduce_scatter":
                cuts = sums.slices(parts[0].size, len(parts))
                totals = [[part[cut] for part in parts] for cut in cuts]
                _write(targets, [sums.total(each, algorithm, rank) for rank, each in enumerate(totals)])
            case "all_gather":
                _write(targets, [np.concatenate(parts)] * len(targets))
            case "broadcast":
                _write(targets, parts * len(targets))
            case "group":
                self._form(met)
            case "agree" | "gather_bytes":
                everything = [pending.result for pending in met]
                for pending in met:
                    pending.result = everything[:]

    def _form(self, met: list[_Pending]) -> None:
        """Make a group of the ranks that all of them name."""
        chosen = met[0].result
        members = tuple(self.members[rank] for rank in chosen)
        board = _Board(self.world, members, group_name(members))
        for rank, pending in enumerate(met):
            pending.result = (board, chosen.index(rank)) if rank in chosen else None


def _ends(calls: Sequence[Call]) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    """The ranks' sources and targets."""
    parts = [call.source.data for call in calls if call.source is not None]
    return parts, [call.target.data if call.target is not None else None for call in calls]


def _fit(send: Call, recv: Call) -> bool:
    return (send.elements, send.dtype) == (recv.elements, recv.dtype)


def _move(met: list[_Pending]) -> None:
    send, recv = (pending.call for pending in met)
    assert send.source is not None and recv.target is not None
    _write([recv.target.data], [send.source.data])


def _write(targets: Sequence[np.ndarray | None], values: Sequence[np.ndarray]) -> None:
    for target, value in zip(targets, values, strict=True):
        if target is not None:
            target[...] = value


class LocalCommunicator(Communicator):
    """The communicator of a rank of `run`."""

    def __init__(self, world: _World, board: _Board, rank: int) -> None:
        super().__init__(rank, board.members, board.name)
        self._world, self._board = world, board
        self._me = world.ranks[board.members[rank]]

    def abort(self) -> None:
        """Make every rank's current or next call raise."""
        if not self._world.failure:
            self._world.fail(f"rank {self._me.number} called abort()")

    def close(self) -> None:
        """Make no more calls."""
        self._over = self._over or "it is closed"

    def _describe(self, value: Any, where: str) -> tuple[Array, Any]:
        if isinstance(value, DeviceArray):
            data = value.data
            described = Array(value.address, data.shape, name_of(data.dtype), data.strides, data.flags.writeable)
        elif isinstance(value, np.ndarray):
            data, described = value, checks.host_array(value, where)
        else:
            got = f"{type(value).__module__}.{type(value).__name__}"
            raise TypeError(f"{where}: expected a NumPy array or an array of the executor, got {got}")
        return described, data.reshape(-1) if data.flags.c_contiguous else None

    def _execute(self, calls: list[Call]) -> None:
        for call in calls:
            _observe(call)
        self._wait([_Pending(call, self._me, self.name) for call in calls])

    def _group(self, call: Call, ranks: tuple[int, ...]) -> Self | None:
        place = self._wait_for(call, ranks)
        return place and type(self)(self._world, *place)

    def _exchange(self, call: Call, data: bytes) -> list[bytes]:
        return self._wait_for(call, data)

    def _wait_for(self, call: Call, brought: Any) -> Any:
        pending = _Pending(call, self._me, self.name)
        pending.result = brought
        self._wait([pending])
        return pending.result

    def _wait(self, met: list[_Pending]) -> None:
        self._me.waiting = list(met)
        for pending in met:
            self._board.post(self.rank, pending)
        self._world.park(self._me)

    def _require_open(self, operation: str) -> None:
        if in_kernel():
            raise CommError(f"{operation}: expected a call from a rank, got one from within a kernel")
        if not self._world.failure and getcurrent() is not self._me.greenlet:
            raise CommError(f"{operation}: expected a call from rank {self._me.number}, which owns this communicator")
        self._over = self._over or self._world.failure
        super()._require_open(operation)


def _observe(call: Call) -> None:
    """Tell the executor of work on its arrays."""
    source, target = (
        end.owner if end is not None and isinstance(end.owner, DeviceArray) else None
        for end in (call.source, call.target)
    )
    if source is not None or target is not None:
        note_copies(call.operation, [(source, target)], call.nbytes)
