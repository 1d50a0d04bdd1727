"""N11: how tensors are put together, cut and scheduled changes no bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws.marks import few, is_repeated, of, of_merged, pairs, routines
from laws.routines import ALL, ELEMENTWISE, LARS, OF_EACH_FAMILY, WITH_NORMS, implementation, optional_states
from refopt import simt
from refopt.checks.dtypes import SIZES, arithmetic
from refopt.cpu.reduce import TILE
from refopt.gpu import runtime, tables
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import SIGNATURES, make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import kernels
from refopt.oracle.exact.strategies import DTYPES, around, cases, chunk_of

pytestmark = pytest.mark.clause("N11")
MERGED_LARS = LARS[0], LARS[0].merged_form


# Kernels with the reference's bits for any list (N4) have its partition: make test tries one of a routine with norms.
partitioned = of([pytest.param(*row, marks=[pytest.mark.slow] * (row[1] != "reference" and row != MERGED_LARS))
                  for row in pairs(ALL, "reference")])


@partitioned
@given(data=st.data())
@few(2)
def test_merged_is_one_tensor_at_a_time(machine, routine, form, data):
    """Each tensor comes out as it does alone."""
    case = data.draw(cases(routine, max_tensors=4, large=not routine.elementwise))
    laws.merged_is_one_at_a_time(implementation(form, machine), case)


@partitioned
@given(data=st.data())
@few(2)
def test_the_order_of_tensors_is_free(machine, routine, form, data):
    """A list backwards leaves what it leaves forwards, backwards."""
    case = data.draw(cases(routine, max_tensors=5, large=not routine.elementwise))
    laws.order_is_free(implementation(form, machine), case)


AROUND = [(routine, routine.merged_form) for routine in ELEMENTWISE] + pairs(WITH_NORMS)

def around_chunks(routine):
    """Sizes around a chunk, which is a tile of elementwise routines, and of three."""
    chunk = TILE if routine.elementwise else 8 * TILE
    return chunk + 1, chunk - 1, chunk, 3 * chunk


# In other kinds of storage than fp32 make test takes one element more than a chunk.
CHUNK_ENDS = [pytest.param(*pair, dtypes, size, id=f"{pair[0].name}-{pair[1]}-{'-'.join(dtypes)}-{size}",
                           marks=[pytest.mark.slow] * (is_repeated(*pair) or (k > 0 and dtypes != SIGNATURES[0])))
              for pair in AROUND for dtypes in SIGNATURES for k, size in enumerate(around_chunks(pair[0]))]


@pytest.mark.clause("N6")
@pytest.mark.parametrize(("routine", "form", "dtypes", "size"), CHUNK_ENDS)
def test_chunks_end_without_a_trace(machine, routine, form, dtypes, size):
    """One element less than a chunk has, as many, one more, three chunks; by kernels with norms in two steps."""
    steps = [step_of(routine)] * (1 if routine.elementwise else 2)
    laws.same_bits_as_reference(kernels(form, machine), make(routine, [size], dtypes, steps=steps))


# Dtypes of parameter, gradient and states: one pair for each length of a chunk.
BY_CHUNK = {chunk_of(p, g): (p, g, np.dtype(arithmetic(p)).name) for p in DTYPES for g in DTYPES if SIZES[g] <= 4}


def test_there_are_chunks_of_several_lengths():
    """The dtypes of a tensor decide how long its chunks are."""
    assert len(BY_CHUNK) >= 3 and all(chunk % TILE == 0 for chunk in BY_CHUNK)


@pytest.mark.parametrize("chunk", BY_CHUNK)
@pytest.mark.parametrize("chunks", [1, pytest.param(2, marks=pytest.mark.slow)])
@of_merged([(routine, form) for routine, form in pairs(WITH_NORMS) if routine.forms[form].merged])
def test_chunks_of_any_length_end_without_a_trace(machine, routine, form, chunks, chunk):
    """Whatever the dtypes make of their length, and a second tensor behind them."""
    case = make(routine, [*around(chunks * chunk), 3], BY_CHUNK[chunk])
    laws.same_bits_as_reference(kernels(form, machine), case)


@of_merged(pairs(ALL))
def test_large_tensors_stand_among_hundreds_of_small_ones(machine, routine, form):
    """Small tensors before, between and behind large ones, empty ones at both ends."""
    large = 8_200 if not routine.elementwise else 5_000
    count = 70 if routine.forms[form].merged else 12
    sizes = [0, *([3, 1, 5] * (count // 3)), large, *([2, 0, 9] * (count // 3)), 1025, 1, large + 1, 0]
    steps = [step_of(routine, lr=[0.01 * (1 + i % 9) for i in range(len(sizes))])]
    if form == "carried_norm":
        steps = [step_of(routine), *steps]  # the first has none to carry
    laws.same_bits_as_reference(kernels(form, machine), make(routine, sizes, steps=steps))


# Grids, blocks and schedules, which the executor can change.


@pytest.mark.parametrize("tiles", [2, *(pytest.param(x, marks=pytest.mark.slow) for x in (4, 16))])
@of_merged(pairs(WITH_NORMS))
def test_tensors_are_cut_into_chunks_of_any_length(executor, routine, form, tiles, monkeypatch):
    """How tensors are cut changes no bit, though norms are summed over the chunks."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda *_: tiles)
    case = make(routine, [tiles * TILE + 3616, 1, 2048, 1100], steps=[step_of(routine)] * 2)
    with simt.observe(count=()) as log:  # launches, and no bytes
        got = kernels(form, executor)(case)
    assert_same(reference(case), got, "N11, chunks")
    if routine.forms[form].merged and form != "cooperative":
        assert log.launches[0].grid[0] == sum(-(-p.size // (tiles * TILE)) for p in case.params)


# What is left of a chunk of 64 KiB on a device, by its L2 cache and multiprocessors.
CHUNKS = {"T4": 1 << 15, "A100": 1 << 16, "RTX 3090": 1 << 15, "RTX 5090": 1 << 16}


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x != "RTX 3090"))
                                  for x in CHUNKS])
@of_merged(pairs((*OF_EACH_FAMILY[:2], *WITH_NORMS)))
def test_a_step_has_its_bits_as_any_device(executor, routine, form, name):
    """What asks the device for its multiprocessors and caches changes no bit."""
    case = make(routine, [19_000 if not routine.elementwise else 1500, 3, 1025], steps=[step_of(routine)] * 2)
    with simt.claim(name), simt.observe(count=()) as log:
        got = kernels(form, executor)(case)
    assert_same(reference(case), got, f"N11, as {name}")
    if routine.forms[form].merged and not routine.elementwise and form != "cooperative":
        pair = 8 * 1024  # bytes of a tile of parameter and gradient
        assert log.launches[0].grid[0] == sum(-(-p.nbytes * 2 // (CHUNKS[name] // pair * pair)) for p in case.params)


SHAPES = [(32, 1), (64, 3), *(pytest.param(*shape, marks=pytest.mark.slow) for shape in [(128, 2), (256, 7)])]


class Shaped(runtime.Executor):
    """The executor with other blocks, and other grids for cooperative launches."""

    def __init__(self, block, grid):
        self.block, self.grid = block, grid

    def resident(self, kernel, block, args, wanted):
        return self.grid

    def prepare(self, kernel, grid, block, args, *how):
        return lambda stream: kernel.executor[grid, self.block, stream](*args)


@pytest.mark.parametrize(("block", "grid"), SHAPES)
@of([row for row in pairs(WITH_NORMS) if row[1] != "separate"])
def test_blocks_and_grids_have_any_size(routine, form, block, grid, monkeypatch):
    """Warps share sums otherwise, and cooperative blocks other tensors."""
    on = Shaped(block, grid)
    monkeypatch.setattr(runtime, "_executor", lambda: on)
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda *_: 2)
    case = make(routine, [4200, 1, 2048, 1025], steps=[step_of(routine)] * 2)
    laws.same_bits_as_reference(kernels(form, on), case)


@pytest.mark.parametrize(("schedule", "seed"), [
    ("reverse", 0), ("random", 1), pytest.param("random", 2, marks=pytest.mark.slow)])
@of_merged(AROUND)
def test_blocks_and_threads_run_in_any_order(executor, routine, form, schedule, seed):
    """Backwards, and shuffled."""
    case = make(routine, [9000, 1, 0, 2049, 300], steps=[step_of(routine)] * 2)
    expected = reference(case)
    with simt.observe(count=False, schedule=schedule, seed=seed):
        got = kernels(form, executor)(case)
    assert_same(expected, got, "N11, schedule")


@routines
def test_a_buffer_is_one_tensor(routine):
    """(a) Concatenated, elementwise routines leave the same bits; (b) norms of tensors are none of their buffer's."""
    case = make(routine, [300, 5, 1024], optional=optional_states(routine))
    numbers = {name: values[:1] * 3 for name, values in case.slots.items() if name in routine.scalars}
    case = case.replace(**numbers)
    apart = reference(case)
    joined = {name: values and (values[:1] if name in routine.scalars else [np.concatenate(values)])
              for name, values in case.slots.items()}
    together = reference(case.replace(**joined))
    kept = {name: x for name, x in apart.items() if case.slots[name] and name not in routine.scalars}
    expected = {name: [np.concatenate(x)] for name, x in kept.items()}
    if routine.elementwise:
        assert_same(expected, together, "N11, concatenation")
    else:
        with pytest.raises(AssertionError, match="params"):
            assert_same({"params": expected["params"]}, together, "N11, concatenation")
