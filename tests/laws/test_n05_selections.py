"""N5: maxima, signs and clips are a comparison and a selection: which operand is taken, and what NaN does."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from laws.marks import few, of, pairs
from laws.routines import ALL, implementation, uses
from refopt import cpu, gpu
from refopt.oracle.exact.build import make
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.strategies import nasty_floats

pytestmark = pytest.mark.clause("N5")

NAN, INF = np.nan, np.inf
NUMBERS, EPSILONS = nasty_floats("float32").map(float), st.sampled_from([0.0, 1e-6, 0.5])


def each_that(holds):
    """A mark: the test is of the routines of which something holds, by the reference and in all forms."""
    return of(pairs(filter(holds, ALL), "reference"))


def takes_a_maximum(routine):
    return "moment2_max" not in routine.states and uses(routine, "larger")


def takes_a_sign(routine):
    return uses(routine, "sign")


def after(machine, form, routine, step, optional=(), **slots):
    """What a step leaves of flat tensors of some values; slots that are not named are 0."""
    size = len(next(iter(slots.values())))
    case = make(routine, [size], steps=[step], optional=optional)
    for name, arrays in case.lists().items():
        if arrays[0] is not None:
            arrays[0][...] = slots.get(name, 0)
    return implementation(form, machine)(case)


def assert_left(expected, outcome, name):
    """The same bits, but for NaN."""
    assert_same({name: [np.array(expected, np.float32)]}, {name: outcome[name]}, "N5")


def test_rules_select_only_by_functions_with_laws():
    """Rules select only with `larger`, `sign` and comparisons of a number."""
    selecting = {routine.name for routine in ALL if uses(routine, "where")}
    assert selecting == {routine.name for routine in ALL if uses(routine, "larger") or takes_a_sign(routine)} != set()


def faded(y):
    """Half of it, as both betas of 1/2 leave it without a gradient."""
    return np.float32(0.5) * y + np.float32(0)


pairs_of_numbers = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=9)


@each_that(lambda routine: "moment2_max" in routine.states)
@few(4, table=pairs_of_numbers)
@example([(1, 4), (2, 2), (NAN, 1), (1, NAN), (NAN, NAN), (INF, 1), (-0.0, 0)])
def test_amsgrads_maximum_takes_the_larger_moment(machine, routine, form, table):
    """x if x > y else y, where x is the old maximum and y the second moment; if either is NaN, the result is y."""
    x, y = np.array(table, np.float32).T
    step = dict(lr=0.1, beta1=0.5, beta2=0.5)
    left = after(machine, form, routine, step, ("moment2_max",), moment2=y, moment2_max=x)
    assert_left([a if a > b else b for a, b in zip(x, faded(y), strict=True)], left, "moment2_max")


@each_that(takes_a_maximum)
@few(4, table=pairs_of_numbers)
@example([(1, 4), (-2, 2), (NAN, 1), (1, NAN), (NAN, NAN), (-INF, 1), (-0.0, 0)])
def test_adamaxs_maximum_takes_the_larger(machine, routine, form, table):
    """x if x > y else y, where x is |g| and y the decayed norm; a NaN gradient gives y, a NaN norm stays."""
    g, y = np.array(table, np.float32).T
    step = dict(lr=0.1, beta1=0.5, beta2=0.5, epsilon=0.0, rescale_grad=1.0)
    left = after(machine, form, routine, step, grads=g, inf_norm=y)
    assert_left([abs(a) if abs(a) > b else b for a, b in zip(g, faded(y), strict=True)], left, "inf_norm")


@each_that(takes_a_sign)
@few(4, blend=st.lists(NUMBERS, min_size=1, max_size=9))
@example([1e-30, -1e-30, INF, -INF, NAN, 0.0, -0.0])
def test_zeros_and_nan_are_their_own_signs(machine, routine, form, blend):
    """1 above zero, -1 below, however small the number; NaN, +0 and -0 are their own signs."""
    step = dict(lr=1.0, beta1=0.0, beta2=0.5, coeff=0.0, rescale_grad=1.0)
    zeros = np.float32(-0.0)  # less a zero of either sign they tell its sign
    left = after(machine, form, routine, step, params=[zeros] * len(blend), grads=blend, moment=np.copysign(0, blend))
    sign = np.array([1 if x > 0 else -1 if x < 0 else x for x in blend], np.float32)
    assert_left(zeros - sign, left, "params")


@each_that(lambda routine: "rho" in routine.scalars)
@few(4, rho=st.floats(4, 6, width=32) | st.sampled_from([NAN, INF]))
@example(5.0)
@example(float(np.nextafter(np.float32(5), np.float32(6))))
def test_a_step_is_rectified_where_rho_is_above_5(machine, routine, form, rho):
    """A step is rectified if rho > 5, and not if rho is NaN."""
    step = dict(lr=0.5, beta1=0.5, beta2=0.75, epsilon=0.0, rescale_grad=1.0)
    left = after(machine, form, routine, step, grads=[2.0], rho=rho)["params"][0][0]
    assert (left != -0.5) == (rho > 5)


@given(x=NUMBERS, max_norm=st.one_of(st.sampled_from([0.0, 1.0, 10.0, INF]), st.floats(0, 1e30)), epsilon=EPSILONS)
@example(NAN, 1.0, 0.0)
@example(INF, 1.0, 0.0)
@example(0.0, 0.0, 0.0)
def test_the_gradient_check_clips_where_the_clip_is_below_1(machine, x, max_norm, epsilon):
    """It does not clip if the factor is NaN."""
    g, scale = np.array([x, 3], np.float32), np.full(1, 2, np.float32)
    with np.errstate(all="ignore"):
        half = g * np.float32(0.5)
        norm = np.sqrt(half[0] * half[0] + half[1] * half[1])
        clip = np.float32(max_norm) / (norm + np.float32(epsilon))
    factor = np.float32(0.5) * (clip if clip < 1 else np.float32(1))
    assert cpu.check_gradients([g], loss_scale=scale, max_norm=max_norm, epsilon=epsilon).grad_factor == factor
    with gpu.use(machine.name):
        scales = machine.to_device(scale)
        check = gpu.gradient_check([machine.to_device(g)], loss_scale=scales, max_norm=max_norm, epsilon=epsilon)
    check()
    machine.synchronize()
    assert check.grad_factor.copy_to_host() == factor
