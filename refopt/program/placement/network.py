"""Calls of a communicator as work of a stream, so that they are ordered as the stream is."""

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
    """A communicator of the host for arrays of the executor, which is told what memory a call works on."""

    def __init__(self, comm: Any, stream: Stream) -> None:
        self._comm, self._stream, self.rank = comm, stream, getattr(comm, "rank", 0)

    def prepared(self, operation: str, *arguments: Any) -> Callable[[], None]:
        """A collective that is made in each step: arrays of the executor, and the root of those that have one."""
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
        """Hold the calls of a ``with`` back, and make them at its end; the executor is told of each as it is held."""
        return self._comm.batch()

    def exchange(self, messages: Sequence[Message]) -> Callable[[], None]:
        """What makes all messages at once, and meets the other ranks."""
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
        """Nothing is under way: a call returns when it is done."""

    def reading(self, name: str, arrays: Sequence[DeviceArray]) -> Callable[[], None] | None:
        """What tells the executor that somebody outside reads arrays."""
        return partial(self.report, name, arrays, [])

    def report(self, name: str, sources: Sequence[DeviceArray], targets: Sequence[DeviceArray]) -> None:
        """Tell the executor what memory the stream is about to work on."""
        copies = [*((source, None) for source in sources), *((None, target) for target in targets)]
        note_copies(name, copies, stream=self._stream)


class OnGpu:
    """A communicator of GPUs, such as that of `refopt.comm.nccl`, which enqueues its calls on the stream it is told."""

    def __init__(self, comm: Any, stream: int) -> None:
        self._comm, self._stream, self.rank = comm, stream, getattr(comm, "rank", 0)

    def prepared(self, operation: str, *arguments: Any) -> Callable[[], None]:
        """A collective that is made in each step."""
        call = self._comm.prepared(operation, *arguments)

        def run() -> None:
            with self._chosen():
                call()

        return run

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Hold the calls of a ``with`` back, and make them at its end, all on the stream."""
        with self._chosen(), self._comm.batch():
            yield

    def exchange(self, messages: Sequence[Message]) -> Callable[[], None]:
        """What makes all messages at once. Nobody waits for other ranks: what comes after on the stream does."""
        calls = [self._comm.prepared(*message) for message in messages]
        return lambda: at_once(self, calls)

    def synchronize(self) -> None:
        """Wait until all calls so far are done, or the communicator's time is up."""
        if self._comm is not None:
            with self._chosen():
                self._comm.synchronize()

    def reading(self, name: str, arrays: Sequence[Any]) -> Callable[[], None] | None:
        """Nobody has to be told."""
        return None

    @contextlib.contextmanager
    def _chosen(self) -> Iterator[None]:
        before, self._comm.stream = self._comm.stream, self._stream
        try:
            yield
        finally:
            self._comm.stream = before


Network = OnExecutor | OnGpu
