"""The balancer: every answer by a model in plain Python, for calls in any order."""

import copy

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from program_cases import few

from refopt.program import Var
from refopt.program.passes import Balancer, sizes_of

SIZES = {"a": 3, "b": 3, "c": 1, "d": 7, "e": 12, "f": 1, "empty": 0}
NAMES = [name for name in SIZES if name != "empty"]


def model(devices, calls, sizes=SIZES):
    """The rule, written down once more: all loads from all calls, each time anew."""
    answers = []
    for count in range(len(calls)):
        loads = [0] * devices
        for earlier, device in zip(calls[:count], answers, strict=True):
            loads[device] += sum(sizes[name] for name in earlier)
        answers.append(min(range(devices), key=lambda device: (loads[device], device)))
    return answers


def answers(devices, calls, sizes=SIZES):
    balancer = Balancer(devices, sizes)
    return [balancer.get_appropriate_dev(names) for names in calls]


class Calls(RuleBasedStateMachine):
    """A balancer beside a model that keeps a list of calls."""

    @initialize(devices=st.integers(1, 4))
    def start(self, devices):
        self.balancer, self.devices, self.calls, self.places = Balancer(devices, SIZES), devices, [], {}

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
    def draw(self, names):
        self.calls.append(names)
        assert self.balancer.get_appropriate_dev(names) == model(self.devices, self.calls)[-1]

    @rule(name=st.sampled_from(NAMES))
    def place(self, name):
        if name not in self.places:
            self.calls.append([name])
            self.places[name] = model(self.devices, self.calls)[-1]
        assert self.balancer.place(name) == self.balancer.device_of(name) == self.places[name]

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def record(self, name, data):
        device = data.draw(st.integers(0, self.devices - 1))
        assert self.balancer.record(name, device) == self.places.setdefault(name, device)

    @rule(names=st.sampled_from([["a", "nobody"], ["empty"], ["a", "empty"], []]))
    def refuse(self, names):
        with pytest.raises(ValueError, match="get_appropriate_dev: names"):
            self.balancer.get_appropriate_dev(names)

    @invariant()
    def loads_are_of_the_calls(self):
        if not hasattr(self, "balancer"):
            return
        loads = [0] * self.devices
        for names, device in zip(self.calls, model(self.devices, self.calls), strict=True):
            loads[device] += sum(SIZES[name] for name in names)
        assert self.balancer.loads == tuple(loads) and dict(self.balancer.places) == self.places


TestCalls = Calls.TestCase
TestCalls.settings = few(20)


def test_elements_not_bytes():
    """Six halves weigh more than four doubles."""
    vars = {"h": Var("h", (6,), "float16"), "d": Var("d", (2, 2), "float64"), "s": Var("s", (), "float32")}
    assert sizes_of(vars) == {"h": 6, "d": 4, "s": 1}
    assert answers(2, [["h"], ["d"], ["s"]], sizes_of(vars)) == [0, 1, 1]


def test_unknown_names():
    """An error at first; later they count nothing."""
    with pytest.raises(ValueError, match=r"get_appropriate_dev: names\[1\]: expected a name with a size, got 'x'"):
        answers(2, [["a", "x"]])
    balancer = Balancer(2, SIZES, unknown="ignore")
    assert [balancer.get_appropriate_dev(names) for names in (["x"], ["x", "c"], ["a"], ["x"])] == [0, 0, 1, 0]
    assert balancer.loads == (1, 3)
    assert copy.copy(balancer).get_appropriate_dev(["x"]) == 0


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: Balancer(2, {"a": 1, "b": 2.5}), TypeError, r"Balancer: sizes\['b'\]: expected an integer, got 2.5"),
    (lambda: Balancer(2, SIZES).record("a", 2), ValueError, "record: 'a': device: expected an integer from 0 to 1"),
    (lambda: Balancer(2, SIZES).take(Balancer(3, SIZES)), ValueError, "take: expected a balancer of 2 devices, got"),
])
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
