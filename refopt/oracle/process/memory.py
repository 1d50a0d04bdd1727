"""Sending a case to another process and back: all memory that its arrays are views of, and their places in it.

The bytes around an array are sent with it, and arrays that share memory also share it on the other side. Memory of the
case before is the same memory there, at the same address.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from refopt import catalog
from refopt.catalog import Routine
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle import variants
from refopt.oracle.exact.cases import Case, Outcome, memory
from refopt.oracle.subject import Wrong

LINE = 64  # bytes; addresses on both sides are equal modulo this


class Place(NamedTuple):
    """The place of an array: the number of its memory, first byte, and layout."""

    number: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class Packed(NamedTuple):
    """A case without the contents of its memory.

    Attributes:
        row: the name of the routine, and whether its row is the one with variants.
        slots, steps: with a `Place` for each array.
        step: the number of the first one.
        memories: the size and address of each piece of memory, and its number in the case before; -1 if it is new.
    """

    row: tuple[str, bool]
    slots: dict[str, Any]
    steps: list[dict[str, Any]]
    choices: dict[str, Any]
    step: int
    memories: list[tuple[int, int, int]]


class Sender:
    """The side that sends cases."""

    def __init__(self) -> None:
        self.last: list[np.ndarray] = []

    def pack(self, case: Case) -> tuple[Packed, list[np.ndarray]]:
        """A case, and its memory as bytes."""
        roots: dict[int, tuple[int, np.ndarray]] = {}

        def place(x: Any) -> Any:
            if not isinstance(x, np.ndarray):
                return x
            root = _root(x)
            number, _ = roots.setdefault(id(root), (len(roots), root))
            offset = 0 if root is x else _address(x) - _address(root)
            return Place(number, offset, x.shape, x.strides, _name(x.dtype))

        slots = {name: values and [place(x) for x in values] for name, values in case.slots.items()}
        steps = [{name: place(x) for name, x in step.items()} for step in case.steps]
        before = {id(x): k for k, x in enumerate(self.last)}
        self.last = [root for _, root in roots.values()]
        memories = [(x.nbytes, _address(x) % LINE, before.get(id(x), -1)) for x in self.last]
        row = case.routine.name, case.routine is not catalog.KNOWN.get(case.routine.name)
        packed = Packed(row, slots, steps, dict(case.choices), case.count, memories)
        return packed, [memory(x).view(np.uint8) for x in self.last]

    def take_back(self, memories: list[np.ndarray], blob: bytes) -> None:
        """Write the contents of memory as received from the other side."""
        at = 0
        for one in memories:
            one[...] = np.frombuffer(blob, np.uint8, one.size, at)
            at += one.size


class Receiver:
    """The side that steps run on."""

    def __init__(self) -> None:
        # Each piece of memory, with its arrays: the same objects in every call.
        self.memories: list[tuple[np.ndarray, dict[tuple, np.ndarray]]] = []

    def unpack(self, packed: Packed, blob: bytes) -> Case:
        """The case, in memory of this side."""
        before = self.memories
        self.memories = [
            before[k] if 0 <= k < len(before) else (_aligned(size, address), {}) for size, address, k in packed.memories
        ]
        at = 0
        for one, _ in self.memories:
            one[...] = np.frombuffer(blob, np.uint8, one.size, at)
            at += one.size

        def array(x: Any) -> Any:
            if not isinstance(x, Place):
                return x
            of, arrays = self.memories[x.number]
            if x[1:] not in arrays:
                arrays[x[1:]] = np.ndarray(x.shape, numpy_dtype(x.dtype), of.data, x.offset, x.strides)
            return arrays[x[1:]]

        slots = {name: values and [array(x) for x in values] for name, values in packed.slots.items()}
        steps = [{name: array(x) for name, x in step.items()} for step in packed.steps]
        return Case(_row(*packed.row), slots, steps, packed.choices, packed.step)

    def blob(self) -> bytes:
        """The current contents of the last case's memory."""
        return b"".join(one.data for one, _ in self.memories)


def _row(name: str, extended: bool) -> Routine:
    return variants.ROUTINES[name] if extended else catalog.KNOWN[name]


def outcome_sent(case: Case, got: Outcome) -> dict[str, list[Any]]:
    """An outcome: a slot and a number for an array of the case, its bytes for another."""
    own: dict[Any, tuple[str, int]] = {}
    for name, values in case.slots.items():
        for i, x in enumerate(values or ()):
            if x is not None and x.size:
                own.setdefault(_key(x), (name, i))
    return {name: [_array_sent(x, own) for x in values] for name, values in got.items()}


def outcome_back(case: Case, sent: Mapping[str, list[Any]]) -> Outcome:
    """The outcome on this side, with arrays of the case instead of the other side's."""
    return {name: [_array_back(x, case) for x in values] for name, values in sent.items()}


def _key(x: np.ndarray) -> tuple:
    return _address(x), x.shape, x.strides, _name(x.dtype)


def _array_sent(x: Any, own: Mapping[Any, tuple[str, int]]) -> Any:
    if x is None:
        return None
    if x.dtype.hasobject:
        raise Wrong(f"expected an array of numbers, got one of {x.dtype}")
    if _key(x) in own:
        return own[_key(x)]
    elements = memory(x)
    dense = elements.flags.c_contiguous and (not x.size or np.may_share_memory(elements, x))
    x = x if dense else x.copy(order="K")
    return x.dtype.name, x.shape, x.strides, memory(x).tobytes()


def _array_back(sent: Any, case: Case) -> Any:
    if sent is None:
        return None
    if len(sent) == 2:
        name, i = sent
        return (case.slots[name] or ())[i]
    dtype, shape, strides, data = sent
    return np.ndarray(shape, numpy_dtype(dtype), bytearray(data), 0, strides)


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
