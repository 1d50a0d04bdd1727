"""Checks draw the numbers of a routine from tables; a row that these do not know gets what its limits allow."""

from types import SimpleNamespace

import numpy as np
import pytest
from evidence import cells
from evidence.data import number as number_of_evidence
from hypothesis import given
from hypothesis import strategies as st

from refopt.catalog import ROUTINES, SGD, Hyper
from refopt.catalog.data import hypers as numbers_of_verify
from refopt.catalog.workloads import Parameter, Workload
from refopt.oracle import cases
from refopt.oracle.exact.build import step_of
from refopt.oracle.exact.strategies import hyperparameters
from refopt.oracle.laws.step import numbers_of_example
from refopt.oracle.trial import Trial

# New names, and a name of the tables with another default and another limit than usual.
NEW = (Hyper("damping", None, below=1.0), Hyper("least", None, below=0.125), Hyper("shift", 0.25, positive=True),
       Hyper("share", 0.875, per_tensor=True, below=1.0), Hyper("mu", 0.9, below=0.95), Hyper("rho", None, below=0.5),
       Hyper("steps", 3, whole=True))
ROW = SGD._replace(hypers=(SGD.hypers[0], *NEW, *SGD.hypers[-2:]))


def allowed(numbers):
    """Whether each number is within its limits."""
    for hyper in ROW.hypers:
        x = numbers[hyper.name]
        assert hyper.per_tensor or not isinstance(x, list)
        assert all(map(hyper.allows, x if isinstance(x, list) else [x])), (hyper, x)


def test_numbers_of_cases():
    numbers = step_of(ROW)
    allowed(numbers)
    assert all(numbers[hyper.name] != hyper.default for hyper in ROW.hypers), numbers
    allowed({hyper.name: cases.number(hyper) for hyper in ROW.hypers})


def test_numbers_of_verify():
    allowed(numbers_of_verify(ROW, Workload("none", (), ""), 1))


@pytest.mark.parametrize("hyper", NEW, ids=lambda hyper: hyper.name)
def test_numbers_of_evidence(hyper):
    for t in range(1, 4):
        x = number_of_evidence(hyper, cells.RESCALE_GRAD, t)
        assert all(map(hyper.allows, x if isinstance(x, list) else [x])), x


@given(st.data())
def test_numbers_of_hypothesis(data):
    allowed(data.draw(hyperparameters(ROW, 2)))


@given(st.integers(0, 1000))
def test_numbers_of_examples_of_the_oracle(k):
    trial = Trial(ROW, SimpleNamespace(takes=lambda name: True), "float32", 0, {})
    allowed(trial.numbers() | numbers_of_example(trial, np.random.default_rng(k)))


OF_ROUTINES = [hyper for routine in ROUTINES.values() for hyper in routine.hypers]


@pytest.mark.parametrize("hyper", [*OF_ROUTINES, *NEW, Hyper("begin", 0, whole=True), Hyper("end", 1, whole=True)],
                         ids=lambda hyper: hyper.name)
def test_the_other_number_is_another_that_may_be(hyper):
    assert hyper.other != hyper.default and hyper.allows(hyper.other)


def test_numbers_of_a_table_or_of_their_own():
    """By hand: another number than the default, one so many times another, one of a table if it may be that."""
    plain, fraction, whole = Hyper("x", 2.0), Hyper("x", None, below=0.125), Hyper("x", 3, whole=True)
    others = [x.other for x in (plain, Hyper("x", None), fraction, whole, whole._replace(default=0))]
    assert others == [1.5, 0.75, 0.09375, 0, 1]
    share = Hyper("x", None, below=1.0)
    assert [plain.times(2.0, 3), share.times(0.75, 2), fraction.times(0.1, 0.5)] == [6, 0.875, 0.05]
    assert [fraction.usual(table) for table in ({"x": 0.1}, {"x": 0.125}, {})] == [0.1, 0.09375, 0.09375]
    allowed = [(plain, 0), (plain._replace(positive=True), 0), (plain, -1), (fraction, 0.125), (whole, 2), (whole, 2.5)]
    assert [x.allows(value) for x, value in allowed] == [True, False, False, False, True, False]


def test_numbers_of_a_step_of_verify():
    """By hand: of the second step, with a matrix and the bias of a norm."""
    workload = Workload("two", (Parameter("a.weight", (3, 2)), Parameter("bn1.bias", (3,))), "")
    expected = {"lr": [0.0375, 0.0421875], "beta1": [0.8, 1 - 0.2 / 1.125], "beta2": [0.9, 1 - 0.1 / 1.125],
                "epsilon": [1e-4, 1.125e-4], "coeff": [0.1, 0.0], "lr_ratio": [0.5, 0.5625], "rescale_grad": 1 / 192,
                "seed": [1, 2]}
    assert numbers_of_verify(ROUTINES["adamw"], workload, 1) == {k: pytest.approx(x) for k, x in expected.items()}
