"""What checks keep for one another: cases that were drawn, and what a step of them has to come to."""

import itertools

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.cpu.stochastic import dither, random16
from refopt.oracle.bound import sums
from refopt.oracle.broken import Broken
from refopt.oracle.cases import NUMBERS, alike, draw, number
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.subjects import subject_of
from refopt.oracle.trial import FLUSHES, Trial

ADAM = ROUTINES["adam"]
LISTS = "params", "grads", "moment1", "moment2"


def drawn(**changed):
    numbers = {hyper.name: number(hyper) for hyper in ADAM.hypers} | changed
    choices = {name: values[0] for name, values in ADAM.choices.items()}
    return draw(ADAM, [(5,), (2, 3)], [alike("float32")] * 2, seed=0, numbers=numbers, choices=choices, count=3)


def test_a_case_drawn_again_has_arrays_of_its_own():
    """Laws write theirs."""
    first, case = drawn().copy(), drawn()
    there = {name: arrays for name, arrays in first.slots.items() if arrays}
    for name in there:
        for x in case.slots[name]:
            x[...] = 7
    case.steps[0]["lr"] = 5.0
    again = drawn()
    assert_same(there, again.slots, "drawn again")
    assert again.steps == first.steps != case.steps
    assert drawn(beta1=0.5).moment1[0][0] != first.moment1[0][0]


def test_trials_alike_share_what_they_expect():
    """Not those of code that flushes subnormal numbers; and each reports the numbers that were rounded."""
    step = subject_of(ADAM, cpu.merged_adam, arrays=None, device=None, names=None, options={})
    one, same, flushing = (Trial(ADAM, step, "float32", 0, fixed) for fixed in ({}, {}, {FLUSHES: True}))
    case = drawn(lr=0.1)
    first, second, other = (trial.expected(case, 0, sums.random_data) for trial in (one, same, flushing))
    assert first is second and first is not other
    assert one.rounded == same.rounded == {"lr": 0.1}
    others = [
        drawn(lr=0.2), case.replace(steps=[case.steps[0] | {"epsilon": 0.25}]), case.replace(count=4),
        case.replace(choices=case.choices | {"epsilon_at": "uncorrected"}),
        case.replace(**{name: [x.reshape(5, 1) if x.size == 5 else x for x in case.slots[name]] for name in LISTS})]
    assert all(one.expected(other, 0, sums.random_data) is not first for other in others)
    assert one.expected(case, 0, sums.any_order) is not first
    assert one.expected(case, 0, sums.random_data, leasts=2) is not first


def test_of_a_step_that_is_skipped_nothing_is_expected_to_change():
    step = subject_of(ADAM, cpu.merged_adam, arrays=None, device=None, names=None, options={})
    for flag in (0, 1, -1, np.inf, np.nan):
        case = drawn()
        case = case.replace(steps=[case.steps[0] | {"found_inf": np.full(1, flag, np.float32)}])
        expected = Trial(ADAM, step, "float32", 0, {}).expected(case, 0, sums.random_data)["params"]
        assert (expected.error > 0).any() == (expected.value != case.params[0]).any() == (flag == 0)


def test_an_operation_is_off_by_one_subnormal_number_unless_a_law_says_more():
    """Of a step whose results are subnormal."""
    step = subject_of(ADAM, cpu.merged_adam, arrays=None, device=None, names=None, options={})
    case, trial = drawn(weight_decay=0.0), Trial(ADAM, step, "float32", 0, {})
    case = case.replace(moment1=[x * np.float32(2.0**-130) for x in case.moment1],
                        grads=[x * np.float32(2.0**-130) for x in case.grads])
    of_tensor = [trial.expected(case, i, sums.random_data) for i in range(2)]
    off = [(x["moment1"].value + 1.5 * x["moment1"].error).astype(np.float32) for x in of_tensor]
    trial.hold(case, {"moment1": off}, leasts=2)
    with pytest.raises(Broken):
        trial.hold(case, {"moment1": off})


def test_numbers_of_cases_show_where_they_are_narrowed():
    """No two are alike, fp32 has them all, and 16-bit dtypes round each by nearly half a unit."""
    numbers = {name: x for name, x in NUMBERS.items() if name != "seed" and name not in ("mu", "beta1")}
    assert len({*numbers.values()}) == len(numbers) == len(NUMBERS) - 3 and NUMBERS["mu"] == NUMBERS["beta1"]
    for name, x in NUMBERS.items():
        for digits in (11, 8) if name != "seed" else ():
            units = x / 2.0 ** (np.floor(np.log2(x)) - digits + 1)
            assert np.float32(x) == x and abs(units - np.rint(units)) > 0.4, (name, digits)


@pytest.mark.parametrize(("share", "again", "failed"), [
    (0, False, set()), (0.03, False, {"unbiased"}), (0, True, {"another seed"})])
def test_chance_is_held_to_its_mean_and_to_its_seed(share, again, failed):
    """Numbers that are rounded up too often by so much of a unit, and those whose seed goes on by itself."""
    calls = itertools.count()

    def step(params, grads, *, lr, rounding="nearest", seed=0):
        for p, g in zip(params, grads, strict=True):
            exact = (p.astype(np.float32) - np.float32(lr) * g.astype(np.float32)).reshape(-1)
            bits = random16(p.size, int(seed) + again * next(calls), 0) + np.sign(exact) * (share * 2**16)
            bits = np.clip(bits, 0, 0xFFFF).astype(np.uint32)
            rounded = dither(exact, bits) if rounding == "stochastic" else exact
            p[...] = rounded.reshape(p.shape).astype(p.dtype)

    report = oracle.check("sgd", step, dtypes=["bfloat16"], laws=["L13"], diagnose=False, process=False)
    assert {item.label for item in report.of("failed")} == failed, str(report)


def test_results_of_another_tensor_are_not_taken_for_right():
    step = subject_of(ADAM, cpu.merged_adam, arrays=None, device=None, names=None, options={})
    trial = Trial(ADAM, step, "float32", 0, {})
    case = trial.case([5, 5], count=2)
    got = trial.run(case)
    trial.hold(case, got)
    with pytest.raises(Broken):
        trial.hold(case, got | {"params": [got["params"][0]] * 2})
