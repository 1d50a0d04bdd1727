"""The check of an implementation: what is no implementation is refused, what one does wrong is reported."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.oracle.exact import build, check
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import Case, assert_same, runner
from refopt.oracle.exact.laws import check_run, reference
from refopt.oracle.exact.strategies import cases

SGD = ROUTINES["sgd"]


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: check("x", cpu.merged_sgd), ValueError, "check: routine: expected one of sgd, adagrad"),
    (lambda: check(["sgd"], cpu.merged_sgd), ValueError, "check: routine: expected one of sgd, adagrad"),
    (lambda: check("sgd", None), TypeError, "check: merged_step: expected a function, got NoneType"),
    (lambda: check("sgd", "sgd"), TypeError, "check: merged_step: expected a function, got str"),
    (lambda: check_run("y", reference), ValueError, "check_run: routine: expected one of sgd, adagrad,"),
    (lambda: check_run("sgd", 3), TypeError, "check_run: run: expected a function, got int"),
    (lambda: make(SGD, [3]).replace(moment=[]), TypeError, "Case: slots of sgd: expected no more than params"),
    (lambda: Case("sgd", {}, []), TypeError, "Case: routine: expected a row of refopt.catalog.ROUTINES, got 'sgd'")])
def test_refused(call, error, message):
    """Arguments that leave nothing to check, and names that nothing would look at."""
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message)


def rebinding(params, grads, *, lr, l2_decay, rescale_grad, master_params, **_):
    """Right numbers, in lists that are not the caller's arrays."""
    own = [None if g is None else p.copy() for p, g in zip(params, grads, strict=True)]
    masters = None if master_params is None else [None if m is None else m.copy() for m in master_params]
    cpu.merged_sgd(own, grads, lr=lr, l2_decay=l2_decay, rescale_grad=rescale_grad, master_params=masters)
    params[:] = own


def scribbling(params, grads, *, rescale_grad, **numbers):
    """Rescales the gradients themselves."""
    cpu.merged_sgd(params, grads, rescale_grad=rescale_grad, **numbers)
    for g in grads:
        if g is not None:
            g *= g.dtype.type(2)


def empty(params, grads, **numbers):
    """Has no answer for a list of no tensors."""
    if not params:
        return 1 / len(params)
    return cpu.merged_sgd(params, grads, **numbers)


def functional(params, grads, **numbers):
    """Returns what it should have written."""
    return [p if g is None else p - p.dtype.type(0.5) * g.astype(p.dtype) for p, g in zip(params, grads, strict=True)]


def narrow(params, grads, *, lr):
    """Knows one number."""


def asserting(params, grads, **numbers):
    assert params, "at least one tensor"
    cpu.merged_sgd(params, grads, **numbers)


FINDINGS = {
    "arrays of its own": (rebinding, "case 'one tensor': N4, equal bits: params[0], element 0 of 5 float32"),
    "gradients written": (scribbling, "case 'one tensor': must not be written: grads[0], element 0 of 5 float32"),
    "an error": (empty, "case 'no tensor': merged_step: expected no error, got ZeroDivisionError: division by zero"),
    "what is returned": (functional, "case 'one tensor': N4, equal bits: params[0], element 0 of 5 float32"),
    "a number it does not know": (narrow, "case 'one tensor': merged_step: expected no error, got TypeError: "),
    "what it asserts": (asserting, "case 'no tensor': at least one tensor")}


@pytest.mark.parametrize("what", FINDINGS)
def test_findings(what):
    """What an implementation raises, returns or writes beside is reported with the case, like a wrong bit."""
    step, message = FINDINGS[what]
    with pytest.raises(AssertionError) as caught:
        check("merged_sgd", step)
    assert str(caught.value).startswith(message)
    notes = getattr(caught.value, "__notes__", [])
    hint = ["merged_step works in place; the list that it returned was ignored"]
    assert notes == (hint if what == "what is returned" else [])
    assert (caught.value.__cause__ is not None) is ("expected no error" in message)


def test_interrupts_are_no_findings():
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("sgd", interrupted)


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
        check_run("sgd", lambda case: change(reference(case)))
    assert str(caught.value).startswith(f"case 'one tensor': N4, equal bits: {message}")


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
