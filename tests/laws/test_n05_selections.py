"""N5: maxima, signs and clips are a comparison and a selection: which operand is taken, and what NaN does."""

import numpy as np
import pytest

from laws.marks import of, pairs
from laws.routines import ALL, implementation, uses
from refopt import cpu, gpu
from refopt.oracle.exact.build import make
from refopt.oracle.exact.cases import assert_same

pytestmark = pytest.mark.clause("N5")

NAN, INF = np.nan, np.inf


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


def test_a_rule_selects_by_functions_that_laws_are_of():
    """No rule has a selection of its own: larger and sign are all, and the comparison of a number."""
    selecting = {routine.name for routine in ALL if uses(routine, "where")}
    assert selecting == {routine.name for routine in ALL if uses(routine, "larger") or takes_a_sign(routine)} != set()


@each_that(lambda routine: "moment2_max" in routine.states)
def test_amsgrads_maximum_takes_the_old_one_where_it_is_larger(machine, routine, form):
    """x if x > y else y, of the old maximum x and the second moment y: a NaN in either leaves y."""
    table = [(1, 2, 2), (2, 1, 2), (NAN, 1, 1), (1, NAN, NAN), (NAN, NAN, NAN), (INF, 1, INF), (-0.0, 0, 0.0)]
    x, y, largest = zip(*table, strict=True)
    step = dict(lr=0.1, beta1=0.5, beta2=0.5)
    left = after(machine, form, routine, step, ("moment2_max",), moment2=2 * np.array(y), moment2_max=x)
    assert_left(largest, left, "moment2_max")


@each_that(takes_a_maximum)
def test_the_maximum_takes_the_gradient_where_it_is_larger(machine, routine, form):
    """x if x > y else y, of |g| and the fading norm y: a NaN in the gradient leaves y, a NaN in the norm stays."""
    table = [(1, 2, 2), (-2, 1, 2), (NAN, 1, 1), (1, NAN, NAN), (NAN, NAN, NAN), (-INF, 1, INF), (-0.0, 0, 0.0)]
    g, y, largest = zip(*table, strict=True)
    step = dict(lr=0.1, beta1=0.5, beta2=0.5, epsilon=0.0, rescale_grad=1.0)
    assert_left(largest, after(machine, form, routine, step, grads=g, inf_norm=2 * np.array(y)), "inf_norm")


@each_that(takes_a_sign)
def test_the_sign_of_zero_and_of_nan_is_itself(machine, routine, form):
    """1 above zero, -1 below, however small; the number itself elsewhere: NaN, +0 and -0 are their own signs."""
    table = [(1e-30, 1), (-1e-30, -1), (INF, 1), (-INF, -1), (NAN, NAN), (0.0, 0.0), (-0.0, -0.0)]
    blend, sign = zip(*table, strict=True)
    step = dict(lr=1.0, beta1=0.5, beta2=0.5, coeff=0.0, rescale_grad=1.0)
    zeros = np.float32(-0.0)  # less a zero of either sign they tell its sign
    left = after(machine, form, routine, step, params=[zeros] * len(table), grads=blend, moment=blend)
    with np.errstate(invalid="ignore"):
        assert_left(zeros - np.array(sign, np.float32), left, "params")


@pytest.mark.parametrize(("rho", "rectified"), [(5, False), (np.nextafter(5, 6, dtype=np.float32), True), (NAN, False)])
@each_that(lambda routine: "rho" in routine.scalars)
def test_a_step_is_rectified_where_rho_is_above_5(machine, routine, form, rho, rectified):
    """Rectified where rho > 5; a NaN is not."""
    step = dict(lr=0.5, beta1=0.5, beta2=0.75, epsilon=0.0, rescale_grad=1.0)
    left = after(machine, form, routine, step, grads=[2.0], rho=rho)["params"][0][0]
    assert (left != -0.5) == rectified


@pytest.mark.parametrize(("grads", "numbers", "factor"),
                         [([3, 4], dict(max_norm=10.0), 0.5),
                          ([6, 8], dict(max_norm=2.5, epsilon=0.0), 0.25), ([NAN, 4], dict(max_norm=1.0), 0.5),
                          ([INF, 4], dict(max_norm=1.0), 0.0), ([0, 0], dict(max_norm=0.0, epsilon=0.0), 0.5),
                          ([3, 4], dict(max_norm=INF), 0.5)])
def test_the_gradient_check_clips_where_the_clip_is_below_1(machine, grads, numbers, factor):
    """And not where it is NaN."""
    g, scale = np.array(grads, np.float32), np.full(1, 2, np.float32)
    assert cpu.check_gradients([g], loss_scale=scale, **numbers).grad_factor == factor
    with gpu.use(machine.name):
        check = gpu.gradient_check([machine.to_device(g)], loss_scale=machine.to_device(scale), **numbers)
    check()
    machine.synchronize()
    assert check.grad_factor.copy_to_host() == factor
