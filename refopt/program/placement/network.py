"""Calls of a communicator as work on a stream, which orders them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from refopt.program.ops.messages import at_once
from refopt.simt import DeviceArray
from refopt.simt.outside import Stream, note_copies

Message = tuple[str, Any, int]  # send or recv, the array, the other rank


class OnExecutor:
    """A communicator of the host for arrays of the executor, to which it reports the memory of each call."""

    def __init__(self, comm: Any, stream: Stream) -> None:
        self._comm, self._stream, self.rank = comm, stream, getattr(comm, "rank", 0)

    def prepared(self, operation: str, *arguments: Any) -> Callable[[], None]:
        """A collective of each step; the arguments are arrays of the executor and the root, if any."""
        arrays = [x for x in arguments if isinstance(x, DeviceArray)]
        root = arguments[len(arrays) :]
        ours = not root or self._comm.rank in root
        sources = arrays[:1] if ours or operation == "reduce" else []
        targets = arrays[-1:] if ours != (operation == "broadcast") else []
        call = self._comm.prepared(operation, *(x.data for x in arrays), *root)

        def run() -> None:
            self.report(operation, sources, targets)
            call()

        return run

    def batch(self) -> contextlib.AbstractContextManager[None]:
        """Delay the calls of a ``with`` until its end; each is reported to the executor when it is delayed."""
        return self._comm.batch()

    def exchange(self, messages: Sequence[Message]) -> Callable[[], None]:
        """A function that makes all messages at once, and then waits at a barrier."""
        ends: dict[str, list[DeviceArray]] = {"send": [], "recv": []}
        for kind, array, _ in messages:
            ends[kind].append(array)
        calls = [self._comm.prepared(kind, array.data, peer) for kind, array, peer in messages]

        def run() -> None:
            self.report("exchange", ends["send"], ends["recv"])
            at_once(self._comm, calls)
            self._comm.barrier()

        return run

    def synchronize(self) -> None:
        """Do nothing: calls return when they are complete."""

    def reading(self, name: str, arrays: Sequence[DeviceArray]) -> Callable[[], None] | None:
        """A function that tells the executor that outside code reads arrays."""
        return partial(self.report, name, arrays, [])

    def report(self, name: str, sources: Sequence[DeviceArray], targets: Sequence[DeviceArray]) -> None:
        """Tell the executor what memory the stream is about to work on."""
        copies = [*((source, None) for source in sources), *((None, target) for target in targets)]
        note_copies(name, copies, stream=self._stream)


class OnGpu:
    """A communicator of GPUs, such as that of `refopt.comm.nccl`, which enqueues its calls on a given stream."""

    def __init__(self, comm: Any, stream: int) -> None:
        self._comm, self._stream, self.rank = comm, stream, getattr(comm, "rank", 0)

    def prepared(self, operation: str, *arguments: Any) -> Callable[[], None]:
        """A collective of each step."""
        call = self._comm.prepared(operation, *arguments)

        def run() -> None:
            with self._chosen():
                call()

        return run

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Delay the calls of a ``with`` until its end, and make them all on the stream."""
        with self._chosen(), self._comm.batch():
            yield

    def exchange(self, messages: Sequence[Message]) -> Callable[[], None]:
        """A function that makes all messages at once. Later work on the stream waits for the other ranks, not the host.
        """
        calls = [self._comm.prepared(*message) for message in messages]
        return lambda: at_once(self, calls)

    def synchronize(self) -> None:
        """Wait until all calls so far are complete, or the communicator times out."""
        if self._comm is not None:
            with self._chosen():
                self._comm.synchronize()

    def reading(self, name: str, arrays: Sequence[Any]) -> Callable[[], None] | None:
        """Nothing: a GPU needs no report."""
        return None

    @contextlib.contextmanager
    def _chosen(self) -> Iterator[None]:
        before, self._comm.stream = self._comm.stream, self._stream
        try:
            yield
        finally:
            self._comm.stream = before


Network = OnExecutor | OnGpu
