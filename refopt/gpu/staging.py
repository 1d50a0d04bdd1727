"""Copies from the host to a GPU in stream order, without waiting: memory stays unchanged until its copy is done."""

import ctypes

import numpy as np
from cuda.bindings import driver

from refopt.gpu.streams import Event, capturing, checked, context, relaxed

BLOCKS = 64  # the most of one `Staging`; beyond it the host waits for the oldest


class Pinned:
    """Page-locked host memory, freed with the last array on it.

    Attributes:
        address: of its first byte, for host and device.
        bytes: the memory as a NumPy array.
    """

    def __init__(self, nbytes: int) -> None:
        context()
        self.address = int(checked(driver.cuMemHostAlloc(nbytes, driver.CU_MEMHOSTALLOC_DEVICEMAP)))
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            driver.cuCtxSynchronize()  # copies may be in progress, and their events destroyed
            driver.cuMemFreeHost(self.address)


class Staging:
    """Copies to an array on the device, each through page-locked memory that no other pending copy reads.

    Every replay of a graph repeats its captured copies, from memory that is kept for them.

    Args:
        target: address of the array.
        nbytes: of the array.
    """

    def __init__(self, target: int, nbytes: int) -> None:
        self._target, self._nbytes = target, nbytes
        self._blocks: list[tuple[Pinned, Event]] = []
        self._next = 0  # the least recently used block
        self._captured: list[Pinned] = []

    def upload(self, offset: int, data: np.ndarray, stream: int) -> None:
        """Copy a contiguous array to the target, at ``offset`` bytes from its start."""
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
        """A block whose last copy is done; a new one if there is none."""
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
