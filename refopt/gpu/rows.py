"""A thread's elements of a row: which they are, and how it loads, stores and rounds them.

A **warp** is 32 threads that are issued together, a **lane** one of these threads, and a **row** 256 elements. A warp
takes a row at a time. Lane t has elements 4t to 4t + 3 of it, and the four that are 128 further: each access of a warp
is contiguous, so it reads whole lines of memory.

A thread has its eight elements of several arrays in a local array: ``x[a, e]`` is element e of array a. Every index is
a constant once the compiler has unrolled the loops, so ``x`` is in registers.

``whole`` is whether all 256 elements exist and all arrays are aligned. A thread then accesses four elements at a time;
if not, one at a time, and it loads 0 from ``stop`` on, and stores nothing there. Kernels call a function for both, with
`WHOLE` and with `PARTIAL`, and the compiler makes a version of each. All threads of a warp take the same branch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.checks.dtypes import ITEM_SIZES, REMAINDERS, SIZES, arithmetic
from refopt.cpu.codes import codes_of
from refopt.gpu import vectors
from refopt.gpu.codes import load_coded, store_coded
from refopt.gpu.remainder import JOINED
from refopt.gpu.target import cuda, device_function
from refopt.gpu.vectors import SECOND

ROW = 256
OFFSETS = 0, 1, 2, 3, SECOND, SECOND + 1, SECOND + 2, SECOND + 3  # from a thread's first element of a row to its eight
# Of NumPy's type, since Numba compiles a function anew for every Python constant that it is given.
WHOLE, PARTIAL = np.bool_(True), np.bool_(False)


@device_function
def of_warp(start, stop, length):
    """Where this warp's parts of ``length`` elements begin: the block's warps take parts in turn."""
    return range(start + cuda.threadIdx.x // 32 * length, stop, cuda.blockDim.x // 32 * length)


@device_function
def own(first):
    """This thread's first element of the row at ``first``."""
    return first + 4 * (cuda.threadIdx.x % 32)


class Access(NamedTuple):
    """How a thread loads and stores its eight elements of a row: ``load(at, i, stop, whole, x, a)``, and ``store``.

    ``at`` is the address of the array, ``i`` the index of the thread's first element. The elements are x[a, 0:8].
    """

    load: Callable
    store: Callable


@lru_cache
def access(dtype: str, real: Any, policy: str = "", four: bool = False) -> Access:
    """The access to an array of a dtype, with values of an arithmetic type: to eight elements, or to ``four``.

    Loads of whole rows may have a policy for the L2 cache.
    """
    size, of = SIZES[dtype], _of_four if four else _of_eight
    return of(device_function(lambda address, n: address + size * n), *vectors.of_dtype(dtype, policy), real)


@lru_cache
def joined_access(dtype: str, policy: str = "", four: bool = False) -> Access:
    """The access to bf16 parameters and remainders of a dtype, together exact fp32; ``at`` has both addresses."""
    size, (load, load4, store, store4, *_) = ITEM_SIZES[dtype], JOINED[dtype]
    load4 = vectors.with_policy(load4, policy)
    return (_of_four if four else _of_eight)(
        device_function(lambda at, n: (at[0] + 2 * n, at[1] + size * n)),
        device_function(lambda at: load(at[0], at[1])),
        device_function(lambda at: load4(at[0], at[1])),
        device_function(lambda at, value: store(at[0], at[1], value)),
        device_function(lambda at, values: store4(at[0], at[1], values)),
        np.float32,
    )


def _of_eight(
    element: Callable, load1: Callable, load4: Callable, store1: Callable, store4: Callable, real: Any
) -> Access:
    """The access by loads and stores of one element and of four; ``element(at, n)`` is n elements after ``at``."""
    zero = real(0)

    @device_function
    def load(at, i, stop, whole, x, a):
        own, left = element(at, i), stop - i
        if whole:
            x[a, 0], x[a, 1], x[a, 2], x[a, 3] = load4(own)
            x[a, 4], x[a, 5], x[a, 6], x[a, 7] = load4(element(own, SECOND))
        else:
            for e in range(8):
                x[a, e] = real(load1(element(own, OFFSETS[e]))) if OFFSETS[e] < left else zero

    @device_function
    def store(at, i, stop, whole, x, a):
        own, left = element(at, i), stop - i
        if whole:
            store4(own, (x[a, 0], x[a, 1], x[a, 2], x[a, 3]))
            store4(element(own, SECOND), (x[a, 4], x[a, 5], x[a, 6], x[a, 7]))
        else:
            for e in range(8):
                if OFFSETS[e] < left:
                    store1(element(own, OFFSETS[e]), x[a, e])

    return Access(load, store)


def _of_four(
    element: Callable, load1: Callable, load4: Callable, store1: Callable, store4: Callable, real: Any
) -> Access:
    """As `_of_eight`, to x[a, 0:4], where all four elements exist or none, if ``whole``."""
    zero = real(0)

    @device_function
    def load(at, i, stop, whole, x, a):
        own, left = element(at, i), stop - i
        if whole and left > 0:
            x[a, 0], x[a, 1], x[a, 2], x[a, 3] = load4(own)
        else:
            for e in range(4):
                x[a, e] = real(load1(element(own, e))) if e < left else zero

    @device_function
    def store(at, i, stop, whole, x, a):
        own, left = element(at, i), stop - i
        if whole and left > 0:
            store4(own, (x[a, 0], x[a, 1], x[a, 2], x[a, 3]))
        else:
            for e in range(4):
                if e < left:
                    store1(element(own, e), x[a, e])

    return Access(load, store)


@lru_cache
def rounding(dtype: str, joined: bool = False) -> Callable:
    """Round array a of x as a store in a 16-bit dtype does; for a remainder's, as parameters beside it are stored.

    ``joined`` are what parameter and remainder stand for.
    """
    if dtype in REMAINDERS:
        round4 = JOINED[dtype].round4_joined if joined else JOINED[dtype].round4

        @device_function
        def round_away(address, i, stop, whole, x, a):
            for e in range(0, 8, 4):
                new = round4((x[a, e], x[a, e + 1], x[a, e + 2], x[a, e + 3]))
                x[a, e], x[a, e + 1], x[a, e + 2], x[a, e + 3] = new

        return round_away
    rounded = getattr(vectors, f"round_{dtype}")

    @device_function
    def round_to_even(address, i, stop, whole, x, a):
        for e in range(8):
            x[a, e] = rounded(x[a, e])

    return round_to_even


@lru_cache
def column(count: int, first: int = 0) -> Callable:
    """``numbers(table, j)``: ``count`` numbers of column j as a tuple, from row ``first`` on.

    Numba compiles no loop that builds a tuple, so lengths up to four are written out, and others are made of these.
    """
    second, third, fourth = first + 1, first + 2, first + 3
    if count > 4:
        four, others = column(4, first), column(count - 4, first + 4)
        return device_function(lambda table, j: four(table, j) + others(table, j))
    lengths = (
        lambda table, j: (),
        lambda table, j: (table[first, j],),
        lambda table, j: (table[first, j], table[second, j]),
        lambda table, j: (table[first, j], table[second, j], table[third, j]),
        lambda table, j: (table[first, j], table[second, j], table[third, j], table[fourth, j]),
    )
    return device_function(lengths[count])


class Move(NamedTuple):
    """A load or store between array a of x and the array whose address is ``at[row]``; joined, also ``at[paired]``."""

    do: Callable
    a: int
    row: int
    paired: int | None = None


def in_turn(moves: Sequence[Move]) -> Callable:
    """``move(at, i, stop, whole, x)``: makes all moves.

    Each is for a dtype of its own, and Numba cannot loop over functions, so each function calls the next.
    """
    (do, number, row, paired), *others = moves
    rest: Any = in_turn(others) if others else None
    is_last, a = not others, np.int64(number)  # as `WHOLE`

    @device_function
    def move(at, i, stop, whole, x):
        do(at[row], i, stop, whole, x, a)
        if not is_last:
            rest(at, i, stop, whole, x)

    @device_function
    def move_pair(at, i, stop, whole, x):
        do((at[row], at[paired]), i, stop, whole, x, a)
        if not is_last:
            rest(at, i, stop, whole, x)

    return move if paired is None else move_pair


class Slots:
    """The loads and stores of a routine's slots, for the dtypes of its arrays.

    "params" are the exact parameters: in the master, or joined from parameter and remainder, if there is either.
    "stored_params" are those that the parameter's dtype can hold. A thread has eight elements, or ``four``.
    """

    def __init__(self, routine: Routine, dtypes: tuple, four: bool = False) -> None:
        self._four, self.dtypes = four, dict(zip(routine.slot_names, dtypes, strict=True))
        self.real: Any = arithmetic(dtypes[0])
        self.present = frozenset(name for name, dtype in self.dtypes.items() if dtype)
        self._row = {name: row for row, name in enumerate(routine.slot_names)}
        coded = [slot for slot in routine.slots if slot.name in routine.states and self.dtypes[slot.name] == "uint8"]
        self.codes = {slot.name: codes_of(slot) for slot in coded}  # of the states in 8 bits
        self._exact = "params" if dtypes[-1] is None else "joined" if dtypes[-1] in REMAINDERS else "master_params"

    def load(self, names: Sequence[str], policy: str = "") -> Callable:
        """Load slots: the first to x[0, 0:8], the next to x[1, 0:8], and so on."""
        moves = []
        for a, name in enumerate(names):
            # The update overwrites stored parameters beside masters, and does not read them.
            passes = name == "stored_params" and self._exact == "master_params"
            moves.append(self._move(0, name, a, policy and ("pass" if passes else policy)))
        return in_turn(moves)

    def store(self, arrays: Mapping[str, int], chances: Mapping[str, int] = {}) -> Callable:
        """Store slots, each from the array of x that is given with its name.

        ``chances`` has arrays with the chances by which states in 8 bits are rounded; others are to nearest.
        """
        same = {"params": "params", "joined": "stored_params"}.get(self._exact)  # stored by the other of the two
        return in_turn([self._move(1, name, a, chance=chances.get(name, -1)) for name, a in arrays.items()
                        if name != same])

    def as_stored(self, arrays: Mapping[str, int]) -> Callable | None:
        """Round arrays of x, each given with its slot, to what a load of the slot returns; None if none changes."""
        master, joined = self.dtypes["master_params"], self._exact == "joined"
        exact = master if joined and ITEM_SIZES[master] < 2 else self.dtypes.get(self._exact)  # 16 bits lose nothing
        dtypes = self.dtypes | {"params": exact, "stored_params": master if joined else self.dtypes["params"]}
        rounded = [(rounding(dtypes[name], joined and name == "params"), a) for name, a in arrays.items()
                   if ITEM_SIZES.get(dtypes[name]) == 2 or dtypes[name] in REMAINDERS]
        return in_turn([Move(do, a, 0) for do, a in rounded]) if rounded else None

    def _move(self, which: int, name: str, a: int, policy: str = "", chance: int = -1) -> Move:
        name = {"params": self._exact, "stored_params": "params"}.get(name, name)
        if name == "joined":
            access_of = joined_access(self.dtypes["master_params"], policy, self._four)
            return Move(access_of[which], a, self._row["params"], self._row["master_params"])
        if name in self.codes:
            kind = self.codes[name]
            return Move(store_coded(kind, chance) if which else load_coded(kind), a, self._row[name])
        return Move(access(self.dtypes[name], self.real, policy, self._four)[which], a, self._row[name])
