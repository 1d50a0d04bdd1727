"""State dictionaries in PyTorch's layout: there and back, and PyTorch itself.

Half of the steps by PyTorch and half by refopt come to what the rule comes to, within the bound of `test_torch`: the
conversions round once where they round at all, which is less than a step of PyTorch's.
"""

import numpy as np
import pytest

from refopt import cpu, state
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.exact.build import make
from refopt.oracle.exact.cases import arguments
from refopt.state.peers import PEERS
from refopt.state.steps import power_after, rho_after, steps_of
from state.cases import TAKEN, refopts, same, torchs

CARRYING = [routine for routine in ROUTINES.values() if {"beta1_pow", "beta2_pow"} & set(routine.scalars)]
both_types = pytest.mark.parametrize("real", [np.float32, np.float64])


# Steps and powers.


@pytest.mark.clause("N9")
@pytest.mark.parametrize("routine", CARRYING, ids=lambda routine: routine.name)
@both_types
def test_scalars_after_steps(routine, real):
    """Made from the number of steps, scalars are what a routine comes to step by step, and tell the number."""
    numbers = {"beta1": 0.7, "beta2": 0.997, "decay_base": 0.96**0.01}
    bases = {"beta1_pow": "beta1", "beta2_pow": "beta2", "momentum_decay_pow": "decay_base"}
    case = make(routine, [0], (np.dtype(real).name,) * 3)
    made = {name: power_after(real(numbers[base]), 0) for name, base in bases.items() if name in routine.scalars}
    made |= {name: real(1) for name in routine.scalars if name not in made}
    slots = case.slots | {name: [np.full(1, value)] for name, value in made.items()}
    hyper = {name: value for name, value in numbers.items() if name in {row.name for row in routine.hypers}}
    positional, named = arguments(routine, slots)
    for steps in range(60):
        for name, base in bases.items():
            if name in routine.scalars:
                power = power_after(real(numbers[base]), steps)
                assert power.dtype == real and slots[name][0][0] == power
                assert steps_of(power, real(numbers[base])) == (steps, steps)
        if "rho" in routine.scalars:
            assert slots["rho"][0][0] == rho_after(real(numbers["beta2"]), steps)
        getattr(cpu, routine.merged_name)(*positional, **named, lr=0.1, **hyper)


def test_a_power_of_0_stands_for_as_many_steps_as_its_dtype_has():
    found = [steps_of(real(0), real(0.5)) for real in (np.float32, np.float64)]
    assert found[0] != found[1] == (1074, float("inf"))


def test_many_steps():
    """Over any number of steps, to where a power stays and no step can be told from it."""
    beta = np.float32(0.999)
    product, rho, at = beta, np.float32(1), {}
    for steps in range(97_000):
        at[steps] = product
        product = product * beta
    for steps in (16_383, 16_384, 16_385, 50_000, 96_900, 96_901, 96_999):
        assert power_after(beta, steps) == at[steps]
    assert power_after(beta, 10**9) == at[96_999] > 0
    assert steps_of(at[50_000], beta) == (50_000, 50_000)
    assert steps_of(at[96_999], beta) == (96_900, float("inf"))
    assert steps_of(np.nextafter(at[50_000], np.float32(1)), beta) is None
    assert steps_of(np.float32(0), beta) is None and steps_of(np.float32(1), beta) is None
    assert steps_of(np.float32(0), np.float32(0)) == (0, float("inf")) == steps_of(np.float32(1), np.float32(1))
    for steps in range(20_000):
        rho = 1 + (rho + 1) * ((beta - at[steps + 1]) / (1 - at[steps + 1]))
    assert rho_after(beta, 20_000) == rho
    assert rho_after(np.float32(0.5), 10**9) == rho_after(np.float32(0.5), 200)
    assert rho_after(np.float64(0.5), 200).dtype == np.float64
    assert power_after(np.float64(0.5), 0).dtype == np.float64 != power_after(np.float32(0.5), 0).dtype


# PyTorch's layout, without PyTorch.

@pytest.mark.parametrize("name", PEERS)
@both_types
def test_there_and_back(name, real):
    """To PyTorch's layout and back changes no bit and no number."""
    saved, params = refopts(name, np.dtype(real).name)
    made = state.to_torch(saved, step=TAKEN if PEERS[name].counts else None)
    if PEERS[name].counts:
        counts = [entry["step"] for entry in made["state"].values()]
        assert [(x.item(), x.dtype, x.shape) for x in counts] == [(n, np.float32, ()) for n in TAKEN]
    assert [group["params"] for group in made["param_groups"]] == [[0, 2], [1]]
    back = state.from_torch(name, made, params)
    for group in made["param_groups"]:
        assert ("amsgrad" if name.startswith("adam") and name != "adamax" else "lr") in group
    same(saved, back)
    for x, y in zip(made["state"].values(), state.to_torch(back, step=TAKEN)["state"].values(), strict=True):
        assert x.keys() == y.keys()


def test_groups():
    """What a group of PyTorch's says, word for word."""
    saved, _ = refopts("adamw")
    saved["hypers"]["lr_ratio"] = [0.5, 1.0, 0.5]
    assert state.to_torch(saved)["param_groups"] == [
        {"lr": 0.1, "eps": 1e-6, "weight_decay": 0.125, "maximize": False, "decoupled_weight_decay": True,
         "amsgrad": True, "betas": (0.7, 0.8), "params": [0, 2]},
        {"lr": 0.2, "eps": 1e-6, "weight_decay": 0.5, "maximize": False, "decoupled_weight_decay": True,
         "amsgrad": False, "betas": (0.7, 0.8), "params": [1]}]
    assert state.to_torch(refopts("nadam")[0])["param_groups"][0]["momentum_decay"] == 0.004
    saved, params = refopts("sgd")
    saved["hypers"]["lr"] = 1e39  # which fp64 has, and no state says that it may not be
    sgd = state.to_torch(saved)
    assert sgd["state"] == {} and [sgd["param_groups"][1][name] for name in ("lr", "weight_decay")] == [1e39, 0.5]
    none = {"state": {}, "param_groups": [sgd["param_groups"][0] | {"params": []}]}
    assert state.from_torch("sgd", none, [])["hypers"]["lr"] == 1e39
    made = state.to_torch(refopts("sgd")[0])
    same(state.from_torch("sgd", made | {"state": {0: {"momentum_buffer": None}}}, params),
         state.from_torch("sgd", made, params))


def test_arrays_are_copies():
    """Neither side writes into the other, and axes stay in their order."""
    saved, params = refopts("adam")
    saved["slots"]["moment1"][2] = np.asfortranarray(saved["slots"]["moment1"][2])
    made = state.to_torch(saved)
    back = state.from_torch("adam", made, params)
    theirs = [entry["exp_avg"] for entry in made["state"].values()]
    for x, y, z in zip(saved["slots"]["moment1"], theirs, back["slots"]["moment1"], strict=True):
        assert not np.shares_memory(x, y) and not np.shares_memory(y, z)
        assert x.strides == y.strides == z.strides and (x == z).all()


def test_wider_states_and_counts_to_their_ends():
    """Parameters of 16 bits may have fp32 states, and PyTorch counts from 0 to 2**24."""
    made, params = torchs("adagrad")
    slots = state.from_torch("adagrad", made, [p.astype(np.float16) for p in params])["slots"]
    assert [x.dtype for x in slots["moment"]] == [np.float32] * 3
    del made["state"][0]
    slots = state.from_torch("adagrad", made, [p.astype(np.float16) for p in params])["slots"]
    assert slots["moment"][0].dtype == np.float16 and not slots["moment"][0].any()
    for step in (0, 2**24):
        given = state.to_torch(refopts("adagrad")[0], step=step)["state"]
        assert [entry["step"] for entry in given.values()] == [step] * 3


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_momentum_of_rmsprop(dtype):
    """PyTorch's momentum is without lr: v / lr where lr is in v, v itself elsewhere, and none without momentum."""
    saved, params = refopts("rmsprop", dtype)
    real = np.float64 if dtype == "float64" else np.float32
    assert saved["hypers"]["lr_at"] == "step"
    made = state.to_torch(saved, step=3)
    for i in range(3):
        assert (made["state"][i]["momentum_buffer"] == saved["slots"]["velocity"][i]).all()
    saved["hypers"]["lr_at"] = "velocity"
    made = state.to_torch(saved, step=3)
    for i, lr in enumerate((0.1, 0.2, 0.1)):
        expected = (saved["slots"]["velocity"][i].astype(real) / real(lr)).astype(dtype)
        assert (made["state"][i]["momentum_buffer"] == expected).all()
    saved["slots"]["velocity"][0][0] = np.inf
    assert state.to_torch(saved, step=3)["state"][0]["momentum_buffer"][0] == np.inf
    made["param_groups"][0]["lr"] = 0.5
    back = state.from_torch("rmsprop", made, params)
    assert (back["slots"]["velocity"][0] == made["state"][0]["momentum_buffer"]).all()
    assert back["hypers"]["lr_at"] == "step"
    saved["hypers"]["mu"] = 0.0
    made = state.to_torch(saved, step=3)
    assert not any("momentum_buffer" in entry for entry in made["state"].values())
    assert not any(x.any() for x in state.from_torch("rmsprop", made, params)["slots"]["velocity"])


CHOSEN = [("sgd", {"maximize": True}, {"maximize": True}),
          ("momentum", {"dampening": 0.25, "maximize": True}, {"dampening": 0.25, "maximize": True}),
          ("adam", {"decay": "decoupled"}, {"decoupled_weight_decay": True, "weight_decay": 0.25}),
          ("adam", {"decay": "l2", "maximize": True}, {"decoupled_weight_decay": False, "maximize": True}),
          ("nadam", {"decay": "decoupled"}, {"decoupled_weight_decay": True}),
          ("radam", {"decay": "decoupled", "weight_decay": 0.0}, {"decoupled_weight_decay": True, "weight_decay": 0.0}),
          ("adamax", {"epsilon": 0.0, "maximize": True}, {"eps": 0.0, "maximize": True}),
          ("adagrad", {"weight_decay": 0.5}, {"weight_decay": 0.5})]


@pytest.mark.parametrize(("name", "ours", "theirs"), CHOSEN)
def test_options(name, ours, theirs):
    """Options of PyTorch's are choices and numbers, there and back."""
    saved, params = refopts(name)
    saved["hypers"] |= ours
    made = state.to_torch(saved, step=TAKEN if PEERS[name].counts else None)
    assert theirs.items() <= made["param_groups"][0].items()
    assert ours.items() <= state.from_torch(name, made, params)["hypers"].items()
    for group in made["param_groups"]:  # as PyTorch had them before the option
        for later in ("nesterov", "maximize", "decoupled_weight_decay"):
            group.pop(later, None)
        group |= {"foreach": None, "initial_lr": 1.0} | ({"decoupled_weight_decay": False} if name == "sgd" else {})
    back = state.from_torch(name, made, params)["hypers"]
    assert back["maximize"] is False and back.get("decay", "l2") == "l2" and not back.get("use_nesterov")


@pytest.mark.parametrize("decay", [0.0, 0.004, 0.00412345678, 3e-15, 10.12345678901234])
def test_decays_of_momentum(decay):
    """Of as many digits as they have, where more would do as well."""
    saved, params = refopts("nadam")
    saved["hypers"]["decay_base"] = 0.96**decay
    powers = [np.full(1, power_after(np.float32(0.96**decay), steps)) for steps in TAKEN]
    saved["slots"]["momentum_decay_pow"] = powers
    made = state.to_torch(saved)
    assert repr(made["param_groups"][0]["momentum_decay"]) == repr(decay)
    assert state.from_torch("nadam", made, params)["hypers"]["decay_base"] == 0.96**decay


def test_an_epsilon_of_zero_in_adamax():
    """It is one rule then, wherever it is added."""
    saved, _ = refopts("adamax")
    saved["hypers"] |= {"epsilon_at": "norm", "epsilon": 0.0}
    assert state.to_torch(saved)["param_groups"][0]["eps"] == 0


def test_dampening_before_the_first_step():
    """PyTorch does not dampen it: a parameter without a velocity is refused, unless it has no dampening."""
    saved, params = refopts("momentum")
    made = state.to_torch(saved)
    del made["state"][1]
    assert state.from_torch("momentum", made, params)["hypers"]["dampening"] == [0.5, 0.0, 0.5]
    made["state"][0] = {"momentum_buffer": None}
    with pytest.raises(ValueError, match=r"state\[0\]: momentum_buffer: expected an array, as after a first step"):
        state.from_torch("momentum", made, params)


def test_a_parameter_without_a_state():
    """It has taken no step: zeros, powers of the first step, in its own dtype and arithmetic type."""
    made = state.to_torch(refopts("radam")[0])
    params = [np.zeros(3, "f4"), np.zeros((), "f8"), np.zeros((2, 5), "f4")]
    del made["state"][1]
    slots = state.from_torch("radam", made, params)["slots"]
    assert slots["moment1"][1].dtype == np.float64 and slots["moment1"][1].shape == ()
    assert (slots["beta2_pow"][1], slots["rho"][1]) == (np.float64(0.8), np.float64(1))
    assert slots["beta2_pow"][1].dtype == np.float64 and slots["beta2_pow"][0] == np.float32(0.8)
    made["state"][1] = {"step": 0, "exp_avg": 0.0, "exp_avg_sq": 0.0}
    assert state.from_torch("radam", made, params)["slots"]["beta2_pow"][1] == np.float64(0.8)


def test_a_product_without_a_state():
    made = state.to_torch(refopts("nadam")[0])
    del made["state"][1]
    slots = state.from_torch("nadam", made, [np.zeros(3, "f4"), np.zeros((), "f8"), np.zeros((2, 5), "f4")])["slots"]
    assert [slots["mu_product"][1].tolist(), slots["mu_product"][1].dtype] == [[1.0], np.float64]


B1, B2 = np.float32(0.7), np.float32(0.8)


def test_the_step_where_powers_leave_it_open():
    """At the last power before 0, and with betas of 0, the caller says the step; it must be one that can be."""
    saved, _ = refopts("adam")
    saved["slots"]["beta1_pow"] = [np.full(1, power_after(B1, 10**6))] * 3
    saved["slots"]["beta2_pow"] = [np.full(1, power_after(B2, 300))] * 3
    assert state.to_torch(saved)["state"][0]["step"] == 300, "beta2 changes longer"
    saved["slots"]["beta2_pow"] = [np.full(1, power_after(B2, 10**6))] * 3
    with pytest.raises(ValueError, match=r"expected the number of steps of tensor 0, at least 4\d\d, got None"):
        state.to_torch(saved)
    assert state.to_torch(saved, step=12345)["state"][2]["step"] == 12345
    with pytest.raises(ValueError, match=r"step: expected an integer of at least 4\d\d for tensor 0, .* got 9"):
        state.to_torch(saved, step=9)
    saved["hypers"] |= {"beta1": 0.0, "beta2": 0.0}
    saved["slots"] |= {name: [np.zeros(1, "f4")] * 3 for name in ("beta1_pow", "beta2_pow")}
    assert state.to_torch(saved, step=np.array([5, 0, 2]))["state"][0]["step"] == 5
    saved["hypers"]["beta2"] = 0.8
    saved["slots"]["beta2_pow"] = [np.full(1, power_after(B2, 5))] * 3
    assert state.to_torch(saved)["state"][0]["step"] == 5


# PyTorch itself.

STEPS = 10


@pytest.fixture(scope="module")
def peer():
    """The rows and the bound of `test_torch`."""
    pytest.importorskip("torch")
    from evidence import test_torch

    return test_torch


class Theirs:
    """An optimizer of PyTorch over tensors with the values of some arrays."""

    def __init__(self, peer, row, real, params):
        numbers = {peer.THEIR_NAMES.get(name, name): float(real(x)) for name, x in row.numbers.items()}
        numbers = {name: x for name, x in numbers.items() if name != "decay_base"} | row.switches
        if "beta1" in numbers:
            numbers["betas"] = numbers.pop("beta1"), numbers.pop("beta2")
        if row.peer == "RMSprop":
            numbers["alpha"] = numbers.pop("rho")
        self.params = [peer.torch.nn.Parameter(peer.torch.from_numpy(np.array(x))) for x in params]
        self.optimizer = getattr(peer.torch.optim, row.peer)(self.params, **numbers)

    def run(self, gradients):
        for grads in gradients:
            for p, g in zip(self.params, grads, strict=True):
                p.grad = _tensor(g)
            self.optimizer.step()

    def values(self):
        return [p.detach().numpy().copy() for p in self.params]


def _tensor(x):
    """As in the documentation of `refopt.state.to_torch`."""
    import torch

    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view("i2")).view(torch.bfloat16)
    return torch.from_numpy(x)


class Tensor:
    """What is read of a tensor on a GPU: NumPy takes none from there, and never bf16."""

    def __init__(self, values, dtype, device="cuda"):
        self.values, self.dtype, self.device, self.shape = values, f"torch.{dtype}", device, values.shape
        self.numel = self.data_ptr = lambda: values.size

    def detach(self):
        return self

    def cpu(self):
        return Tensor(self.values, self.dtype.removeprefix("torch."), "cpu")

    def float(self):
        return Tensor(self.values.astype(np.float32), "float32", self.device)

    def numpy(self, force):
        assert (self.device, self.dtype) in (("cpu", "torch.float32"), ("cpu", "torch.float16"))
        return self.values


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_of_a_gpu_are_copied(dtype):
    made, params = torchs("adagrad")
    params = [p.astype(numpy_dtype(dtype)) for p in params]
    values = {i: entry["sum"].astype(numpy_dtype(dtype), order="F") for i, entry in made["state"].items()}
    for i, x in values.items():
        made["state"][i]["sum"] = Tensor(x, dtype)
    moments = state.from_torch("adagrad", made, params)["slots"]["moment"]
    for x, got in zip(values.values(), moments, strict=True):
        assert (got.dtype, got.tobytes()) == (x.dtype, x.tobytes()) and not np.shares_memory(got, x)


def with_tensors(made):
    states = {i: {name: _tensor(x) for name, x in entry.items()} for i, entry in made["state"].items()}
    return made | {"state": states}


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def real(request, peer):
    """A type, while it is PyTorch's default: the product of NAdam is of this type there."""
    before = peer.torch.get_default_dtype()
    peer.torch.set_default_dtype(peer.torch.float64 if request.param is np.float64 else peer.torch.float32)
    yield request.param
    peer.torch.set_default_dtype(before)


ROWS = ["sgd", "momentum", "nesterov", "adam", "amsgrad", "adamw", "adagrad", "rmsprop", "centered", "adadelta",
        "adamax", "nadam", "radam"]
rows = pytest.mark.parametrize("name", ROWS)
stops = pytest.mark.parametrize("taken", [0, 1, 6])


def start(peer, row, real):
    """The slots of refopt's routine before the first step."""
    params = peer.arrays(0, real)
    zeros, one = lambda: [np.zeros_like(p) for p in params], lambda x: [np.full(1, x, real) for _ in params]
    return {"params": params, "grads": params, "master_params": None} | peer.first(row, row.numbers, zeros, one)


def run(peer, row, slots, gradients):
    """Steps of refopt's, in place."""
    for grads in gradients:
        positional, named = arguments(ROUTINES[row.routine], slots | {"grads": grads})
        getattr(cpu, "merged_" + row.routine)(*positional, **named, **row.numbers, **row.choices)


@rows
@stops
def test_from_pytorch(peer, real, name, taken):
    """PyTorch's steps, then refopt's; what is carried has the bits of refopt's own steps, the numbers are the same."""
    row, all_grads = peer.ROWS[name], [peer.arrays(step, real) for step in range(1, STEPS + 1)]
    theirs = Theirs(peer, row, real, peer.arrays(0, real))
    theirs.run(all_grads[:taken])
    saved = state.from_torch(row.routine, theirs.optimizer.state_dict(), theirs.params)
    ours, own = start(peer, row, real), start(peer, row, real)
    ours["params"] = theirs.values()
    for entry in theirs.optimizer.state_dict()["state"].values():
        for x in (x for x in entry.values() if x is not None):
            x.zero_()  # what has been converted does not change with it
    kept = state.load(saved, row.routine, ours)
    assert {name: real(kept[name]) for name in row.numbers} == {name: real(x) for name, x in row.numbers.items()}
    assert all(kept[name] == value for name, value in row.choices.items())
    run(peer, row, own, all_grads[:taken])
    for scalar in set(ROUTINES[row.routine].scalars) - {"mu_product"}:
        assert own[scalar] == ours[scalar]
    run(peer, row, ours, all_grads[taken:])
    assert peer.inside(name, real, peer.joined(ours["params"]))


@rows
@stops
def test_to_pytorch(peer, real, name, taken):
    """refopt's steps, then PyTorch's; PyTorch saves again what it was given."""
    row, all_grads = peer.ROWS[name], [peer.arrays(step, real) for step in range(1, STEPS + 1)]
    ours = start(peer, row, real)
    run(peer, row, ours, all_grads[:taken])
    numbers = {name: float(real(x)) for name, x in row.numbers.items() if name != "decay_base"}
    made = state.to_torch(state.state_dict(row.routine, ours, numbers | dict(row.choices)), step=taken)
    theirs = Theirs(peer, row, real, ours["params"])
    assert made["param_groups"][0].items() <= theirs.optimizer.state_dict()["param_groups"][0].items()
    theirs.optimizer.load_state_dict(with_tensors(made))
    again = theirs.optimizer.state_dict()
    assert made["param_groups"][0].items() <= again["param_groups"][0].items()
    for i, entry in made["state"].items():
        assert {name: x.tolist() for name, x in entry.items()} == {n: x.tolist() for n, x in again["state"][i].items()}
    theirs.run(all_grads[taken:])
    assert peer.inside(name, real, peer.joined(theirs.values()))


def test_bfloat16(peer):
    """bf16 tensors of PyTorch become those of ml_dtypes, and again PyTorch's, bit for bit."""
    torch = peer.torch
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(50).to(torch.bfloat16))
    optimizer = torch.optim.AdamW([param])
    param.grad = torch.randn(50).to(torch.bfloat16)
    optimizer.step()
    saved = state.from_torch("adamw", optimizer.state_dict(), [param])
    assert saved["slots"]["moment1"][0].dtype == "bfloat16" and saved["slots"]["beta1_pow"][0].dtype == np.float32
    again = with_tensors(state.to_torch(saved))["state"][0]
    for name, x in optimizer.state_dict()["state"][0].items():
        assert again[name].dtype == x.dtype and torch.equal(again[name], x)
