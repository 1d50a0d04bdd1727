"""From the host to a GPU in stream order, without waiting: what is on its way is left alone until it has arrived."""

import contextlib
import ctypes

import numpy as np
from cuda.bindings import driver

from refopt.gpu.streams import Event, capturing, checked, context, relaxed

BLOCKS = 64  # of one `Staging`, at most; then the host waits for the oldest


class Pinned:
    """Page-locked memory of the host, given back with the last array on it.

    Attributes:
        address: of its first byte, for host and device.
        bytes: all of it, as an array of NumPy's.
    """

    def __init__(self, nbytes: int) -> None:
        context()
        self.address = int(checked(driver.cuMemHostAlloc(nbytes, driver.CU_MEMHOSTALLOC_DEVICEMAP)))
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            driver.cuCtxSynchronize()  # copies may be under way
            driver.cuMemFreeHost(self.address)


class Staging:
    """Copies to an array on the device, each by way of page-locked memory that no other copy is being made from.

    A copy that is captured is made at every replay, from memory that is kept for it.

    Args:
        target: address of the array.
        nbytes: of the array.
    """

    def __init__(self, target: int, nbytes: int) -> None:
        self._target, self._nbytes = target, nbytes
        self._blocks: list[tuple[Pinned, Event]] = []
        self._next = 0  # the block that was used longest ago
        self._captured: list[Pinned] = []

    def upload(self, offset: int, data: np.ndarray, stream: int) -> None:
        """Copy a contiguous array to where so many bytes of the target are skipped."""
        data, done = data.reshape(-1).view(np.uint8), None
        if not data.size:
            return
        if capturing(stream):
            with relaxed():
                block = Pinned(data.size)
            self._captured.append(block)
        else:
            block, done = self._free()
        block.bytes[: data.size] = data
        checked(driver.cuMemcpyHtoDAsync(self._target + offset, block.address, data.size, stream))
        if done is not None:
            done.record(stream)

    def _free(self) -> tuple[Pinned, Event]:
        """A block whose last copy is done, made if there is none."""
        if self._blocks:
            oldest = self._blocks[self._next]
            free = oldest[1].is_done()
            if not free and len(self._blocks) == BLOCKS:
                oldest[1].synchronize()
                free = True
            if free:
                self._next = (self._next + 1) % len(self._blocks)
                return oldest
        made = Pinned(self._nbytes), Event()
        self._blocks.insert(self._next, made)  # before the oldest, so after the one used last
        self._next = (self._next + 1) % len(self._blocks)
        return made

    def __del__(self) -> None:
        for _, done in self._blocks:
            with contextlib.suppress(RuntimeError):  # of a context that is gone, or during a capture
                done.synchronize()
