"""L18, the law of equal bits: refopt's own functions hold it in every fixed case, and a bit elsewhere breaks it."""

import functools

import numpy as np
import pytest

from oracle.mutants.around import AROUND
from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.oracle.exact import lars
from refopt.oracle.exact.examples import examples


def exactly(routine, step, **named):
    return oracle.check(routine, step, laws=["L18"], exact=True, diagnose=False, process=False, **named)


@pytest.mark.parametrize("routine", [
    pytest.param(x, marks=[pytest.mark.slow] * (x not in ("sgd", "lars_momentum"))) for x in ROUTINES])
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
    assert labels["a gradient of None"].text == "takes no gradients of None (raises AttributeError)"
    assert labels["numbers per tensor"].text == "takes no numbers in lists (raises ValueError)"
    assert sum(item.status == "passed" for item in labels.values()) > 15


def of_lists(change):
    """``cpu.merged_adamw``, and something that is changed afterwards."""

    @functools.wraps(cpu.merged_adamw)
    def step(params, grads, *lists, **named):
        cpu.merged_adamw(params, grads, *lists, **named)
        change(params, grads)

    return step


def spoils_gradients(params, grads):
    for g in grads:
        if g is not None:
            g[...] = 0


def one_unit_off(params, grads):
    for p in params[2:]:
        if p.size and p.dtype == np.float32:
            p.reshape(-1)[-1:] = np.nextafter(p.reshape(-1)[-1:], np.float32(9))


@pytest.mark.parametrize(("routine", "step", "dtype", "label"), [
    ("sgd", next(x for x in AROUND if x.name == "the seed ignored").step(), "bfloat16", "stochastic"),
    ("sgd", next(x for x in AROUND if x.name == "remainders forgotten").step(), "bfloat16", "uint16"),
    ("adamw", of_lists(spoils_gradients), "float32", "one tensor"),
    ("adamw", of_lists(one_unit_off), "float32", "tiles and tails")], ids=lambda x: getattr(x, "__name__", x))
def test_a_bit_elsewhere_breaks_it(routine, step, dtype, label):
    report = exactly(routine, step, dtypes=[dtype])
    assert report.failed_laws == ["L18"]
    assert any(label in item.label for item in report.of("failed")), report
