"""The parts of a launch: threads, warps, blocks, and the order in which they run."""

from __future__ import annotations

from operator import attrgetter
from random import Random
from typing import Any

from .arguments import shown, whole
from .state import current

WARP_SIZE = 32
EARLY = object()  # what a kernel gives back that ends by a return statement, not at its last line

Index = tuple[int, int, int]


class Schedule:
    """The order in which blocks start and runnable threads take their turns."""

    def __init__(self, name: str = "forward", seed: int = 0) -> None:
        if not isinstance(name, str) or name not in ("forward", "reverse", "random"):
            raise ValueError(f"schedule must be forward, reverse or random, not {shown(name)}")
        self.name, self.seed = name, whole("seed", seed)
        self.random = Random(seed) if name == "random" else None

    def __str__(self) -> str:
        return self.name if self.random is None else f"random (seed {self.seed})"

    def begin(self, number: int) -> None:
        """A launch starts. Its random order depends only on its number, not on what ran before."""
        if self.random is not None:
            self.random.seed(f"{self.seed}, {number}" if number else self.seed)

    def order(self, items: list) -> list:
        """The items in the order in which they run."""
        if self.random is not None:
            return self.random.sample(items, len(items))
        return items[::-1] if self.name == "reverse" else items


FORWARD = Schedule()


class Thread:
    """A CUDA thread."""

    def __init__(self, block: Block, warp: Warp, index: Index, rank: int) -> None:
        self.block, self.warp, self.index, self.rank = block, warp, index, rank
        self.lane = rank % WARP_SIZE
        self.greenlet: Any = None  # set only from its start to its end
        self.site: Any = 0  # the instruction of the barrier it waits at
        self.pauses = 0  # atomics since it last let others run
        self.value: Any = None  # its input to a barrier or warp operation
        self.operand: Any = None
        self.result: Any = None  # its result of a warp operation
        self.clock: Any = None  # watched only
        self.copies: Any = None  # groups of asynchronous copies in flight, the last of which is open
        self.lost: Any = None  # an integer that was narrowed, the result, and where; watched only
        self.met: Any = None  # where it called the warp operation that it waits at


class Warp:
    """Up to 32 threads with consecutive ranks."""

    __slots__ = ("alive", "missed", "pending")

    def __init__(self, lanes: int) -> None:
        self.alive = (1 << lanes) - 1  # mask of the lanes that have not exited
        self.missed = 0  # mask of the lanes whose exit the rules forbid
        self.pending: dict[Any, list[Thread]] = {}  # (operation, mask) -> the lanes that wait there

    def complete(self, key: Any) -> None:
        """Release the lanes that wait at an operation, if all that it needs have arrived."""
        lanes = self.pending[key]
        operation, mask = key
        if len(lanes) == (mask & self.alive).bit_count() and not mask & self.missed:
            del self.pending[key]
            lanes.sort(key=attrgetter("lane"))
            operation(lanes)
            if current.observer is not None:
                current.observer.met(operation, lanes)
            current.launch.release(lanes)


class Block:
    """A thread block."""

    def __init__(self, index: Index, number: int, thread_indices: list[Index]) -> None:
        self.index, self.number = index, number
        count = len(thread_indices)
        warps = self.warps = [Warp(min(WARP_SIZE, count - rank)) for rank in range(0, count, WARP_SIZE)]
        self.threads = [
            Thread(self, warps[rank // WARP_SIZE], at, rank) for rank, at in enumerate(thread_indices)
        ]
        self.arrived = 0  # threads at the block barrier
        self.exited = self.returned = 0  # threads that have exited, and those that did so by a return statement
        self.tally = 0  # true predicates at the last barrier
        self.shared: dict[Any, Any] = {}  # call site -> shared array
        self.dynamic: Any = None
        self.static_bytes = 0
