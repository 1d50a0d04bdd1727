"""Block and grid barriers, and fences."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..base.diagnosis import divergence
from ..base.places import Namespace
from ..base.state import current
from ..base.threads import Block, Thread, Warp


def syncthreads() -> None:
    """Wait for all threads of the block."""
    _block_barrier(sys._getframe(1), None, "sync")


def syncthreads_count(predicate: Any) -> int:
    """Wait for all threads of the block; return the number of them whose predicate is true."""
    return _block_barrier(sys._getframe(1), predicate, "count")


def syncthreads_and(predicate: Any) -> int:
    """Wait for all threads of the block; return 1 if the predicate is true in all of them."""
    return int(_block_barrier(sys._getframe(1), not predicate, "and") == 0)


def syncthreads_or(predicate: Any) -> int:
    """Wait for all threads of the block; return 1 if the predicate is true in any of them."""
    return int(_block_barrier(sys._getframe(1), predicate, "or") > 0)


def _block_barrier(frame: FrameType, predicate: Any, what: str) -> int:
    thread = current.thread
    block = thread.block
    _arrive(thread, frame, what)
    thread.value = predicate
    block.arrived += 1
    if block.arrived + block.exited == len(block.threads):
        complete_barrier(block)
    current.launch.park()
    return block.tally


def _arrive(thread: Thread, frame: FrameType, what: str) -> None:
    # A barrier in a helper is a different instruction for each call of the helper.
    code, kernel = frame.f_code, current.kernel_code
    if code is kernel:
        thread.site = frame.f_lasti
    else:
        outer = frame.f_back
        while outer is not None and outer.f_code is not kernel:
            outer = outer.f_back
        thread.site = code, frame.f_lasti, outer and outer.f_lasti
    thread.operand = what


def complete_barrier(block: Block) -> None:
    """Release the threads that wait at the barrier of a block, if all that must arrive have."""
    if block.arrived + block.exited == len(block.threads) and (threads := _meeting([block])):
        block.arrived = 0
        block.tally = sum(1 for thread in threads if thread.value)
        current.launch.release(threads)


def _meeting(blocks: list[Block]) -> list[Thread]:
    """The threads that meet at a barrier of blocks; none if threads that have ended should have reached it.

    In that case the launch ends with the others still waiting, which is reported as the error.
    """
    launch, rules = current.launch, current.launch.rules
    threads = [thread for block in blocks for thread in block.threads]
    if exited := sum(block.exited for block in blocks):
        returned = sum(block.returned for block in blocks)
        if (returned and rules.early_return) or (returned < exited and rules.skipped_barrier):
            return []
        threads = [thread for thread in threads if thread.greenlet is not None]
    if len({thread.site for thread in threads}) > 1 and _diverged(threads):
        raise divergence(launch)
    if current.observer is not None:
        current.observer.join(threads)
    return threads


def _diverged(threads: list[Thread]) -> bool:
    """Whether lanes of one warp are at different barriers, or threads of a block at different kinds of barrier.

    All lanes of a warp must execute the same bar.sync, and a block must not mix bar.sync and bar.red.
    """
    sites: dict[Warp, Any] = {}
    operations: dict[Block, Any] = {}
    return any(
        sites.setdefault(thread.warp, thread.site) != thread.site
        or operations.setdefault(thread.block, thread.operand) != thread.operand
        for thread in threads
    )


class GridGroup:
    """All threads of a cooperative launch."""

    def sync(self) -> int:
        """Wait for all threads of all blocks; return 0, as in CUDA."""
        launch = current.launch
        _arrive(current.thread, sys._getframe(1), "grid")
        launch.arrived += 1
        complete_grid(launch)
        launch.park()
        return 0


def complete_grid(launch: Any) -> None:
    """Release the threads that wait at the barrier of the grid, if all that must arrive have.

    A grid barrier is a barrier in each block, then one among the first threads of the blocks, which must not have
    exited.
    """
    blocks = launch.resident
    if launch.arrived + launch.exited < launch.size or sum(len(block.threads) for block in blocks) < launch.size:
        return
    if all(block.threads[0].greenlet is not None for block in blocks) and (threads := _meeting(blocks)):
        launch.arrived = 0
        launch.release(threads)


class cg(metaclass=Namespace):
    """Cooperative groups."""

    @staticmethod
    def this_grid() -> GridGroup:
        """The whole grid; a kernel that asks for it is launched cooperatively."""
        current.launch.become_cooperative()
        return GridGroup()


def threadfence() -> None:
    """Order this thread's earlier accesses before its later ones, for the whole device."""
    _fence(device=True)


def threadfence_system() -> None:
    """Like `threadfence`, but also for the host and other devices."""
    _fence(device=True)


def threadfence_block() -> None:
    """Like `threadfence`, but only for the threads of the block."""
    _fence(device=False)


def _fence(device: bool) -> None:
    if current.observer is not None:
        current.observer.fence(current.thread, device)
    current.launch.pause(False)  # a spin may consist of plain loads and fences


def nanosleep(nanoseconds: int) -> None:
    """Let the other threads run."""
    current.launch.pause(False)
