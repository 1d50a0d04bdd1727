"""Block and grid barriers, and fences."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..base.diagnosis import divergence
from ..base.places import unsupported
from ..base.state import current
from ..base.threads import Block, Thread, Warp


def syncthreads() -> None:
    """Wait for all threads of the block."""
    _block_barrier(sys._getframe(1), None, "sync")


def syncthreads_count(predicate: Any) -> int:
    """Wait for all threads of the block; the number of them whose predicate is true."""
    return _block_barrier(sys._getframe(1), predicate, "count")


def syncthreads_and(predicate: Any) -> int:
    """Wait for all threads of the block; 1 if the predicate is true in all of them."""
    return int(_block_barrier(sys._getframe(1), not predicate, "and") == 0)


def syncthreads_or(predicate: Any) -> int:
    """Wait for all threads of the block; 1 if the predicate is true in any of them."""
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
    # A helper's barrier is another instruction wherever the kernel calls the helper.
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
    """Let the threads go that wait at the barrier of a block, if all have arrived that have to."""
    if block.arrived + block.exited == len(block.threads) and (threads := _meeting([block])):
        block.arrived = 0
        block.tally = sum(1 for thread in threads if thread.value)
        current.launch.release(threads)


def _meeting(blocks: list[Block]) -> list[Thread]:
    """The threads that meet at a barrier of blocks; none if it is missed by some that have ended.

    Then the launch ends with the others waiting, which is the error.
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
    """Whether lanes of one warp are at different barriers, or threads of a block at different kinds.

    To a warp bar.sync must be one instruction, and to a block bar.sync and bar.red must not be mixed.
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
        """Wait for all threads of all blocks; 0, as in CUDA."""
        launch = current.launch
        _arrive(current.thread, sys._getframe(1), "grid")
        launch.arrived += 1
        complete_grid(launch)
        launch.park()
        return 0


def complete_grid(launch: Any) -> None:
    """Let the threads go that wait at the barrier of the grid, if all have arrived that have to.

    It is a barrier in each block, and then one of the blocks' first threads: these may not have exited.
    """
    blocks = launch.resident
    if launch.arrived + launch.exited < launch.size or sum(len(block.threads) for block in blocks) < launch.size:
        return
    if all(block.threads[0].greenlet is not None for block in blocks) and (threads := _meeting(blocks)):
        launch.arrived = 0
        launch.release(threads)


class _Groups(type):
    def __getattr__(cls, name: str) -> Any:
        raise unsupported(f"cuda.cg.{name}", among=vars(cls))


class cg(metaclass=_Groups):
    """Cooperative groups."""

    @staticmethod
    def this_grid() -> GridGroup:
        """The whole grid; a kernel that asks for it is launched cooperatively."""
        current.launch.become_cooperative()
        return GridGroup()


def threadfence() -> None:
    """Order this thread's accesses before it with those after it, for the whole device."""
    _fence(device=True)


def threadfence_system() -> None:
    """As `threadfence`, for the host and other devices too."""
    _fence(device=True)


def threadfence_block() -> None:
    """As `threadfence`, for the threads of the block only."""
    _fence(device=False)


def _fence(device: bool) -> None:
    if current.observer is not None:
        current.observer.fence(current.thread, device)
    current.launch.pause(False)  # a spin may consist of plain loads and fences


def nanosleep(nanoseconds: int) -> None:
    """Let the other threads run."""
    current.launch.pause(False)
