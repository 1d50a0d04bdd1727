"""The checks can fail: every mutant of LARS and of its kernels is found out, and what is right passes."""

from functools import cache

import pytest
from laws.routines import check_run

from mutants.family import implementation
from mutants.lars import MUTANTS
from refopt import simt
from refopt.catalog import LARS_MOMENTUM
from refopt.gpu import lars as kernels_of_lars
from refopt.gpu import norms, tiles
from refopt.oracle.exact import lars, laws
from refopt.oracle.exact.cases import runner
from refopt.oracle.exact.lars import STEP, make
from refopt.oracle.exact.placed import PlacedCase, merged_step
from refopt.simt import cuda

pytestmark = pytest.mark.slow  # tests of tests


def check_gated(run):
    """The cases of `check_run`, and those of steps that are given a factor and a flag."""
    check_run(LARS_MOMENTUM, run)
    for name, case in lars.gated():
        try:
            laws.same_bits_as_reference(run, case)
        except AssertionError as error:
            raise AssertionError(f"case {name!r}: {error}") from None


def test_the_right_implementations_pass():
    check_gated(implementation(LARS_MOMENTUM))


# N4 holds the merged form to the cases.
@pytest.mark.parametrize("form", sorted({*LARS_MOMENTUM.forms} - {LARS_MOMENTUM.merged_form}))
def test_the_kernels_pass(machine, form):
    run = runner(merged_step(LARS_MOMENTUM, form, machine))
    # On the executor a case gives the same each time; laws that run it again need not.
    check_run(LARS_MOMENTUM, cache(run) if machine.name == "executor" else run)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name):
    with pytest.raises(AssertionError, match=r"case .*(N4|N11)"):
        check_gated(MUTANTS[name])


def watched(machine):
    """The same on the watching executor."""
    for form in ("cooperative", "two_launches"):
        placed = PlacedCase(machine, make([9001, 3]))
        with simt.observe(count=False, watch=True):
            placed.plan(form)(**STEP)


def test_a_right_kernel_has_no_race(executor):
    watched(executor)


@pytest.fixture
def anew():
    """Kernels are made anew, and again after the test, which is to leave none without its barriers."""
    made = kernels_of_lars.lars_cooperative, norms.norms_kernel, norms.phases, tiles.joiner
    for kept in made:
        kept.cache_clear()
    yield
    for kept in made:
        kept.cache_clear()


@pytest.mark.usefixtures("anew")
def test_missing_block_barrier_is_seen(executor, monkeypatch):
    """Tile sums joined before the other warps have left theirs."""
    monkeypatch.setattr(cuda, "syncthreads", lambda: None)
    with pytest.raises(simt.SimtError):
        watched(executor)


@pytest.mark.usefixtures("anew")
def test_missing_grid_barrier_is_seen(executor, monkeypatch):
    """A cooperative kernel that updates before all norms are there."""
    monkeypatch.setattr(cuda.cg, "this_grid", type("Grid", (), {"sync": lambda self: None}))
    with pytest.raises(simt.SimtError):
        watched(executor)
