"""What is refused, at construction or at a step, leaves every bit as it was; odd but right input is taken."""

import copy
import re

import pytest

from pytorch.subjects import BUSY, LR, all_bits, class_of, each_of_pytorchs, every_class, ours, theirs, torch
from pytorch.trials import held_step, in_turn, new_gradients, one, pair, parameters, steps
from refopt import simt
from refopt.torch import groups


def of_two_kinds():
    """Parameters that no one plan has."""
    return [*parameters(((3,), (2, 2))), *parameters(((4,),), dtype=torch.float64)]


def grouped(params):
    return [{"params": params[:1]}, {"params": params[1:]}]


# A group, a number of it, and what is said; without a number a gradient is sparse.
WRONG = {"rate": (1, {"lr": -1.0}, ValueError, "lr"),
         "number": (0, {"weight_decay": float("nan")}, ValueError, "coeff|weight_decay|l2_decay"),
         "rows": (1, {"sparse": "rows", "masters": "remainder"}, ValueError, "(masters|routine) beside sparse='rows'"),
         "sparse": (1, {}, RuntimeError, r"param_groups\[1\]\['params'\]\[1\]: grad: .* got torch.sparse_coo")}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["SGD", "AdamW", "LAMB"])
@pytest.mark.parametrize("taken", [0, 2])
def test_a_refused_step(name, wrong, taken):
    """Writes nothing, counts nothing, of other dtypes and groups neither; mended, the run goes on."""
    params, others = of_two_kinds(), of_two_kinds()
    ours, plain = (class_of(name)(grouped(x), lr=LR, **BUSY[name]) for x in (params, others))
    in_turn(range(taken), (params, ours), (others, plain))
    numbers = [{k: x for k, x in group.items() if k != "params"} for group in ours.param_groups]
    known = all_bits(params)
    new_gradients(params, 7)
    group, changes, kind, text = WRONG[wrong]
    ours.param_groups[group].update(changes)
    if not changes:
        params[2].grad = torch.sparse_coo_tensor([[0]], [1.0], (4,), dtype=torch.float64)
    with pytest.raises(kind, match=text) as caught:
        ours.step()
    assert all_bits(params) == known and ("; sparse='rows'" in str(caught.value)) == (not changes and name != "LAMB")
    for group, kept in zip(ours.param_groups, numbers, strict=True):
        for added in group.keys() - kept.keys() - {"params"}:
            del group[added]
        group.update(kept)
    in_turn(range(taken, taken + 2), (params, ours), (others, plain))
    assert all_bits(params, ours) == all_bits(others, plain)


@each_of_pytorchs
@pytest.mark.parametrize(("name_of", "value"), [("max_norm", 0.5), ("max_norm", None)])
def test_what_is_of_all_groups_is_no_option_of_one(name, name_of, value):
    """PyTorch takes any key in a group, so that one would be in vain without a word."""
    params = parameters()
    where = rf"{name}: param_groups\[1\]\['{name_of}'\]: expected none in a group"
    with pytest.raises(ValueError, match=where):
        class_of(name)([{"params": params[:1]}, {"params": params[1:], name_of: value}], lr=LR)
    optimizer = class_of(name)(params[:1], lr=LR)
    with pytest.raises(ValueError, match=where):
        optimizer.add_param_group({"params": params[1:], name_of: value})
    assert len(optimizer.param_groups) == 1
    loaded = optimizer.state_dict()
    loaded["param_groups"][0] |= {name_of: value, "lr": 1.0}
    with pytest.raises(ValueError, match=where.replace("1", "0")):
        optimizer.load_state_dict(loaded)
    assert optimizer.param_groups[0]["lr"] == LR
    optimizer.add_param_group({"params": params[1:], "title": "the rest"})
    steps(optimizer, params, [0])


@pytest.mark.parametrize(("name", "options", "message"), [
    ("LARS", {"lr": -1.0}, "lr"), ("LARS", {"momentum": -0.5}, "momentum"), ("LARS", {"eps": "0"}, "eps"),
    ("LARS", {"trust_coefficient": -1.0}, "trust_coefficient"), ("LAMB", {"betas": (0.9, 1.0)}, r"betas\[1\]"),
    ("LAMB", {"always_adapt": 1}, "always_adapt"), ("Lion", {"betas": (-0.5, 0.9)}, r"betas\[0\]"),
    ("Lion", {"weight_decay": float("nan")}, "weight_decay"), ("NovoGrad", {"grad_averaging": 1}, "grad_averaging")])
def test_wrong_options_of_own_classes(name, options, message):
    with pytest.raises((TypeError, ValueError), match=f"{name}: {message}: expected"):
        class_of(name)(parameters(), **options)


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
@pytest.mark.parametrize("name", ["SGD", "LAMB"])
def test_parameters_that_share_memory(name):
    """Which one launch would write twice: PyTorch takes one after the other."""
    whole = torch.ones(6)
    once, part, apart = (torch.nn.Parameter(x) for x in (whole[:4], whole[2:], torch.ones(2)))
    tied = torch.nn.Parameter(apart.detach())
    where = rf"{name}: .*: expected memory of its own, got memory shared with param_groups\[0\]"
    shared = ([apart, apart], []), ([apart, once], [part]), ([apart, part], [once]), ([apart, tied], [once])
    for first, second in shared:
        with pytest.raises(ValueError, match=where):
            class_of(name)([{"params": first}, {"params": second}], lr=LR)
    optimizer = class_of(name)([("weight", apart), ("bias", once)], lr=LR)
    twice = rf"{name}: param_groups\[1\]\['params'\]\[0\] \(tied\): .* param_groups\[0\]\['params'\]\[0\] \(weight\)"
    with pytest.raises(ValueError, match=twice):
        optimizer.add_param_group({"params": [("tied", tied)]})
    assert len(optimizer.param_groups) == 1
    held_step(optimizer, [apart, once], 0)


def test_parameters_without_memory():
    """Lazy ones, which get some later, and those on the meta device, which have none to update: as in PyTorch."""
    lazy, meta = torch.nn.LazyLinear(3), torch.nn.Linear(4, 2, device="meta")
    (params, optimizer), (others, plain) = pair("AdamW")
    optimizer.add_param_group({"params": list(lazy.parameters())})
    optimizer.add_param_group({"params": list(meta.parameters())})
    in_turn([0], (params, optimizer), (others, plain))
    lazy(torch.ones(2, 4)).sum().backward()
    meta(torch.ones(2, 4, device="meta")).sum().backward()
    in_turn([1], (params, optimizer), (others, plain))
    assert all_bits(params, optimizer) == all_bits(others, plain)
    assert optimizer.state[lazy.weight]["step"] == 1 and not optimizer.state[meta.weight]


@pytest.mark.parametrize(("name", "default", "counts"), [("NAdam", "bfloat16", torch.float32),
                                                         ("AdamW", "float64", torch.float64)])
def test_the_number_of_steps_is_no_16_bit_number(name, default, counts):
    """Whatever PyTorch's default dtype is: bf16 counts to 256."""
    torch.set_default_dtype(getattr(torch, default))
    try:
        found = []
        for kind in (class_of, theirs):
            params = parameters()
            optimizer = kind(name)(params, lr=LR)
            steps(optimizer, params, range(1))
            found.append({key: x.dtype for key, x in optimizer.state[params[0]].items()})
    finally:
        torch.set_default_dtype(torch.float32)
    assert found[0] == found[1] and found[0]["step"] == counts


def wider(params, exact, dtypes):
    """Gradients of parameters in some dtypes, and the same ones of the exact parameters, where these have any."""
    for p, q, dtype in zip(params, exact, dtypes, strict=True):
        p.grad, p.grad_dtype = None, dtype
        if q.grad is not None:
            p.grad = q.grad.to(dtype)
            q.grad = p.grad.float()


of_other_dtypes = pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="this PyTorch has gradients of one dtype")


@of_other_dtypes
@every_class
def test_gradients_wider_than_the_parameter(name):
    """From the first step on, or from the second."""
    params = parameters(((5,), (3,)), dtype=torch.bfloat16)
    exact = [torch.nn.Parameter(p.detach().float()) for p in params]
    ours = class_of(name)(params, lr=LR, masters="fp32", **BUSY[name])
    plain = class_of(name)(exact, lr=LR, **BUSY[name])
    for step in range(3):
        new_gradients(exact, step)
        wider(params, exact, [torch.float32, torch.float32 if step else torch.bfloat16])
        ours.step()
        plain.step()
    if name != "LARS":  # which takes the norm of the stored parameter
        assert [ours.state[p]["master_param"].tolist() for p in params] == [q.tolist() for q in exact]


@of_other_dtypes
def test_wider_gradients_after_a_step_without_one():
    """Are not taken for those of the parameter's dtype, which had the first plan."""
    params = parameters(((5,), (3,)), dtype=torch.bfloat16)
    exact = [torch.nn.Parameter(p.detach().float()) for p in params]
    ours, plain = class_of("SGD")(params, lr=LR, masters="fp32"), class_of("SGD")(exact, lr=LR)
    for step, (dtype, only) in enumerate([("bfloat16", None), ("float32", None), ("float32", [1]), ("float32", None)]):
        new_gradients(exact, step, only=only)
        wider(params, exact, [getattr(torch, dtype)] * 2)
        ours.step()
        plain.step()
    assert [ours.state[p]["master_param"].tolist() for p in params] == [q.tolist() for q in exact]


def test_gradients_with_a_graph():
    """``create_graph=True`` leaves gradients that need a gradient themselves."""
    p, q = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    ours, plain = class_of("AdamW")([p], lr=LR), class_of("AdamW")([q], lr=LR)
    for _ in range(2):
        p.grad = q.grad = None
        (p**3).sum().backward(create_graph=True)
        (q**3).sum().backward()
        assert p.grad.requires_grad
        ours.step()
        plain.step()
    assert torch.equal(p, q)


def test_data_that_are_fewer():
    """A part of a parameter in its place, at its address: no byte of the rest is written."""
    whole = torch.ones(6)
    p = torch.nn.Parameter(whole)
    optimizer = class_of("SGD")([p], lr=0.5)
    p.grad = torch.ones(6)
    optimizer.step()
    p.grad, p.data = None, p.data[:2]
    p.grad = torch.ones(2)
    optimizer.step()
    assert p.tolist() == [0, 0] and whole.tolist() == [0, 0, 0.5, 0.5, 0.5, 0.5]


def test_a_momentum_that_is_none():
    """Which PyTorch's SGD takes for no step so far: the first is not dampened."""
    results = []
    for kind in (class_of, theirs):
        params = parameters()
        optimizer = kind("SGD")(params, lr=LR, momentum=0.875, dampening=0.5)
        groups = copy.deepcopy(optimizer.state_dict()["param_groups"])
        optimizer.load_state_dict({"state": {0: {"momentum_buffer": None}}, "param_groups": groups})
        steps(optimizer, params, range(1))
        results.append([optimizer.state[p]["momentum_buffer"].tolist() for p in params])
    assert results[0] == results[1]


def test_a_gradient_that_several_share():
    (params, ours), (others, plain) = pair("AdamW", ((3,), (3,)))
    for step in range(2):
        g = torch.full((3,), 1.0 + step)
        for p, q in zip(params, others, strict=True):
            p.grad, q.grad = g, g.clone()
        ours.step()
        plain.step()
    assert all_bits(params, ours) == all_bits(others, plain)


def test_a_device_that_is_too_old_is_refused():
    """By one sentence, which names it, before anything is modified."""
    (param,) = parameters([(3,)])
    param.grad = torch.ones(3)
    before = param.detach().clone()
    optimizer = ours.SGD([param], lr=LR)
    with simt.claim("7.0"), pytest.raises(RuntimeError, match=r"^device: expected compute capability 7.5 or later"):
        optimizer.step()
    assert torch.equal(param, before)
    optimizer.step()
    assert torch.equal(param, before - LR)


def test_numbers_of_parameters_in_fp64():
    """Are those that fp64 has."""
    params, optimizer = one("AdamW", dtype=torch.float64, betas=(0.5, 0.99999999))
    steps(optimizer, params, range(2))
    assert all(p.isfinite().all() for p in params)


SET = [("differentiable", True, "expected False"),
       ("lr", float("nan"), "expected a finite number of at least 0, got nan"),
       ("lr", 1e39, "expected a finite number of at least 0 in float32, got 1e.39, which is inf there"),
       ("betas", (0.5, 1.5), "expected a number of at least 0 and below 1, got 1.5"),
       ("betas", (0.5, 0.99999999), "at least 0 and below 1 in float32, got 0.99999999, which is 1.0 there"),
       ("weight_decay", -1.0, "least 0")]


@pytest.mark.parametrize(("name", "value", "text"), SET)
def test_an_option_of_a_group(name, value, text):
    """Is checked where it is given, loaded, or has changed before a step."""
    where = rf"AdamW: param_groups\[1\]\['{name}'\](\[1\])?: .*{text}"
    params, others = parameters(), parameters()
    with pytest.raises(ValueError, match=where):
        class_of("AdamW")([{"params": params[:1]}, {"params": params[1:], name: value}], lr=LR)
    optimizer, plain = (class_of("AdamW")(grouped(x), lr=LR) for x in (params, others))
    in_turn([0], (params, optimizer), (others, plain))
    known = copy.deepcopy(optimizer.state_dict())
    loaded = copy.deepcopy(known)
    loaded["param_groups"][1][name] = value
    with pytest.raises(ValueError, match=where):
        optimizer.load_state_dict(loaded)
    kept = optimizer.param_groups[1][name]
    optimizer.param_groups[1][name] = value
    new_gradients(params, 1)
    with pytest.raises(ValueError, match=where):
        optimizer.step()
    optimizer.param_groups[1][name] = kept
    in_turn([1], (params, optimizer), (others, plain))
    assert all_bits(params, optimizer) == all_bits(others, plain)


@pytest.mark.parametrize(("entry", "text"), [
    (torch.ones(3), r"expected shape \(3, 4\), as its parameter needs, got \(3,\)"),
    (torch.ones(3, 4, dtype=torch.int32), "expected torch.float32, got"), ("much", "expected a tensor, got str")])
def test_an_entry_of_a_state(entry, text):
    params, optimizer = one("AdamW")
    steps(optimizer, params, [0])
    known = all_bits(params)
    kept, optimizer.state[params[0]]["exp_avg"] = optimizer.state[params[0]]["exp_avg"], entry
    new_gradients(params, 1)
    where = r"AdamW: param_groups\[0\]\['params'\]\[0\]: state\['exp_avg'\]: "
    with pytest.raises((TypeError, ValueError), match=where + text):
        optimizer.step()
    assert all_bits(params) == known and optimizer.state[params[1]]["step"] == 1
    optimizer.state[params[0]]["exp_avg"] = kept
    held_step(optimizer, params, 2)


@pytest.mark.parametrize(("name", "option"), [
    ("Adagrad", "lr_decay"), ("Adagrad", "initial_accumulator_value"), ("NAdam", "momentum_decay")])
def test_a_number_of_a_group_below_0(name, option):
    with pytest.raises(ValueError, match=rf"{name}: param_groups\[0\]\['{option}'\]: expected a finite number"):
        class_of(name)([{"params": parameters(), option: -1.0}], lr=LR)


def test_states_that_are_one():
    """Which one launch would write twice."""
    params, optimizer = one("AdamW", ((3,), (3,)))
    steps(optimizer, params, [0])
    optimizer.state[params[1]]["exp_avg"] = optimizer.state[params[0]]["exp_avg"]
    new_gradients(params, 1)
    with pytest.raises(ValueError, match=r"AdamW: param_groups\[0\]\['params'\]\[\d\]: state\['exp_avg'\]: expected"):
        optimizer.step()
    optimizer.state[params[1]]["exp_avg"] = params[0].detach()
    with pytest.raises(ValueError, match="expected memory of its own"):
        optimizer.step()


@pytest.mark.parametrize("step", [float("nan"), float("inf"), -1.0, 1.5])
@pytest.mark.parametrize("how", ["set", "written"])
def test_a_number_of_steps(how, step):
    params, optimizer = one("AdamW")
    steps(optimizer, params, [0])
    state = optimizer.state[params[1]]
    if how == "set":
        state["step"] = torch.tensor(step)
    else:
        state["step"].fill_(step)
    known = all_bits(params)
    new_gradients(params, 1)
    where = r"AdamW: param_groups\[0\]\['params'\]\[1\]: state\['step'\]: expected a whole number of at least 0, got "
    with pytest.raises(ValueError, match=where):
        optimizer.step()
    assert all_bits(params) == known


@pytest.mark.parametrize(("of_plan", "said"), [
    ("merged_adamw: moment1[1]: expected this", "AdamW: param_groups[0]['params'][1]: state['exp_avg']: expected this"),
    ("merged_adamw: grads[2]: expected this", "AdamW: param_groups[0]['params'][2]: grad: expected this"),
    ("merged_adamw: params[0]: expected this", "AdamW: param_groups[0]['params'][0]: expected this"),
    ("merged_adamw: lr: expected this", "merged_adamw: lr: expected this")])
def test_what_a_plan_refuses_is_said_in_pytorchs_words(of_plan, said, monkeypatch):
    params, optimizer = one("AdamW")
    new_gradients(params, 0)

    def refused(*args, **named):
        raise ValueError(of_plan)

    monkeypatch.setattr("refopt.gpu.plan", refused)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        optimizer.step()
    assert not optimizer.state


@pytest.mark.parametrize(("name", "options", "text"), [
    ("RMSprop", {"alpha": 1.0}, r"\['alpha'\]: expected a number of at least 0 and below 1, got 1.0"),
    ("Adadelta", {"rho": 1.0}, r"\['rho'\]: expected a number of at least 0 and below 1, got 1.0"),
    ("AdamW", {"differentiable": True}, "differentiable: expected False, since kernels are not part of"),
    ("SGD", {"dampening": -1.0}, r"\['dampening'\]: expected a finite number of at least 0, got -1.0"),
    ("SGD", {"rounding": "stochastic", "seed": 2**24}, "seed: expected an integer from 0 to 16777215, got 16777216"),
    ("Lion", {"betas": (0.5,)}, r"betas: expected two numbers, got \(0.5,\)")])
def test_an_option_that_pytorch_takes(name, options, text):
    """Also where some of the parameters are fp64."""
    with pytest.raises(ValueError, match=rf"^{name}: (param_groups\[0\])?{text}"):
        class_of(name)(of_two_kinds(), **{"lr": LR} | options)


@pytest.mark.parametrize("name", ["ASGD", "Adafactor", "LBFGS", "Rprop", "SparseAdam"])
def test_classes_that_there_are_not(name):
    with pytest.raises(NotImplementedError, match=rf"refopt.torch.{name}: .*; use torch.optim.{name}"):
        class_of(name)(parameters(), lr=LR)


def test_every_class_of_pytorch_has_a_name():
    found = {name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)}
    assert found - {"Optimizer"} <= {*ours.__all__}


def test_a_group_for_each_parameter():
    """Memory is looked at once, after all groups: not anew for each of them."""
    looked, params = [], parameters([(2,)] * 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "require_apart", lambda found: looked.append(len(found)))
        class_of("AdamW")([{"params": [p]} for p in params], lr=LR)
    assert looked == [50]
