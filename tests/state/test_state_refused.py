"""State dictionaries that do not fit, and arrays that do not: refused by name, and nothing is modified."""

import numpy as np
import pytest

from refopt import state
from refopt.catalog import KNOWN, ROUTINES
from refopt.oracle.exact.build import make
from refopt.oracle.exact.cases import assert_same
from refopt.state.plain import HostMemory
from refopt.state.saved import check_values
from state.cases import GONE, array, changed, refusals, refused


def adam():
    return make(ROUTINES["adam"], [3, 2], optional=("moment2_max",))


def others(case):
    """A dictionary of the routine with other states than the case has."""
    saved = state.state_dict("adam", case.slots, case.steps[0])
    for name in case.routine.states:
        for x in saved["slots"][name]:
            x += 1
    return saved


# Loading: at what place of a dictionary, what value, and what is said of it.

FOUR = "expected one of float16, bfloat16, float32, float64"
LIST, OWN = "expected a list of arrays", "expected a NumPy array"
LENGTH = "expected a finite number at least 0 and below 1"
KEYS = "routine, version, hypers, slots"
LOAD = {TypeError: [
    ("", None, f"state: expected a dictionary with {KEYS}, got NoneType"),
    ("", {}, f"state: expected a dictionary with {KEYS}, got none of {KEYS}"),
    ("extra", 1, f"expected no more than {KEYS}, got 'extra'"), ("3", 1, "keys[4]: expected a name, got 3"),
    ("version", True, "version: expected an integer, got True"),
    ("hypers", 3, "state: hypers: expected a dictionary, got int"),
    ("hypers", {1: 2}, "hypers: keys[0]: expected a name, got 1"),
    ("hypers.beta1", "0.9", "beta1: expected a number, got '0.9'"),
    ("hypers.mu", 0.9, "mu: expected one of lr, beta1, beta2, epsilon, weight_decay, "),
    ("slots", None, "slots: expected a dictionary with moment1, moment2,"),
    ("slots.moment2_max", GONE, "master_params, got none of moment2_max"),
    ("slots.moment3", [None] * 2, "slots: expected no more than moment1, moment2,"),
    ("slots.moment1", None, f"moment1: {LIST}, got NoneType"),
    ("slots.moment2.1", None, "moment2[1]: expected an array, got None"),
    ("slots.moment1.0", [0.0] * 3, f"moment1[0]: {OWN}, got list"),
    ("slots.moment1.0", np.ma.array([0, 1, 2], "f4", mask=[0, 1, 0]), f"moment1[0]: {OWN}, got MaskedArray"),
    ("slots.moment1.0", array([1, 2, 3], "i4"), f"moment1[0]: {FOUR}, uint8, got int32"),
    ("slots.moment1.0", array([1] * 3, "u2"), f"{FOUR}, uint8, got uint16"),
    ("slots.master_params.0", array([1] * 3, "u1"), f"{FOUR}, uint16, int8, got uint8"),
    ("slots.beta1_pow.0", array([0.5], "f2"), "beta1_pow[0]: expected one of float32, float64, got float16"),
], ValueError: [
    ("version", 2, "state: version: expected 1, got 2"), ("routine", ["adam"], "routine: expected one of sgd, adagrad"),
    ("routine", "adams", f"state: routine: expected one of {', '.join(KNOWN)}, got 'adams'"),
    ("routine", "adamw", "state: routine: expected adam, got adamw"),
    ("hypers.epsilon_at", "here", "epsilon_at: expected one of corrected, uncorrected, got 'here'"),
    ("hypers.beta1", 1.0, "beta1: expected a finite float32 at least 0 and below 1, got 1.0"),
    ("hypers.lr", [0.1] * 3, "lr: expected one number or one per tensor, 2, got 3"),
    ("slots.moment2", lambda old: old[:1], "state: moment2: expected 2 entries, as moment1 has, got 1"),
    ("slots", lambda old: {name: values[:1] for name, values in old.items()},
     "state: moment1: expected 2 entries, as params has, got 1"),
    ("slots.moment2_max.0", None, "moment2_max[0]: expected float32 of shape (3,), got None"),
    ("slots.master_params.1", array([0, 0]), "master_params[1]: expected None, got float32 of shape (2,)"),
    ("slots.moment1.1", array([0]), "moment1[1]: expected float32 of shape (2,), got float32 of shape (1,)"),
    ("slots.beta2_pow.1", array([1, 1]), "beta2_pow[1]: expected one element, got shape (2,)"),
    ("slots.moment2.0", array([0, -1e-30, -2]), "moment2[0]: expected no value below 0, got -1.0000000031710769e-30 at "
     "(1,)"),
    ("slots.moment2_max.1", array([0, -np.inf]), "moment2_max[1]: expected no value below 0, got -inf at (1,)"),
    ("slots.beta2_pow.1", array([1]), f"beta2_pow[1]: {LENGTH}, got 1.0"),
    ("slots.beta1_pow.0", array([-0.5]), f"beta1_pow[0]: {LENGTH}, got -0.5"),
    ("slots.beta2_pow.0", array([np.nan]), f"beta2_pow[0]: {LENGTH}, got nan")]}


@refusals(LOAD)
def test_not_loaded(row):
    """A dictionary of refopt's with something in it that no step leaves: nothing is modified."""
    error, place, value, message = row
    case = adam()
    saved, before = changed(others(case), place, value), case.copy()
    assert refused(error, message, state.load, saved, "adam", case.slots).startswith("merged_adam: ")
    assert_same(before.outcome(), case.outcome(), message)


# The arrays that are to take it, by slot, that a step of the routine would not take.

TARGETS = {TypeError: [
    (lambda s: None, "slots: expected a dictionary, got NoneType"),
    (lambda s: s | {"master_param": s["master_params"]}, "slots: expected no more than params, grads,"),
    (lambda s: s | {"moment1": None}, "moment1: expected a list of arrays, got NoneType"),
    (lambda s: s | {"moment1": [None, s["moment1"][1]]}, "moment1[0]: expected an array"),
    (lambda s: s | {"moment1": [3, s["moment1"][1]]}, "moment1[0]: expected a NumPy"),
    (lambda s: s | {"moment1": [x.astype(">f4") for x in s["moment1"]]}, "expected native byte order, got >f4"),
], ValueError: [
    (lambda s: s | {"moment1": s["moment1"][:1]}, "moment1: expected 2 entries, as params has, got 1"),
    (lambda s: s | {"moment1": [s["moment1"][0], array([0] * 4)[::2]]}, "moment1[1]: expected a dense array, got stri"),
    (lambda s: s | {"moment2": s["moment1"]}, "expected memory of its own, got an overlap with"),
    (lambda s: s | {"moment2": s["params"]}, "expected memory of its own, got an overlap with"),
    (lambda s: s | {"params": [array([0] * 4), s["params"][1]]}, "moment1[0]: expected shape (4,)")]}


@refusals(TARGETS)
def test_no_place_to_load_into(row):
    """Neither loaded into nor saved."""
    error, change, message = row
    case = adam()
    saved, before, slots = others(case), case.copy(), change(case.slots)
    assert refused(error, message, state.load, saved, "adam", slots).startswith("merged_adam: ")
    assert refused(error, message, state.state_dict, "adam", slots).startswith("merged_adam: ")
    assert_same(before.outcome(), case.outcome(), message)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"hypers": [("lr", 0.1)]}, TypeError, "merged_adam: hypers: expected a dictionary, got list"),
    ({"hypers": 0}, TypeError, "merged_adam: hypers: expected a dictionary, got int"),
    ({"hypers": {"lr": "x"}}, TypeError, "merged_adam: lr: expected a number, got 'x'"),
    ({"routine": np.array(["adam"])}, ValueError, "state_dict: routine: expected one of sgd")])
def test_not_saved(arguments, error, message):
    refused(error, message, state.state_dict, **{"routine": "adam", "slots": adam().slots} | arguments)


@pytest.mark.parametrize(("choices", "error", "message"), [
    (0, TypeError, "choices: expected a dictionary, got int"),
    ({"epsilon": 1}, TypeError, "choices: expected no more than epsilon_at, decay, maximize, rounding, got"),
    ({"epsilon_at": "here"}, ValueError, "choices: epsilon_at: expected one of corrected, uncorrected, got 'here'")])
def test_choices_that_are_none(choices, error, message):
    case = adam()
    saved = state.state_dict("adam", case.slots)
    refused(error, message, state.load, saved, "adam", case.slots, choices=choices)
    assert state.load(saved, "adam", case.slots, choices={"epsilon_at": "uncorrected"}) == {}, "which is not saved"


def test_what_gradients_may_leave_is_loaded():
    """inf and NaN in states that they get into, -0, and a length that is none."""
    case = make(ROUTINES["novograd"], [2, 2])
    saved = state.state_dict("novograd", case.slots)
    saved["slots"]["moment"] = [array([-np.inf, np.nan]), array([-0.0, -1])]
    saved["slots"]["second_moment"] = [array([np.nan]), array([-0.0])]
    state.load(saved, "novograd", case.slots)
    assert np.isnan(case.second_moment[0]) and np.signbit(case.second_moment[1]) and case.moment[0][0] == -np.inf
    saved["slots"]["second_moment"][0] = array([-1])
    with pytest.raises(ValueError, match=r"second_moment\[0\]: expected no value below 0, got -1.0"):
        state.load(saved, "novograd", case.slots)


@pytest.mark.parametrize(("name", "slot", "value", "base", "right"), [
    ("nadam", "momentum_decay_pow", 1.0, 1.0, True), ("nadam", "momentum_decay_pow", 1.5, 1.0, False),
    ("nadam", "momentum_decay_pow", 1.5, 1.25, True), ("nadam", "mu_product", 1.0, 0.96, True),
    ("nadam", "mu_product", 1.5, [0.96, 1.25], True),
    ("nadam", "mu_product", 1.5, 0.96, False), ("nadam", "mu_product", np.nan, 0.96, False),
    ("nadam", "mu_product", -0.25, 0.96, False), ("radam", "rho", 1999.0, None, True),
    ("radam", "rho", -1.0, None, False), ("radam", "rho", np.inf, None, False), ("radam", "beta2_pow", 0.0, None, True),
    ("radam", "beta2_pow", np.nextafter(1, 0), None, True)])
def test_ranges_of_scalars(name, slot, value, base, right):
    """Powers, products and lengths, to the ends of what they can be."""
    case = make(ROUTINES[name], [1] * np.size(base), ("float64",) * 3)
    saved = state.state_dict(name, case.slots, {} if base is None else {"decay_base": base})
    saved["slots"][slot][0] = np.full(1, value)
    if right:
        state.load(saved, name, case.slots)
        assert case.slots[slot][0] == value
    else:
        before = case.copy()
        with pytest.raises(ValueError, match=rf"{slot}\[0\]: expected a finite number at least 0"):
            state.load(saved, name, case.slots)
        assert_same(before.outcome(), case.outcome(), slot)


def test_byte_order_and_files(tmp_path):
    """Arrays of another machine's byte order, and of files, are loaded as what they say."""
    case = adam()
    saved = state.state_dict("adam", case.slots)
    expected = [x + 1 for x in saved["slots"]["moment1"]]
    np.save(tmp_path / "x.npy", expected[1])
    saved["slots"]["moment1"] = [expected[0].astype(">f4"), np.load(tmp_path / "x.npy", mmap_mode="r")]
    state.load(saved, "adam", case.slots)
    assert all((x == y).all() for x, y in zip(case.moment1, expected, strict=True))


def test_each_array_is_read_and_written_once():
    """What is read has its axes in their order."""

    class Noted(HostMemory):
        log: list = []  # noqa: RUF012

        def read(self, value, array):
            self.log.append("read")
            return super().read(value, array)

        def write(self, value, array, host):
            self.log.append("write")
            super().write(value, array, host)

    case, memory = make(ROUTINES["momentum"], [6]), Noted()
    slots = {name: [np.asfortranarray(x.reshape(2, 3)) for x in case.slots[name]] for name in ("params", "velocities")}
    saved = state.state_dict("momentum", slots, memory=memory)
    assert saved["slots"]["velocities"][0].strides == (4, 8)
    state.load(saved, "momentum", slots, memory=memory)
    assert memory.log == ["read", "write"]


def test_what_cannot_be_written_is_saved():
    """Saving writes to no array, so none has to be writable."""
    case = adam()
    for x in [*case.moment1, *case.params]:
        x.flags.writeable = False
    saved = state.state_dict("adam", case.slots)
    assert all((x == y).all() for x, y in zip(saved["slots"]["moment1"], case.moment1, strict=True))
    with pytest.raises(ValueError, match=r"params\[0\]: expected a writable array|moment1\[0\]: expected a writable"):
        state.load(saved, "adam", case.slots)


@pytest.mark.parametrize("places", [(8, 0, 4), (4, 8, 0), (8, 1, 0), (1, 2, 5)])
def test_loading_what_shares_memory_with_its_place(places):
    """Saved arrays may be those that are loaded into, in another order, or parts of them."""
    memory, case = np.arange(11, dtype=np.float32), make(ROUTINES["momentum"], [3, 3, 3])
    case = case.replace(velocities=[memory[i : i + 3] for i in (0, 4, 8)])
    saved = state.state_dict("momentum", case.slots)
    saved["slots"]["velocities"] = [memory[i : i + 3] for i in places]
    state.load(saved, "momentum", case.slots)
    assert [x.tolist() for x in case.velocities] == [[i, i + 1, i + 2] for i in places]


def test_the_place_of_a_value_in_another_order_of_axes():
    x, row = np.asfortranarray(np.ones((3, 4), np.float32)), ROUTINES["adam"]
    x[2, 1] = -1
    slot = next(slot for slot in row.slots if slot.name == "moment2")
    with pytest.raises(ValueError, match=r"expected no value below 0, got -1\.0 at \(2, 1\)"):
        check_values("moment2[0]", row, slot, x, {})


def test_loading_a_reversed_view_of_what_is_written():
    memory, case = np.arange(23, dtype=np.float32), make(ROUTINES["momentum"], [3, 3])
    case = case.replace(velocities=[memory[:3], memory[20:]])
    saved = state.state_dict("momentum", case.slots)
    saved["slots"]["velocities"] = [np.full(3, -1, np.float32), memory[6::-2][:3]]
    memory[:3] = 7, 8, 9
    state.load(saved, "momentum", case.slots)
    assert case.velocities[1].tolist() == [6, 4, 9]
