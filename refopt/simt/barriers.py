"""Block and grid barriers, and fences."""

from __future__ import annotations

import sys
from typing import Any

from .diagnosis import divergence
from .errors import unsupported
from .state import current
from .threads import WARP_SIZE, Thread


def syncthreads() -> None:
    """Wait for all threads of the block."""
    _block_barrier(sys._getframe(1).f_lasti, None)


def syncthreads_count(predicate: Any) -> int:
    """Wait for all threads of the block; the number of them whose predicate is true."""
    return _block_barrier(sys._getframe(1).f_lasti, predicate)


def syncthreads_and(predicate: Any) -> int:
    """Wait for all threads of the block; 1 if the predicate is true in all of them."""
    count = _block_barrier(sys._getframe(1).f_lasti, predicate)
    return int(count == len(current.block.threads))


def syncthreads_or(predicate: Any) -> int:
    """Wait for all threads of the block; 1 if the predicate is true in any of them."""
    return int(_block_barrier(sys._getframe(1).f_lasti, predicate) > 0)


def _block_barrier(site: int, predicate: Any) -> int:
    thread = current.thread
    block, launch = thread.block, current.launch
    thread.site = site
    thread.value = predicate
    block.arrived += 1
    threads = block.threads
    if block.arrived == len(threads):
        if len({thread.site for thread in threads}) > 1 and _diverged(threads):
            raise divergence(launch)
        block.arrived = 0
        if predicate is not None:
            block.tally = sum(1 for thread in threads if thread.value)
        if current.observer is not None:
            current.observer.join(threads)
        launch.release(threads)
    launch.park()
    return block.tally


def _diverged(threads: list[Thread]) -> bool:
    """Whether lanes of one warp are at different barriers: to a warp bar.sync must be one instruction."""
    warps = (threads[first : first + WARP_SIZE] for first in range(0, len(threads), WARP_SIZE))
    return any(len({thread.site for thread in warp}) > 1 for warp in warps)


class GridGroup:
    """All threads of a cooperative launch."""

    def sync(self) -> int:
        """Wait for all threads of all blocks; 0, as in CUDA."""
        launch = current.launch
        launch.arrived += 1
        if launch.arrived == launch.size:
            launch.arrived = 0
            threads = [thread for block in launch.resident for thread in block.threads]
            if current.observer is not None:
                current.observer.join(threads)
            launch.release(threads)
        launch.park()
        return 0


class _Groups(type):
    def __getattr__(cls, name: str) -> Any:
        raise unsupported(f"cuda.cg.{name}")


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
