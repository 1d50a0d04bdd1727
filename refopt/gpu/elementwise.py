"""One kernel for every elementwise optimizer: all tensors in one launch, in one pass.

A block takes a chunk, which here is a tile. Only the rule (``refopt.gpu.rules``) differs between optimizers. All of
them find the tile in the table, load, apply the rule and store.

All blocks of a tensor read the scalars that pass from step to step, such as the powers of beta, and its first block
writes them. So that no block writes what another may still read (numerics, N9), there are two copies: a step reads
``carried[phase]`` and writes ``carried[1 - phase]``, and the next step swaps them. The caller's arrays get a copy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks.dtypes import arithmetic
from refopt.gpu import philox, unroll, vectors
from refopt.gpu.gate import gate
from refopt.gpu.group import Group
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.launches import Alternating, Launches
from refopt.gpu.rows import either, of_warp
from refopt.gpu.rules import Rule
from refopt.gpu.slots import Slots
from refopt.gpu.tables import ALIGNED, START, STOP, TENSOR
from refopt.gpu.target import cuda
from refopt.gpu.tiles import ROW
from refopt.gpu.tried import rule_for

BLOCK = 64  # threads


@factory
def merged_update(routine: Routine, dtypes: tuple, choices: tuple, factor: str = "float32") -> Kernel:
    """The kernel of a routine for a dtype signature, the routine's choices and the dtype of ``grad_factor``."""
    real: Any = arithmetic(dtypes[0])
    present = frozenset(name for name, dtype in zip(routine.slot_names, dtypes, strict=True) if dtype)
    named = dict(choices)
    stochastic = named.pop("rounding") == "stochastic"
    rule = rule_for(routine, real, present, named)
    found, factor_of = gate(real, factor)
    update = either("update", lambda partial: row_of(routine, dtypes, rule, factor_of, stochastic, partial), ROW)
    hypers_of = unroll.gather("hypers_of", "hyper[{k}, tensor]", "hyper, tensor", len(routine.hypers) - 1)
    scalars_of = unroll.gather(
        "scalars_of", "carried[phase, {k}, tensor]", "carried, phase, tensor", len(routine.scalars)
    )
    carries = bool(routine.scalars)
    leave, stay = _leave(routine, rule.advance, real), _stay(routine)

    def merged(addresses, chunks, hyper, carried, phase, first_chunk, factor_at, found_at):
        c = first_chunk + cuda.blockIdx.x
        tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
        h, s = hypers_of(hyper, tensor), scalars_of(carried, phase, tensor)
        opens = start == 0 and cuda.threadIdx.x == 0
        if found(found_at):
            if carries and opens:
                stay(tensor, s, carried, 1 - phase)
            return
        at, common = (addresses, hyper, tensor), (h, s, factor_at)
        for first in of_warp(start, stop, ROW):
            update(at, first, stop, chunks[c, ALIGNED], common)
        if carries and opens:
            leave(addresses, tensor, h, s, carried, 1 - phase)

    merged.__name__ = routine.merged_name
    return kernel((BLOCK, resident(real, len(present.intersection(routine.states)))))(merged)


def resident(real: Any, states: int) -> int:
    """Blocks that should fit on a multiprocessor: as many as leave each thread enough registers for its arrays.

    With two states, 12 was fastest on an H200, of 10 to 16; with more states, or in fp64, 12 would spill registers.
    """
    if real is np.float64:
        return 6
    return 12 if states < 3 else 10


def row_of(
    routine: Routine, dtypes: tuple, rule: Rule, factor_of: Callable, stochastic: bool, partial: bool
) -> Callable:
    """The update of a thread's eight elements of a row, which all these kernels share; `refopt.gpu.slots` shows one."""
    slots = Slots(routine, dtypes, partial, at="addresses[{}, tensor]")
    states = [name for name in routine.states if dtypes[slots.rows[name]]]
    elements, results = ["params", "rescale * grads", *states], ["params", *states]
    lines = [f"addresses, {'hyper' if stochastic else '_'}, tensor = at", "h, s, factor_at = common"]
    lines += map(slots.load, ["params", "grads", *states])
    # What all elements share is computed while the loads are in flight.
    lines.append("rescale, k = h[-1] * factor_of(factor_at), prepare(h, s)")
    lines += slots.apply("rule", rule.rule, elements, results, "k")
    slots.scope |= {"factor_of": factor_of, "prepare": rule.prepare}
    lines.append("exact = params")
    if stochastic:
        rounding, called = philox.by_chance(_by_chance(routine, dtypes, results))
        lines += [f"seed = int64(hyper[{len(routine.hypers) - 1}, tensor])", *rounding]
        slots.scope |= {"int64": np.int64, **called}
    return slots.row([*lines, *(slots.store(name, "exact") for name in results)])


def _by_chance(routine: Routine, dtypes: tuple, results: list[str]) -> dict[str, int]:
    """The new values that are stored as bf16, with their numbers; a parameter with a remainder is stored exactly."""
    dtype_of = dict(zip(routine.slot_names, dtypes, strict=True))
    exact = "params" if dtypes[-1] == "uint16" else ""
    numbers = {name: number for number, name in enumerate(("params", *routine.states))}
    return {name: numbers[name] for name in results if dtype_of[name] == "bfloat16" and name != exact}


def _leave(routine: Routine, advance: Callable | None, real: type) -> Callable:
    """Write the scalars of the next step, where that step reads them and to the caller's arrays. For Adamax::

        def leave(addresses, tensor, h, s, carried, next_phase):
            after = advance(h, s)
            carried[next_phase, 0, tensor] = after[0]
            store(addresses[4, tensor], after[0])
    """
    store = getattr(vectors, f"store_{np.dtype(real).name}")
    lines = ["after = advance(h, s)"] if routine.scalars else ["pass"]
    for k, name in enumerate(routine.scalars):
        row = routine.slot_names.index(name)
        lines += [f"carried[next_phase, {k}, tensor] = after[{k}]", f"store(addresses[{row}, tensor], after[{k}])"]
    parameters = "addresses, tensor, h, s, carried, next_phase"
    return unroll.written("leave", parameters, lines, advance=advance, store=store)


def _stay(routine: Routine) -> Callable:
    """Pass the scalars unchanged to the next step if this one is skipped. For Adamax::

        def stay(tensor, s, carried, next_phase):
            carried[next_phase, 0, tensor] = s[0]
    """
    lines = [f"carried[next_phase, {k}, tensor] = s[{k}]" for k in range(len(routine.scalars))]
    return unroll.written("stay", "tensor, s, carried, next_phase", lines or ["pass"])


@factory
def fetcher(routine: Routine, real: Any) -> Kernel:
    """Fetch the scalars from the caller's arrays, a thread for each tensor."""
    load = getattr(vectors, f"load_{np.dtype(real).name}")
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
    if "bfloat16" not in group.dtypes:
        choices["rounding"] = "nearest"  # only bf16 is rounded stochastically, so the same kernel serves
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
