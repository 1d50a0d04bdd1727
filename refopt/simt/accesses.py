"""A record of every access of a launch: which thread, at which instruction, to which bytes of which array."""

from __future__ import annotations

from array import array
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np

from .errors import Site
from .memory import Buffer
from .paths import Tracer
from .state import current
from .threads import WARP_SIZE

VECTORS = 1, 2, 4, 8, 16  # bytes that a lane can access at a time


class Array(NamedTuple):
    """What is accessed: an allocation, or a shared array, of whichever block."""

    label: str
    base: int  # its address; 0 of a shared array
    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int


class Instruction(NamedTuple):
    """An instruction that accesses memory, and the way to it through calls and loops: see `refopt.simt.paths`."""

    kind: str  # load, store or atomic
    filename: str
    line: int
    nbytes: int  # of one access
    shared: bool
    offset: int  # in the bytecode
    context: int


class Accesses:
    """The accesses of one launch, a row each; columns are arrays of integers."""

    def __init__(self, kernel: str, threads: int) -> None:
        self.kernel, self.threads = kernel, threads  # of a block
        self.arrays: list[Array] = []
        self.instructions: list[Instruction] = []
        self._columns = array("q"), array("q"), array("q"), array("q")
        self._array: dict[int, tuple[int, Buffer]] = {}
        self._names: dict[Array, int] = {}
        self._instruction: dict[tuple[str, int, int, int, int, bool], int] = {}

    instruction = property(lambda self: np.array(self._columns[0]))
    array = property(lambda self: np.array(self._columns[1]))
    thread = property(lambda self: np.array(self._columns[2]), doc="block * threads of a block + rank")
    start = property(lambda self: np.array(self._columns[3]), doc="bytes from the start of the array's allocation")

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

    def add(self, kind: str, buffer: Buffer, offset: int, nbytes: int, frame: FrameType, tracer: Tracer) -> None:
        """The running thread accesses memory, called from a frame."""
        place = tracer.nearest(frame)
        if place is None:
            return
        loops, context, at = place
        width = _width(buffer.dtype, nbytes)
        code = loops.code
        key = kind, id(code), at, context, width, buffer.base == 0
        number = self._instruction.get(key)
        if number is None:
            number = self._instruction[key] = len(self.instructions)
            self.instructions.append(_instruction(kind, code, at, width, buffer.base == 0, context))
        known = self._array.get(id(buffer))
        target = known[0] if known is not None else self._enter(buffer)
        thread = current.thread
        who = thread.block.number * self.threads + thread.rank
        instructions, arrays, threads, starts = self._columns
        for start in range(offset, offset + nbytes, width):
            instructions.append(number)
            arrays.append(target)
            threads.append(who)
            starts.append(start)

    def _enter(self, buffer: Buffer) -> int:
        """The number of an array; those that blocks share among their threads have one for all blocks."""
        array = Array(buffer.label, buffer.base, buffer.shape, buffer.dtype, buffer.nbytes)
        number = self._names.get(array)
        if number is None:
            number = self._names[array] = len(self.arrays)
            self.arrays.append(array)
        self._array[id(buffer)] = number, buffer
        return number

    def close(self) -> None:
        """The launch has ended: its arrays may be freed."""
        self._array.clear()


def _width(dtype: np.dtype, nbytes: int) -> int:
    """The bytes of each access of which one of so many to an array consists, as Numba compiles it.

    Complex numbers are accessed part by part, and whole records byte by byte. A vector has 2, 4, 8 or 16 bytes. What is
    longer comes from several elements.
    """
    if nbytes == dtype.itemsize and dtype.names is not None:
        return 1
    part = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return part if nbytes % dtype.itemsize == 0 and (dtype.kind == "c" or nbytes not in VECTORS) else nbytes


def _instruction(kind: str, code: CodeType, at: int, nbytes: int, shared: bool, context: int) -> Instruction:
    line = Site(code, at, None, 0).place(None).line or code.co_firstlineno
    return Instruction(kind, code.co_filename, line, nbytes, shared, at, context)
