"""Arguments that are refused, each with the words that name it."""

from types import SimpleNamespace

import numpy as np
import pytest

from refopt import oracle
from refopt.oracle import check, compare, identify, parametrize, vectors


def sgd(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        p -= lr * g


def step(params, grads, lr):
    """A step that takes its number by its place."""


# By function: arguments, arguments by name, and what the error says; TypeError where something of another kind is asked
# for, or of nothing at all, and ValueError where it is one of the kind.
REFUSED = [
    (check, ("sdg", sgd), {}, ValueError, "check: routine: expected one of .*, got 'sdg'"),
    (check, ("sgd", 3), {}, TypeError, "check: subject: expected a function, or an optimizer, got int"),
    (check, ("sgd", sgd), {"dtypes": ["float8"]}, ValueError, r"check: dtypes\[0\]: expected one of"),
    (check, ("sgd", sgd), {"dtypes": "float32"}, TypeError, "check: dtypes: expected a sequence of names"),
    (check, ("sgd", sgd), {"laws": ["L1", "L99"]}, ValueError, r"check: laws\[1\]: expected one of"),
    (check, ("sgd", sgd), {"set": 3}, TypeError, "check: set: expected numbers and choices by name, got int"),
    (check, ("sgd", sgd), {"set": {"beta1": 0.5}}, ValueError, "check: set: expected names of lr, .*, got 'beta1'"),
    (check, ("adam", sgd), {"set": {"beta1": 1}}, ValueError, r"check: set\['beta1'\]: expected a number that adam"),
    (check, ("adam", sgd), {"states": "4bit"}, ValueError, "check: states: expected one of 8bit, got '4bit'"),
    (check, ("sgd", sgd), {"set": {"rescale_grad": 0}}, ValueError, r"check: set\['rescale_grad'\]: expected a num"),
    (check, ("muon", sgd), {"set": {"iterations": 2.5}}, ValueError, r"check: set\['iterations'\]: expected a number"),
    (check, ("adam", sgd), {"set": {"epsilon_at": "no"}}, ValueError, r"check: set\['epsilon_at'\]: expected one of"),
    (check, ("sgd", sgd), {"device": "abacus"}, ValueError, "check: device: expected none except for torch"),
    (check, ("sgd", sgd), {"examples": -1}, ValueError, "check: examples: expected an integer of at least 0"),
    (check, ("sgd", sgd), {"seed": 1.5}, TypeError, "check: seed: expected an integer"),
    (check, ("adam", sgd), {"states": "8bit"}, TypeError, "expected .* a function's by name .*, got '8bit'"),
    (check, ("sgd", sgd), {"diagnose": 1}, TypeError, "check: diagnose: expected True or False"),
    (check, ("sgd", sgd), {"process": "yes"}, TypeError, "check: process: expected True or False"),
    (check, ("sgd", sgd), {"deadline": 0}, ValueError, "check: deadline: expected a number of seconds above 0, got 0"),
    (check, ("sgd", sgd), {"deadline": float("nan")}, ValueError, "check: deadline: expected a number of seconds"),
    (check, ("sgd", sgd), {"deadline": float("inf")}, ValueError, "check: deadline: expected a number of seconds"),
    (check, ("sgd", sgd), {"exact": "yes"}, TypeError, "check: exact: expected True or False"),
    (check, ("sgd", sgd), {"expected_failures": ["L1"]}, TypeError, "check: expected_failures: expected reasons"),
    (check, ("sgd", sgd), {"expected_failures": {"L1": 1}}, TypeError, r"expected_failures\['L1'\]: expected a reason"),
    (check, ("sgd", sgd), {"expected_failures": {"X": "why"}}, ValueError, "expected_failures: expected the id"),
    (check, ("sgd", sgd), {"skips": {"L7-float8": "why"}}, ValueError, "check: skips: expected the id of a law"),
    (check, ("sgd", sgd), {"skips": {7: "why"}}, ValueError, "check: skips: expected the id of a law, .*got 7"),
    (check, ("sgd", sgd), {"skips": "no.txt"}, ValueError, "skips: expected a readable file, got no.txt"),
    (check, ("sgd", type("Sgd", (), {})), {}, TypeError, "got the class Sgd, an instance of which may be one"),
    (check, ("sgd", lambda params, grads: None), {}, TypeError, "check: subject: expected a step that takes lr"),
    (check, ("sgd", SimpleNamespace(name="mine", dtypes=[], run=sgd, takes="params".__contains__)), {}, TypeError,
     "check: mine: expected a step that takes lr, or set="),
    (check, ("sgd", lambda param, grad, *, lr: 0), {}, TypeError, "expected a step of lists, .*, got one .* 'param'"),
    (check, ("sgd", sgd), {"names": {"lr": "rate"}}, ValueError, "check: names: expected names of .*, got 'rate'"),
    (check, ("sgd", lambda params, grads, *, lr, foo: 0), {}, TypeError, "check: subject: expected .*, got 'foo'"),
    # Without a routine.
    (check, (None, sgd), {"symmetries": ["signs"]}, ValueError, r"check: symmetries\[0\]: expected one of"),
    (check, (None, sgd), {"symmetries": "sign"}, TypeError, "check: symmetries: expected a sequence of names"),
    (check, (None, sgd), {"laws": ["L1"]}, ValueError, r"check: laws\[0\]: expected one of"),
    (check, (None, sgd), {"tolerance": -1}, ValueError, "check: tolerance: expected"),
    (check, (None, sgd), {"states": {"w": 1}}, TypeError, "check: states: expected names of .*, got 'w'"),
    (check, (None, sgd), {"set": {"rho": 1}}, TypeError, "check: set: expected names of lr, got 'rho'"),
    (check, (None, sgd), {"fused": True}, TypeError, "check: fused: expected none, which is for optimizers of lib"),
    (check, (None, sgd), {"skips": {"L1": "none"}}, ValueError, "check: skips: expected the id of a law"),
    (check, (None, sgd), {"secret": 3}, TypeError, "check: secret: expected none without a routine, got 3"),
    (check, (None, sgd), {"examples": 3}, TypeError, "check: examples: expected none without a routine, got 3"),
    (check, (None, sgd), {"names": {"lr": "x"}}, TypeError, "check: names: expected none without a routine, got {'lr'"),
    (check, (None, sgd), {"diagnose": 2}, TypeError, "check: diagnose: expected True or False, got 2"),
    (check, (None, sgd), {"process": 2}, TypeError, "check: process: expected True or False, got 2"),
    (check, (None, sgd), {"deadline": 0}, ValueError, "check: deadline: expected a number of seconds above 0, got 0"),
    (check, (None, 3), {}, TypeError, "a function, or an optimizer, got int"),
    (check, (None, len), {}, TypeError, "a step that takes params"),
    (parametrize, ("sdg", print), {}, ValueError, "parametrize: routine: expected one of"),
    (parametrize, ("sgd", 3), {}, TypeError, "check: subject: expected a"),
    (parametrize, ("sgd", step), {"laws": ["L99"]}, ValueError, r"check: laws\[0\]: expected one of"),
    (parametrize, ("sgd", step), {"expected_failures": {"L1": 3}}, TypeError, "expected a reason"),
    (parametrize, ("sgd", step), {"expected_failures": 3}, TypeError, "or the path of a file, got int"),
    (compare, (sgd, sgd), {"within": "near"}, ValueError, "compare: within: expected one of"),
    (compare, (sgd, sgd), {"within": -1.0}, ValueError, "compare: within: expected"),
    (compare, (sgd, sgd), {"parts": ["C9"]}, ValueError, r"compare: parts\[0\]: expected one of"),
    (compare, (sgd, sgd), {"options_a": 3}, TypeError, "compare: options_a: expected"),
    (compare, (sgd, sgd), {"fused": True}, TypeError, "compare: fused: expected none"),
    (compare, (sgd, sgd), {"process": 2}, TypeError, "compare: process: expected True or False, got 2"),
    (compare, (sgd, sgd), {"deadline": 0}, ValueError, "compare: deadline: expected a number of seconds above 0"),
    (identify, (sgd,), {"set": {"nu": 1}}, TypeError, "identify: set: expected"),
    (identify, (sgd,), {"set": {"mu": -1}}, ValueError, r"identify: set\['mu'\]: expected"),
    (identify, (sgd,), {"names": 3}, TypeError, "identify: names: expected"),
    (identify, (sgd,), {"fused": True}, TypeError, "identify: fused: expected none"),
    (vectors, ("adam",), {"dtypes": ["float8"]}, ValueError, r"vectors: dtypes\[0\]: expected one of"),
    (vectors, ("adam",), {"set": {"rounding": "up"}}, ValueError, "vectors: set: expected names of lr,"),
    (vectors, ("adam",), {"set": {"beta1": 1}}, ValueError, r"vectors: set\['beta1'\]: expected a number that adam"),
    (vectors, ("adam",), {"examples": -1}, ValueError, "vectors: examples: expected")]


@pytest.mark.parametrize(("function", "given", "named", "error", "text"), REFUSED)
def test_bad_arguments_are_refused(function, given, named, error, text):
    with pytest.raises(error, match=text):
        function(*given, **named)


@pytest.mark.clause("N13")
@pytest.mark.parametrize(("routine", "more", "error", "text"), [
    ("sdg", {}, ValueError, "expect: routine: expected one of"),
    ("sgd", {"grads": [np.zeros(2, np.float32)]}, ValueError, r"expect: grads\[0\]: expected shape \(3,\)"),
    ("sgd", {"lr": "1"}, TypeError, "expect: lr: expected a number"),
    ("sgd", {"mu": 0.5}, TypeError, "expect: mu: expected an argument of merged_sgd"),
    ("sgd", {"sum_of": "some"}, TypeError, "expect: sum_of: expected an integer"),
    ("sgd", {"sum_of": -1}, ValueError, "expect: sum_of: expected an integer of at least 0"),
    ("momentum", {"mu": 0.5}, TypeError, "expect: velocities: expected it, got none")])
def test_bad_arguments_of_expect_are_refused(routine, more, error, text):
    given = dict(params=[np.ones(3, np.float32)], grads=[np.ones(3, np.float32)], lr=0.1) | more
    with pytest.raises(error, match=text):
        oracle.expect(routine, **given)
