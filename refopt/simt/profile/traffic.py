"""Sectors and bank conflicts: the cost of a launch's accesses, combined by warps.

The rules, for compute capability 5.0 and later, follow NVIDIA's CUDA C++ Programming Guide and Nsight Compute:

- An instruction of a warp that accesses global memory is one request, whatever the width of its accesses. It moves
  whole sectors of 32 aligned bytes, each of them once (`l1tex__t_requests` and `l1tex__t_sectors`).
- Atomic operations on one element of global memory are processed one after another: the second in a request moves the
  sector again. NVIDIA does not document this; Nsight Compute counts so on an H200 (`benchmarks.sectors`).
- Shared memory has 32 banks, each 4 bytes wide. A request takes as many wavefronts as the most distinct words in any
  bank; lanes that read, or write, one word share it. Accesses of 8 bytes are processed by half-warps and those of 16
  by quarter-warps, one after another. Every wavefront after the first for each of these is a conflict.
- Atomic operations on one word of shared memory are processed one after another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SECTOR = 32  # bytes
BANKS, WORD = 32, 4  # bytes of a word


class Costs(NamedTuple):
    """The cost of each warp access.

    ``first`` has the index of one thread's access in each, which identifies instruction and array.
    """

    first: np.ndarray
    lanes: np.ndarray
    cost: np.ndarray  # sectors, or wavefronts
    least: np.ndarray  # sectors that would hold the distinct bytes; wavefronts without conflicts


def occurrences(*columns: np.ndarray) -> np.ndarray:
    """How many equal rows come before each row."""
    order = np.lexsort(columns[::-1])
    new = _begins(columns, order)
    starts = np.flatnonzero(new)
    counts = np.empty(len(order), np.int64)
    counts[order] = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    return counts


def groups(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A number for each row, the same for equal rows, and the first row of each number."""
    order = np.lexsort(columns[::-1])  # stable, so that the first of equal rows comes first
    new = _begins(columns, order)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new) - 1
    return numbers, order[new]


def _begins(columns: tuple[np.ndarray, ...], order: np.ndarray) -> np.ndarray:
    """Which rows, in an order with equal rows adjacent, differ from the one before."""
    new = np.ones(len(order), bool)
    if len(order):
        new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    return new


def _units(start: np.ndarray, nbytes: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """The units of memory that accesses touch: the numbers of the access and of the unit for each."""
    first = start // unit
    count = (start + nbytes - 1) // unit - first + 1
    access = np.repeat(np.arange(len(start)), count)
    within = np.arange(len(access)) - np.repeat(np.cumsum(count) - count, count)
    return access, first[access] + within


def sectors(
    request: np.ndarray, array: np.ndarray, start: np.ndarray, nbytes: np.ndarray, atomic: np.ndarray
) -> Costs:
    """The sectors of global memory that each request moves, one row for each request and array.

    Args:
        request, array: the numbers of each access's request and array.
        atomic: whether it is an atomic operation.
        start, nbytes: the bytes that it touches, from the start of the array's allocation, whose address is a multiple
            of 256.
    """
    group, first = groups(request, array)
    access, sector = _units(start, nbytes, SECTOR)
    turn = np.where(atomic, occurrences(group, start), 0)
    _, each = groups(group[access], turn[access], sector)
    size = int(np.gcd.reduce([*np.unique(start | nbytes), SECTOR]))  # parts of memory that all accesses fit
    whole, part = _units(start, nbytes, size)
    _, once = groups(group[whole], part)
    count = len(first)
    distinct = size * np.bincount(group[whole[once]], minlength=count)
    return Costs(
        first,
        np.bincount(group, minlength=count),
        np.bincount(group[access[each]], minlength=count),
        -(-distinct // SECTOR),
    )


def wavefronts(
    request: np.ndarray, lane: np.ndarray, start: np.ndarray, nbytes: np.ndarray, atomic: np.ndarray
) -> Costs:
    """The wavefronts that each request of shared memory takes.

    Args:
        request: the number of each access's request.
        lane, atomic: its lane, and whether it is an atomic operation.
        start, nbytes: the bytes that it touches, from the start of the shared array.
    """
    group, first = groups(request)
    part = lane * nbytes // (BANKS * WORD)  # of the warp: the half for 8 bytes, the quarter for 16
    access, word = _units(start, nbytes, WORD)
    # Lanes do not share words in atomic operations.
    apart = np.where(atomic, lane + 1, 0)
    _, each = groups(group[access], part[access], word, apart[access])
    access, bank = access[each], word[each] % BANKS
    in_bank, one = groups(group[access], part[access], bank)
    depth = np.bincount(in_bank)
    in_part, of_part = groups(group[access[one]], part[access[one]])
    deepest = np.zeros(len(of_part), np.int64)
    np.maximum.at(deepest, in_part, depth)
    owner = group[access[one]][of_part]
    count = len(first)
    return Costs(
        first,
        np.bincount(group, minlength=count),
        np.bincount(owner, deepest, count).astype(np.int64),
        np.bincount(owner, minlength=count),
    )


