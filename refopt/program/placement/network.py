"""Calls of a communicator as work of a stream, so that they are ordered as the stream is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from refopt.program.ops.context import Message
from refopt.simt import DeviceArray
from refopt.simt.outside import Stream, note_copies


class OnExecutor:
    """A communicator of the host for arrays of the executor, which is told what memory a call works on."""

    def __init__(self, comm: Any, stream: Stream) -> None:
        self._comm, self._stream = comm, stream

    def all_reduce(self, array: DeviceArray) -> None:
        self.report("all_reduce", [array], [array])
        self._comm.all_reduce(array.data)

    def reduce(self, array: DeviceArray, root: int) -> None:
        self.report("reduce", [array], [array] if self._comm.rank == root else [])
        self._comm.reduce(array.data, root)

    def broadcast(self, array: DeviceArray, root: int) -> None:
        ours = self._comm.rank == root
        self.report("broadcast", [array] if ours else [], [] if ours else [array])
        self._comm.broadcast(array.data, root)

    def batch(self) -> contextlib.AbstractContextManager[None]:
        """Hold the calls of a ``with`` back, and make them at its end; the executor is told of each as it is held."""
        return self._comm.batch()

    def exchange(self, messages: Sequence[Message]) -> None:
        """All messages at once."""
        ends: dict[str, list[DeviceArray]] = {"send": [], "recv": []}
        for kind, array, _ in messages:
            ends[kind].append(array)
        self.report("exchange", ends["send"], ends["recv"])
        with self._comm.batch():
            for kind, array, peer in messages:
                getattr(self._comm, kind)(array.data, peer)
        self._comm.barrier()

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
        self._comm, self._stream = comm, stream

    def all_reduce(self, array: Any) -> None:
        with self._chosen():
            self._comm.all_reduce(array)

    def reduce(self, array: Any, root: int) -> None:
        with self._chosen():
            self._comm.reduce(array, root)

    def broadcast(self, array: Any, root: int) -> None:
        with self._chosen():
            self._comm.broadcast(array, root)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Hold the calls of a ``with`` back, and make them at its end, all on the stream."""
        with self._chosen(), self._comm.batch():
            yield

    def exchange(self, messages: Sequence[Message]) -> None:
        """All messages at once. Nobody waits for other ranks: what comes after on the stream does."""
        with self._chosen(), self._comm.batch():
            for kind, array, peer in messages:
                getattr(self._comm, kind)(array, peer)

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
