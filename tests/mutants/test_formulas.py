"""That the cells of the error bound tell formulas apart."""

import pytest
from evidence.cells import FOUND_INF, GRAD_FACTOR, Cell, cells, variants
from evidence.trial import Trial

from mutants.family import mutants
from mutants.lars import MUTANTS as LARS_MUTANTS
from refopt.catalog import ROUTINES

pytestmark = pytest.mark.slow  # tests of tests

CELLS = cells()
# The cells tell formulas apart: an implementation that is wrong in one place is outside of the bound.

# Wrong in their roundings alone, or for what a trial has none of: NaN, a gradient of None, a rho of 5.
EQUAL = {
    "": {"RuleInDouble", "SubnormalsFlushed", "NoneIsTheLast", "LastEmptyTensorTakesLastChunk", "StepRegrouped",
         "SquareFirst", "TimesTheReciprocal", "RootsDivided", "DecaySubtracted"},
    "lars_momentum": {"ScaleAfterRoot", "NanNormAdapts", "SumByNumPy", "SquaresContracted", "SumInDouble", "Contracted",
                      "MomentumContracted", "RateRegrouped", "HyperparametersInDouble", "NoneIsZero",
                      "FactorAppliedFirst"},
    "sgd": {"DecayDecoupled", "Distributed"},
    "rmsprop": {"VarianceClamped"},
    "lion": {"NanTakenForZero", "SignOfZeroIsPlusZero"},
    "adamax": {"NormTakesNan", "NormLosesNan"},
    "radam": {"ThresholdReached"},
    "lamb": {"StepPrepared", "SumByNumPy"},
    "novograd": {"SumByNumPy"},
}  # fmt: skip
# Wrong where there is something beside the parameter, or chance, alone.
ELSEWHERE = {
    "MasterFromParam": "bf16+master", "NormOfMaster": "bf16+master", "NormOfParam": "bf16+master",
    "NormOfNearestEven": "bf16+remainder", "HalvesSideBySide": "bf16+remainder",
    "ParameterAloneForExact": "bf16+remainder", "NormOfUnrounded": "fp16", "SeedIgnored": "bf16",
    "OneChanceForAllArrays": "bf16", "Truncated": "bf16",
}  # fmt: skip
MUTANTS = {name: LARS_MUTANTS if name == "lars_momentum" else mutants(ROUTINES[name]) for name in ROUTINES}
# In index order a sum has more roundings than by the tree: it may be within the bound, and need not be.
WRONG = [(routine, name) for routine in MUTANTS for name in MUTANTS[routine] if name != "SumInIndexOrder"]


def outside(cell, run):
    try:
        Trial(cell).hold(run)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(("routine", "name"), WRONG)
def test_another_formula_is_outside(routine, name):
    """In each of the precisions in which it is another; where only roundings are, it is inside of all variants."""
    run = MUTANTS[routine][name]
    takes_gates = routine == "lars_momentum"
    rows = {
        label: variant for label, variant in variants(ROUTINES[routine]).items()
        if takes_gates or variant.feature not in (GRAD_FACTOR, FOUND_INF)
    }  # fmt: skip
    if name in EQUAL[""] | EQUAL.get(routine, set()):
        plain = [Cell(routine, label, "fp32") for label, variant in rows.items() if not variant.feature]
        assert not any(outside(cell, run) for cell in plain if cell in CELLS)
        return
    for precision in [ELSEWHERE[name]] if name in ELSEWHERE else ["fp32", "bf16"]:
        tried = [Cell(routine, label, precision) for label in rows]
        assert any(outside(cell, run) for cell in tried if cell in CELLS), precision
