"""L18, the law of equal bits: refopt's own functions hold it in every fixed case, and a bit elsewhere breaks it."""

import inspect

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.oracle.exact import lars
from refopt.oracle.exact.examples import examples


def exactly(routine, step, **named):
    return oracle.check(routine, step, laws=["L18"], exact=True, diagnose=False, **named)


@pytest.mark.parametrize("routine", [
    pytest.param(x, marks=[pytest.mark.slow] * (x not in ("sgd", "lars_momentum"))) for x in ROUTINES
])
def test_the_reference_has_them_in_every_case(routine):
    report = exactly(routine, getattr(cpu, ROUTINES[routine].merged_name))
    assert not report.failed_laws, report
    passed = {item.label for item in report.of("passed")}
    wanted = {name for name, _ in examples(ROUTINES[routine])}
    wanted |= {name for name, _ in lars.gated()} if routine == "lars_momentum" else set()
    assert wanted <= passed and len(wanted) > 30, wanted - passed


def momentum(params, grads, velocities, *, lr, mu, l2_decay):
    for p, g, v in zip(params, grads, velocities, strict=True):
        if p.dtype.itemsize == 2 or g.dtype != p.dtype or v.dtype != p.dtype:
            raise NotImplementedError("storage in other dtypes")
        real = p.dtype.type
        v[...] = real(mu) * v + (g + real(l2_decay) * p)
        p[...] = p - real(lr) * v


def test_a_step_is_held_to_what_it_takes():
    report = exactly("momentum", momentum, dtypes=["float32", "float64"])
    labels = {item.label: item for item in report.items if item.dtype == "float32"}
    assert not report.failed_laws, report
    assert labels["tiles and tails"].status == "passed" and labels["everything subnormal"].status == "passed"
    assert labels["use_nesterov=True"].text == "takes no use_nesterov"
    assert labels["a gradient of None"].text == "takes no gradients of None"
    assert labels["numbers per tensor"].text == "takes no numbers in lists"
    assert sum(item.status == "passed" for item in labels.values()) > 15


def wrong_of(change):
    """``cpu.merged_adamw`` with something changed of what it is given or leaves behind."""
    own = cpu.merged_adamw

    def step(params, grads, *lists, **named):
        change(own, params, grads, lists, named)

    step.__signature__ = inspect.signature(own)
    return step


def another_seed(own, params, grads, lists, named):
    own(params, grads, *lists, **named | {"seed": 7})


def reads_remainders_as_zero(own, params, grads, lists, named):
    masters = named.get("master_params")
    for x in masters or ():
        if x is not None and x.dtype == np.uint16:
            x[...] = 0
    own(params, grads, *lists, **named)


def spoils_gradients(own, params, grads, lists, named):
    own(params, grads, *lists, **named)
    for g in grads:
        if g is not None:
            g[...] = 0


def one_unit_off(own, params, grads, lists, named):
    own(params, grads, *lists, **named)
    for p in params[2:]:
        if p.size and p.dtype == np.float32:
            p.reshape(-1)[-1:] = np.nextafter(p.reshape(-1)[-1:], np.float32(9))


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (another_seed, "stochastic"),
        (reads_remainders_as_zero, "uint16"),
        (spoils_gradients, "one tensor"),
        (one_unit_off, "tiles and tails"),
    ],
)
def test_a_bit_elsewhere_breaks_it(change, label):
    report = exactly("adamw", wrong_of(change))
    assert report.failed_laws == ["L18"]
    assert any(label in item.label for item in report.of("failed")), report
