"""The law of loading: a state that is loaded without a file belongs to who loads it."""

import copy
import pickle
import re

import numpy as np
import pytest

from refopt import oracle
from refopt.oracle.subject import NumPy
from refopt.oracle.subjects.shared import LibraryRun


class Loading(LibraryRun):
    """Momentum with a count of steps and a rate; ``of.load`` makes its own state of one that it is given."""

    def __init__(self, of, params, saved):
        super().__init__(of, params)
        self.state = {"rate": [0.125], "of": [{"moment": np.zeros_like(p), "count": np.zeros(1)} for p in self._params]}
        if saved is not None:
            self.state = of.load(pickle.loads(saved) if isinstance(saved, bytes) else saved)

    def step(self, grads, found_inf=None, refill=False):
        for p, g, state in zip(self._params, self._given(grads), self.state["of"], strict=True):
            state["count"] += 1
            state["moment"] *= 0.5
            state["moment"] += g
            p -= (self.state["rate"][0] / state["count"] * state["moment"]).astype(p.dtype)

    def states(self):
        return [{name: self._copy(x) for name, x in of.items() if name in self.of.seen} for of in self.state["of"]]

    def slow(self, group=None):
        self.state["rate"][0] /= 2

    def save(self):
        return pickle.dumps(self.state)

    def state_dict(self):
        return self.of.give(self.state)


class Momentum:
    name, notes, values, dtypes = "momentum of one's own", [], {}, ("float32", "float64")
    gated, in_place, recompiled, arrays = False, True, False, NumPy()

    def __init__(self, load, give=lambda state: state, seen=("moment", "count")):
        self.load, self.give, self.seen = load, give, seen

    def start(self, params, saved=None, apart=False):
        if apart:
            raise NotImplementedError("has no groups")
        return Loading(self, params, saved)


def sharing(*names):
    """Copies all but some entries of the state."""

    def load(state):
        mine = copy.deepcopy(state)
        for own, of in zip(mine["of"], state["of"], strict=True):
            own |= {name: of[name] for name in names}
        return mine

    return load


SHARED = r"expected .*, unchanged by a step of another optimizer \(states shared after loading\), got "
ALONE = r"the result with a file between the runs"


@pytest.mark.parametrize(("subject", "first", "text"), [
    (Momentum(lambda state: state), "one element, after a step", rf"moment\[0\], element 0 of 1 .*{SHARED}"),
    (Momentum(sharing("moment")), "one element, after a step", rf"moment\[0\], element 0 of 1 .*{SHARED}"),
    (Momentum(sharing("count")), "one element, after a step", rf"count\[0\], element 0 of 1 .*{SHARED}"),
    (Momentum(lambda state: state, copy.deepcopy), "one element, after a step", rf"moment\[0\], .*{SHARED}"),
    (Momentum(sharing("count"), seen=["moment"]), "one element, after a step", rf"params\[0\], .*{ALONE}"),
    (Momentum(lambda state: copy.deepcopy(state) | {"rate": state["rate"]}), "one learning rate halved",
     rf"params\[0\], .*{ALONE}"),
], ids=["everything", "moments", "counts", "two that load", "counts that nobody sees", "the rate"])
def test_what_is_shared_is_found(subject, first, text):
    report = oracle.check(None, subject, laws=["L16", "L28"], dtypes=["float32"], process=False)
    assert report.wrong == ["L28"], str(report)
    assert report.of("failed")[0].label == first
    assert re.search(text, str(report)), str(report)


@pytest.mark.parametrize("process", [False, None])
def test_copies_are_right(process):
    report = oracle.check(None, Momentum(copy.deepcopy), laws=["L16", "L28"], process=process)
    assert report.ok and not report.failed_laws and not report.of("skipped"), str(report)


def test_in_a_process_of_its_own():
    report = oracle.check(None, Momentum(sharing("count")), laws=["L16", "L28"], dtypes=["float32"], process=True)
    assert report.wrong == ["L28"], str(report)


def test_what_is_excused_is_told_and_need_not_fail():
    """A reason that a subject gives for a law: it holds for copies, and then there is nothing to excuse."""
    for load, failed in ((copy.deepcopy, []), (sharing("moment"), ["L28"])):
        subject = Momentum(load)
        subject.excused = {"L28": "as its library has it"}
        report = oracle.check(None, subject, laws=["L28"], dtypes=["float32"], process=False)
        assert report.ok and report.failed_laws == [*report.expected_failures] == failed
        assert ("(expected: as its library has it)" in str(report)) == bool(failed)


def test_functions_load_nothing():
    def step(params, grads, moment, *, lr):
        for p, g, m in zip(params, grads, moment, strict=True):
            m += g
            p -= (lr * m).astype(p.dtype)

    report = oracle.check(None, step, laws=["L28"], dtypes=["float32"], process=False)
    assert {x.text for x in report.of("skipped")} == {"loads no states in its own process"} and not report.failed_laws
