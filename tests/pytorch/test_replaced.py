"""A step never uses memory that a tensor has left: whatever replaced it, and whatever looked at it before the step.

Each case takes two steps, replaces the first parameter's tensor, lets other code look, and takes two more. PyTorch's
class does the same. Where it raises, the step here names the parameter and changes nothing.
"""

import copy
import pickle

import pytest

from pytorch.groups import process_group, with_gloo
from pytorch.subjects import BETAS, BUSY, EVERY, LR, MATRICES, all_bits, class_of, each_kind, ours, theirs, torch
from pytorch.trials import in_turn, new_gradients, one, parameters, steps, twin

SHAPES = (3, 4), (5, 3)
FAMILIES = {"momentum": {"momentum": 0.875}, "AdamW": BETAS, "Muon": {"ns_steps": 1}, "SGD": {},
            "RMSprop": {"momentum": 0.5, "centered": True}, "Lion": {}, "NovoGrad": {}}
OTHER_DTYPE = "in bfloat16", "in float64"  # here such a step may be taken where PyTorch's class refuses


def put(p, x):
    p.data, p.grad = x, None


def exchanged(p, x):
    p.grad = None
    torch.utils.swap_tensors(p, torch.nn.Parameter(x))


def set_to(p, x):
    with torch.no_grad():
        p.set_(x)


def averaged(p, x):
    """An average takes the place of the weights, and leaves it again."""
    kept, p.data = p.data, x
    p.data = kept


def assigned(p, x):
    """The module gets another parameter; the optimizer's stays."""
    module = torch.nn.Module()
    module.p = p
    module.load_state_dict({"p": x}, assign=True)
    assert module.p is not p


REPLACED = {"same size": lambda p: put(p, p.data * 2), "smaller": lambda p: put(p, p.data[:2].clone()),
            "larger": lambda p: put(p, torch.cat([p.data, p.data])),
            "another shape": lambda p: put(p, p.data.reshape(4, 3).clone()),
            "other strides": lambda p: put(p, p.data.t().contiguous().t()),
            "within another": lambda p: put(p, torch.cat([p.data, p.data])[3:]),
            "swap_tensors": lambda p: exchanged(p, p.detach() * 2),
            "swap_tensors, larger": lambda p: exchanged(p, torch.cat([p.detach(), p.detach()])),
            "set_": lambda p: set_to(p, p.detach() * 2),
            "load_state_dict(assign=True)": lambda p: assigned(p, p.detach() * 2),
            "an average, and back": lambda p: averaged(p, p.data * 2),
            "in bfloat16": lambda p: put(p, p.data.to(torch.bfloat16)), "in float64": lambda p: put(p, p.data.double())}


def with_a_hook(optimizer, params):
    optimizer.register_step_pre_hook(lambda optimizer, *_: optimizer.state[params[0]].get("nothing"))


def with_a_schedule(optimizer, params):
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    optimizer._opt_called = True  # as the scheduler's warning asks
    schedule.step()


def with_another_group(optimizer, params):
    optimizer.add_param_group({"params": parameters(((2, 2),), seed=1)})


LOOKS = {
    "nothing": lambda optimizer, params: None, "state[p]": lambda optimizer, params: optimizer.state[params[0]],
    "state_dict": lambda optimizer, params: optimizer.state_dict(),
    "repr": lambda optimizer, params: (repr(optimizer), repr(dict(optimizer.state))),
    "deepcopy": lambda optimizer, params: copy.deepcopy(optimizer),
    "pickle": lambda optimizer, params: pickle.dumps(optimizer),
    "add_param_group": with_another_group, "a hook": with_a_hook, "a schedule": with_a_schedule,
    "zero_grad": lambda optimizer, params: optimizer.zero_grad()}


def made(kind, family, params):
    return kind("SGD" if family == "momentum" else family)(params, lr=LR, **FAMILIES[family])


def outcome(optimizer, params, replace, look):
    """What raises in the third step, if anything does."""
    steps(optimizer, params, range(2))
    replace(params[0])
    look(optimizer, params)
    new_gradients(params, 2)
    known = all_bits(params)
    try:
        optimizer.step()
    except (RuntimeError, TypeError, ValueError) as error:
        assert not isinstance(optimizer, ours.SGD.__base__) or all_bits(params) == known
        return str(error)
    steps(optimizer, params, [3])
    return None


some = ["momentum", "AdamW", *(pytest.param(name, marks=pytest.mark.slow) for name in ("SGD", "RMSprop", "Muon"))]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("replaced", REPLACED)
@pytest.mark.parametrize("family", some)
def test_a_parameter_that_is_replaced(family, replaced, look):
    """Steps as with PyTorch's class, or an error that names the parameter where that raises."""
    runs = []
    for kind in class_of, theirs:
        if not hasattr(torch.optim, family.replace("momentum", "SGD")):
            pytest.skip("this PyTorch has no such class")
        params = parameters(SHAPES)
        runs.append((params, outcome(made(kind, family, params), params, REPLACED[replaced], LOOKS[look])))
    (params, raised), (others, refused) = runs
    if raised is not None:
        assert refused is not None and "param_groups[0]['params'][0]" in raised
    elif refused is None:
        rtol = 2e-2 if replaced == "in bfloat16" or family == "Muon" else 2e-5
        torch.testing.assert_close(params, others, rtol=rtol, atol=rtol)
    else:
        assert replaced in OTHER_DTYPE


@pytest.mark.parametrize("look", ["nothing", "state_dict", "a hook"])
@each_kind
def test_masters_follow_a_parameter_that_is_replaced(dtype, masters, look):
    """A step without a rate leaves the new values."""
    params, optimizer = one("AdamW", SHAPES, getattr(torch, dtype), masters=masters)
    steps(optimizer, params, range(2))
    params[0].data = params[0].data * 3
    known = all_bits(params)
    LOOKS[look](optimizer, params)
    optimizer.param_groups[0]["lr"] = 0.0
    steps(optimizer, params, [2])
    assert all_bits(params) == known


@each_kind
def test_masters_of_another_shape_are_refused_in_the_step_alone(dtype, masters):
    """The state can be saved before."""
    params, optimizer = one("AdamW", SHAPES, getattr(torch, dtype), masters=masters)
    steps(optimizer, params, range(1))
    put(params[0], torch.cat([params[0].data] * 2))
    optimizer.state_dict()
    optimizer.refresh_masters()
    with pytest.raises(ValueError, match=r"\['params'\]\[0\]: state\['exp_avg'\]: expected shape \(6, 4\)"):
        steps(optimizer, params, [1])


@pytest.mark.parametrize("key", ["step", "mu_product", "exp_avg"])
@pytest.mark.parametrize("look", ["nothing", "state_dict", "deepcopy"])
@pytest.mark.parametrize("how", ["data", "swap_tensors"])
def test_a_tensor_of_a_state_that_is_replaced(key, look, how):
    runs = []
    for kind in class_of, theirs:
        params = parameters(SHAPES)
        optimizer = kind("NAdam")(params, lr=LR, **BETAS)
        steps(optimizer, params, range(2))
        x = optimizer.state[params[0]][key]
        if how == "data":
            x.data = x.data * 0.5
        else:
            torch.utils.swap_tensors(x, x * 0.5)
        LOOKS[look](optimizer, params)
        steps(optimizer, params, range(2, 4))
        runs.append((params, optimizer.state[params[0]][key]))
    torch.testing.assert_close(*runs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_gradient_of_a_shape_that_the_parameter_has_left(steps_before):
    """Also one that would be broadcast."""
    params = parameters(((1, 4), (3,)))
    optimizer = class_of("SGD")(params, lr=LR)
    steps(optimizer, params, range(steps_before))
    params[0].grad = torch.ones(1, 4)
    params[0].data = torch.ones(3, 4)
    known = all_bits(params)
    with pytest.raises(ValueError, match=r"\['params'\]\[0\]: grad: expected shape \(3, 4\).*, got \(1, 4\)"):
        optimizer.step()
    assert all_bits(params) == known


def test_a_storage_that_is_freed():
    """As sharding frees a parameter's memory: a step without a gradient goes on, one with a gradient says why not."""
    params = parameters(SHAPES)
    optimizer = class_of("SGD")(params, lr=LR)
    params[0].untyped_storage().resize_(0)
    new_gradients(params[1:], 0)
    optimizer.step()
    params[0].grad = torch.ones(SHAPES[0])
    with pytest.raises(TypeError, match=r"\['params'\]\[0\]: expected a tensor with memory of its own, got a P"):
        optimizer.step()


@with_gloo
@pytest.mark.parametrize("look", ["nothing", "state_dict"])
def test_a_parameter_that_is_sharded_anew(look, tmp_path):
    """Its states are not: both are named, also where its part is what it was."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    with process_group(tmp_path, 0, 1):
        mesh = init_device_mesh("cpu", (1,))
        p = torch.nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
        q = torch.nn.Parameter(DTensor.from_local(p.to_local().detach(), mesh, [Replicate()]))
        optimizer = class_of("AdamW")([p], lr=LR)
        p.grad = torch.ones_like(p)
        optimizer.step()
        p.grad = None
        torch.utils.swap_tensors(p, q)
        LOOKS[look](optimizer, [p])
        p.grad = torch.ones_like(p)
        with pytest.raises(ValueError, match=r"\['params'\]\[0\]: state\['exp_avg'\]: expected placement .*Repl"):
            optimizer.step()


def from_a_file(state, folder):
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt")


@pytest.mark.parametrize("name", [*EVERY, "Muon"])
@pytest.mark.parametrize("first", ["the owner", "the loader"])
def test_a_loaded_state_belongs_to_who_loads_it(name, first, tmp_path):
    """Two optimizers in one process go on as if the state had gone through a file, whichever steps first."""
    found = []
    for passed in (lambda state: state, lambda state: from_a_file(state, tmp_path)):
        pairs = [(x, class_of(name)(x, lr=LR, **BUSY[name])) for x in (parameters(MATRICES), parameters(MATRICES))]
        (params, owner), (others, loader) = pairs
        steps(owner, params, range(2))
        loader.load_state_dict(passed(owner.state_dict()))
        for x, optimizer in pairs if first == "the owner" else pairs[::-1]:
            steps(optimizer, x, range(2, 4))
        found.append([all_bits(params, owner), all_bits(others, loader)])
    assert found[0] == found[1]


def test_hooks_that_follow_a_load_have_the_last_word():
    params, optimizer = one("AdamW", SHAPES)
    steps(optimizer, params, range(1))
    optimizer.register_load_state_dict_post_hook(
        lambda each: each.state[params[0]].update(exp_avg=torch.zeros(SHAPES[0])))
    optimizer.load_state_dict(optimizer.state_dict())
    assert not optimizer.state[params[0]]["exp_avg"].any() and optimizer.state[params[1]]["exp_avg"].any()


def widened(optimizer, p, key):
    optimizer.state[p][key] = optimizer.state[p][key].float()


def widened_by_data(optimizer, p, key):
    optimizer.state[p][key].data = optimizer.state[p][key].data.float()


def loaded(optimizer, p, key):
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0][key] = saved["state"][0][key].float()
    optimizer.load_state_dict(saved)


@pytest.mark.parametrize("how", [widened, widened_by_data, loaded])
@pytest.mark.parametrize("name", [*EVERY, "Muon"])
def test_a_wider_state_stays_wider(name, how):
    """An fp32 state beside a bf16 parameter has digits that bf16 has not, also after a save."""
    params, optimizer = one(name, MATRICES[:1], torch.bfloat16)
    steps(optimizer, params, range(1))
    (p,) = params
    key = next(key for key, x in optimizer.state[p].items() if x.shape == p.shape)
    how(optimizer, p, key)
    steps(optimizer, params, range(1, 4))
    x = optimizer.state[p][key]
    assert x.dtype == torch.float32 and not torch.equal(x, x.bfloat16().float())
    others, other = twin(optimizer.state_dict(), params, name)
    in_turn(range(4, 6), (params, optimizer), (others, other))
    assert all_bits(params, optimizer) == all_bits(others, other)


@pytest.mark.parametrize(("before", "after"), [("float32", "bfloat16"), ("float32", "float16"),
                                               ("bfloat16", "float16"), ("float16", "float64")])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "NovoGrad"])
def test_a_model_in_another_dtype_keeps_what_its_states_have(name, before, after):
    """After ``model.to`` in mid-run no state has lost a digit."""
    module = torch.nn.Linear(3, 2, dtype=getattr(torch, before))
    params = list(module.parameters())
    optimizer = class_of(name)(params, **{"lr": 0.0} | BUSY[name])
    steps(optimizer, params, range(2))
    states = [{key: x.double() for key, x in optimizer.state[p].items() if x.shape == p.shape} for p in params]
    module.to(getattr(torch, after))
    for p in params:
        p.grad = None
    steps(optimizer, params, [2], only=[])
    for p, known in zip(params, states, strict=True):
        for key, x in known.items():
            assert torch.equal(optimizer.state[p][key].double(), x)


@pytest.mark.parametrize(("dtype", "of"), [("bfloat16", "float64"), ("float32", "float64")])
def test_a_state_that_is_too_wide(dtype, of):
    """Is refused by name, when it is loaded or in the step, and nothing changes."""
    params, optimizer = one("AdamW", SHAPES, getattr(torch, dtype))
    steps(optimizer, params, range(1))
    known, saved = all_bits(params, optimizer), copy.deepcopy(optimizer.state_dict())
    saved["state"][1]["exp_avg"] = saved["state"][1]["exp_avg"].double()
    message = r": expected torch.float32 or narrower, got torch.float64"
    with pytest.raises(TypeError, match=r"AdamW: load_state_dict: state\[1\]\['exp_avg'\]" + message):
        optimizer.load_state_dict(saved)
    assert all_bits(params, optimizer) == known
    optimizer.state[params[1]]["exp_avg"] = saved["state"][1]["exp_avg"]
    with pytest.raises(TypeError, match=r"\['params'\]\[1\]: state\['exp_avg'\]" + message):
        steps(optimizer, params, [1])
    assert all_bits(params) == known[0]
