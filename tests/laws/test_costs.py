"""Beside the clauses: a step costs the launches and bytes that the catalogue says, and no race."""

import numpy as np
import pytest
from hypothesis import example
from hypothesis import strategies as st

from laws.marks import few, forms_of_families, is_shared, of, pairs
from laws.routines import ALL, LARS
from refopt import simt
from refopt.catalog import ROUTINES
from refopt.gpu import tables
from refopt.oracle.exact.build import SIGNATURES, make, remainders, step_of
from refopt.oracle.exact.lars import gate
from refopt.oracle.exact.placed import PlacedCase
from refopt.oracle.exact.strategies import KINDS, cases, places

REMAINDERS = st.sampled_from(remainders()[::2])


@forms_of_families
@few(3, data=st.data())
def test_launches_match_the_catalogue(executor, routine, form, data):
    """In each step: none for a list without elements, otherwise one or two per dtype signature if merged."""
    case = data.draw(cases(routine, kinds=KINDS, large=False))
    step = PlacedCase(executor, case).plan(form)
    for hyper in case.steps:
        with simt.observe(count=()) as log:  # launches, and no bytes
            step(**hyper)
        assert len(log.launches) == step.launches == routine.launches(case.specs(), form)
    signatures = {spec.dtypes for spec in case.specs()}
    assert form != "merged" or step.launches <= len(signatures) * (1 if routine.elementwise else 2)


IN_LARS = {"separate": 5, "cooperative": 2, "two_launches": 4, "carried_norm": 4}


@of(pairs(LARS))
def test_launches_in_figures(executor, routine, form):
    """Six tensors, one of them empty, with two dtype signatures."""
    one, other = make(routine, [5, 0, 7], SIGNATURES[0]), make(routine, [3, 1, 1], SIGNATURES[2])
    case = one.replace(**{name: values + other.slots[name] for name, values in one.lists().items()})
    placed = PlacedCase(executor, case)
    with simt.observe(count=()) as log:
        placed.plan(form)(**step_of(routine))
    assert len(log.launches) == IN_LARS[form]


@forms_of_families
@few(3, data=st.data())
def test_bytes_match_the_catalogue(executor, routine, form, data):
    """A step reads and writes exactly the catalogue's bytes of every array; the first has no carried norm."""
    case = data.draw(cases(routine, 1, 3, KINDS | REMAINDERS, large=False, rounding="nearest"))
    placed = PlacedCase(executor, case, data.draw(places(routine)))
    step, specs = placed.plan(form), case.specs()
    norm_of = {name: value for name, value in case.choices.items() if name == "norm_of"}
    for k in range(2 if form == "carried_norm" else 1):
        with simt.observe(count=[x for xs in placed.slots.values() for x in xs or () if x is not None]) as log:
            step(**case.steps[0])
        now = "two_launches" if form == "carried_norm" and k == 0 else form
        moved = 0
        for i, spec in zip([i for i, g in enumerate(case.grads) if g is not None], specs, strict=True):
            passes = routine.traffic(routine.forms[now], spec.dtypes, **norm_of)
            for slot in routine.slots:
                array = (placed.slots[slot.name] or {i: None})[i]
                if array is None:
                    continue
                read, written = log.bytes_read(array), log.bytes_written(array)
                assert written == (array.nbytes if slot.written else 0), slot.name
                if not slot.scalar:
                    assert read + written == passes[slot.name] * array.nbytes, slot.name
                    moved += read + written
        assert moved == routine.bytes(specs, now, **norm_of)
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


# What is loaded and stored in other widths, make test watches of LARS.
WATCHED = [pytest.param(*row, marks=[pytest.mark.slow] * (is_shared(*row))) for row in pairs(ALL)]


@of(WATCHED)
@few(4, least=2, sizes=st.lists(st.integers(0, 1100), max_size=3), shift=st.integers(0, 1), kind=KINDS | REMAINDERS,
       choice=st.integers(0, 1), found=st.sampled_from([None, 0.0, 1.0]), order=st.sampled_from(["forward", "random"]))
@example([2100, 0, 1, 300], 1, ("float32", "float32", "float32", None), 0, 1.0, "random")
def test_nothing_races_and_nothing_is_out_of_bounds(executor, routine, form, sizes, shift, kind, choice, found, order):
    """In watched steps, taken and skipped: no data race, access outside an array, or read of unwritten shared memory.

    Every block of a cooperative launch comes to the barrier or none does; one thread of a tensor writes its scalars.
    """
    chosen = {name: values[choice] for name, values in routine.choices.items() if name == "norm_of" and kind[3]}
    placed = PlacedCase(executor, make(routine, sizes, tuple(filter(None, kind)), **chosen), [0, shift], 0)
    gates = {} if found is None else {name: executor.to_device(value) for name, value in gate(0.3).items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "tiles_per_chunk", lambda *_: 2)
        step = placed.plan(form, **gates, **step_of(routine))
        for flag in (found, 0.0):
            if gates:
                gates["found_inf"].copy_to_device(np.full(1, flag, np.float32))
            with simt.observe(count=False, watch=True, schedule=order, seed=3):
                step()
