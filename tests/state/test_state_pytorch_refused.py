"""State dictionaries in PyTorch's layout that do not fit are refused by name; what JSON makes of one is read."""

import copy
import json

import numpy as np
import pytest

from refopt import state
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.exact.build import make
from refopt.state.peers import PEERS
from refopt.state.steps import power_after
from state.cases import GONE, TAKEN, array, changed, refopts, refusals, refused, same, torchs

NUMBER, AT_LEAST = "expected a finite number", "expected a finite number of at least 0"
G1 = "param_groups[1]"


# From PyTorch: what routine, at what place of PyTorch's dictionary, what value, and what is said of it.

FROM = {TypeError: [
    ("adam", "extra", 1, "expected no more than state, param_groups, got 'extra'"),
    ("adam", "state", None, "state: expected a dictionary of dictionaries by parameter, got NoneType"),
    ("sgd", "state", GONE, "expected a dictionary with state, param_groups, got none of state"),
    ("adam", "param_groups", {}, "param_groups: expected a list of groups, got dict"),
    ("adam", "param_groups.1", None, f"{G1}: expected a dictionary, got NoneType"),
    ("adam", "param_groups.1.params", GONE, f"{G1}: params: expected a list of indices, got none"),
    ("adam", "param_groups.1.params", None, f"{G1}: params: expected a list of indices"),
    ("adam", "param_groups.1.params", ["1"], f"{G1}: params[0]: expected an integer of at least 0"),
    *(("adam", ("state", key), {}, "state: keys: expected an integer") for key in ("weight", "00", "\u0661", 1.5)),
    ("adam", "state.1", None, "state[1]: expected a dictionary, got NoneType"),
    ("adam", "state.1.5", 1, "state[1]: keys[3]: expected a name, got 5"),
    ("adam", "param_groups.1.betas", None, f"{G1}: betas: expected a list of two numbers"),
    ("adam", "param_groups.1.betas", GONE, f"{G1}: betas: expected a list of two"),
    ("adam", "param_groups.1.betas", ("0.9", 0.9), f"{G1}: beta1: {NUMBER}"),
    ("adam", "param_groups.1.lr", GONE, f"{G1}: lr: expected a number, got none"),
    ("adam", "param_groups.1.lr", "0.1", f"{G1}: lr: {AT_LEAST}, got '0.1'"),
    ("adam", "param_groups.1.amsgrad", 1, f"{G1}: amsgrad: expected True or False, got 1"),
    ("adam", "param_groups.1.maximize", "no", f"{G1}: maximize: expected True or False, got 'no'"),
    ("sgd", "param_groups.1", lambda group: group | {"rho": 0.9, "betas": (0.9, 0.99)},
     f"{G1}: betas: expected none, since sgd lacks it, got (0.9, 0.99)"),
    ("adam", "state.1.step", "3", f"state[1]: step: {NUMBER}"),
    ("adagrad", "state.1.step", GONE, f"state[1]: step: {AT_LEAST}, got None"),
    ("nadam", "state.1.mu_product", GONE, "state[1]: mu_product: expected a number"),
    ("adam", "state.2.exp_avg", GONE, "state[2]: exp_avg: expected an array, got none"),
    ("adam", "state.0.exp_avg", np.ma.array([0, 1, 2], "f4", mask=[0, 1, 0]), "got MaskedArray"),
    ("adam", "state.0.exp_avg", "abc", "exp_avg: expected a tensor, a NumPy array or lists of numbers, got 'abc'"),
    ("adam", "state.0.exp_avg", ["a", "b", "c"], "exp_avg: expected a tensor, a NumPy array or lists of numbers, got"),
], ValueError: [
    ("lion", "", None, "from_torch: routine: expected one of sgd, momentum, adam, adamw,"),
    ("adams", "", None, "from_torch: routine: expected one of sgd, adagrad"),
    ("adam", "param_groups", [], "param_groups: expected at least one group, got none"),
    ("adam", "param_groups.1.params", [-1], f"{G1}: params[0]: expected an integer of at least 0"),
    ("adam", "param_groups.1.params", [1, 2],
     f"{G1}: params[1]: expected a parameter of one group, got 2, of group 0, too"),
    ("adam", "param_groups.1.params", [1, 1], f"{G1}: params[1]: expected a parameter of one group, got 1, of group 1"),
    ("adam", "param_groups.1.params", [3], "param_groups: expected parameters 0 to 2, got none of index 1"),
    ("adam", "param_groups.1.params", [1, 3], "params: expected 4, those of param_groups, got 3"),
    ("adam", "state.3", {}, "state[3]: expected the index of a parameter below 3, got 3"),
    ("adam", ("state", "0"), {}, "state['0']: expected one state for each parameter, got another of index 0"),
    ("adam", ("state", -1), {}, "state: keys: expected an integer of at least 0, got -1"),
    ("adam", "state.1.exp", 1, "state[1]: expected no more than exp_avg, exp_avg_sq, max_exp_avg_sq, step, got exp"),
    ("adam", "param_groups.1.betas", (0.9,), f"{G1}: betas: expected two numbers, got 1"),
    ("adam", "param_groups.1.betas", (0.9, 1), f"{G1}: beta2: {AT_LEAST} and below 1"),
    ("adam", "param_groups", lambda groups: [group | {"betas": (0.9, 1 - 1e-9)} for group in groups],
     "beta2: expected a finite float32"),
    ("adam", "param_groups.1.lr", np.nan, f"{G1}: lr: {AT_LEAST}, got nan"),
    ("adam", "param_groups.1.lr", -1.0, f"{G1}: lr: {AT_LEAST}, got -1.0"),
    ("sgd", "param_groups.1.lr", 10**400, f"{G1}: lr: expected a number in the range of float64"),
    ("nadam", "param_groups.1.momentum_decay", -1e9, f"{G1}: momentum_decay: {AT_LEAST}"),
    ("sgd", "param_groups", lambda groups: [*groups[1:], groups[0] | {"params": [0], "maximize": True},
                                            groups[0] | {"params": [2]}],
     f"{G1}: maximize: expected False, as in the first, got True"),
    ("momentum", "param_groups.1.nesterov", True, f"{G1}: nesterov: expected False, as in the first, got True"),
    ("adam", "param_groups.1.decoupled_weight_decay", True,
     f"{G1}: decoupled_weight_decay: expected l2, as in the first, got decoupled"),
    *(("momentum", "param_groups.1", lambda group, on=on: group | {"dampening": 0.5, "momentum": 0.0, "nesterov": on},
       f"{G1}: dampening: expected 0 with a momentum of 0, which is refopt's rule, got 0.5") for on in (False, True)),
    ("momentum", "param_groups.1", lambda group: group | {"dampening": 0.5, "nesterov": True},
     f"{G1}: dampening: expected 0 with Nesterov's momentum, which is refopt's rule, got 0.5"),
    ("sgd", "param_groups.1.momentum", 0.9, f"{G1}: momentum: expected 0, which is refopt's rule, got 0.9"),
    ("adamw", "param_groups.1.decoupled_weight_decay", False, "decoupled_weight_decay: expected True,"),
    ("adagrad", "param_groups.1.lr_decay", 0.1, f"{G1}: lr_decay: expected 0, which is"),
    ("adagrad", "param_groups.1.initial_accumulator_value", 1, "initial_accumulator_value: expected 0,"),
    ("adam", "param_groups.0.amsgrad", False, "state[0]: max_exp_avg_sq: expected none, as amsgrad is off"),
    ("sgd", "state.0", {"momentum_buffer": array([0] * 3)},
     "state[0]: momentum_buffer: expected none, as momentum is off, got ndarray"),
    ("adam", "state.1.step", np.nan, f"state[1]: step: {NUMBER}"),
    ("adadelta", "state.1.step", -3, f"state[1]: step: {AT_LEAST}, got -3"),
    ("radam", "state.1.step", array(2.5), "state[1]: step: expected a whole number of steps, got 2.5"),
    ("adam", "state.0.exp_avg_sq", array([0, 1, -2]),
     "state[0]: exp_avg_sq: expected no value below 0, got -2.0 at (2,)"),
    ("nadam", "state.0.mu_product", 1.5, "state[0]: mu_product: expected a number"),
    ("adam", "state.2.exp_avg", array([0] * 4), "exp_avg: expected float32 of shape (2, 5), got float32 of shape (4,)"),
    ("adam", "state.0.exp_avg", array([0] * 3, "f8"), "got float64 of shape (3,)"),
    ("adam", "state.0.exp_avg", array([0] * 3, "f2"), "got float16 of shape (3,)"),
    ("adam", "state.2.exp_avg", [[1.0] * 5, [1.0]], "expected lists of one length, got 2 shapes side by side"),
    ("adam", "state.0.exp_avg", [0.0, 1 / 3, 0.0], "expected numbers of float32, got 0.3333333333333333")]}


@refusals(FROM)
def test_refused_from_torch(row):
    """What refopt has no rule for, and of which some parameter's state would be lost or misread."""
    error, name, place, value, message = row
    made, params = torchs(name if name in PEERS else "adam")
    made = changed(made, place, value)
    before = copy.deepcopy(made)
    assert refused(error, message, state.from_torch, name, made, params).startswith(("from_torch: ", "merged_"))
    assert str(made) == str(before)


PARAMS = {TypeError: [
    (lambda ps: None, "params: expected a list of arrays, got NoneType"),
    (lambda ps: [ps[0], 3, ps[2]], "params[1]: expected a dense array or tensor, got int"),
    (lambda ps: [ps[0].astype(">f4"), *ps[1:]], "params[0]: expected one of float16, "),
], ValueError: [(lambda ps: ps[:2], "params: expected 3, those of param_groups, got 2")]}


@refusals(PARAMS)
def test_parameters_that_are_none(row):
    error, change, message = row
    made, params = torchs()
    said = refused(error, message, state.from_torch, "adam", made, change(params))
    assert said.startswith("from_torch: adam: ")


def jsoned(made):
    """What a file of JSON makes of it: keys are text, arrays are lists, tuples too."""
    return json.loads(json.dumps(made, default=lambda x: x.tolist()))


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_through_json(name, dtype):
    """Indices that have become text, lists for arrays: the same state, none of it lost."""
    made, params = torchs(name, dtype)
    for entry in made["state"].values():
        for x in entry.values():
            if x.shape == (3,):
                x[:2] = np.inf, np.nan
    same(state.from_torch(name, made, params), state.from_torch(name, jsoned(made), params))


def test_keys_of_numpy():
    """Indices may be integers of any type."""
    made, params = torchs()
    expected = state.from_torch("adam", made, params)
    made["state"] = {np.int64(i): entry for i, entry in made["state"].items()}
    made["param_groups"][1]["params"] = [np.int32(1)]
    made["state"][np.int64(2)]["step"] = np.float32(TAKEN[2])
    made["state"][np.int64(0)]["exp_avg"] = made["state"][np.int64(0)]["exp_avg"].astype(">f4")
    got = state.from_torch("adam", made, params)
    same(expected, got)
    assert got["slots"]["moment1"][0].dtype.isnative


def test_steps_of_each_parameter():
    """Parameters may have taken different numbers of steps, none too; the numbers of an optimizer's run are theirs."""
    made, params = torchs()
    made["state"][1]["step"] = 0
    made["state"][2]["step"] = array(17)
    del made["state"][0]
    powers = state.from_torch("adam", made, params)["slots"]["beta1_pow"]
    assert [x.item() for x in powers] == [power_after(np.float32(0.7), n).item() for n in (0, 0, 17)]


# To PyTorch: at what place of refopt's dictionary, what value, the steps that the caller says, and what is said.

B2 = array([0.8])
STEPS = "expected an integer from 0 to 16777216"
TO = {TypeError: [
    ("adam", "", None, None, "to_torch: expected a dictionary with routine"),
    ("adam", "hypers.lr", GONE, None, "merged_adam: lr: expected a number, got None"),
    ("adagrad", "version", 1, 1.5, f"adagrad: step: {STEPS}, got 1.5"),
    ("adam", "version", 1, "3", "step: expected a list of integers, got str"),
    ("adam", "version", 1, [3, None, 3], f"step[1]: {STEPS}, got None"),
    ("adam", "version", 1, np.array([3.0] * 3), f"step[0]: {STEPS}"),
    ("adam", "slots.moment2.0", array([0] * 3, "f8"), None,
     "moment2[0]: expected a state of arithmetic in float32, as moment1 is, got float64"),
    ("adam", "slots", lambda slots: slots | {
        name: [slots[name][0], array(0).astype(numpy_dtype(dtype)), slots[name][2]]
        for name, dtype in (("moment1", "float16"), ("moment2", "bfloat16"))
    }, None, "moment2[1]: expected float16, as moment1 has, or float32, got bfloat16")], ValueError: [
    ("lars_momentum", "", None, None, "to_torch: routine: expected one of sgd, momentum, adam, adamw,"),
    ("adam", "version", 1, -1, f"step: {STEPS}, got -1"),
    ("adam", "version", 1, 2**24 + 1, f"step: {STEPS}, got 16777217"),
    ("adam", "version", 1, (1, 2), "adam: step: expected one number or one per tensor, 3, got 2"),
    *(("adam", "version", 1, (0, 1, n), f"step: expected 7 for tensor 2, by its powers, got {n}") for n in (6, 8)),
    ("adagrad", "version", 1, None, "adagrad: step: expected the number of steps of tensor 0, at least 0, got None"),
    ("adam", "hypers.lr", 1e39, None, "merged_adam: lr: expected a finite float32 at least 0, got 1e+39"),
    ("adam", "hypers.rescale_grad", 0.5, None, "adam: rescale_grad: expected 1.0, which PyTorch has, got 0.5"),
    ("adam", "hypers", lambda old: old | {"epsilon_at": "uncorrected", "epsilon": 0.0}, None, "epsilon_at: expected"),
    ("adamax", "hypers.epsilon_at", "norm", None, "epsilon_at: expected gradient, which PyTorch has, got norm"),
    ("momentum", "hypers.mu", 0.0, None,
     "momentum: dampening: expected 0 with a momentum of 0, for PyTorch, got 0.5"),
    ("rmsprop", "hypers", lambda old: old | {"lr": 0.0, "lr_at": "velocity"}, 1,
     "rmsprop: lr: expected a number above 0, by which PyTorch's momentum is less"),
    *(("nadam", "hypers.decay_base", base, None, "nadam: decay_base: expected a number above 0 and at most 1")
      for base in (0.0, 1.25)),
    ("adam", "slots.master_params.1", np.zeros(()), None,
     "adam: master_params[1]: expected None, since masters are the parameters of PyTorch's optimizer, got an array"),
    ("adam", "slots.beta2_pow.1", array([0.5]), None, "adam: beta2_pow[1]: expected a power of beta2 0.8"),
    ("adam", "slots.beta2_pow.1", B2, None, "adam: tensor 1: expected scalars of one step, got beta1_pow 0.48"),
    ("radam", "slots.rho.2", array([1]), None, "radam: rho[2]: expected"),
    ("adam", "slots.moment2_max.2", array([0]), None,
     "moment2_max[2]: expected shape (2, 5), as moment2 has, got (1,)"),
    ("adam", "slots.beta1_pow.0", array([0.5, 0.5]), None, "beta1_pow[0]: expected one element"),
    ("adam", "slots.moment2.0", array([0, -1, 0]), None, "moment2[0]: expected no value below 0, got -1.0")]}


@refusals(TO)
def test_refused_to_torch(row):
    """What PyTorch has no rule for, steps that it cannot have, and states that contradict each other or the step."""
    error, name, place, value, step, message = row
    saved = refopts(name)[0] if name in PEERS else state.state_dict(name, make(ROUTINES[name], [3]).slots)
    saved = saved if name not in PEERS else changed(saved, place, value)
    assert refused(error, message, state.to_torch, saved, step=step).startswith(("to_torch: ", "merged_"))


def test_a_momentum_that_its_storage_cannot_have():
    """fp16's largest over a small lr is none of fp16."""
    case = make(ROUTINES["rmsprop"], [2], ("float16",) * 3)
    saved = state.state_dict("rmsprop", case.slots, {"lr": 1e-6, "mu": 0.5, "epsilon_at": "outside"})
    with pytest.raises(ValueError, match=r"velocity\[0\]: expected values that are finite in float16 divided by lr"):
        state.to_torch(saved, step=1)
