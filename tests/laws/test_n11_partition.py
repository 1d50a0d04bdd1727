"""N11: how tensors are put together, cut and scheduled changes no bit."""

import contextlib
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from laws.marks import each, few, of, of_families, of_merged, pairs
from laws.routines import ALL, ELEMENTWISE, LARS, WITH_NORMS, implementation, optional_states
from refopt import simt
from refopt.cpu.reduce import TILE
from refopt.gpu import runtime, tables
from refopt.gpu.tiles import ROW
from refopt.oracle.exact.build import SIGNATURES, make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference, same_bits_as_reference
from refopt.oracle.exact.placed import kernels
from refopt.oracle.exact.strategies import around, cases, chunk_of, sizes, storage

pytestmark = pytest.mark.clause("N11")
MERGED_LARS = LARS[0], LARS[0].merged_form


# Kernels with the reference's bits for any list (N4) have its partition: make test tries one of a routine with norms.
@of([pytest.param(*row, marks=[pytest.mark.slow] * (row[1] != "reference" and row != MERGED_LARS))
     for row in pairs(ALL, "reference")])
@few(4, data=st.data())
def test_a_sublist_gets_the_same_results(machine, routine, form, data):
    """Any subset in any order: alone, reversed, or all but one."""
    case, run = data.draw(cases(routine, gated=True)), implementation(form, machine)
    order = data.draw(st.permutations(range(len(case))))[: data.draw(st.integers(0, len(case)))]
    picked = {slot: [arrays[i] for i in order] for slot, arrays in run(case).items()}
    assert_same(picked, run(case.only(order)), "N11, some tensors")


@pytest.mark.clause("N6")
@of_merged([(routine, form) for routine, form in pairs(WITH_NORMS) if routine.forms[form].merged])
@few(4, kind=storage(), chunks=st.integers(1, 2), beside=st.integers(-1, 1), last=sizes(()), choice=st.integers(0, 1))
@example(("bfloat16", "bfloat16", "float32", "uint16"), 1, 1, 0, 1)
def test_the_length_of_the_last_chunk_changes_no_bit(machine, routine, form, kind, chunks, beside, last, choice):
    """One element less than a chunk, as many, or one more, for all dtypes; also if another tensor follows."""
    chosen = {name: values[choice] for name, values in routine.choices.items()}
    case = make(routine, [chunks * chunk_of(*kind[:2]) + beside, last], tuple(filter(None, kind)), **chosen)
    same_bits_as_reference(kernels(form, machine), case.replace(steps=case.steps * 2))


# Grids, blocks and schedules, which the executor can change.

# What is left of a chunk of 64 KiB on a device, by its L2 cache and multiprocessors, in tiles of fp32 tensors.
TILES = {"T4": 4, "A100": 8, "RTX 3090": 4, "RTX 5090": 8}


class Way(NamedTuple):
    """How the executor runs kernels: as which device, in which chunks, blocks and cooperative grids, in which order.

    ``None`` is as the device asks.
    """

    device: str
    tiles: int | None
    block: int | None
    grid: int | None
    schedule: str
    seed: int

    @property
    def chunk(self):
        """The elements of a chunk of an fp32 tensor."""
        return (self.tiles or TILES[self.device]) * TILE

    @contextlib.contextmanager
    def machine(self):
        """An executor that does, and a log of its launches."""
        on = Shaped(self.block, self.grid)
        with pytest.MonkeyPatch.context() as patch, simt.claim(self.device):
            patch.setattr(runtime, "_executor", lambda: on)
            if self.tiles:
                patch.setattr(tables, "tiles_per_chunk", lambda *_: self.tiles)
            with simt.observe(count=(), schedule=self.schedule, seed=self.seed) as log:  # launches, and no bytes
                yield on, log


class Shaped(runtime.Executor):
    """The executor with other blocks, or as large ones as a GPU gets, and other grids for cooperative launches."""

    def __init__(self, block, grid):
        self.block, self.grid = block, grid

    def resident(self, kernel, block, args, wanted):
        return self.grid or super().resident(kernel, block, args, wanted)

    def prepare(self, kernel, grid, block, args, *how):
        return lambda stream: kernel.executor[grid, self.block or block, stream](*args)


ways = st.builds(Way, st.sampled_from(list(TILES)), st.sampled_from([None, 2, 4]), st.sampled_from([32, None, 64, 256]),
                 st.sampled_from([None, 1, 2, 7]), st.sampled_from(["forward", "reverse", "random"]), st.integers(0, 9))


@of_families(pairs(ALL))
@few(4, least=8, lengths=st.lists(sizes(around(2 * ROW, 3 * ROW, 2 * TILE, 4 * TILE)), max_size=4), way=ways)
@example([9000, 1, 0, 2049, 300], Way("RTX 3090", 2, None, 3, "random", 1))
def test_how_a_device_cuts_and_schedules_changes_no_bit(routine, form, lengths, way):
    """Results do not depend on the number of threads, the chunks, or the order of blocks."""
    case = make(routine, lengths, steps=[step_of(routine)] * 2)
    with way.machine() as (on, log):
        got = kernels(form, on)(case)
    assert_same(reference(case), got, "N11, way")
    if routine.forms[form].merged and not routine.elementwise and form != "cooperative" and log.launches:
        assert log.launches[0].grid[0] == sum(max(-(-n // way.chunk), bool(routine.scalars)) for n in lengths)


@each(*ELEMENTWISE)
@given(lengths=st.lists(sizes(()), min_size=1, max_size=4), dtypes=st.sampled_from(SIGNATURES))
def test_a_buffer_acts_as_one_tensor(routine, lengths, dtypes):
    """Concatenating the tensors of an elementwise routine changes no bit, wherever the buffer is cut."""
    case = make(routine, lengths, dtypes, optional=optional_states(routine))
    apart = reference(case.replace(**{name: case.slots[name][:1] * len(lengths) for name in routine.scalars}))

    def joined(arrays):
        return {name: xs and (xs[:1] if name in routine.scalars else [np.concatenate(xs)])
                for name, xs in arrays.items() if case.slots[name]}

    assert_same(joined(apart), reference(case.replace(**joined(case.slots))), "N11, concatenation")
