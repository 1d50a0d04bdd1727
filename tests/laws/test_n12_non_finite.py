"""N12: where inf and NaN go, and where not: by the arithmetic of the rule as written; nothing is skipped."""

import math

import numpy as np
import pytest
from maps.non_finite import GATE, left

from laws.marks import of, pairs, routines
from laws.routines import ELEMENTWISE, LARS, NOVOGRAD, WITH_NORMS, implementation
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import assert_same

pytestmark = pytest.mark.clause("N12")

elementwise = of([(routine, form) for routine in ELEMENTWISE for form in ("reference", routine.merged_form)])


def case_of(routine):
    optional = tuple(slot.name for slot in routine.slots if slot.optional and slot.name != "master_params")
    return make(routine, [6, 2], steps=[step_of(routine)] * 2, optional=optional)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@elementwise
def test_an_element_affects_itself_alone(machine, routine, form, value):
    """All others keep the bits that they have without it, after two steps; a NaN gradient or parameter stays."""
    run = implementation(form, machine)
    clean = run(case_of(routine))
    for slot in ("params", "grads", *routine.states):
        case = case_of(routine)
        case.slots[slot][0][2] = value
        left = run(case)
        assert slot in routine.states or not np.isnan(value) or np.isnan(left["params"][0][2])
        for name, arrays in left.items():
            if name in ("params", *routine.states):
                arrays[0][2] = clean[name][0][2]
        assert_same(clean, left, f"N12, {value} in {slot}")


@elementwise
def test_a_scalar_affects_its_tensor(machine, routine, form):
    """A NaN in a carried scalar stays there, and reaches no other tensor."""
    run = implementation(form, machine)
    clean = run(case_of(routine))
    for slot in routine.scalars:
        case = case_of(routine)
        case.slots[slot][0][...] = np.nan
        left = run(case)
        assert np.isnan(left[slot][0]).all()
        second, others = ({name: arrays[1:] for name, arrays in states.items()} for states in (clean, left))
        assert_same(second, others, f"N12, NaN in {slot}")


@routines
def test_infinity_of_either_sign_does_the_same(routine):
    """What docs/numerics.md says of inf, and of no sign that a slot cannot have."""
    for slot in (*(slot.name for slot in routine.slots if slot.signed and slot.name != "master_params"), *GATE):
        assert left(routine, slot, np.inf) == left(routine, slot, -np.inf), slot


# Norms: what enters a sum reaches the whole tensor.

LR, RATIO, ZERO, NAN = "lr", "ratio", "0", "nan"


def assert_rate(case, got, rate):
    """The outcome of one tensor is that of the rule with a given local learning rate, worked out in float64."""
    p, g, v = (x[0].astype(np.float64) for x in (case.params, case.grads, case.velocities))
    (h,) = case.steps
    with np.errstate(all="ignore"):
        g = h["rescale_grad"] * g
        wd, p_norm, g_norm = h["lars_weight_decay"], math.sqrt(sum(p * p)), math.sqrt(sum(g * g))
        ratio = h["lr"] * h["lars_coeff"] * p_norm / (g_norm + wd * p_norm + h["epsilon"]) if rate == RATIO else None
        local = {LR: h["lr"], RATIO: ratio, ZERO: 0.0, NAN: math.nan}[rate]
        v = h["mu"] * v + local * (g + wd * p)
        for slot, expected in (("params", p - v), ("velocities", v)):
            np.testing.assert_allclose(got[slot][0].astype(np.float64), expected, rtol=1e-5, err_msg=slot)


CORNERS = [
    # p zero, g zero, wd, by norms, by decay, by decay and norms
    (False, False, 0.3, RATIO, RATIO, RATIO), (False, False, 0.0, RATIO, LR, LR), (True, False, 0.3, LR, ZERO, LR),
    (True, False, 0.0, LR, LR, LR), (False, True, 0.3, LR, RATIO, LR), (False, True, 0.0, LR, LR, LR),
    (True, True, 0.3, LR, NAN, LR),  # 0 / 0: epsilon is 0 here
    (True, True, 0.0, LR, LR, LR)]


@pytest.mark.parametrize(("k", "adapt"), list(enumerate(LARS[0].choices["adapt"])))
@pytest.mark.parametrize("corner", CORNERS, ids=lambda c: f"p{int(not c[0])}g{int(not c[1])}wd{c[2]}")
@of(pairs(LARS, "reference"))
def test_lars_forms_its_ratio_where_both_norms_are_positive(machine, routine, form, k, adapt, corner):
    """All corner cells of the condition, in each of its three versions."""
    p_zero, g_zero, wd, *rates = corner
    case = make(routine, [6], steps=[step_of(routine) | dict(lars_weight_decay=wd, epsilon=0.0)], adapt=adapt)
    case.params[0][...] *= not p_zero
    case.grads[0][...] *= not g_zero
    assert_rate(case, implementation(form, machine)(case), rates[k])


@pytest.mark.parametrize(("params", "grads", "wd", "adapt"),
                         [(0, 1, 0.3, False), (1, 0, 0.0, True), (1, 1, 0.0, False)])
@of(pairs([ROUTINES["lamb"]], "reference"))
def test_lamb_has_no_ratio_where_a_norm_or_the_decay_is_zero(machine, routine, form, params, grads, wd, adapt):
    """Parameters of zero; a direction of zero; no decay, unless the ratio is always formed."""
    case = make(routine, [6], steps=[step_of(routine) | dict(weight_decay=wd)], always_adapt=adapt)
    for slot, by in {"params": params, "grads": grads, "moment1": 0, "moment2": 0}.items():
        case.slots[slot][0][...] *= by
    p, g, power1, power2 = (case.slots[x][0].astype(float) for x in ("params", "grads", "beta1_pow", "beta2_pow"))
    (h,) = case.steps
    g *= h["rescale_grad"]
    m, u = (1 - h["beta1"]) * g / (1 - power1), (1 - h["beta2"]) * g * g / (1 - power2)
    expected = p - h["lr"] * (m / (np.sqrt(u) + h["epsilon"]) + wd * p)
    np.testing.assert_allclose(implementation(form, machine)(case)["params"][0], expected, rtol=1e-5)


NON_FINITE = [
    # slot, elements, value, wd, by norms, by decay, by decay and norms
    ("grads", 2, np.inf, 0.3, ZERO, ZERO, ZERO),  # the tensor stands still, but 0 * inf is NaN
    ("grads", 2, -np.inf, 0.0, ZERO, LR, LR),
    ("grads", 2, np.nan, 0.3, LR, NAN, LR),  # NaN > 0 is false
    ("grads", 2, np.nan, 0.0, LR, LR, LR),
    ("params", 2, np.inf, 0.3, NAN, NAN, NAN),  # inf / inf
    ("params", 2, np.inf, 0.0, NAN, LR, LR),  # 0 * inf in the denominator
    ("params", 2, np.nan, 0.3, LR, NAN, LR), ("velocities", 2, np.inf, 0.3, RATIO, RATIO, RATIO),
    ("velocities", 2, np.nan, 0.3, RATIO, RATIO, RATIO),
    ("grads", slice(None), 1e25, 0.3, ZERO, ZERO, ZERO),  # finite, but its square is not
    ("params", slice(None), 1e25, 0.3, NAN, NAN, NAN),
    ("grads", slice(None), 1e-30, 0.3, LR, RATIO, LR),  # not zero, but its square is
    ("params", slice(None), 1e-30, 0.3, LR, ZERO, LR)]


@pytest.mark.parametrize(("k", "adapt"), list(enumerate(LARS[0].choices["adapt"])))
@pytest.mark.parametrize("row", NON_FINITE, ids=lambda r: f"{r[0]}-{r[2]}-wd{r[3]}")
@of(pairs(LARS, "reference"))
def test_lars_rates_of_what_is_not_finite(machine, routine, form, k, adapt, row):
    """Which local learning rate comes of an inf, a NaN or an overflow, and which elements it reaches."""
    slot, where, value, wd, *rates = row
    case = make(routine, [6], steps=[step_of(routine) | dict(lars_weight_decay=wd, epsilon=0.0)], adapt=adapt)
    getattr(case, slot)[0][where] = value
    assert_rate(case, implementation(form, machine)(case), rates[k])


@of(pairs(WITH_NORMS, "reference"))
def test_what_is_not_finite_stays_in_its_tensor(machine, routine, form):
    """A tensor whose norm is inf leaves the others of the list as they would be without it."""
    case = make(routine, [5, 2000, 3])
    clean = implementation(form, machine)(case)
    case.params[1][7] = np.inf
    for slot, arrays in implementation(form, machine)(case).items():
        assert routine not in LARS or slot == "master_params" or np.isnan(arrays[1]).all()
        for i in (0, 2):
            assert_same({slot: [clean[slot][i]]}, {slot: [arrays[i]]}, "N12")


@pytest.mark.parametrize(("entry", "moment", "element"), [(np.inf, np.inf, np.nan), (-np.inf, np.inf, np.nan),
                                                          (3e38, np.inf, 0.0), (np.nan, np.nan, np.nan)])
@of(pairs(NOVOGRAD, "reference"))
def test_what_is_not_finite_stays_in_the_second_moment(machine, routine, form, entry, moment, element):
    """Divided by inf all but the infinite are 0, in this step and after; a NaN is everywhere."""
    run, one = implementation(form, machine), dict(lr=1.0, beta1=0.0, weight_decay=0.0)
    case = make(routine, [300, 4], steps=[one])
    case.grads[0][7] = entry
    left = run(case)
    expected = np.full(300, np.nan if np.isnan(moment) else 0, np.float32)
    expected[7] = element
    assert np.array_equal(left["moment"][0], expected, equal_nan=True)
    assert np.array_equal(left["second_moment"][0], np.float32([moment]), equal_nan=True)
    assert np.isfinite(left["params"][1]).all() and np.isfinite(left["second_moment"][1]).all()
    case = case.replace(**{name: left[name] for name in ("params", "moment", "second_moment")})
    case.grads[0][7] = 1
    assert np.array_equal(run(case)["second_moment"][0], np.float32([moment]), equal_nan=True)
