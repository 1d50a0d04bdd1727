"""One launch: its blocks, warps and threads, and the scheduler that switches between them.

A thread becomes a greenlet only when it has to wait: a worker greenlet runs threads as plain calls, one after another,
and a new worker takes over when a thread suspends. So kernels without barriers need no switches. The blocks of an
ordinary launch run one after another; those of a cooperative launch are all resident.
"""

from __future__ import annotations

import contextvars
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

try:
    from greenlet import getcurrent, greenlet
except ModuleNotFoundError:  # as in a browser's Python: launches by lanes do not need it
    greenlet = None

from ..base.diagnosis import divergence, is_outside, outside, place_of
from ..base.errors import LaunchError, SimtError, TimeLimitExceeded
from ..base.places import here
from ..base.state import blockDim, blockIdx, current, gridDim, threadIdx
from ..base.threads import EARLY, FORWARD, Block, Index, Schedule, Thread
from ..base.watchdog import Stopped, limits, watch
from ..rules import DEFAULT, Rules
from . import spins as spinning
from .barriers import complete_barrier, complete_grid
from .occupancy import resident_blocks

MAX_RESIDENT_THREADS = 65536  # the executor's limit; the claimed device may hold fewer
PATIENCE = 8  # atomics in a row that a thread may do before the others get a turn


class Launch:
    """A kernel launch from start to end."""

    def __init__(
        self, function: Callable, name: str, grid: Index, block: Index, dynamic_bytes: int, untyped: bool
    ) -> None:
        self.function, self.name = function, name
        self.untyped = untyped  # so that its return statements cannot be told from its end
        self.grid, self.block, self.dynamic_bytes = grid, block, dynamic_bytes
        observer = current.observer
        self.schedule: Schedule = observer.schedule if observer is not None else FORWARD
        self.rules: Rules = observer.rules if observer is not None else DEFAULT
        self.watched: bool = observer is not None and observer.watching
        self.random = self.schedule.random
        self.patience = 1 if self.random is not None else PATIENCE
        self.cooperative = False
        self.args: tuple = ()
        self.ready: list[Thread] = []  # a stack: the next thread is the last
        self.later: list[Thread] = []  # threads that have become ready since, in order
        self.stalled: list[Thread] = []  # threads that run only when no other can
        self.resident: list[Block] = []
        self.waiting_blocks: Iterator[tuple[int, Index]] = iter(())
        self.thread_indices = [(x, y, z) for z in range(block[2]) for y in range(block[1]) for x in range(block[0])]
        self.size = math.prod(grid) * math.prod(block)  # threads in all
        self.arrived = self.exited = self.unfinished = 0
        self.unchanged = self.released = self.atomics = 0
        self.spins: spinning.Spins | None = None  # since atomics change nothing
        self.steps = 0  # times that a thread was suspended, for the watchdog
        self.stopped = False  # the watchdog has stopped a thread, but the exception has not arrived
        self.hub: Any = None
        self.context: Any = None

    def run(self, args: tuple) -> None:
        """Run all threads of all blocks, or raise the first error."""
        if current.inside:
            raise LaunchError("a kernel cannot be launched from a kernel", here())
        if greenlet is None:
            raise LaunchError(f"kernel {self.name} runs by threads, which needs greenlet: pip install greenlet", here())
        self.args, self.hub = args, getcurrent()
        gx, gy, gz = self.grid
        indices = [(x, y, z) for z, y, x in itertools.product(range(gz), range(gy), range(gx))]
        self.waiting_blocks = iter(self.schedule.order(list(enumerate(indices))))
        blockDim.set(self.block)
        gridDim.set(self.grid)
        threadIdx.set((0, 0, 0))
        blockIdx.set((0, 0, 0))
        current.launch, current.kernel_code = self, self.function.__code__
        current.runner = threading.get_ident()
        try:
            watch.begin(self)
            # NumPy stores its error state in a context variable, and a greenlet starts with an empty context.
            with np.errstate(all="ignore"):
                self.context = contextvars.copy_context()
            for number, index in self.waiting_blocks:
                self.resident.clear()
                self._admit(number, index)
                self._drain()
        except Stopped as error:
            self.stopped = False
            raise TimeLimitExceeded(
                f"a thread ran for {limits.seconds:g} s without a barrier, an atomic or a fence "
                "(simt.limits.seconds); a spin needs an atomic or a fence",
                place_of(error),
            ) from None
        except SimtError:
            raise
        except Exception as error:
            if is_outside(error):
                raise outside(error) from None
            error.add_note(f"in {place_of(error)}")
            raise
        finally:
            watch.end()
            self._abandon()
            current.reset()
            for dim in (threadIdx, blockIdx, blockDim, gridDim):
                dim.clear()

    def become_cooperative(self) -> None:
        """Make all blocks resident."""
        if not self.cooperative:
            if self.size > MAX_RESIDENT_THREADS:
                most = f"more than {MAX_RESIDENT_THREADS} cannot be resident"
                raise LaunchError(f"cooperative launch of {self.size} threads: {most}", here())
            self.check_residency()
            self.cooperative = True
            for number, index in self.waiting_blocks:
                self._admit(number, index)

    def check_residency(self) -> None:
        """Refuse a cooperative launch of more blocks than the claimed device can hold at once, as the driver does."""
        shared_bytes = current.block.static_bytes + self.dynamic_bytes
        blocks, most = math.prod(self.grid), resident_blocks(self.block, shared_bytes)
        if blocks > most:
            raise LaunchError(
                f"cooperative launch of {blocks} blocks, each of {math.prod(self.block)} threads and {shared_bytes} "
                f"bytes of shared memory: more than {most} cannot be resident on {current.claim.multiprocessors} "
                "multiprocessors",
                here(),
            )

    def _admit(self, number: int, index: Index) -> None:
        block = Block(index, number, self.thread_indices)
        self.resident.append(block)
        self.unfinished += len(block.threads)
        if current.observer is not None:
            current.observer.start(block.threads)
        self.release(block.threads)

    def release(self, threads: list[Thread]) -> None:
        """Make threads runnable."""
        self.later += self.schedule.order(threads)
        self.released += len(threads)

    def _next(self) -> Thread | None:
        """Take the next thread, and make it the current one."""
        ready, random = self.ready, self.random
        if not ready or random is not None:
            if not self.later and not ready:
                self.later, self.stalled = self.stalled, []
            ready += self.later[::-1]
            self.later.clear()
            if not ready:
                return None
            if random is not None:
                chosen = random.randrange(len(ready))
                ready[chosen], ready[-1] = ready[-1], ready[chosen]
        thread = ready.pop()
        current.thread = thread
        threadIdx.x, threadIdx.y, threadIdx.z = thread.index
        if thread.block is not current.block:
            current.block = thread.block
            blockIdx.x, blockIdx.y, blockIdx.z = thread.block.index
        return thread

    def _drain(self) -> None:
        """Run until all resident threads have finished."""
        thread = self._next()
        while thread is not None:
            thread = self._resume(thread) or self._next()
        if self.unfinished:
            raise divergence(self)

    def _resume(self, thread: Thread) -> Thread | None:
        """Continue a thread from the hub; return the thread to continue next if that is already known."""
        if thread.greenlet is None:
            thread.greenlet = greenlet(self._work, self.hub)
            thread.greenlet.gr_context = self.context
        return thread.greenlet.switch()

    def _work(self) -> Thread | None:
        """Run threads that have not started, until the next one is suspended."""
        worker = getcurrent()
        while True:
            self._exit(current.thread, self.function(*self.args) is EARLY or self.untyped)
            thread = self._next()
            if thread is None or thread.greenlet is not None:
                return thread
            thread.greenlet = worker

    def park(self) -> None:
        """Suspend the running thread; it continues when the scheduler picks it again."""
        self.steps += 1
        thread = self._next()
        if thread is None:
            self.hub.switch()
        elif thread.greenlet is None:
            # The hub starts it: a greenlet inherits the recursion depth of the one that starts it.
            self.hub.switch(thread)
        else:
            thread.greenlet.switch()

    def stall(self) -> None:
        """Suspend the running thread until no other can run."""
        self.stalled.append(current.thread)
        self.park()

    def pause(self, changed: bool) -> None:
        """An atomic was executed: let the others run, since this may be a spin on what they do."""
        self.atomics += 1
        if changed:
            self.unchanged = self.released = 0
        else:
            self.unchanged += 1
            least = max(spinning.UNCHANGED, spinning.TURNS * self.unfinished)
            if self.unchanged >= least or (self.unchanged > spinning.POLLS and self.released > 4 * least):
                self._look()
        if self.atomics > spinning.ATOMICS:
            self._look(unchanged=False)
        thread = current.thread
        thread.pauses += 1
        if thread.pauses >= self.patience:
            thread.pauses = 0
            self.later.append(thread)
            self.park()

    def _look(self, unchanged: bool = True) -> None:
        """Check for a deadlock: many atomics were executed without a thread finishing."""
        if self.spins is None or self.spins.exited != self.exited:
            self.spins = spinning.Spins(self.exited)
        if unchanged:
            self.unchanged = self.released = 0
            self.spins.look(self)
        else:
            self.atomics -= spinning.ATOMICS // 100
            self.spins.watch_the_clock(self)

    def _exit(self, thread: Thread, early: bool) -> None:
        warp, block = thread.warp, thread.block
        thread.greenlet = None
        self.exited += 1
        self.unfinished -= 1
        self.unchanged = self.released = self.atomics = 0
        warp.alive &= ~(1 << thread.lane)
        if self.rules.early_return if early else self.rules.skipped_barrier:
            warp.missed |= 1 << thread.lane  # lanes that wait for it wait until the launch ends, which is the error
        if warp.pending:
            for key in list(warp.pending):
                warp.complete(key)
        block.exited += 1
        if early:
            block.returned += 1
        if block.arrived:
            complete_barrier(block)
        if self.arrived:
            complete_grid(self)

    def _abandon(self) -> None:
        """Unwind the threads that an error left suspended."""
        for block in self.resident:
            for thread in block.threads:
                if thread.greenlet is not None and not thread.greenlet.dead:
                    thread.greenlet.throw()
        self.resident.clear()
