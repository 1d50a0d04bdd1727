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
from refopt.catalog.workloads import Workload
from refopt.oracle import cases
from refopt.oracle.exact.build import step_of
from refopt.oracle.exact.strategies import hyperparameters
from refopt.oracle.laws.step import numbers_of_example
from refopt.oracle.trial import Trial

# New names, and a name of the tables with another default and another limit than usual.
NEW = (
    Hyper("damping", None, below=1.0), Hyper("least", None, below=0.125), Hyper("shift", 0.25, positive=True),
    Hyper("share", 0.875, per_tensor=True, below=1.0), Hyper("mu", 0.9, below=0.95), Hyper("rho", None, below=0.5),
    Hyper("steps", 3, whole=True),
)
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
