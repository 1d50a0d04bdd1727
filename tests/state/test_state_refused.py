"""State dictionaries that do not fit, and arrays that do not: refused by name, and nothing is modified."""

import numpy as np
import pytest
from state_cases import array, put

from refopt import state
from refopt.catalog import ROUTINES
from refopt.checks.arguments import mapped
from refopt.oracle.exact.build import make
from refopt.oracle.exact.cases import assert_same


class Doubled(np.ndarray):
    """Another meaning for the elements."""


def adam():
    return make(ROUTINES["adam"], [3, 2], optional=("moment2_max",))


# Loading.

LOAD = {
    "None": (lambda s: None, TypeError,
             "state: expected a dictionary with routine, version, hypers, slots, got NoneType"),
    "a key more": (put(1, "extra"), TypeError, "expected no more than routine, version, hypers, slots, got 'extra'"),
    "a key that is no name": (put(1, 3), TypeError, "keys[4]: expected a name, got 3"),
    "a version that is true": (put(True, "version"), TypeError, "version: expected an integer, got True"),
    "a list for a routine": (put(["adam"], "routine"), ValueError, "routine: expected one of sgd, adagrad"),
    "numbers of no name": (put({1: 2}, "hypers"), TypeError, "hypers: keys[0]: expected a name, got 1"),
    "no slots": (put(None, "slots"), TypeError, "slots: expected a dictionary with moment1, moment2,"),
    "a slot of none": (put(None, "slots", "moment1"), TypeError, "moment1: expected a list of arrays, got NoneType"),
    "a slot of an optional state that is none": (put(None, "slots", "moment2_max"), TypeError,
                                                 "moment2_max: expected a list of arrays, got NoneType"),
    "a slot of one array": (put(array([[0] * 3] * 2), "slots", "moment1"), TypeError,
                            "moment1: expected a list of arrays, got ndarray"),
    "a slot of text": (put("ab", "slots", "moment1"), TypeError, "moment1: expected a list of arrays, got str"),
    "a slot more": (put([None] * 2, "slots", "moment3"), TypeError, "slots: expected no more than moment1, moment2,"),
    "a list for an array": (put([0.0] * 3, "slots", "moment1", 0), TypeError,
                            "moment1[0]: expected a NumPy array, got list"),
    "a number for a scalar": (put(0.5, "slots", "beta1_pow", 0), TypeError,
                              "beta1_pow[0]: expected a NumPy array, got float"),
    "a matrix": (put(array([[0] * 3]).view(np.matrix), "slots", "moment1", 0), TypeError,
                 "moment1[0]: expected a NumPy array, got matrix"),
    "a masked array": (put(np.ma.array([0, 1, 2], "f4", mask=[0, 1, 0]), "slots", "moment1", 0), TypeError,
                       "moment1[0]: expected a NumPy array, got MaskedArray"),
    "a subclass": (put(array([0] * 3).view(Doubled), "slots", "moment2", 0), TypeError,
                   "expected a NumPy array, got Doubled"),
    "integers": (put(array([1, 2, 3], "i4"), "slots", "moment1", 0), TypeError,
                 "moment1[0]: expected one of float16, bfloat16, float32, float64, got int32"),
    "objects": (put(np.array([1, 2, None]), "slots", "moment1", 0), TypeError, "moment1[0]: expected one of float16"),
    "complex numbers": (put(array([1j] * 3, "c8"), "slots", "moment1", 0), TypeError, "got complex64"),
    "a remainder in a state's place": (put(array([1] * 3, "u2"), "slots", "moment1", 0), TypeError, "got uint16"),
    "a scalar of 16 bits": (put(array([0.5], "f2"), "slots", "beta1_pow", 0), TypeError, "got float16"),
    "no scalar": (put(array([]), "slots", "beta1_pow", 1), ValueError,
                  "beta1_pow[1]: expected one element, got shape (0,)"),
    "a second moment below 0": (put(array([0, -1e-30, -2]), "slots", "moment2", 0), ValueError,
                                "moment2[0]: expected no value below 0, got -1.0000000031710769e-30 at (1,)"),
    "a largest moment below 0": (put(array([0, -np.inf]), "slots", "moment2_max", 1), ValueError,
                                 "moment2_max[1]: expected no value below 0, got -inf"),
    "a power of 2": (put(array([2]), "slots", "beta1_pow", 0), ValueError,
                     "beta1_pow[0]: expected a finite number at least 0 and below 1, got 2.0"),
    "a power of 1": (put(array([1]), "slots", "beta2_pow", 1), ValueError,
                     "beta2_pow[1]: expected a finite number at least 0"),
    "a power below 0": (put(array([-0.5]), "slots", "beta1_pow", 0), ValueError,
                        "beta1_pow[0]: expected a finite number"),
    "a power that is none": (put(array([np.nan]), "slots", "beta2_pow", 0), ValueError,
                             "beta2_pow[0]: expected a finite"),
    "the array itself, of another dtype": (put(array([0] * 3, "f8"), "slots", "moment1", 0), ValueError,
                                           "moment1[0]: expected float32 of shape (3,), got float64 of shape (3,)"),
    "a number that is text": (put("0.9", "hypers", "beta1"), TypeError, "beta1: expected a number, got '0.9'"),
}  # fmt: skip


@pytest.mark.parametrize("what", LOAD)
def test_not_loaded(what):
    """A dictionary of refopt's with something in it that no step leaves."""
    change, error, message = LOAD[what]
    case = adam()
    saved = state.state_dict("adam", case.slots, case.steps[0])
    for name in case.routine.states:
        for x in saved["slots"][name]:
            x += 1
    before = case.copy()
    if what == "None":
        saved = None
    else:
        change(saved)
    with pytest.raises(error) as caught:
        state.load(saved, "adam", case.slots)
    assert str(caught.value).startswith("merged_adam: ") and message in str(caught.value)
    assert_same(before.outcome(), case.outcome(), what)


TARGETS = {
    "None": (lambda s: None, TypeError, "slots: expected a dictionary, got NoneType"),
    "a slot it has not": (lambda s: s | {"master_param": s["master_params"]}, TypeError,
                          "slots: expected no more than params, grads,"),
    "a state of none": (lambda s: s | {"moment1": None}, TypeError, "moment1: expected a list of arrays, got NoneType"),
    "an array of none": (lambda s: s | {"moment1": [None, s["moment1"][1]]}, TypeError,
                         "moment1[0]: expected an array"),
    "a parameter of none": (lambda s: s | {"params": [None, s["params"][1]]}, TypeError,
                            "params[0]: expected an array"),
    "a number for an array": (lambda s: s | {"moment1": [3, s["moment1"][1]]}, TypeError,
                              "moment1[0]: expected a NumPy"),
    "one array twice": (lambda s: s | {"moment2": s["moment1"]}, ValueError,
                        "expected memory of its own, got an overlap with"),
    "a state that is a parameter": (lambda s: s | {"moment2": s["params"]}, ValueError,
                                    "expected memory of its own, got an overlap with"),
    "another shape than the parameter's": (lambda s: s | {"params": [array([0] * 4), s["params"][1]]}, ValueError,
                                           "moment1[0]: expected shape (4,)"),
    "byte order": (lambda s: s | {"moment1": [x.astype(">f4") for x in s["moment1"]]}, TypeError,
                   "expected native byte order, got >f4"),
}  # fmt: skip


@pytest.mark.parametrize("what", TARGETS)
def test_no_place_to_load_into(what):
    """Arrays that a step of the routine would not take are neither loaded into nor saved."""
    change, error, message = TARGETS[what]
    case = adam()
    saved = state.state_dict("adam", case.slots)
    for name in case.routine.states:
        for x in saved["slots"][name]:
            x += 1
    before = case.copy()
    slots = change(case.slots)
    for call in (lambda: state.load(saved, "adam", slots), lambda: state.state_dict("adam", slots)):
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value).startswith("merged_adam: ") and message in str(caught.value)
    assert_same(before.outcome(), case.outcome(), what)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"hypers": [("lr", 0.1)]}, TypeError, "merged_adam: hypers: expected a dictionary, got list"),
        ({"hypers": 0}, TypeError, "merged_adam: hypers: expected a dictionary, got int"),
        ({"hypers": {"lr": "x"}}, TypeError, "merged_adam: lr: expected a number, got 'x'"),
        ({"routine": np.array(["adam"])}, ValueError, "state_dict: routine: expected one of sgd"),
    ],
)
def test_not_saved(arguments, error, message):
    with pytest.raises(error) as caught:
        state.state_dict(**{"routine": "adam", "slots": adam().slots} | arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        (0, TypeError, "choices: expected a dictionary, got int"),
        ({"epsilon": 1}, TypeError, "choices: expected no more than epsilon_at, decay, maximize, rounding, got"),
        ({"epsilon_at": "here"}, ValueError, "choices: epsilon_at: expected one of corrected, uncorrected, got 'here'"),
    ],
)
def test_choices_that_are_none(choices, error, message):
    case = adam()
    with pytest.raises(error) as caught:
        state.load(state.state_dict("adam", case.slots), "adam", case.slots, choices=choices)
    assert message in str(caught.value)


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


@pytest.mark.parametrize(
    ("name", "slot", "value", "base", "right"),
    [
        ("nadam", "momentum_decay_pow", 1.0, 1.0, True), ("nadam", "momentum_decay_pow", 1.5, 1.0, False),
        ("nadam", "momentum_decay_pow", 1.5, 1.25, True), ("nadam", "mu_product", 1.0, 0.96, True),
        ("nadam", "mu_product", 1.5, 0.96, False), ("nadam", "mu_product", np.nan, 0.96, False),
        ("nadam", "mu_product", -0.25, 0.96, False), ("radam", "rho", 1999.0, None, True),
        ("radam", "rho", -1.0, None, False), ("radam", "rho", np.inf, None, False),
        ("radam", "beta2_pow", 0.0, None, True), ("radam", "beta2_pow", np.nextafter(1, 0), None, True),
    ],
)  # fmt: skip
def test_ranges_of_scalars(name, slot, value, base, right):
    """Powers, products and lengths, to the ends of what they can be."""
    case = make(ROUTINES[name], [1], ("float64",) * 3)
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


def test_what_cannot_be_written_is_saved():
    """Saving writes to no array, so none has to be writable."""
    case = adam()
    for x in [*case.moment1, *case.params]:
        x.flags.writeable = False
    saved = state.state_dict("adam", case.slots)
    assert all((x == y).all() for x, y in zip(saved["slots"]["moment1"], case.moment1, strict=True))
    with pytest.raises(ValueError, match=r"params\[0\]: expected a writable array|moment1\[0\]: expected a writable"):
        state.load(saved, "adam", case.slots)


def test_loading_what_shares_memory_with_its_place():
    """Saved arrays may be those that are loaded into, in another order."""
    case = make(ROUTINES["momentum"], [3, 3, 3])
    saved = state.state_dict("momentum", case.slots)
    expected = [x.copy() for x in saved["slots"]["velocities"]]
    saved["slots"]["velocities"] = [case.velocities[i] for i in (2, 0, 1)]
    state.load(saved, "momentum", case.slots)
    assert [x.tolist() for x in case.velocities] == [expected[i].tolist() for i in (2, 0, 1)]


@pytest.mark.parametrize(
    ("value", "known", "needed", "message"),
    [
        ([("a", 1)], None, (), "f: x: expected a dictionary, got list"),
        ({1: 2}, None, (), "f: x: keys[0]: expected a name, got 1"),
        ({"a": 1}, ("b",), (), "f: x: expected no more than b, got 'a'"),
        ({"a": 1}, None, ("a", "b"), "f: x: expected a dictionary with a, b, got none of b"),
        (None, None, ("a", "b"), "f: x: expected a dictionary with a, b, got NoneType"),
    ],
)
def test_mappings_as_arguments(value, known, needed, message):
    with pytest.raises(TypeError) as caught:
        mapped("f: x", value, known, needed)
    assert str(caught.value) == message
    assert mapped("f: x", {"a": 1}, ("a", "b"), ("a",)) == {"a": 1}
