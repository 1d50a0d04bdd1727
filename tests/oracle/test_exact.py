"""Cases and outcomes: what is none is refused, and what differs is told."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from refopt.catalog import ROUTINES
from refopt.oracle.exact import build
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import Case, assert_same, runner
from refopt.oracle.exact.laws import reference, same_bits_as_reference
from refopt.oracle.exact.strategies import cases

SGD = ROUTINES["sgd"]


@pytest.mark.parametrize(("call", "message"), [
    (lambda: make(SGD, [3]).replace(moment=[]), "Case: slots of sgd: expected no more than params"),
    (lambda: Case("sgd", {}, []), "Case: routine: expected a row of refopt.catalog.ROUTINES, got 'sgd'")])
def test_refused(call, message):
    """Names that nothing would look at."""
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(message)


RESULTS = {
    "None": (lambda outcome: None, "expected the arrays of each slot, got NoneType"),
    "a list": (lambda outcome: [outcome], "expected the arrays of each slot, got list"),
    "a slot less": (lambda outcome: {}, "params: expected a list of arrays, got NoneType"),
    "one array": (lambda outcome: outcome | {"params": outcome["params"][0]}, "params: expected a list of arrays"),
    "an array less": (lambda outcome: outcome | {"params": []}, "params: expected 1 arrays, got 0"),
    "no array": (lambda outcome: outcome | {"params": [None]}, "params[0]: expected an array, got NoneType"),
    "lists of numbers": (lambda outcome: outcome | {"params": [[1.0] * 5]}, "params[0]: expected an array, got list"),
    "a master": (lambda outcome: outcome | {"master_params": [np.ones(5)]}, "master_params[0]: expected None"),
    "another shape": (lambda outcome: outcome | {"params": [np.ones(4, "f4")]}, "params[0]: expected shape (5,)"),
    "another dtype": (lambda outcome: outcome | {"params": [np.ones(5)]}, "params[0]: expected float32, got float64")}


@pytest.mark.parametrize("what", RESULTS)
def test_results_that_are_none(what):
    """What a run returns is compared, whatever it is."""
    change, message = RESULTS[what]
    with pytest.raises(AssertionError) as caught:
        same_bits_as_reference(lambda case: change(reference(case)), make(SGD, [5]))
    assert str(caught.value).startswith(f"N4, equal bits: {message}")


def test_what_differs_is_told_with_what_was_expected_first():
    with pytest.raises(AssertionError, match=r"expected 1.0 \(0x3f800000\), got 0.0"):
        assert_same({"params": [np.ones(2, "f4")]}, {"params": [np.zeros(2, "f4")]}, "N4")


def test_a_runner_leaves_its_case_as_it_was():
    """A case can be run again, and its lists are not what the step is given."""
    case = make(ROUTINES["adam"], [3, 2])
    before = case.copy()

    def clearing(*lists, **named):
        for values in lists:
            values.clear()

    assert_same(before.outcome(), runner(clearing)(case), "nothing is done")
    assert_same(before.outcome(), case.outcome(), "the case itself")


@pytest.mark.slow  # making it small takes seconds
def test_a_case_that_fails_is_small_and_prints_as_a_call_that_makes_it():
    """What Hypothesis says of the smallest list with an element that is not finite, pasted."""

    @given(data=st.data())
    @settings(max_examples=100, database=None, print_blob=False, phases=[Phase.generate, Phase.shrink])
    def finite(data):
        case = data.draw(cases(SGD))
        assert all(np.isfinite(p).all() for p in case.params)

    with pytest.raises(AssertionError) as caught:
        finite()
    said = "\n".join(caught.value.__notes__).partition("Draw 1: ")[2]
    names = {"listed": build.listed, "Tensor": build.Tensor, "Numbers": build.Numbers, "nan": np.nan, "inf": np.inf}
    case = eval(said, names)
    (param,) = case.params
    assert param.size == 1 and not np.isfinite(param).all() and case.steps == [step_of(SGD)]
