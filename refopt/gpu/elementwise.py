"""One kernel for every elementwise optimizer: all tensors in one launch, in one pass.

A block takes a chunk of 1024 elements of a tensor, and its two warps take rows of 256 in turn. A thread has eight
elements of a row (`refopt.gpu.rows`) of every array, in registers: it loads them, applies the optimizer's rule
(`refopt.gpu.rules`) to each, and stores them. Only the rule differs between optimizers.

All blocks of a tensor read the scalars that pass from step to step, such as the powers of beta, and its first block
writes them. So that no block writes what another may still read (numerics, N9), there are two copies: a step reads
``carried[phase]`` and writes ``carried[1 - phase]``, and the next step swaps them. The caller's arrays get a copy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks.dtypes import REMAINDERS
from refopt.gpu.gate import gate
from refopt.gpu.group import Group
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.launches import Alternating, Launches
from refopt.gpu.philox import by_chance
from refopt.gpu.rows import PARTIAL, ROW, WHOLE, Slots, column, of_warp, own
from refopt.gpu.tables import ALIGNED, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function
from refopt.gpu.tried import rule_for
from refopt.gpu.vectors import load_of, store_of

BLOCK = 64  # threads


@factory
def merged_update(routine: Routine, dtypes: tuple, choices: tuple, factor: str = "float32") -> Kernel:
    """The kernel of a routine for a dtype signature, the routine's choices and the dtype of ``grad_factor``."""
    slots, named = Slots(routine, dtypes), dict(choices)
    real: Any = slots.real
    stochastic = named.pop("rounding") == "stochastic"
    rule, prepare, advance = rule_for(routine, real, slots.present, named)
    found, factor_of = gate(real, factor)
    # x[0] are the exact parameters, x[1] the gradients, and the states follow. If rounding is stochastic, x[last] are
    # the parameters as they are stored, and the chances for states in 8 bits follow; otherwise stores round.
    states = [name for name in routine.states if name in slots.present]
    array = {name: a for a, name in enumerate(["params", "grads", *states])}
    last = len(array)
    chances = {name: last + 1 + n for n, name in enumerate(slots.codes)} if stochastic else {}
    arrays = last + stochastic + len(chances)
    rounded = chance_rows(routine, slots, array | {"params": last} | chances)
    to_round: Any = by_chance(tuple(rounded), frozenset(chances.values())) if stochastic else None
    load, elements = slots.load([*array]), column(last)
    written = {name: a for name, a in array.items() if name != "grads"}
    store = slots.store(written | {"stored_params": last if stochastic else 0}, chances)
    hypers_of, scalars_of = column(len(routine.hypers) - 1), column(len(routine.scalars))
    addresses_of, seed_row, results = column(len(dtypes)), len(routine.hypers) - 1, last - 1
    scalars = len(routine.scalars)
    first_scalar = routine.slot_names.index(routine.scalars[0]) if scalars else 0
    store_scalar = store_of(np.dtype(real).name)

    @device_function
    def update(at, i, stop, whole, h, s, factor_at, seed):
        """Update a thread's eight elements of a row, from i on and from i + 128 on."""
        x = cuda.local.array((arrays, 8), real)
        load(at, i, stop, whole, x)
        rescale, k = h[-1] * factor_of(factor_at), prepare(h, s)  # computed while the loads are in flight
        for e in range(8):
            x[1, e] = rescale * x[1, e]
            new = rule(*elements(x, e), k)
            x[0, e] = new[0]
            for n in range(1, results):
                x[n + 1, e] = new[n]
        if stochastic:
            for e in range(8):
                x[last, e] = x[0, e]
            to_round(i, seed, x)
        store(at, i, stop, whole, x)

    def merged(addresses, chunks, hyper, carried, phase, first_chunk, factor_at, found_at):
        c = first_chunk + cuda.blockIdx.x
        tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
        h, s = hypers_of(hyper, tensor), scalars_of(carried[phase], tensor)
        opens = start == 0 and cuda.threadIdx.x == 0
        if found(found_at):
            if scalars and opens:  # they pass to the next step unchanged
                for n in range(scalars):
                    carried[1 - phase, n, tensor] = carried[phase, n, tensor]
            return
        at, seed = addresses_of(addresses, tensor), np.int64(hyper[seed_row, tensor])
        for first in of_warp(start, stop, ROW):
            if chunks[c, ALIGNED] and first + ROW <= stop:
                update(at, own(first), stop, WHOLE, h, s, factor_at, seed)
            else:
                update(at, own(first), stop, PARTIAL, h, s, factor_at, seed)
        if scalars and opens:
            after = advance(h, s)
            for n in range(scalars):
                carried[1 - phase, n, tensor] = after[n]
                store_scalar(at[first_scalar + n], after[n])

    merged.__name__ = routine.merged_name
    return kernel((BLOCK, resident(real, len(states))))(merged)


def chance_rows(routine: Routine, slots: Slots, array: dict[str, int]) -> list[int]:
    """By number in `refopt.cpu.stochastic.random16`, the array of x to round to bf16 or for chances, or -1.

    A parameter with a remainder is stored exactly.
    """
    names = ["params", *routine.states]
    exact = "params" if slots.dtypes["master_params"] in REMAINDERS else ""
    rows = [array[n] if slots.dtypes[n] in ("bfloat16", "uint8") and n != exact else -1 for n in names]
    return rows + [-1] * (len(rows) % 2)


def resident(real: Any, states: int) -> int:
    """Blocks that should fit on a multiprocessor: as many as leave each thread enough registers for its arrays.

    With two states, 12 was fastest on an H200, of 10 to 16, and of 6 to 12 in 8 bits; with more states or in fp64, 12
    would spill many registers.
    """
    if real is np.float64:
        return 6
    return 12 if states < 3 else 10


@factory
def fetcher(routine: Routine, real: Any) -> Kernel:
    """Fetch the scalars from the caller's arrays, a thread for each tensor."""
    load = load_of(np.dtype(real).name)
    first, count = routine.slot_names.index(routine.scalars[0]), len(routine.scalars)

    @kernel()
    def fetch_scalars(addresses, carried, phase):
        for tensor in range(cuda.grid(1), carried.shape[2], cuda.gridsize(1)):
            for n in range(count):
                carried[phase, n, tensor] = load(addresses[first + n, tensor])

    return fetch_scalars


@kernel()
def settle_scalars(carried, phase):
    """Copy the scalars of the next step over those that the last step read."""
    for tensor in range(cuda.grid(1), carried.shape[2], cuda.gridsize(1)):
        for n in range(carried.shape[1]):
            carried[phase, n, tensor] = carried[1 - phase, n, tensor]


def launches(group: Group, form: str, **choices: Any) -> Launches | Alternating:
    """The launches of a group: one, or one for each tensor."""
    machine, routine = group.machine, group.routine
    if {"bfloat16", "uint8"}.isdisjoint(group.dtypes):
        choices["rounding"] = "nearest"  # only bf16 and codes are rounded stochastically, so the same kernel serves
    update = merged_update(routine, group.dtypes, tuple(sorted(choices.items())), group.factor_dtype)
    tensors = len(group.members)
    carried = group.zeros(2, max(1, len(routine.scalars)), tensors)
    pieces = [(0, group.chunk_count)] if routine.forms[form].merged else group.chunks_of_tensors()

    def step(phase: int) -> list:
        args = group.addresses, group.chunks, group.hypers.values, carried, phase
        return [machine.prepare(update, chunks, BLOCK, (*args, first, *group.gate)) for first, chunks in pieces]

    def small(of: Kernel, *args: Any) -> Callable[[Any], None]:
        return machine.prepare(of, -(-tensors // 128), 128, args)

    if not routine.scalars:
        return Launches(machine, step(0))
    fetch = fetcher(routine, group.real)
    return Alternating(
        machine,
        [step(phase) for phase in (0, 1)],
        [small(fetch, group.addresses, carried, phase) for phase in (0, 1)],
        [small(settle_scalars, carried, phase) for phase in (0, 1)],
    )
