"""N12: where inf and NaN go, and where not: by the arithmetic of the rule as written; nothing is skipped."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from maps.non_finite import GATE, left

from laws.marks import each, few, of, pairs, routines
from laws.routines import ELEMENTWISE, LARS, NOVOGRAD, implementation, optional_states
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import SIGNATURES, make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference

pytestmark = pytest.mark.clause("N12")
NAN, INF = math.nan, math.inf
NOT_FINITE = st.sampled_from([INF, -INF, NAN])
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=4)
# Kernels leave inf and NaN where the reference does: N4.


def spoiled(case, slot, tensor, element, value):
    """A copy of a case with one element of another value; and which element that is."""
    case = case.copy()
    array = case.slots[slot][tensor % len(case)]
    array.reshape(-1)[element % array.size] = value
    return case, tensor % len(case), element % array.size


@each(*ELEMENTWISE)
@given(lengths=LENGTHS, dtypes=st.sampled_from(SIGNATURES), tensor=st.integers(0, 3), element=st.integers(0, 8),
       value=NOT_FINITE)
def test_an_element_affects_only_itself(routine, lengths, dtypes, tensor, element, value):
    """Two steps give all other elements the same bits as without it; a NaN gradient or parameter stays.

    A carried scalar affects its tensor alone, and a NaN in it stays.
    """
    case = make(routine, lengths, dtypes, steps=[step_of(routine)] * 2, optional=optional_states(routine))
    clean = reference(case)
    for slot in ("params", "grads", *routine.states, *routine.scalars):
        changed, i, k = spoiled(case, slot, tensor, element, value)
        got, scalar = reference(changed), slot in routine.scalars
        if slot in ("grads", *routine.scalars) and math.isnan(value):
            assert np.isnan(got[slot if scalar else "params"][i][k]), slot
        for name, arrays in got.items():
            if arrays[i] is not None and (scalar or name not in routine.scalars):
                at = slice(None) if scalar else k
                arrays[i][at] = clean[name][i][at]
        assert_same(clean, got, f"N12, {value} in {slot}")


@routines
def test_infinities_of_both_signs_act_alike(routine):
    """The tables of docs/numerics.md hold for -inf too, in slots that may be negative."""
    for slot in (*(slot.name for slot in routine.slots if slot.signed and slot.name != "master_params"), *GATE):
        assert left(routine, slot, INF) == left(routine, slot, -INF), slot


# Norms: what enters a sum reaches the whole tensor.


def norm(x):
    return np.sqrt((x * x).sum(dtype=np.float32))


def tensor(scale, special):
    """Six elements of a size at which squares are zero, ordinary or infinite, and one that is not finite."""
    values = np.float32([0.7, -1.3, 0.4, 2.1, -0.6, 1.2]) * np.float32(scale)
    values[2] = values[2] if special is None else special
    return values


TENSORS = st.builds(tensor, st.sampled_from([1.0, 0.0, 1e25, 1e-30]), st.sampled_from([None, INF, -INF, NAN]))


@of(pairs(LARS, "reference"))
@given(p=TENSORS, g=TENSORS, v=TENSORS, wd=st.sampled_from([0.3, 0.0]), adapt=st.sampled_from(LARS[0].choices["adapt"]))
@example(tensor(0, None), tensor(0, None), tensor(1, None), 0.3, "decay")  # 0 / 0: epsilon is 0
@example(tensor(1, INF), tensor(1, None), tensor(1, None), 0.0, "norms")  # 0 * inf in the denominator
@example(tensor(1, None), tensor(1, NAN), tensor(1, None), 0.3, "norms")  # NaN > 0 is false
@example(tensor(1, None), tensor(1e25, None), tensor(1, None), 0.3, "decay_and_norms")
def test_lars_forms_its_ratio_where_it_applies(machine, routine, form, p, g, v, wd, adapt):
    """If both norms, the decay, or all three are positive; inf, NaN and overflow propagate through the rule."""
    step = step_of(routine) | dict(lars_weight_decay=wd, epsilon=0.0)
    case = make(routine, [6], steps=[step], adapt=adapt).replace(params=[p], grads=[g], velocities=[v])
    numbers = {name: np.float32(x) for name, x in step.items()}
    got = implementation(form, machine)(case)
    with np.errstate(all="ignore"):
        g, wd = numbers["rescale_grad"] * g, numbers["lars_weight_decay"]
        both, rate = norm(p) > 0 and norm(g) > 0, numbers["lr"]
        if {"norms": both, "decay": wd > 0, "decay_and_norms": both and wd > 0}[adapt]:
            rate = rate * numbers["lars_coeff"] * norm(p) / (norm(g) + wd * norm(p))
        v = numbers["mu"] * v + rate * (g + wd * p)
        np.testing.assert_allclose(got["velocities"][0], v, rtol=1e-5)
        np.testing.assert_allclose(got["params"][0], p - v, rtol=1e-5)


@of(pairs([ROUTINES["lamb"]], "reference"))
@few(4, p=TENSORS, g=TENSORS, wd=st.sampled_from([0.3, 0.0]), always=st.booleans())
def test_lamb_forms_its_ratio_where_it_applies(machine, routine, form, p, g, wd, always):
    """If both norms are positive, and the decay is too or `always_adapt` is set."""
    step = step_of(routine, weight_decay=wd, epsilon=1e-3)
    case = make(routine, [6], steps=[step], always_adapt=always).replace(params=[p], grads=[g])
    for slot in ("moment1", "moment2"):
        case.slots[slot][0][...] = 0
    power1, power2 = (case.slots[x][0] for x in ("beta1_pow", "beta2_pow"))
    numbers = {name: np.float32(x) for name, x in step.items()}
    got = implementation(form, machine)(case)["params"][0]
    with np.errstate(all="ignore"):
        g = numbers["rescale_grad"] * g
        m, u = (1 - numbers["beta1"]) * g / (1 - power1), (1 - numbers["beta2"]) * g * g / (1 - power2)
        r = m / (np.sqrt(u) + numbers["epsilon"]) + numbers["weight_decay"] * p
        ratio = norm(p) / norm(r) if norm(p) > 0 and norm(r) > 0 and (wd > 0 or always) else np.float32(1)
        np.testing.assert_allclose(got, p - numbers["lr"] * ratio * r, rtol=1e-4, atol=1e-4)


@of(pairs(NOVOGRAD, "reference"))
@given(entry=st.sampled_from([INF, -INF, 3e38, NAN]), at=st.integers(0, 299))
def test_non_finite_norms_stay_in_the_second_moment(machine, routine, form, entry, at):
    """If it is inf, quotients are 0, except of infinite gradients, in this step and later; if NaN, all are NaN."""
    run, moment = implementation(form, machine), np.float32([abs(entry)])
    with np.errstate(over="ignore"):
        moment *= moment
    case = make(routine, [300, 4], steps=[dict(lr=1.0, beta1=0.0, weight_decay=0.0)])
    case.grads[0][at] = entry
    left = run(case)
    expected = np.full(300, NAN if math.isnan(entry) else 0, np.float32)
    expected[at] = NAN if not math.isfinite(entry) else 0
    assert np.array_equal(left["moment"][0], expected, equal_nan=True)
    assert np.array_equal(left["second_moment"][0], moment, equal_nan=True)
    assert np.isfinite(left["params"][1]).all() and np.isfinite(left["second_moment"][1]).all()
    case = case.replace(**{name: left[name] for name in ("params", "moment", "second_moment")})
    case.grads[0][at] = 1
    assert np.array_equal(run(case)["second_moment"][0], moment, equal_nan=True)
