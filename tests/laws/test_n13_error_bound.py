"""N13: the formula of the paper or of the original code, in higher precision, within a bound on rounding errors."""

import pytest
from evidence.cells import FOUND_INF, GRAD_FACTOR, RESCALE_GRAD, STOCHASTIC, cells
from evidence.trial import Trial
from hypothesis import strategies as st

from laws.marks import few
from laws.routines import OF_EACH_FAMILY
from refopt.catalog import ROUTINES
from refopt.oracle.exact.laws import reference

LIMIT = 100  # eps of the arithmetic that the bound of a tensor may be, on average; 46 have been seen
OF_RHO = 400  # RAdam's rho is a difference of two numbers that are large beside it

CELLS = cells()
# What a cell shows beside the formula.
OF_FEATURES = {GRAD_FACTOR: "N8", RESCALE_GRAD: "N8", FOUND_INF: "N9", STOCHASTIC: "N16"}
OF_PRECISIONS = {"fp16": "N1", "bf16": "N1", "fp16+master": "N1", "bf16+master": "N1", "bf16+remainder": "N15"}


def markers(cell):
    clauses = ["N13", OF_FEATURES.get(cell.variant), OF_PRECISIONS.get(cell.precision)]
    return [pytest.mark.evidence(*cell, by="formulas"), pytest.mark.clause(*filter(None, clauses))]


def is_repeated(cell):
    """Whether make test leaves it: where others than fp32 differ, in how numbers are stored, a family is alike."""
    few = cell.routine in [routine.name for routine in OF_EACH_FAMILY]
    return cell.precision != "fp32" and cell.variant not in ("default" if few else "", STOCHASTIC)


ROWS = [pytest.param(cell, marks=[*markers(cell), *[pytest.mark.slow] * is_repeated(cell)], id="-".join(cell))
        for cell in CELLS]


@pytest.mark.parametrize("cell", ROWS)
@few(8, least=1, seed=st.integers(0, 2**32 - 1))
def test_each_variant_is_its_formula(cell, seed):
    """After each of several steps, each slot rounds a value within the bound, and the bound is tight."""
    for name, eps in Trial(cell, seed).hold(reference).items():
        assert eps <= (OF_RHO if name == "rho" else LIMIT), f"{name}: {eps}"


def test_every_formula_has_a_routine():
    """Every routine of the catalogue has a formula, and nothing else has one."""
    assert {cell.routine for cell in cells()} == set(ROUTINES)
