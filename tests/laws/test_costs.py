"""Beside the clauses: a step costs the launches and bytes that the catalogue says, and no race."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws.marks import each, few, forms_of_families, is_repeated, is_shared, of, pairs
from laws.routines import ALL, CARRYING, LARS, OF_EACH_FAMILY, WITH_NORMS, optional_states
from refopt import gpu, simt
from refopt.catalog import ROUTINES
from refopt.gpu import tables
from refopt.oracle.exact.build import SIGNATURES, make, remainders, step_of
from refopt.oracle.exact.cases import arguments
from refopt.oracle.exact.lars import gate
from refopt.oracle.exact.placed import PlacedCase
from refopt.oracle.exact.strategies import cases, storage


@forms_of_families
@given(data=st.data())
@few(3)
def test_launches_are_as_many_as_the_catalogue_says(executor, routine, form, data):
    """In each of some steps; for a list without elements there are none."""
    case = data.draw(cases(routine, large=False))
    step = PlacedCase(executor, case).plan(form)
    for hyper in case.steps:
        with simt.observe(count=()) as log:  # launches, and no bytes
            step(**hyper)
        assert len(log.launches) == step.launches == routine.launches(case.specs(), form)


@each(*(routine for routine in (*OF_EACH_FAMILY[:2], *WITH_NORMS) if routine.merged_form == "merged"))
def test_a_merged_step_is_one_launch_or_two(executor, routine):
    """Any number of tensors of one signature: one launch for an elementwise routine, two for one with norms."""
    step = PlacedCase(executor, make(routine, [5, 7, 0, 1] * 20)).plan("merged")
    with simt.observe(count=()) as log:
        step(**step_of(routine))
    assert len(log.launches) == step.launches == (1 if routine.elementwise else 2)


IN_LARS = {"separate": 5, "cooperative": 2, "two_launches": 4, "carried_norm": 4}


@of(pairs(LARS))
def test_launches_in_figures(executor, routine, form):
    """Six tensors, one of them empty, of two dtype signatures."""
    one, other = make(routine, [5, 0, 7], SIGNATURES[0]), make(routine, [3, 1, 1], SIGNATURES[2])
    case = one.replace(**{name: values + other.slots[name] for name, values in one.lists().items()})
    placed = PlacedCase(executor, case)
    with simt.observe(count=()) as log:
        placed.plan(form)(**step_of(routine))
    assert len(log.launches) == IN_LARS[form]


@forms_of_families
@given(data=st.data())
@few(3)
def test_bytes_are_as_many_as_the_catalogue_says(executor, routine, form, data):
    """A step reads and writes of every array what the catalogue says, to the byte; the first carries no norm yet."""
    dtypes = tuple(d for d in data.draw(storage()) if d)
    optional = optional_states(routine) if data.draw(st.booleans()) else ()
    norm_of = {name: data.draw(st.sampled_from(routine.choices[name])) for name in routine.choices if name == "norm_of"}
    case = make(routine, [1100, 0, 3], dtypes, optional=optional, **norm_of)
    placed = PlacedCase(executor, case, [data.draw(st.integers(0, 1))])
    step = placed.plan(form)
    for k in range(2 if form == "carried_norm" else 1):
        with simt.observe(count=[x for arrays in placed.slots.values() for x in arrays or ()]) as log:
            step(**step_of(routine))
        now = "two_launches" if form == "carried_norm" and k == 0 else form
        passes = routine.traffic(routine.forms[now], case.specs()[0].dtypes, **norm_of)
        moved = 0
        for slot in routine.slots:
            for array in placed.slots[slot.name] or ():
                read, written = log.bytes_read(array), log.bytes_written(array)
                assert written == (array.nbytes if slot.written else 0), slot.name
                if not slot.scalar:
                    assert read + written == passes[slot.name] * array.nbytes, slot.name
                    moved += read + written
        assert moved == routine.bytes(case.specs(), now, **norm_of)
    assert moved == step.bytes


FIGURES = [("sgd", "merged", SIGNATURES[0], "param", 12),
           ("momentum", "merged", SIGNATURES[0], "param", 20), ("adam", "merged", SIGNATURES[0], "param", 28),
           ("adam", "merged", SIGNATURES[2], "param", 2 + 2 + 8 + 8 + 8),
           ("adam", "merged", SIGNATURES[3], "param", 2 * 7), ("lamb", "merged", SIGNATURES[0], "param", 40),
           ("lamb", "merged", SIGNATURES[2], "param", 2 + 2 + 3 * 12),
           ("novograd", "merged", SIGNATURES[0], "param", 24),
           ("novograd", "merged", SIGNATURES[2], "param", 2 + 2 * 2 + 8 + 8),
           ("lars_momentum", "two_launches", SIGNATURES[0], "param", 28),
           ("lars_momentum", "carried_norm", SIGNATURES[0], "param", 24),
           ("lars_momentum", "cooperative", SIGNATURES[2], "param", 2 + 2 + 2 * 2 + 8 + 8),
           ("lars_momentum", "separate", SIGNATURES[1], "param", 3 * 8 + 2 * 4 + 2 * 8)]
WITH_REMAINDERS = [("lars_momentum", "two_launches", "param", 3 * 2 + 2 * 2 + 2 * 4 + 2 * 2),
                   ("lars_momentum", "two_launches", "master", 3 * 2 + 2 * 2 + 2 * 4 + 3 * 2),
                   ("lars_momentum", "carried_norm", "param", 2 * 2 + 2 * 2 + 2 * 4 + 2 * 2),
                   ("lars_momentum", "carried_norm", "master", 2 * 2 + 2 * 2 + 2 * 4 + 2 * 2)]
FIGURES += [(name, form, each, norm, n) for name, form, norm, n in WITH_REMAINDERS for each in remainders()[:1]]


@pytest.mark.parametrize(("name", "form", "dtypes", "norm_of", "expected"), FIGURES)
def test_bytes_in_figures(name, form, dtypes, norm_of, expected):
    """Bytes per element, counted by hand."""
    routine = ROUTINES[name]
    asked = {"norm_of": norm_of} if "norm_of" in routine.choices else {}
    assert routine.bytes(make(routine, [10], dtypes).specs(), form, **asked) == 10 * expected


@pytest.mark.parametrize("found", [0.0, 1.0])
@each(*CARRYING)
def test_scalars_are_written_once(executor, routine, found):
    """By one thread of a tensor's first chunk, in a step that is skipped as in one that is taken."""
    placed = PlacedCase(executor, make(routine, [2 * tables.tiles_per_chunk(16) * 1024, 5]))
    positional, named = arguments(routine, placed.slots)
    flag = executor.to_device(np.full(1, found, np.float32))
    with simt.observe(count=False, watch=True):
        getattr(gpu, routine.merged_name)(*positional, **named, **step_of(routine), found_inf=flag)


# Of what is loaded and stored in other widths, make test watches one kind merged, of LARS parameters with remainders.
WATCHED = [
    pytest.param(*pair, dtypes, id=f"{pair[0].name}-{pair[1]}-{'-'.join(dtypes)}", marks=[pytest.mark.slow] * left)
    for pair in pairs(ALL) for k, dtypes in enumerate((*SIGNATURES, *remainders()[:1]))
    for left in [is_repeated(*pair) if k == (4 if pair[0] in LARS else 2) else k > 0 or is_shared(*pair)]
    if dtypes[3:] != ("uint16",) or pair[0] in LARS]


@pytest.mark.parametrize(("routine", "form", "dtypes"), WATCHED)
def test_nothing_races_and_nothing_is_out_of_bounds(executor, routine, form, dtypes, monkeypatch):
    """Steps watched: no data race, no access outside an array, no shared memory read before it is written."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda *_: 2)
    norms = routine.choices.get("norm_of", [None]) if dtypes[3:] else [None]  # without a master there is one
    for norm_of in norms:
        choices = {} if norm_of is None else {"norm_of": norm_of}
        sizes = [1100 if routine.elementwise else 2100, 0, 1, 300]  # two chunks and a part of a row
        step = PlacedCase(executor, make(routine, sizes, dtypes, **choices), [0, 1]).plan(form)
        with simt.observe(count=False, watch=True, schedule="random", seed=3):
            for _ in range(2):
                step(**step_of(routine))


@pytest.mark.parametrize("schedule", [pytest.param("forward", marks=pytest.mark.slow), "random"])
@of(pairs(LARS))
def test_skipped_steps_race_no_more(executor, routine, form, schedule, monkeypatch):
    """Every block of a cooperative launch comes to the barrier or none does."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda *_: 2)
    placed = PlacedCase(executor, make(routine, [2100, 0, 1, 300]))
    gates = {name: executor.to_device(value) for name, value in gate(0.3).items()}
    step = placed.plan(form, **gates, **step_of(routine))
    for found in (1.0, 0.0, 1.0, 0.0):
        gates["found_inf"].copy_to_device(np.full(1, found, np.float32))
        with simt.observe(count=False, watch=True, schedule=schedule, seed=3):
            step()
