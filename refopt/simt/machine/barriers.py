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
    launch = current.launch
    exited = block.exited
    threads = block.threads
    if block.arrived + exited < len(threads):
        return
    if exited:
        rules = launch.rules
        if (block.returned and rules.early_return) or (block.returned < exited and rules.skipped_barrier):
            return  # the launch ends with these threads waiting, which is the error
        threads = [thread for thread in threads if thread.greenlet is not None]
    if len({thread.site for thread in threads}) > 1 and _diverged(threads):
        raise divergence(launch)
    block.arrived = 0
    block.tally = sum(1 for thread in threads if thread.value)
    if current.observer is not None:
        current.observer.join(threads)
    launch.release(threads)


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
    if launch.arrived + launch.exited < launch.size:
        return
    threads = [thread for block in launch.resident for thread in block.threads]
    if launch.exited:
        returned = sum(block.returned for block in launch.resident)
        if (returned and launch.rules.early_return) or (returned < launch.exited and launch.rules.skipped_barrier):
            return
        if len(threads) < launch.size or any(block.threads[0].greenlet is None for block in launch.resident):
            return
        threads = [thread for thread in threads if thread.greenlet is not None]
    if len({thread.site for thread in threads}) > 1 and _diverged(threads):
        raise divergence(launch)
    launch.arrived = 0
    if current.observer is not None:
        current.observer.join(threads)
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
