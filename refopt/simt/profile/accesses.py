"""A record of every access of a launch: the thread, the instruction, the array and the bytes."""

from __future__ import annotations

from array import array
from types import FrameType
from typing import NamedTuple

import numpy as np

from ..base.loops import Loops
from ..base.places import Site
from ..base.state import current
from ..base.threads import WARP_SIZE
from ..memory.buffers import Buffer
from .paths import Tracer

VECTORS = 1, 2, 4, 8, 16  # bytes that a lane can access at a time


class Array(NamedTuple):
    """An accessed allocation, or a shared array of any block."""

    label: str
    base: int  # its address; 0 of a shared array
    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int


class Instruction(NamedTuple):
    """An instruction that accesses memory."""

    kind: str  # load, store or atomic
    filename: str
    line: int
    nbytes: int  # of one access
    shared: bool
    offset: int  # in the bytecode


class Accesses:
    """The accesses of one launch, a row each; columns are arrays of integers."""

    def __init__(self, kernel: str, threads: int, tracer: Tracer) -> None:
        self.kernel, self.threads = kernel, threads  # of a block
        self.arrays: list[Array] = []
        self.instructions: list[Instruction] = []
        self._tracer = tracer
        self._columns = array("q"), array("q"), array("q"), array("q"), array("q")
        # Properties common to accesses of one kind and size by one instruction to one array: see `_enter`
        self._sites: dict[tuple[int, int, str, int, int], tuple[int, int, int, Buffer]] = {}
        self._numbers: dict[Array | Instruction, int] = {}

    instruction = property(lambda self: np.array(self._columns[0]))
    context = property(lambda self: np.array(self._columns[1]), doc="its calls and iterations: see `profile.paths`")
    array = property(lambda self: np.array(self._columns[2]))
    thread = property(lambda self: np.array(self._columns[3]), doc="block * threads of a block + rank")
    start = property(lambda self: np.array(self._columns[4]), doc="bytes from the start of the array's allocation")

    @property
    def warp(self) -> np.ndarray:
        """The number of each access's warp."""
        warps = -(-self.threads // WARP_SIZE)
        return self.thread // self.threads * warps + self.rank // WARP_SIZE

    @property
    def rank(self) -> np.ndarray:
        """The number of each access's thread in its block."""
        return self.thread % self.threads

    def of_instruction(self, field: str) -> np.ndarray:
        """For each access, a field of its instruction."""
        values = np.array([getattr(instruction, field) for instruction in self.instructions])
        return values[self.instruction] if len(values) else np.zeros(0, np.int64)

    def add(self, kind: str, buffer: Buffer, offset: int, nbytes: int, frame: FrameType) -> None:
        """Record an access by the running thread, called from a frame."""
        place = self._tracer.nearest(frame)
        if place is None:
            return
        loops, at, context = place
        key = id(loops), at, kind, nbytes, id(buffer)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = self._enter(kind, buffer, nbytes, loops, at)
        number, target, width, _ = site
        thread = current.thread
        who = thread.block.number * self.threads + thread.rank
        instructions, contexts, arrays, threads, starts = self._columns
        for start in (offset,) if width == nbytes else range(offset, offset + nbytes, width):
            instructions.append(number)
            contexts.append(context)
            arrays.append(target)
            threads.append(who)
            starts.append(start)

    def _enter(self, kind: str, buffer: Buffer, nbytes: int, loops: Loops, at: int) -> tuple[int, int, int, Buffer]:
        """The numbers of an instruction and an array, the bytes of an access, and the buffer, which is thus kept alive.

        A shared array has the same number in all blocks.
        """
        code, width, shared = loops.code, _width(buffer.dtype, nbytes), buffer.base == 0
        array = Array(buffer.label, buffer.base, buffer.shape, buffer.dtype, buffer.nbytes)
        line = Site(code, at, None, 0).place(None).line or code.co_firstlineno
        instruction = Instruction(kind, code.co_filename, line, width, shared, loops.instruction(at))
        return self._number(self.instructions, instruction), self._number(self.arrays, array), width, buffer

    def _number(self, entries: list, entry: Array | Instruction) -> int:
        number = self._numbers.get(entry)
        if number is None:
            number = self._numbers[entry] = len(entries)
            entries.append(entry)
        return number

    def close(self) -> None:
        """Release the arrays of a launch that has ended."""
        self._sites.clear()


def _width(dtype: np.dtype, nbytes: int) -> int:
    """The size in bytes of the accesses into which Numba splits an access of `nbytes` to an array.

    Complex numbers are accessed part by part, and whole records byte by byte. A vector has 2, 4, 8 or 16 bytes. Longer
    accesses consist of several elements.
    """
    if nbytes == dtype.itemsize and dtype.names is not None:
        return 1
    part = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return part if nbytes % dtype.itemsize == 0 and (dtype.kind == "c" or nbytes not in VECTORS) else nbytes
