"""State dictionaries in PyTorch's layout that do not fit are refused by name; what JSON makes of one is read."""

import copy
import json

import numpy as np
import pytest
from state_cases import array, put

from refopt import state
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.exact.build import make
from refopt.state.peers import PEERS
from refopt.state.steps import power_after, rho_after

SHAPES = [(3,), (), (2, 5)]


# From PyTorch.

def torchs(name="adam", dtype="f4"):
    """PyTorch's dictionary of three tensors in two groups, after three steps, and the parameters."""
    routine, rng = ROUTINES[name], np.random.default_rng(1)
    params = [rng.random(shape).astype(dtype) for shape in SHAPES]
    numbers = {hyper.name: hyper.default for hyper in routine.hypers if hyper.default is not None}
    numbers |= {"lr": [0.1, 0.2, 0.1]} | ({"mu": 0.5} if any(hyper.name == "mu" for hyper in routine.hypers) else {})
    numbers |= {"epsilon": 0.0} if name == "adamax" else {}
    slots = {"params": params}
    for slot in routine.states:
        slots[slot] = [rng.random(shape).astype(dtype) for shape in SHAPES]
    real = np.float64 if dtype == "f8" else np.float32
    for slot in routine.scalars:
        base = {"beta1_pow": "beta1", "beta2_pow": "beta2", "momentum_decay_pow": "decay_base"}.get(slot)
        other = rho_after(real(numbers["beta2"]), 3) if slot == "rho" else 0.25
        value = power_after(real(numbers[base]), 3) if base else other
        slots[slot] = [np.full(1, value, real) for _ in SHAPES]
    return state.to_torch(state.state_dict(name, slots, numbers | dict(PEERS[name].choices)), step=3), params


STATE, GROUP = ("state",), ("param_groups", 1)
FROM = {
    "a key more": ("adam", put(1, "extra"), TypeError, "expected no more than state, param_groups, got 'extra'"),
    "a state of none": ("adam", put(None, "state"), TypeError, "state: expected a dictionary of dictionaries"),
    "a list of states": ("adam", put([], "state"), TypeError, "state: expected a dictionary of dictionaries"),
    "one group": ("adam", put({}, "param_groups"), TypeError, "param_groups: expected a list of groups, got dict"),
    "no group": ("adam", put([], "param_groups"), ValueError, "param_groups: expected at least one group, got none"),
    "a group of none": ("adam", put(None, *GROUP), TypeError, "param_groups[1]: expected a dictionary, got NoneType"),
    "no parameters": ("adam", lambda t: t["param_groups"][1].pop("params"), TypeError,
                      "param_groups[1]: params: expected a list of indices, got none"),
    "parameters of none": ("adam", put(None, *GROUP, "params"), TypeError, "[1]: params: expected a list of indices"),
    "parameters of text": ("adam", put("1", *GROUP, "params"), TypeError,
                           "[1]: params: expected a list of indices, got str"),
    "an index of text": ("adam", put(["1"], *GROUP, "params"), TypeError,
                         "[1]: params[0]: expected an integer of at least 0"),
    "an index that is true": ("adam", put([True], *GROUP, "params"), TypeError, "[1]: params[0]: expected an integer"),
    "an index of halves": ("adam", put([1.0], *GROUP, "params"), TypeError, "[1]: params[0]: expected an integer"),
    "an index below 0": ("adam", put([-1], *GROUP, "params"), ValueError,
                         "[1]: params[0]: expected an integer of at least 0"),
    "a parameter twice": ("adam", put([1, 2], *GROUP, "params"), ValueError,
                          "param_groups[1]: params[1]: expected a parameter of one group, got 2, of group 0, too"),
    "a parameter twice in a group": ("adam", put([1, 1], *GROUP, "params"), ValueError,
                                     "[1]: params[1]: expected a parameter of one group, got 1"),
    "a gap": ("adam", put([3], *GROUP, "params"), ValueError,
              "param_groups: expected parameters 0 to 2, got none of index 1"),
    "a state of no parameter": ("adam", lambda t: t["state"].update({3: t["state"][0]}), ValueError,
                                "state[3]: expected the index of a parameter below 3, got 3"),
    "a state of text": ("adam", lambda t: t["state"].update({"weight": t["state"][0]}), TypeError,
                        "state: keys: expected an integer"),
    "a state of both": ("adam", lambda t: t["state"].update({"0": t["state"][0]}), ValueError,
                        "state['0']: expected one state for each parameter, got another of index 0"),
    "a state of 00": ("adam", lambda t: t["state"].update({"00": {}}), TypeError, "state: keys: expected an integer"),
    "a state of an Arabic one": ("adam", lambda t: t["state"].update({"\u0661": {}}), TypeError,
                                 "state: keys: expected an integer"),
    "a state of a float": ("adam", lambda t: t["state"].update({1.5: {}}), TypeError,
                           "state: keys: expected an integer"),
    "a state below 0": ("adam", lambda t: t["state"].update({-1: {}}), ValueError,
                        "state: keys: expected an integer of"),
    "an entry of none": ("adam", put(None, *STATE, 1), TypeError, "state[1]: expected a dictionary, got NoneType"),
    "an entry of a list": ("adam", put([], *STATE, 1), TypeError, "state[1]: expected a dictionary, got list"),
    "a name that is none": ("adam", put(1, *STATE, 1, 5), TypeError, "state[1]: keys[4]: expected a name, got 5"),
    "an unknown state": ("adam", put(1, *STATE, 1, "exp"), ValueError, "state[1]: expected no more than exp_avg,"),
    "one beta": ("adam", put((0.9,), *GROUP, "betas"), ValueError, "[1]: betas: expected two numbers, got 1"),
    "three betas": ("adam", put((0.9, 0.9, 0.9), *GROUP, "betas"), ValueError,
                    "[1]: betas: expected two numbers, got 3"),
    "betas of none": ("adam", put(None, *GROUP, "betas"), TypeError, "[1]: betas: expected a list of two numbers"),
    "no betas": ("adam", lambda t: t["param_groups"][1].pop("betas"), TypeError, "[1]: betas: expected a list of two"),
    "betas of text": ("adam", put("ab", *GROUP, "betas"), TypeError, "[1]: betas: expected a list of two numbers"),
    "a beta of text": ("adam", put(("0.9", 0.9), *GROUP, "betas"), TypeError, "[1]: beta1: expected a finite number"),
    "a beta of 1": ("adam", put((0.9, 1), *GROUP, "betas"), ValueError,
                    "[1]: beta2: expected a finite number of at least 0 and below 1"),
    "a beta that fp32 makes 1": ("adam", lambda t: [g.update(betas=(0.9, 1 - 1e-9)) for g in t["param_groups"]],
                                 ValueError, "beta2: expected a finite float32"),
    "lr of text": ("adam", put("0.1", *GROUP, "lr"), TypeError,
                   "[1]: lr: expected a finite number of at least 0, got '0.1'"),
    "lr of none": ("adam", put(None, *GROUP, "lr"), TypeError,
                   "[1]: lr: expected a finite number of at least 0, got None"),
    "lr that is true": ("adam", put(True, *GROUP, "lr"), TypeError, "[1]: lr: expected a finite number"),
    "lr of two": ("adam", put([0.1, 0.2], *GROUP, "lr"), TypeError, "[1]: lr: expected a finite number"),
    "lr of an array": ("adam", put(array([1, 2]), *GROUP, "lr"), TypeError, "[1]: lr: expected a finite number"),
    "lr NaN": ("adam", put(np.nan, *GROUP, "lr"), ValueError,
               "[1]: lr: expected a finite number of at least 0, got nan"),
    "lr inf": ("sgd", put(np.inf, *GROUP, "lr"), ValueError,
               "[1]: lr: expected a finite number of at least 0, got inf"),
    "lr beyond floats": ("sgd", put(10**400, *GROUP, "lr"), ValueError,
                         "[1]: lr: expected a number in the range of float64"),
    "a switch of 1": ("adam", put(1, *GROUP, "amsgrad"), TypeError, "[1]: amsgrad: expected True or False, got 1"),
    "a switch of text": ("momentum", put("no", *GROUP, "nesterov"), TypeError, "[1]: nesterov: expected True or False"),
    "a rule of text": ("adam", put("no", *GROUP, "maximize"), TypeError,
                       "[1]: maximize: expected True or False, got 'no'"),
    "a rule of an array": ("adam", put(array([0, 0]), *GROUP, "weight_decay"), TypeError,
                           "[1]: weight_decay: expected a finite"),
    "a decay below 0": ("nadam", put(-1e9, *GROUP, "momentum_decay"), ValueError,
                        "[1]: momentum_decay: expected a finite number of at least 0"),
    "no switch": ("adam", lambda t: t["param_groups"][1].pop("amsgrad"), TypeError,
                  "[1]: amsgrad: expected True or False, got none"),
    "a switch of others": ("radam", put(False, *GROUP, "amsgrad"), TypeError,
                           "[1]: amsgrad: expected none, which radam has not"),
    "a number of others": ("sgd", put((0.9, 0.99), *GROUP, "betas"), TypeError,
                           "[1]: betas: expected none, which sgd has not"),
    "a state that is off": ("adam", put(False, *GROUP, "amsgrad"), ValueError,
                            "state[1]: max_exp_avg_sq: expected none, as amsgrad is off"),
    "momentum that is off": ("sgd", lambda t: t["state"].update({0: {"momentum_buffer": array([0] * 3)}}), ValueError,
                             "state[0]: momentum_buffer: expected none, as momentum is off, got ndarray"),
    "steps of NaN": ("adam", put(np.nan, *STATE, 1, "step"), ValueError, "state[1]: step: expected a finite number"),
    "steps of inf": ("adagrad", put(np.inf, *STATE, 1, "step"), ValueError, "state[1]: step: expected a finite number"),
    "steps of NaN, uncounted": ("rmsprop", put(np.nan, *STATE, 1, "step"), ValueError,
                                "state[1]: step: expected a finite"),
    "steps below 0": ("adadelta", put(-3, *STATE, 1, "step"), ValueError,
                      "state[1]: step: expected a finite number of at"),
    "half a step": ("adagrad", put(array(2.5), *STATE, 1, "step"), ValueError,
                    "state[1]: step: expected a whole number"),
    "steps of text": ("adam", put("3", *STATE, 1, "step"), TypeError, "state[1]: step: expected a finite number"),
    "steps that are true": ("adam", put(True, *STATE, 1, "step"), TypeError,
                            "state[1]: step: expected a finite number"),
    "two steps": ("adam", put(array([3, 3]), *STATE, 1, "step"), TypeError, "state[1]: step: expected a finite number"),
    "no steps": ("adagrad", lambda t: t["state"][1].pop("step"), TypeError, "state[1]: step: expected a finite number"),
    "a second moment below 0": ("adam", put(array([0, 1, -2]), *STATE, 0, "exp_avg_sq"), ValueError,
                                "state[0]: exp_avg_sq: expected no value below 0, got -2.0 at (2,)"),
    "a sum below 0": ("adagrad", put(array([-1, 1, 2]), *STATE, 0, "sum"), ValueError,
                      "state[0]: sum: expected no value"),
    "a product above 1": ("nadam", put(1.5, *STATE, 0, "mu_product"), ValueError,
                          "state[0]: mu_product: expected a number"),
    "a product that is none": ("nadam", put(np.nan, *STATE, 0, "mu_product"), ValueError,
                               "state[0]: mu_product: expected"),
    "a product of text": ("nadam", put("1", *STATE, 0, "mu_product"), TypeError,
                          "state[0]: mu_product: expected a number"),
    "another shape": ("adam", put(array([0] * 4), *STATE, 0, "exp_avg"), ValueError,
                      "exp_avg: expected float32 of shape (3,)"),
    "another dtype": ("adam", put(array([0] * 3, "f8"), *STATE, 0, "exp_avg"), ValueError, "got float64 of shape (3,)"),
    "16 bits": ("adam", put(array([0] * 3, "f2"), *STATE, 0, "exp_avg"), ValueError, "got float16 of shape (3,)"),
    "a matrix": ("adam", put(array([[0]]).view(np.matrix), *STATE, 1, "exp_avg"), TypeError, "NumPy array, got matrix"),
    "a masked array": ("adam", put(np.ma.array([0, 1, 2], "f4", mask=[0, 1, 0]), *STATE, 0, "exp_avg"), TypeError,
                       "got MaskedArray"),
    "text": ("adam", put("abc", *STATE, 0, "exp_avg"), TypeError, "exp_avg: expected a tensor, a NumPy array or lists"),
    "a list of text": ("adam", put(["a", "b", "c"], *STATE, 0, "exp_avg"), TypeError,
                       "exp_avg: expected a tensor, a NumPy"),
    "lists of two lengths": ("adam", put([[1.0] * 5, [1.0]], *STATE, 2, "exp_avg"), ValueError,
                             "expected lists of one length"),
    "numbers beyond fp32": ("adam", put([0.1, 0.0, 0.0], *STATE, 0, "exp_avg"), ValueError,
                            "expected numbers of float32, got 0.1"),
}  # fmt: skip


@pytest.mark.parametrize("what", FROM)
def test_not_taken_from_torch(what):
    """A dictionary of PyTorch's that some parameter's state would be lost or misread of."""
    name, change, error, message = FROM[what]
    made, params = torchs(name)
    change(made)
    before = copy.deepcopy(made)
    with pytest.raises(error) as caught:
        state.from_torch(name, made, params)
    assert str(caught.value).startswith(("from_torch: ", "merged_")) and message in str(caught.value)
    assert str(made) == str(before)


PARAMS = {
    "None": (lambda ps: None, TypeError, "params: expected a list of arrays, got NoneType"),
    "an array": (lambda ps: ps[0], TypeError, "params: expected a list of arrays, got ndarray"),
    "a generator": (lambda ps: iter(ps), TypeError, "params: expected a list of arrays, got list_iterator"),
    "a number": (lambda ps: [ps[0], 3, ps[2]], TypeError, "params[1]: expected an array or a tensor, got int"),
    "integers": (lambda ps: [ps[0], array(3, "i4"), ps[2]], TypeError, "params[1]: expected one of float16, "),
    "byte order": (lambda ps: [ps[0].astype(">f4"), *ps[1:]], TypeError, "params[0]: expected one of float16, "),
    "one less": (lambda ps: ps[:2], ValueError, "params: expected 3, those of param_groups, got 2"),
}  # fmt: skip


@pytest.mark.parametrize("what", PARAMS)
def test_parameters_that_are_none(what):
    change, error, message = PARAMS[what]
    made, params = torchs()
    with pytest.raises(error) as caught:
        state.from_torch("adam", made, change(params))
    assert str(caught.value).startswith("from_torch: adam: ") and message in str(caught.value)


def jsoned(made):
    """What a file of JSON makes of it: keys are text, arrays are lists, tuples too."""
    return json.loads(json.dumps(made, default=lambda x: x.tolist()))


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("dtype", ["f2", "bf16", "f4", "f8"])
def test_through_json(name, dtype):
    """Indices that have become text, lists for arrays: the same state, none of it lost."""
    made, params = torchs(name, "bfloat16" if dtype == "bf16" and _brain() else "f4" if dtype == "bf16" else dtype)
    for entry in made["state"].values():
        for x in entry.values():
            if x.shape == (3,):
                x[:2] = np.inf, np.nan
    expected = state.from_torch(name, made, params)
    got = state.from_torch(name, jsoned(made), params)
    assert got["hypers"] == expected["hypers"]
    for slot, values in expected["slots"].items():
        for x, y in zip(values, got["slots"][slot], strict=True):
            assert (x is None) == (y is None)
            assert x is None or (x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()), slot


def _brain():
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def test_keys_of_numpy():
    """Indices may be integers of any type."""
    made, params = torchs()
    expected = state.from_torch("adam", made, params)
    made["state"] = {np.int64(i): entry for i, entry in made["state"].items()}
    made["param_groups"][1]["params"] = [np.int32(1)]
    made["state"][np.int64(2)]["step"] = np.float32(3)
    made["state"][np.int64(0)]["exp_avg"] = made["state"][np.int64(0)]["exp_avg"].astype(">f4")
    got = state.from_torch("adam", made, params)
    for slot, values in expected["slots"].items():
        for x, y in zip(values, got["slots"][slot], strict=True):
            assert x is None or (x.dtype == y.dtype and (x == y).all() and y.dtype.isnative)


def test_steps_of_each_parameter():
    """Parameters may have taken different numbers of steps, none too; the numbers of an optimizer's run are theirs."""
    made, params = torchs()
    made["state"][1]["step"] = 0
    made["state"][2]["step"] = array(17)
    del made["state"][0]
    powers = state.from_torch("adam", made, params)["slots"]["beta1_pow"]
    assert [x.item() for x in powers] == [power_after(np.float32(0.9), n).item() for n in (0, 0, 17)]


# To PyTorch.

TO = {
    "None": (lambda s: None, None, TypeError, "to_torch: expected a dictionary with routine"),
    "NaN": (None, np.nan, TypeError, "step: expected an integer from 0 to 16777216, got nan"),
    "text": (None, "3", TypeError, "step: expected a list of integers, got str"),
    "bytes": (None, b"abc", TypeError, "step: expected a list of integers, got bytes"),
    "true": (None, True, TypeError, "step: expected an integer from 0 to 16777216, got True"),
    "below 0": (None, -1, ValueError, "step: expected an integer from 0 to 16777216, got -1"),
    "one that fp32 has not": (None, 2**24 + 1, ValueError,
                              "step: expected an integer from 0 to 16777216, got 16777217"),
    "one beyond floats": (None, 10**400, ValueError, "step: expected an integer from 0 to 16777216, got 1000"),
    "some of NaN": (None, [3, np.nan], TypeError, "step[1]: expected an integer from 0 to 16777216, got nan"),
    "some of none": (None, [3, None], TypeError, "step[1]: expected an integer from 0 to 16777216, got None"),
    "some of floats": (None, np.array([3.0, 3.0]), TypeError, "step[0]: expected an integer from 0 to 16777216"),
    "rows": (None, np.array([[3, 3]]), ValueError, "step: expected one number or one per tensor, 2, got 1"),
    "a generator": (None, iter([3, 3]), TypeError, "step: expected an integer from 0 to 16777216"),
    "two shapes": (put(array([0] * 4), "slots", "moment2", 0), None, ValueError,
                   "moment2[0]: expected shape (3,), as moment1 has, got (4,)"),
    "a state of fp64": (put(array([0] * 3, "f8"), "slots", "moment2", 0), None, TypeError,
                        "moment2[0]: expected a state of arithmetic in float32, as moment1 is, got float64"),
    "a power of fp64": (put(array([0.5], "f8"), "slots", "beta1_pow", 0), None, TypeError,
                        "beta1_pow[0]: expected a state of arithmetic in"),
    "two powers": (put(array([0.5, 0.5]), "slots", "beta1_pow", 0), None, ValueError,
                   "beta1_pow[0]: expected one element"),
    "no power": (put(array([]), "slots", "beta1_pow", 0), None, ValueError, "beta1_pow[0]: expected one element"),
    "a second moment below 0": (put(array([0, -1, 0]), "slots", "moment2", 0), None, ValueError,
                                "moment2[0]: expected no value below 0, got -1.0"),
    "a power of 2": (put(array([2]), "slots", "beta1_pow", 0), None, ValueError,
                     "beta1_pow[0]: expected a finite number"),
    "two storage types": (
        lambda s: s["slots"]["moment1"].__setitem__(1, array([0, 0], "f2"))
        or s["slots"]["moment2"].__setitem__(1, _bf16([0, 0])), None, TypeError,
        "moment2[1]: expected float16, as moment1 has, or float32, got bfloat16",
    ),
}  # fmt: skip


def _bf16(values):
    return np.array(values).astype(numpy_dtype("bfloat16"))


@pytest.mark.parametrize("what", TO)
def test_not_given_to_torch(what):
    """Steps that PyTorch cannot have, and states that no parameter can."""
    change, step, error, message = TO[what]
    case = make(ROUTINES["adam"], [3, 2])
    saved = state.state_dict("adam", case.slots, {"lr": 0.1, "beta1": 0.5, "beta2": 0.5})
    for name in ("beta1_pow", "beta2_pow"):
        saved["slots"][name] = [np.full(1, power_after(np.float32(0.5), 3)) for _ in range(2)]
    assert state.to_torch(saved)["state"][1]["step"] == 3 == state.to_torch(saved, step=np.int64(3))["state"][0]["step"]
    if what == "None":
        saved = None
    elif change:
        change(saved)
    with pytest.raises(error) as caught:
        state.to_torch(saved, step=step)
    assert str(caught.value).startswith("to_torch: ") and message in str(caught.value)


def test_a_momentum_that_its_storage_cannot_have():
    """fp16's largest over a small lr is none of fp16."""
    case = make(ROUTINES["rmsprop"], [2], ("float16",) * 3)
    saved = state.state_dict("rmsprop", case.slots, {"lr": 1e-6, "mu": 0.5, "epsilon_at": "outside"})
    with pytest.raises(ValueError, match=r"velocity\[0\]: expected values that are finite in float16 divided by lr"):
        state.to_torch(saved, step=1)


