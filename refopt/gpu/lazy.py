"""Lazy steps of embedding tables by sparse gradients: `refopt.cpu.lazy`, in two launches for any number of tables.

All occurrences of rows, of all tables, are numbered in order. In the first launch a thread takes an occurrence, and
marks the row with its number: each row of each table has two words in scratch memory, which keep the first and the last
occurrence. In the second launch a **warp**, 32 threads issued together, takes an occurrence, and goes on if it is the
first of its row. So each row that occurs has one warp, which adds the row's values, if the last occurrence is another,
and makes the step: a **lane**, one of its threads, has four neighbouring columns of every 128 (`refopt.gpu.rows`).

Nothing is sorted and nothing is cleared. Numbers go on from step to step (``clock``), so a maximum always prefers the
present step to any earlier one: one word is the maximum of the numbers, and the other of the numbers counted from the
step's end. They suffice for 2^63 occurrences. No work is in proportion to the rows of a table.

To add the values of a row, its warp compares 128 indices at a time with the row, and puts the places of equal ones in a
queue in shared memory, in order; it then adds eight at a time, whose loads are in flight together.

A value that both launches need and the second one writes, such as the powers of beta of a table, is copied to scratch
memory by the first launch, and read from there by the second (numerics, N9).

Loops over occurrences are written with ``while``, since a ``range`` by a step that is not constant begins with a
division, which takes longer than most of what a thread does here.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.gpu.gate import gate
from refopt.gpu.instructions import let_next_launch_begin, wait_for_previous_launch
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.rows import Slots, access, column
from refopt.gpu.target import cuda, device_function
from refopt.gpu.tiles import WHOLE_WARP
from refopt.gpu.tried import rule_for
from refopt.gpu.vectors import load_of, store_of
from refopt.gpu.words import load8

# Threads of a block in each launch; warps of a block in the second, and blocks on a multiprocessor.
MARK_BLOCK, BLOCK, WARPS, RESIDENT = 128, 64, 2, 10
# Indices compared at a time; places in a queue that are added at once, eight at a time; those there is room for.
SCAN, DRAIN, ADD, QUEUE = 128, 32, 8, 160
# Columns of the table of tables, after the addresses of the slots: the address of the indices; the number of rows, and
# of elements in each; the table's first word; whether four elements of a row can be accessed at a time; the table's
# number in the plan; and of all occurrences, its first. The last line has only the number of all occurrences.
INDICES, ROWS, COLUMNS, WORD, ALIGNED, NUMBER, START = range(7)
# In clock: the number of the next step's first occurrence, that of this step, and where an index was out of range.
NEXT, NOW, OUTSIDE = range(3)
PLACES = 2**40  # more than a table has occurrences in a step


@device_function
def table_of(tables, f, start):
    """The table of occurrence f: the last that starts there or earlier, by column ``start``."""
    low, high = 0, tables.shape[0] - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if tables[middle, start] <= f:
            low = middle
        else:
            high = middle
    return low


@factory
def marker(slots: int, first_scalar: int, scalars: int, real: Any) -> Kernel:
    """The first launch: mark rows, and copy the scalars of tables."""
    load, start = load_of(np.dtype(real).name), slots + START

    @kernel((MARK_BLOCK, 8))
    def mark_rows(tables, words, clock, carried):
        let_next_launch_begin()
        count = tables.shape[0] - 1
        base, total = clock[NEXT], tables[count, start]
        if cuda.grid(1) == 0:
            clock[NOW] = base
        t = f = cuda.grid(1)
        while t < count:
            for n in range(scalars):
                carried[n, t] = load(tables[t, first_scalar + n])
            t += cuda.gridsize(1)
        while f < total:
            t = table_of(tables, f, start)
            place = f - tables[t, start]
            row = load8(tables[t, slots + INDICES] + 8 * place)
            if 0 <= row < tables[t, slots + ROWS]:
                word = tables[t, slots + WORD] + 2 * row
                cuda.atomic.max(words, word, base + f)
                cuda.atomic.max(words, word + 1, base + total - 1 - f)
            else:
                cuda.atomic.max(clock, OUTSIDE, tables[t, slots + NUMBER] * PLACES + place + 1)
            f += cuda.gridsize(1)

    return mark_rows


@lru_cache
def adder(dtype: str, real: Any) -> Callable:
    """The sum of a row's values after the first, of a dtype, added to ``y[0, 0:4]``: four from ``column`` on."""
    load = access(dtype, real, "", True).load

    @device_function
    def add_queued(values, queue, warp, held, column, columns, whole, y):
        """Add the values at the first ``held`` places of the queue, in order."""
        z = cuda.local.array((ADD, 4), real)
        for q in range(0, held, ADD):
            for j in range(ADD):
                if q + j < held:
                    start = queue[warp, q + j] * columns
                    load(values, start + column, start + columns, whole, z, j)
            for j in range(ADD):
                if q + j < held:
                    for e in range(4):
                        y[0, e] = y[0, e] + z[j, e]

    @device_function
    def add_repeats(values, indices, row, first, last, column, columns, whole, y):
        """Add the values of a row after its first occurrence, up to its last."""
        queue = cuda.shared.array((WARPS, QUEUE), np.int64)
        seen = cuda.local.array(4, np.int64)
        warp, lane, held = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32, 0
        for start in range(first + 1, last + 1, SCAN):
            for part in range(4):
                place = start + 32 * part + lane
                seen[part] = load8(indices + 8 * place) if place <= last else np.int64(-1)
            for part in range(4):
                equal = cuda.ballot_sync(WHOLE_WARP, seen[part] == row)
                if seen[part] == row:
                    queue[warp, held + cuda.popc(equal & ((1 << lane) - 1))] = start + 32 * part + lane
                held += cuda.popc(equal)
            if held >= DRAIN or start + SCAN > last:
                cuda.syncwarp()
                add_queued(values, queue, warp, held, column, columns, whole, y)
                cuda.syncwarp()
                held = 0

    return add_repeats


class Scalars(NamedTuple):
    """The scalars of a routine in the second launch: how many there are, and where.

    ``read(tables, carried, t, row)`` returns them, of a table or of its row. ``advance_tables`` and ``advance_row``
    write those of the next step, if they are of tables, or of rows.
    """

    read: Callable
    advance_tables: Callable
    advance_row: Callable


@lru_cache
def scalars_of(routine: Routine, real: Any, by_row: bool, advance: Any) -> Scalars:
    """The scalars of a routine whose rule makes those of the next step by ``advance(h, s)``."""
    count, item = len(routine.scalars), np.dtype(real).itemsize
    first, room = routine.slot_names.index(routine.scalars[0]) if count else 0, max(1, count)
    load, store = load_of(np.dtype(real).name), store_of(np.dtype(real).name)
    tuple_of, hypers_of = column(count), column(len(routine.hypers) - 1)
    of_tables, of_rows = bool(count and not by_row), bool(count and by_row)

    @device_function
    def read(tables, carried, t, row):
        s = cuda.local.array((room, 1), real)
        for n in range(count):
            s[n, 0] = load(tables[t, first + n] + item * row) if by_row else carried[n, t]
        return tuple_of(s, 0)

    @device_function
    def advance_tables(tables, carried, hyper):
        if of_tables:
            t = cuda.grid(1)
            while t < tables.shape[0] - 1:
                after = advance(hypers_of(hyper, t), tuple_of(carried, t))
                for n in range(count):
                    store(tables[t, first + n], after[n])
                t += cuda.gridsize(1)

    @device_function
    def advance_row(tables, hyper, t, row):
        if of_rows:
            cuda.syncwarp()  # every lane has read them
            if cuda.threadIdx.x % 32 == 0:
                after = advance(hypers_of(hyper, t), read(tables, hyper, t, row))
                for n in range(count):
                    store(tables[t, first + n] + item * row, after[n])

    return Scalars(read, advance_tables, advance_row)


@factory
def lazy_update(routine: Routine, dtypes: tuple, choices: tuple, by_row: bool, factor: str) -> Kernel:
    """The second launch: sum the values of rows, and apply the routine's rule to them."""
    slots = Slots(routine, dtypes, four=True)
    real: Any = slots.real
    rule, prepare, advance = rule_for(routine, real, slots.present, dict(choices))
    found, factor_of = gate(real, factor)
    # x[0] are the exact parameters, and the states follow; y[0] are the sums.
    array = {name: a for a, name in enumerate(["params", *(name for name in routine.states if name in slots.present)])}
    arrays, grads = len(array), routine.slot_names.index("grads")
    load, store = slots.load([*array]), slots.store(array | {"stored_params": 0})
    param_of, states_of = column(1), column(arrays - 1, 1)
    load_values, add_repeats = access(dtypes[grads], real, "", True).load, adder(dtypes[grads], real)
    own, start, hypers_of = len(dtypes), len(dtypes) + START, column(len(routine.hypers) - 1)
    read_scalars, advance_tables, advance_row = scalars_of(routine, real, by_row, advance)

    @device_function
    def update(tables, hyper, carried, t, row, first, last, factor_at):
        """Update a row, whose values are at places from first to last in the table's."""
        at, columns, whole = tables[t], tables[t, own + COLUMNS], tables[t, own + ALIGNED] != 0
        x, y = cuda.local.array((arrays, 4), real), cuda.local.array((1, 4), real)
        for part in range(0, columns, 128):
            column = part + 4 * (cuda.threadIdx.x % 32)
            load_values(at[grads], first * columns + column, (first + 1) * columns, whole, y, 0)
            if last > first:
                add_repeats(at[grads], at[own + INDICES], row, first, last, column, columns, whole, y)
            i, stop = row * columns + column, (row + 1) * columns
            load(at, i, stop, whole, x)
            h = hypers_of(hyper, t)
            rescale, k = h[-1] * factor_of(factor_at), prepare(h, read_scalars(tables, carried, t, row))  # meanwhile
            for e in range(4):
                new = rule(*(param_of(x, e) + (rescale * y[0, e],) + states_of(x, e)), k)  # noqa: RUF005
                for n in range(arrays):
                    x[n, e] = new[n]
            store(at, i, stop, whole, x)

    def merged(tables, words, clock, hyper, carried, factor_at, found_at):
        wait_for_previous_launch()
        base, total = clock[NOW], tables[tables.shape[0] - 1, start]
        if cuda.grid(1) == 0:
            clock[NEXT] = base + total
        if found(found_at):
            return
        advance_tables(tables, carried, hyper)
        f = cuda.grid(1) // 32
        while f < total:
            t = table_of(tables, f, start)
            since = tables[t, start]
            row = load8(tables[t, own + INDICES] + 8 * (f - since))
            if 0 <= row < tables[t, own + ROWS]:
                word = tables[t, own + WORD] + 2 * row
                first, last = base + total - 1 - words[word + 1], words[word] - base
                if first == f:
                    update(tables, hyper, carried, t, row, first - since, last - since, factor_at)
                    advance_row(tables, hyper, t, row)
            f += cuda.gridsize(1) // 32

    merged.__name__ = f"merged_lazy_{routine.name}"
    return kernel((BLOCK, RESIDENT))(merged)
