"""What callers write between steps is what the next one starts from: parameters, and states that they hold.

What PyTorch counts as written the masters of 16-bit parameters follow; of what it does not count they are told.
"""

import collections
import copy
import operator

import pytest

from pytorch.subjects import LR, PYTORCHS, all_bits, class_of, each_exact_kind, each_kind, ours, theirs, torch
from pytorch.trials import busy, held_step, in_turn, new_gradients, one, parameters, steps, twin


def no_rate(optimizer):
    for group in optimizer.param_groups:
        group["lr"] = 0.0


def clamped(model, params):
    for p in params:
        p.clamp_(-0.75, 0.75)


def loaded(model, params):
    model.load_state_dict({name: x * 2 for name, x in model.state_dict().items()})


def averaged(model, params):
    """The weights of an average, swapped in and multiplied."""
    average = torch.optim.swa_utils.AveragedModel(model)
    with torch.no_grad():
        for p, q in zip(params, average.module.parameters(), strict=True):
            p.copy_(q * 0.5)


def made(dtype, masters, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 5).to(getattr(torch, dtype))
    params = list(model.parameters())
    optimizer = class_of("AdamW")(params, lr=LR, masters=masters, **options)
    steps(optimizer, params, range(2))
    return model, params, optimizer


@each_kind
@pytest.mark.parametrize("write", [clamped, loaded, averaged])
def test_masters_follow_what_is_written(write, dtype, masters):
    """A step without a rate leaves what was written, and the run goes on as one that begins there.

    Masters of fp32 that round to what is stored are those of elements that nobody has written.
    """
    model, params, optimizer = made(dtype, masters)
    before = [optimizer.state[p]["master_param"].clone() for p in params]
    with torch.no_grad():
        write(model, params)
    known = all_bits(params)
    state = copy.deepcopy(optimizer.state_dict())
    for p, entries, master in zip(params, state["state"].values(), before, strict=True):
        del entries["master_param"]
        if masters == "fp32":
            entries["master_param"] = torch.where(master.to(p.dtype) == p, master, p.float()).detach()
    others, plain = twin(state, params, "AdamW", masters=masters)
    no_rate(optimizer)
    steps(optimizer, params, [2])
    assert all_bits(params) == known
    no_rate(plain)
    steps(plain, others, [2])
    assert all_bits(params, optimizer) == all_bits(others, plain)


@each_kind
def test_a_write_that_a_checkpoint_is_saved_after(dtype, masters):
    """The masters in it are those of what was written."""
    model, params, optimizer = made(dtype, masters)
    with torch.no_grad():
        clamped(model, params)
    others, other = twin(copy.deepcopy(optimizer.state_dict()), params, "AdamW", masters=masters)
    in_turn(range(2, 4), (params, optimizer), (others, other))
    assert all_bits(params, optimizer) == all_bits(others, other)


def test_a_state_of_another_optimizer_is_copied():
    (params, optimizer), (others, other) = one("AdamW"), one("AdamW")
    for each, x in ((optimizer, params), (other, others)):
        steps(each, x, [0])
    other.state[others[0]] = optimizer.state[params[0]]
    other.state[others[0]]["exp_avg"] = torch.zeros_like(others[0])
    assert optimizer.state[params[0]]["exp_avg"].any()


@each_kind
@pytest.mark.parametrize("how", ["asked", "compared"])
def test_masters_follow_what_is_not_counted(how, dtype, masters):
    """`refresh_masters`, or ``compare_masters``, which leaves masters of elements that nobody has written."""
    _, params, optimizer = made(dtype, masters, compare_masters=how == "compared")
    kept = [optimizer.state[p]["master_param"].clone() for p in params]
    assert all(x.any() for x in kept)
    for p in params:
        p.data.view(-1)[0] = 3.0
    if how == "asked":  # or the step compares, before anybody reads states
        optimizer.refresh_masters()
        assert masters != "fp32" or all(optimizer.state[p]["master_param"].view(-1)[0] == 3.0 for p in params)
    no_rate(optimizer)
    known = all_bits(params)
    steps(optimizer, params, [2])
    assert all_bits(params) == known
    for p, before in zip(params, kept, strict=True):
        master = optimizer.state[p]["master_param"].view(-1)
        assert masters != "fp32" or master[0] == 3.0
        if how == "asked" and masters != "fp32":  # which cannot tell
            before.zero_()
        assert torch.equal(master[1:], before.view(-1)[1:])


def test_a_parameter_that_is_written_along_with_its_master():
    (p,) = params = parameters(((3,),), dtype=torch.bfloat16)
    optimizer = class_of("SGD")(params, lr=0.5, masters="fp32")
    steps(optimizer, params, [0])
    with torch.no_grad():
        optimizer.state[p]["master_param"].mul_(1.0)
        p.fill_(4.0)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    assert p.tolist() == [4.0] * 3


@each_kind
def test_masters_that_are_asked_for_before_a_step(dtype, masters):
    """Those of a checkpoint, beside parameters that are others."""
    _, params, optimizer = made(dtype, masters)
    others = [torch.nn.Parameter(torch.full_like(p, 0.75)) for p in params]
    other = class_of("AdamW")(others, lr=0.0, masters=masters)
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.0
    other.load_state_dict(state)
    other.refresh_masters()
    steps(other, others, [2])
    assert all((p == 0.75).all() for p in others)
    if masters != "fp32":
        assert not any(other.state[p]["master_param"].any() for p in others)


@each_kind
def test_a_checkpoint_that_is_loaded_in_place(dtype, masters):
    """Into parameters and masters, as ``torch.distributed.checkpoint`` does: both are what was saved."""
    _, params, optimizer = made(dtype, masters)
    _, others, other = made(dtype, masters)
    steps(optimizer, params, range(2, 5))
    saved, held = ([each.state[p] for p in x] for each, x in ((optimizer, params), (other, others)))
    with torch.no_grad():
        for p, q, entries, into in zip(params, others, saved, held, strict=True):
            q.copy_(p)
            for key, x in entries.items():
                into[key].copy_(x)
    in_turn(range(5, 7), (params, optimizer), (others, other))
    assert all_bits(params, optimizer) == all_bits(others, other)


def test_masters_stay_where_nobody_looks():
    """What is written through ``.data`` without a word is undone by the master: the page says so."""
    _, params, optimizer = made("bfloat16", "fp32")
    for p in params:
        p.data.fill_(3.0)
    no_rate(optimizer)
    steps(optimizer, params, [2])
    assert not any((p == 3.0).any() for p in params)


@pytest.mark.parametrize("of", ["bfloat16", "float32"])
@each_exact_kind
@pytest.mark.parametrize("name", PYTORCHS)
def test_states_of_any_dtype_are_widened(name, dtype, masters, of):
    """PyTorch's checkpoint, of a run in some dtype, goes on with states of fp32, which have what the checkpoint has."""
    others, peer = one(name, dtype=getattr(torch, of), kind=theirs)
    steps(peer, others, range(2))
    params = [torch.nn.Parameter(p.detach().to(getattr(torch, dtype))) for p in others]
    optimizer = busy(name, params, masters=masters)
    optimizer.load_state_dict(copy.deepcopy(peer.state_dict()))
    for p, q in zip(params, others, strict=True):
        for key, x in peer.state[q].items():
            if key != "step" and x.dim() == q.dim() and x.shape == q.shape:
                assert torch.equal(optimizer.state[p][key].float(), x.float()), key
    held_step(optimizer, params, 2)
    for p in params:
        for key, x in optimizer.state[p].items():
            if x.shape == p.shape and key not in ("step", "mu_product", "master_param"):
                assert x.dtype == torch.float32, key


def replaced(state):
    for key, x in state.items():
        if key != "step":
            state[key] = x * 0.5


def cleared(state):
    state.clear()


def less_one(state):
    key = min(key for key, x in state.items() if x.dim())
    state[key] = torch.zeros_like(state.pop(key))


def written(state):
    for key, x in state.items():
        if key != "step":
            x.mul_(0.5)


def counted_anew(state):
    if "step" in state:
        state["step"].fill_(7)


def data_exchanged(state):
    for key, x in state.items():
        if key != "step" and x.dim():
            x.data = x.data * 0.5


def turned(state):
    """A square matrix with the memory that it had."""
    for x in state.values():
        if x.dim() == 2:
            x.data = x.data.t()


def updated(state):
    state.update({key: x * 0.5 for key, x in state.items() if key != "step"})


CHANGES = [replaced, updated, cleared, less_one, written, counted_anew, data_exchanged, turned]


@pytest.mark.parametrize("name", PYTORCHS)
@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_a_state_that_is_held(change, name):
    """Got before, changed between later steps: as with PyTorch's class, to rounding; and it says what steps leave."""
    runs = []
    for kind in (class_of, theirs):
        params, optimizer = one(name, ((3, 3), (5,)), kind=kind)
        steps(optimizer, params, range(1))
        state = optimizer.state[params[0]]
        if kind is theirs and change is cleared and name == "Adagrad" and torch.__version__ < "2.13":
            return  # its constructor alone makes this state
        for step in range(1, 4):
            new_gradients(params, step)
            if step == 2:
                with torch.no_grad():
                    change(state)
            optimizer.step()
        runs.append((params, {key: torch.as_tensor(x, dtype=torch.float32) for key, x in state.items()}))
    torch.testing.assert_close(*runs, rtol=2e-5, atol=1e-6)


def set_where_none_is(states, p, state):
    assert states.setdefault(p, state) is states.pop(p) is not state
    assert states.setdefault(p, state) == state


@pytest.mark.parametrize("put", [
    operator.setitem, set_where_none_is, lambda states, p, state: states.update({p: state}),
    lambda states, p, state: operator.ior(states, {p: state})])
def test_a_state_that_is_another(put):
    """In the place of one, or none any more."""
    (params, optimizer), (others, peer) = one("AdamW"), one("AdamW", kind=theirs)
    for x, each in ((params, optimizer), (others, peer)):
        steps(each, x, range(2))
        put(each.state, x[0], {key: value * 2 for key, value in each.state[x[0]].items()})
        del each.state[x[1]]
        steps(each, x, range(2, 4))
        each.state.clear()
        steps(each, x, range(4, 5))
    torch.testing.assert_close(params, others, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda states: states.copy(), lambda states: states | {},
                                    lambda states: {} | states])
def test_copies_of_states_are_plain(copied):
    """As those of PyTorch's: what is set in them no step sees."""
    params, optimizer = one("AdamW")
    steps(optimizer, params, range(1))
    states = copied(optimizer.state)
    assert type(states) is collections.defaultdict and len(states) == len(params)
    assert states["of none"] == {} and "of none" not in optimizer.state
    buckets = optimizer._buckets
    states.clear()
    steps(optimizer, params, range(1, 2))
    assert optimizer._buckets is buckets and optimizer.state[params[0]]["step"] == 2


def test_the_right_operand_of_a_union_wins():
    params, optimizer = one("AdamW")
    steps(optimizer, params, range(1))
    first, states = params[0], optimizer.state
    assert ({first: 1} | states)[first] is states[first] and (states | {first: 1})[first] == 1


def test_looking_at_states_keeps_plans():
    params, optimizer = one("NAdam")
    steps(optimizer, params, range(1))
    buckets = optimizer._buckets
    for step in range(1, 3):
        assert optimizer.state[params[0]]["step"] == step and len(optimizer.state_dict()["state"]) == len(params)
        steps(optimizer, params, [step])
    assert optimizer._buckets is buckets
    state = optimizer.state[params[0]]
    state["exp_avg"] = state["exp_avg"].clone()
    steps(optimizer, params, [3])
    changed = optimizer._buckets
    steps(optimizer, params, [4])
    assert changed is not buckets and optimizer._buckets is changed


def test_a_set_of_gradients_has_a_plan():
    """Which is there when there are these again; of many sets the last ones have."""
    params, optimizer = one("AdamW", ((2,), (3,), (4,), (5,)))
    plain_params, plain = one("AdamW", ((2,), (3,), (4,), (5,)))
    seen = []
    every = [[i for i in range(4) if k >> i & 1] for k in range(1, 16)]
    masks = [[0, 1, 2, 3], [0, 1], [2], [0, 1], [2], *every, [0, 1]]
    for step, only in enumerate(masks):
        in_turn([step], (params, optimizer), (plain_params, plain), only=only)
        plain._give_up()  # which makes everything anew
        (bucket,) = optimizer._buckets
        seen.append(bucket._now.plan)
        assert len(bucket._plans) <= 8
    assert seen[1] is seen[3] and seen[2] is seen[4] and seen[1] is not seen[2] and seen[-1] is not seen[1]
    assert len(bucket._plans) == 8
    assert all_bits(params, optimizer) == all_bits(plain_params, plain)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "NovoGrad"])
def test_strides_of_a_parameter_of_the_same_memory(name):
    """``p.data = p.data.t()`` of a square matrix: its address is what it was."""
    found = []
    for keeps in (True, False):
        params, optimizer = one(name, ((4, 4), (3,)))
        steps(optimizer, params, range(2))
        p = params[0]
        p.grad = None
        p.data = p.data.t() if keeps else p.data.t().contiguous()
        steps(optimizer, params, range(2, 4))
        found.append(all_bits(params, optimizer))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", [*PYTORCHS, "LAMB"])
def test_a_model_that_becomes_channels_last(name):
    """In mid-run, or beside a contiguous checkpoint: as PyTorch's class, to rounding, or as the model that stays."""
    def gradients(model, step):
        x = torch.randn((2, 3, 6, 6), generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        model.zero_grad()
        model(x).square().sum().backward()

    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 4, 3, dtype=torch.float64)
    optimizer = busy(name, model.parameters())
    for step in range(2):
        gradients(model, step)
        optimizer.step()
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)
    loaded_one = busy(name, other.parameters())
    loaded_one.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(2, 4):
        for each, of in ((model, optimizer), (other, loaded_one)):
            gradients(each, step)
            of.step()
        other.to(memory_format=torch.contiguous_format)
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()))


def test_stochastic_rounding():
    """Keeps on average what bf16 rounds away, and a run that goes on has the bits of one that was not stopped."""
    found = []
    for stopped in (False, True):
        params = [torch.nn.Parameter(torch.ones(40, 50, dtype=torch.bfloat16)), torch.nn.Parameter(torch.ones(7))]
        optimizer = ours.SGD(params, lr=2.0**-10, rounding="stochastic", seed=5)
        for step in range(32):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
            if stopped and step == 15:
                state, optimizer = optimizer.state_dict(), ours.SGD(params, lr=1.0, rounding="stochastic")
                optimizer.load_state_dict(copy.deepcopy(state))
        found.append(all_bits(params))
    assert found[0] == found[1] and optimizer.param_groups[0]["seed"] == 37
    assert abs(params[0].float().mean() - (1 - 2.0**-5)) < 2e-3 and len(params[0].unique()) > 2
    torch.testing.assert_close(params[1].detach(), torch.full((7,), 1 - 2.0**-5))
    with pytest.raises(ValueError, match=r"LAMB: param_groups\[0\]: rounding: expected 'nearest'.* got 'stochastic'"):
        ours.LAMB(params, rounding="stochastic")
    with pytest.raises(ValueError, match=r"SGD: param_groups\[0\]\['seed'\]: expected an integer from 0 to 16777215"):
        ours.SGD([{"params": params, "seed": 2**24}], lr=1.0, rounding="stochastic")


def test_tensors_are_rounded_by_other_bits():
    params = [torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16)) for _ in range(2)]
    for p in params:
        p.grad = torch.full_like(p, 2.0**-9)
    kept, last = params[1].detach().clone(), params[1]
    optimizer = ours.SGD(params, lr=0.5, rounding="stochastic")
    assert optimizer.param_groups[0]["seed"] == 0
    optimizer.step()
    assert not torch.equal(*params)
    of_second = last.detach().clone()
    with torch.no_grad():
        params[0].copy_(kept)
    optimizer.step()
    assert not torch.equal(params[0], of_second), "not by those of another in the step before"


def test_seeds_to_the_last():
    """After which they begin again; a group may have its own."""
    params = parameters(((3,),) * 3, dtype=torch.bfloat16)
    optimizer = ours.SGD(params[:2], lr=LR, rounding="stochastic", seed=2**24 - 1)
    optimizer.add_param_group({"params": params[2:], "seed": 7})
    steps(optimizer, params, range(2))
    assert [group["seed"] for group in optimizer.param_groups] == [1, 9]
    other = copy.deepcopy(optimizer)
    other.add_param_group({"params": parameters(((2,),), dtype=torch.bfloat16)})
    assert other.param_groups[2]["seed"] == 2**24 - 1
    peer = theirs("SGD")([{"params": params[:2]}, {"params": params[2:]}], lr=LR)
    optimizer.load_state_dict(peer.state_dict())
    steps(optimizer, params, [2])
    assert [group["seed"] for group in optimizer.param_groups] == [2, 10]


def test_masters_that_a_group_gets():
    """Between two steps."""
    params = parameters(((3,),), dtype=torch.bfloat16)
    optimizer = class_of("AdamW")([{"params": params, "masters": None}], lr=LR)
    steps(optimizer, params, [0])
    optimizer.param_groups[0]["masters"] = "fp32"
    steps(optimizer, params, [1])
    assert {key: x.dtype for key, x in optimizer.state[params[0]].items()} == dict.fromkeys(
        ("step", "exp_avg", "exp_avg_sq", "master_param"), torch.float32)


def test_masters_of_groups():
    """Where their dtypes differ; PyTorch's checkpoint, which has none, leaves them."""
    params = [*parameters(((3,),), dtype=torch.float16), *parameters(((3,),), dtype=torch.bfloat16)]
    groups = [{"params": params[:1], "masters": "fp32"}, {"params": params[1:], "masters": "remainder"}]
    optimizer = class_of("AdamW")(groups, lr=LR)
    peer = theirs("AdamW")([{"params": params[:1]}, {"params": params[1:]}], lr=LR)
    steps(peer, params, range(1))
    optimizer.load_state_dict(copy.deepcopy(peer.state_dict()))
    steps(optimizer, params, range(1, 3))
    assert [optimizer.state[p]["master_param"].dtype for p in params] == [torch.float32, torch.uint16]
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    optimizer.state[params[1]]["master_param"] = torch.ones(3)
    with pytest.raises(TypeError, match=r"state\['master_param'\]: expected torch.uint16, got torch.float32"):
        steps(optimizer, params, [3])
    del optimizer.state[params[1]]["master_param"]
    saved["state"][1]["master_param"] = saved["state"][1]["master_param"].float()
    with pytest.raises(ValueError, match=r"state\[1\]: expected masters='remainder', .* got masters='fp32'"):
        optimizer.load_state_dict(saved)
    with pytest.raises(TypeError, match=r"\[2\]\['params'\]\[0\]: expected bfloat16 for masters='remainder'"):
        optimizer.add_param_group({"params": parameters(((2,),), dtype=torch.float16), "masters": "remainder"})
    expected = r"\['masters'\]: expected one of None, fp32, remainder, remainder8, got 'fp64'"
    with pytest.raises(ValueError, match=expected):
        optimizer.add_param_group({"params": parameters(((2,),), dtype=torch.float16), "masters": "fp64"})
