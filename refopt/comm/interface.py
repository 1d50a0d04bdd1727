"""The interface of all engines: checks, counts, batches. An engine adds only the execution of calls."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self

from refopt.checks import Array
from refopt.checks.arguments import chosen, mapped, names, shown
from refopt.comm.calls import (
    MOVES,
    PAIRED,
    PEER,
    Call,
    Payload,
    check_batch,
    check_parts,
    check_rank,
    check_ranks,
    check_written,
    payload,
)


class CommError(RuntimeError):
    """Ranks whose calls do not match, or that have ended."""


class Counted(NamedTuple):
    """How often an operation was called, and the bytes of the arrays passed in."""

    calls: int
    bytes: int


class Communicator(ABC):
    """Some ranks, seen from one of them.

    Arrays are C-contiguous, of float16, bfloat16, float32, float64 or an integer type of 8, 32 or 64 bits. A call is
    checked before anything moves; after a TypeError or ValueError nothing has been modified, and this rank has not
    taken part. All ranks make the same collective calls in the same order, with the same dtype, count and root.
    Averaging is a multiplication after the sum (numerics, N10), which the caller does. Calls must be made in the thread
    that made the communicator, since their order matters; `abort` may come from any. Communicators cannot be copied.

    Attributes:
        rank: this rank's number, from 0.
        size: how many ranks there are.
        members: the ranks' numbers in the outermost communicator.
    """

    def __init__(self, rank: int, members: Sequence[int], name: str = "") -> None:
        self.rank, self.size, self.members, self.name = rank, len(members), tuple(members), name
        self._counts: dict[str, Counted] = {}
        self._number = 0
        self._batch: list[Call] | None = None
        self._over = ""  # why no more calls can be made
        self._thread = threading.get_ident()

    def all_reduce(self, array: Any) -> None:
        """Replace the array, on every rank, by the sum over the ranks."""
        payload = self._payload("all_reduce: array", array, written=True)
        self._submit(self._call("all_reduce", payload, source=payload, target=payload))

    def reduce(self, array: Any, root: int) -> None:
        """Replace the array, only on the root, by the sum over the ranks."""
        root = self._peer("reduce", root)
        payload = self._payload("reduce: array", array, written=self.rank == root)
        target = payload if self.rank == root else None
        self._submit(self._call("reduce", payload, source=payload, target=target, peer=root))

    def broadcast(self, array: Any, root: int) -> None:
        """Replace the array, on every rank, by that of the root."""
        root = self._peer("broadcast", root)
        payload = self._payload("broadcast: array", array, written=self.rank != root)
        ends = (payload, None) if self.rank == root else (None, payload)
        self._submit(self._call("broadcast", payload, source=ends[0], target=ends[1], peer=root))

    def reduce_scatter(self, source: Any, target: Any) -> None:
        """Put part ``rank`` of the sum over the ranks into the target.

        Args:
            source: as large as ``size`` targets; it is not modified.
            target: may be part ``rank`` of the source.
        """
        whole = self._payload("reduce_scatter: source", source)
        part = self._payload("reduce_scatter: target", target, written=True)
        check_parts("reduce_scatter", whole, part, self.rank, self.size)
        self._submit(self._call("reduce_scatter", whole, source=whole, target=part))

    def all_gather(self, source: Any, target: Any) -> None:
        """Put the sources of all ranks into the target of each, in rank order.

        Args:
            source: may be part ``rank`` of the target.
            target: as large as ``size`` sources.
        """
        part = self._payload("all_gather: source", source)
        whole = self._payload("all_gather: target", target, written=True)
        check_parts("all_gather", whole, part, self.rank, self.size)
        self._submit(self._call("all_gather", part, source=part, target=whole))

    def send(self, array: Any, to: int) -> None:
        """Send to one rank, which receives. Two ranks that exchange arrays do so in a `batch`."""
        to = self._peer("send", to)
        payload = self._payload("send: array", array)
        self._submit(self._call("send", payload, source=payload, peer=to))

    def recv(self, array: Any, source: int) -> None:
        """Overwrite the array with the one that a rank sends, of as many elements and the same dtype."""
        source = self._peer("recv", source)
        payload = self._payload("recv: array", array, written=True)
        self._submit(self._call("recv", payload, target=payload, peer=source))

    def barrier(self) -> None:
        """Wait until every rank has made this call and its earlier calls are done."""
        self._alone("barrier")
        self._submit(Call("barrier"))

    def group(self, ranks: Sequence[int]) -> Self | None:
        """A communicator of some of the ranks, numbered in the given order. All ranks of this one make the same call.

        Returns:
            The new communicator, or ``None`` on ranks that are not in it.
        """
        self._alone("group")
        chosen = check_ranks(ranks, self.size)
        call = Call("group", detail=f" {_parenthesis(chosen)}", number=self._next_number())
        return self._group(call, chosen)

    def agree(self, description: Iterable[str], common: Mapping[str, Any] | None = None) -> None:
        """Make sure that all ranks are about to make the same calls, and have some values in common.

        The ranks exchange a SHA-256 of both, and these themselves only if the digests differ.

        Args:
            description: the calls, as text.
            common: numbers and text by name, equal on all ranks that have the name.

        Raises:
            CommError: on every rank, with the first entry that differs (calls counted from 0), and each rank's version.
        """
        self._alone("agree")
        entries = list(names("agree: description", description))
        values = mapped("agree: common", {} if common is None else common)
        text = json.dumps([entries, values], default=repr).encode()
        digests = self._exchange(Call("agree", number=self._next_number()), hashlib.sha256(text).digest())
        if len(set(digests)) > 1:
            texts = self._exchange(Call("agree", number=self._next_number()), text)
            if difference := _difference([json.loads(text) for text in texts]):
                raise CommError(difference)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, of any lengths, in rank order. Not for tensors, since they go through the host."""
        self._alone("gather_bytes")
        if not isinstance(data, bytes):
            raise TypeError(f"gather_bytes: data: expected bytes, got {shown(data)}")
        return self._exchange(Call("gather_bytes", number=self._next_number()), data)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Defer the calls within a ``with`` to its end: collectives run in order, send and recv all at once.

        Arrays are read and written at the end, not at the call. After an exception within, none of the calls is made.
        Memory that a ``recv`` overwrites must not overlap that of other calls in the batch, and memory that a ``send``
        reads must not overlap memory that they write; several may send the same. Collectives may share memory.

        Raises:
            ValueError: at the end, if two calls share memory; the message names them, and no call has been made.
        """
        self._require_open("batch")
        if self._batch is not None:
            yield
            return
        self._batch = []
        try:
            yield
            calls, self._batch = self._batch, None
        finally:
            self._batch = None
        if not PAIRED.isdisjoint([call.operation for call in calls]):
            check_batch(calls)
        self._run(calls)

    def prepared(self, operation: str, *arguments: Any) -> Callable[[], None]:
        """Prepare a repeated call: its arguments are checked once, now.

        Args:
            operation: the method that makes the call, such as ``"all_reduce"``.
            arguments: those of the method. The memory of arrays must not move as long as calls are made.

        Returns:
            A function that makes the call, alone or within a `batch`.
        """
        chosen("prepared: operation", operation, MOVES)
        self._require_open("prepared")
        outer, self._batch = self._batch, []
        try:
            getattr(self, operation)(*arguments)
            (call,) = self._batch
        finally:
            self._batch = outer
        return partial(self._submit, call)

    @property
    def counts(self) -> dict[str, Counted]:
        """Calls so far by operation. ``bytes`` are those of the array passed in: of the source, if there are two."""
        return dict(self._counts)

    def reset_counts(self) -> None:
        """Count from 0 again."""
        self._counts.clear()

    @abstractmethod
    def abort(self) -> None:
        """End the communication of all ranks, even if they are waiting."""

    @abstractmethod
    def close(self) -> None:
        """Free the communicator's resources. All ranks close it, once all calls are done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:  # otherwise the other ranks may be in any call
            self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}{self.name and f', {self.name}'}>"

    @abstractmethod
    def _describe(self, value: Any, where: str) -> tuple[Array, Any]:
        """The description of an array that the engine takes, and its elements in the engine's form."""

    @abstractmethod
    def _execute(self, calls: list[Call]) -> None:
        """Carry out the calls of a batch, or a single one."""

    @abstractmethod
    def _group(self, call: Call, ranks: tuple[int, ...]) -> Self | None: ...

    @abstractmethod
    def _exchange(self, call: Call, data: bytes) -> list[bytes]:
        """The bytes of every rank, in rank order."""

    def _payload(self, where: str, value: Any, written: bool = False) -> Payload:
        array, data = self._describe(value, where)
        checked = payload(where, array, data, value)
        if written:
            check_written(where, array)
        return checked

    def _peer(self, operation: str, value: Any) -> int:
        return check_rank(f"{operation}: {PEER[operation]}", value, self.size)

    def _call(self, operation: str, payload: Payload, **ends: Any) -> Call:
        return Call(operation, dtype=payload.dtype, elements=payload.size, nbytes=payload.nbytes, **ends)

    def _submit(self, call: Call) -> None:
        self._require_open(call.operation)
        if self._batch is not None:
            self._batch.append(call)
        else:
            self._run([call])

    def _run(self, calls: list[Call]) -> None:
        for i, call in enumerate(calls):
            if call.collective:
                calls[i] = call._replace(number=self._next_number())
            before = self._counts.get(call.operation, Counted(0, 0))
            self._counts[call.operation] = Counted(before.calls + 1, before.bytes + call.nbytes)
        if calls:
            self._execute(calls)

    def _next_number(self) -> int:
        self._number += 1
        return self._number - 1

    def _alone(self, operation: str) -> None:
        self._require_open(operation)
        if self._batch is not None:
            raise CommError(f"{operation}: expected a call outside batch(), got one inside it")

    def require_thread(self, where: str) -> None:
        """Raise if this is not the thread that made the communicator.

        Args:
            where: the function, for the error.

        Raises:
            CommError: if it is another thread; nothing has been done then.
        """
        if threading.get_ident() != self._thread:
            raise CommError(f"{where}: expected a call in the communicator's own thread, got one in another")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse ``copy``, ``deepcopy`` and ``pickle``, which call this."""
        raise TypeError(f"{type(self).__name__}: cannot be copied, since it belongs to this rank; pass it directly")

    def _require_open(self, operation: str) -> None:
        self.require_thread(operation)
        if self._over:
            raise CommError(f"{operation}: no more calls can be made: {self._over}")


def _difference(ranks: list[tuple[list[str], dict[str, Any]]]) -> str:
    """The first entry that differs between the ranks that have it, and each rank's version; empty if there is none."""
    count = max(len(calls) for calls, _ in ranks)
    padded = (([*calls, *["no call"] * (count - len(calls))], common) for calls, common in ranks)
    tables = [{f"call {i}": call for i, call in enumerate(calls)} | common for calls, common in padded]
    for name in {name: None for table in tables for name in table}:
        holders: dict[Any, list[int]] = {}
        for rank, table in enumerate(tables):
            if name in table:
                holders.setdefault(table[name], []).append(rank)
        if len(holders) > 1:
            return f"agree: {name}: " + ", ".join(
                f"{listed(ranks)} {'has' if len(ranks) == 1 else 'have'} {entry}" for entry, ranks in holders.items()
            )
    return ""


def group_name(members: Sequence[int]) -> str:
    """The name of a group in reports."""
    return f"group {_parenthesis(members)}"


def _parenthesis(ranks: Sequence[int]) -> str:
    return f"({', '.join(map(str, ranks))})"


def listed(ranks: Sequence[int]) -> str:
    """Ranks in words: ``rank 0``, ``ranks 0, 1 and 3``."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
