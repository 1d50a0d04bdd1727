"""One call of a collective: what it moves, and the checks before anything moves."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from refopt.checks import Array
from refopt.checks.arguments import TEXT, is_whole, shown
from refopt.checks.dtypes import SIZES

# The dtypes of NCCL: all engines take the same.
DTYPES = SIZES | {"int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8}
SUMS = "all_reduce", "reduce", "reduce_scatter"
MOVES = *SUMS, "broadcast", "all_gather", "send", "recv"
PAIRED = frozenset(["send", "recv"])
PEER = {"reduce": "root", "broadcast": "root", "send": "to", "recv": "source"}
# The memory of other calls in a batch that a send or recv must not overlap; collectives are made in order.
_APART = {"send": ("recv", "written"), "recv": ("recv", "send", "read", "written")}
_PREPOSITION = {"reduce": "to", "broadcast": "from", "send": "to", "recv": "from"}


class Payload(NamedTuple):
    """A checked array: the elements in the engine's form, in one dimension, and their description."""

    data: Any
    dtype: str
    size: int
    nbytes: int
    address: int
    owner: Any  # the caller's array


class Call(NamedTuple):
    """A call of one rank. Its `text` is equal on all ranks if and only if their calls belong together."""

    operation: str
    source: Payload | None = None  # what the rank contributes
    target: Payload | None = None  # what it receives
    peer: int | None = None  # the root, or the other end
    dtype: str = ""
    elements: int = 0
    nbytes: int = 0
    detail: str = ""
    number: int = 0  # of the collectives of a communicator, from 0; send and recv have none

    @property
    def collective(self) -> bool:
        """Whether all ranks take part."""
        return self.operation not in PAIRED

    @property
    def text(self) -> str:
        """The call in words: operation, elements, dtype, root or peer."""
        what = f" of {self.elements} {self.dtype}" if self.dtype else ""
        where = f" {_PREPOSITION[self.operation]} {self.peer}" if self.peer is not None else ""
        return f"{self.operation}{what}{where}{self.detail}"

    def __str__(self) -> str:
        return f"{self.text}, call {self.number}" if self.collective else self.text


def payload(where: str, array: Array, data: Any, owner: Any) -> Payload:
    """Check dtype and contiguity of an array that the engine has described."""
    if array.dtype not in DTYPES:
        raise TypeError(f"{where}: expected one of {', '.join(DTYPES)}, got {array.dtype}")
    if not array.in_c_order():
        raise ValueError(f"{where}: expected a C-contiguous array, got strides {array.strides} for {array.shape}")
    return Payload(data, array.dtype, array.size, DTYPES[array.dtype] * array.size, array.address, owner)


def check_written(where: str, array: Array) -> None:
    """Refuse a read-only array that a call would write."""
    if not array.writable:
        raise ValueError(f"{where}: expected a writable array, got a read-only one")


def check_rank(where: str, value: Any, size: int) -> int:
    """A root or a peer; raises if it is not a rank."""
    if not is_whole(value):
        raise TypeError(f"{where}: expected a rank, got {shown(value)}")
    if not 0 <= value < size:
        raise ValueError(f"{where}: expected a rank from 0 to {size - 1}, got {value}")
    return operator.index(value)


def check_ranks(values: Sequence[Any], size: int) -> tuple[int, ...]:
    """The members of a group; raises if they are not distinct ranks."""
    if not isinstance(values, Sequence) or isinstance(values, TEXT) or not len(values):
        raise TypeError(f"group: ranks: expected a list of at least one rank, got {shown(values)}")
    ranks = tuple(check_rank(f"group: ranks[{i}]", value, size) for i, value in enumerate(values))
    for i, rank in enumerate(ranks):
        if rank in ranks[:i]:
            raise ValueError(f"group: ranks[{i}]: expected each rank once, got {rank} again")
    return ranks


def check_batch(calls: Sequence[Call]) -> None:
    """Refuse memory that a send or recv shares with another call: the result would depend on which ran first."""
    reach: dict[str, tuple[int, int]] = {}  # by use, the farthest end of a span, and the index of its call
    for start, stop, use, k in sorted(_spans(calls)):
        for other, (end, j) in reach.items():
            if start < end and (other in _APART.get(use, ()) or use in _APART.get(other, ())):
                first, second = (f"call {i}, {calls[i].text}" for i in sorted((j, k)))
                raise ValueError(f"batch: {second}: expected memory of its own, got an overlap with {first}")
        reach[use] = max(reach.get(use, (0, 0)), (stop, k))


def _spans(calls: Sequence[Call]) -> Iterator[tuple[int, int, str, int]]:
    """Memory of calls: start, stop, how a call uses it, and the call's index."""
    for k, call in enumerate(calls):
        for end, use in ((call.source, "read"), (call.target, "written")):
            if end is not None and end.nbytes:
                yield end.address, end.address + end.nbytes, use if call.collective else call.operation, k


def check_parts(operation: str, whole: Payload, part: Payload, rank: int, size: int) -> None:
    """Check that an array is ``size`` equal parts, and that part and whole overlap in place or not at all."""
    names = ("source", "target") if operation == "reduce_scatter" else ("target", "source")
    if whole.dtype != part.dtype:
        raise TypeError(f"{operation}: {names[0]}: expected {part.dtype}, as {names[1]} has, got {whole.dtype}")
    if whole.size != size * part.size:
        expected = f"{size * part.size} elements, {size} ranks times the {part.size} of {names[1]}"
        raise ValueError(f"{operation}: {names[0]}: expected {expected}, got {whole.size}")
    start = part.address - whole.address
    if part.nbytes and -part.nbytes < start < whole.nbytes and start != rank * part.nbytes:
        place = f"in place, at byte {rank * part.nbytes} of {names[0]}"
        raise ValueError(f"{operation}: {names[1]}: expected no overlap, or {place}, got an overlap from byte {start}")
