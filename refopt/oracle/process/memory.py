"""Sending a case to another process and back: all memory that its arrays are views of, and their places in it.

The bytes around an array are sent with it, and arrays that share memory also share it on the other side. Memory of the
case before is the same memory there, at the same address.
"""

import bisect
import functools
import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from refopt import catalog
from refopt.catalog import Routine
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle import variants
from refopt.oracle.exact.cases import memory
from refopt.oracle.subject import Wrong

LINE = 64  # bytes; addresses on both sides are equal modulo this


class Place(NamedTuple):
    """The place of an array: the number of its memory, first byte, and layout."""

    number: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, x: np.ndarray, number: int, start: int) -> "Place":
        """That of an array in memory that starts at an address."""
        return cls(number, _address(x) - start, x.shape, x.strides, _name(x.dtype))

    def array(self, whole: np.ndarray) -> np.ndarray:
        """The array in its memory, which is given as bytes."""
        return np.ndarray(self.shape, numpy_dtype(self.dtype), whole.data, self.offset, self.strides)


class Packed(NamedTuple):
    """A case, or what came of it.

    Attributes:
        data: pickled, with a `Place` for each array in the case's memory.
        contents: of all memory, one piece after the other.
        pieces: the size and address of each piece of memory, and its number in the case before; -1 if it is new.
    """

    data: bytes
    contents: bytes
    pieces: tuple[tuple[int, int, int], ...] = ()


class _Pickler(pickle.Pickler):
    """Writes a place for each array that ``place`` has one for, and the names of routines."""

    def __init__(self, file: io.BytesIO, place: Callable[[np.ndarray], Place | None]) -> None:
        super().__init__(file)
        self.place = place

    def persistent_id(self, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return self.place(x)
        if isinstance(x, Routine):
            return x.name, x is not catalog.KNOWN.get(x.name)
        return None


class _Unpickler(pickle.Unpickler):
    """Reads what a `_Pickler` has written; ``array`` returns the array of a place."""

    def __init__(self, data: bytes, array: Callable[[Place], np.ndarray]) -> None:
        super().__init__(io.BytesIO(data))
        self.array = array

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, Place):
            return self.array(pid)
        name, extended = pid
        return variants.ROUTINES[name] if extended else catalog.KNOWN[name]


def _pickled(value: Any, place: Callable[[np.ndarray], Place | None]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, place).dump(value)
    return file.getvalue()


class Sender:
    """The side that sends cases, and reads what came of them."""

    def __init__(self) -> None:
        self.roots: list[np.ndarray] = []
        self.arrays: dict[Place, np.ndarray] = {}

    def pack(self, case: Any) -> Packed:
        """A case with its memory."""
        before = self.roots
        numbers: dict[int, int] = {}
        self.roots, self.arrays = [], {}

        def place(x: np.ndarray) -> Place:
            root = _root(x)
            if id(root) not in numbers:
                numbers[id(root)] = len(self.roots)
                self.roots.append(root)
            found = Place.of(x, numbers[id(root)], _address(root))
            self.arrays.setdefault(found, x)
            return found

        data = _pickled(case, place)
        known = {id(x): k for k, x in enumerate(before)}
        pieces = tuple((x.nbytes, _address(x) % LINE, known.get(id(x), -1)) for x in self.roots)
        return Packed(data, _contents(map(_bytes, self.roots)), pieces)

    def received(self, packed: Packed) -> Any:
        """What came of the case; its memory gets the contents that it has on the other side."""
        pieces = [_bytes(x) for x in self.roots]
        _fill(pieces, packed.contents)
        array = lambda place: self.arrays.get(place, place.array(pieces[place.number]))  # noqa: E731
        return _Unpickler(packed.data, array).load()


class Receiver:
    """The side that steps run on."""

    def __init__(self) -> None:
        # Each piece of memory, with its arrays: the same objects in every call.
        self.memories: list[tuple[np.ndarray, dict[Place, np.ndarray]]] = []

    def unpack(self, packed: Packed) -> Any:
        """The case, in memory of this side."""
        before = self.memories
        self.memories = [
            before[k] if 0 <= k < len(before) else (_aligned(size, address), {}) for size, address, k in packed.pieces
        ]
        self.starts = sorted((_address(x), k) for k, (x, _) in enumerate(self.memories))
        _fill([x for x, _ in self.memories], packed.contents)

        def array(place: Place) -> np.ndarray:
            whole, arrays = self.memories[place.number]
            key = place._replace(number=0)
            if key not in arrays:
                arrays[key] = place.array(whole)
            return arrays[key]

        return _Unpickler(packed.data, array).load()

    def pack(self, outcome: Any) -> Packed:
        """What came of the case, with the present contents of its memory."""
        return Packed(_pickled(outcome, self._place), _contents(x for x, _ in self.memories))

    def _place(self, x: np.ndarray) -> Place | None:
        """The place of an array in the case's memory; ``None`` for another one, which is sent as it is."""
        if x.dtype.hasobject:
            raise Wrong(f"expected an array of numbers, got one of {x.dtype}")
        at = bisect.bisect_right(self.starts, (_address(x), len(self.starts))) - 1
        if not x.size or at < 0:
            return None
        start, number = self.starts[at]
        found = Place.of(x, number, start)
        return found if found.offset < self.memories[number][0].size else None


def _bytes(x: np.ndarray) -> np.ndarray:
    return memory(x).view(np.uint8)


def _contents(pieces: Iterable[np.ndarray]) -> bytes:
    return b"".join(x.data for x in pieces)


def _fill(pieces: Iterable[np.ndarray], contents: bytes) -> None:
    at = 0
    for one in pieces:
        one[...] = np.frombuffer(contents, np.uint8, one.size, at)
        at += one.size


@functools.cache
def _name(dtype: np.dtype) -> str:
    """The name of a dtype, which is slow to compute in NumPy."""
    return dtype.name


def _address(x: np.ndarray) -> int:
    return int(x.__array_interface__["data"][0])


def _root(x: np.ndarray) -> np.ndarray:
    """The array that an array is a view of."""
    while True:
        base: Any = x.base
        base = base.obj if isinstance(base, memoryview) else base
        if type(base) is not np.ndarray:
            return x
        x = base


def _aligned(size: int, address: int) -> np.ndarray:
    """New memory of a size, at an address that equals another one modulo ``LINE``."""
    raw = np.empty(size + LINE, np.uint8)
    start = (address - _address(raw)) % LINE
    return raw[start : start + size]
