"""Tensors of every kind as parameter, as gradient and in a state: each is read rightly, or refused by name."""

import copy
import re

import pytest

from pytorch.subjects import LR, all_bits, class_of, theirs, torch
from pytorch.trials import new_gradients, parameters, steps
from refopt import state
from refopt.torch import host

SHAPE = 2, 3
P, S = "AdamW: param_groups[0]['params'][1]", "AdamW: load_state_dict: state[1]"


def numbers():
    return torch.arange(1.0, 7.0).view(SHAPE)


class Wrapper(torch.Tensor):
    """A tensor that has another one instead of memory."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        inner = torch.utils._pytree.tree_map(lambda x: x.inner if isinstance(x, Wrapper) else x, (args, kwargs or {}))
        found = operation(*inner[0], **inner[1])
        return Wrapper(found) if isinstance(found, torch.Tensor) else found


class Plain(torch.Tensor):
    """A subclass with memory of its own."""


def two():
    module = pytest.importorskip("torch.testing._internal.two_tensor", exc_type=ImportError)
    return module.TwoTensor(numbers(), numbers())


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True).from_tensor(numbers())


def nested(layout):
    return torch.nested.nested_tensor([torch.ones(3), torch.ones(3)], layout=layout)


def masked():
    from torch.masked import masked_tensor

    return masked_tensor(numbers(), numbers() > 2)


def of_torchao():
    return pytest.importorskip("torchao.optim.subclass_8bit").OptimState8bit.zeros(SHAPE, block_size=6)


# Those whose values a step takes, and those that are refused, with what is said.
READ = {
    "subclass": lambda: numbers().as_subclass(Plain), "negative": lambda: torch._neg_view(numbers()),
    "zero": lambda: torch._efficientzerotensor(SHAPE), "no element": lambda: torch.ones(0)}
NO_MEMORY = "expected a tensor with memory of its own, got a "
DENSE = "expected a dense tensor, got "
FLOATS = "expected one of float16, bfloat16, float32, float64, got "
REFUSED = {"two": (two, NO_MEMORY + "TwoTensor on cpu without"),
           "fake": (fake, NO_MEMORY + "FakeTensor on cpu without"),
           "wrapper": (lambda: Wrapper(numbers()), NO_MEMORY + "Wrapper on cpu without"),
           "empty wrapper": (lambda: Wrapper(torch.ones(0)), NO_MEMORY + "Wrapper on cpu without"),
           "masked": (masked, NO_MEMORY + "MaskedTensor on cpu without"),
           "torchao": (of_torchao, NO_MEMORY + "OptimState8bit on cpu without"),
           "functional": (lambda: torch._to_functional_tensor(numbers()), NO_MEMORY),
           "meta": (lambda: numbers().to("meta"), NO_MEMORY + "Tensor on meta without"),
           "sparse": (lambda: numbers().to_sparse(), DENSE + "torch.sparse_coo"),
           "rows": (lambda: numbers().to_sparse_csr(), DENSE + "torch.sparse_csr"),
           "mkldnn": (lambda: numbers().to_mkldnn(), DENSE + "torch._mkldnn"),
           "nested": (lambda: nested(torch.strided), DENSE + "a nested one"),
           "jagged": (lambda: nested(torch.jagged), DENSE + "a nested one"),
           "conjugate": (lambda: numbers().cfloat().conj(), FLOATS + "complex64"),
           "quantized": (lambda: torch.quantize_per_tensor(numbers(), 0.1, 0, torch.qint8), FLOATS + "qint8")}
# PyTorch refuses the others itself.
GRADIENTS = "two", "fake", "wrapper", "empty wrapper", "masked", "torchao", "functional", "sparse"
each_refused = pytest.mark.parametrize("kind", REFUSED)
each_read = pytest.mark.parametrize("kind", READ)


def stepped(kind="AdamW", taken=1, shape=SHAPE):
    """Two parameters and their optimizer after some steps."""
    params = parameters(((3,), shape))
    optimizer = class_of(kind)(params, lr=LR)
    steps(optimizer, params, range(taken))
    return params, optimizer


def shape_of(tensor):
    return (0,) if tensor.layout is torch.strided and not tensor.is_nested and not tensor.numel() else SHAPE


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if kind != "meta"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_parameter_is_refused(kind):
    """At construction and in another group, with nothing added. One on the meta device has nothing to update."""
    make, said = REFUSED[kind]
    given = torch.nn.Parameter(make(), requires_grad=make().is_floating_point() or make().is_complex())
    said = said if kind != "functional" else NO_MEMORY + "Parameter on cpu without"
    with pytest.raises(TypeError, match=re.escape(f"{P}: {said}")):
        class_of("AdamW")([torch.ones(3), given], lr=LR)
    _, optimizer = stepped(taken=0)
    with pytest.raises(TypeError, match=re.escape(f"AdamW: param_groups[1]['params'][0]: {said}")):
        optimizer.add_param_group({"params": [given]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(("kind", "got"), [("negative", "their negatives"), ("zero", "a ZeroTensor")])
def test_a_parameter_whose_memory_has_other_values(kind, got):
    """Kernels would write these."""
    with pytest.raises(TypeError, match=re.escape(f"{P}: expected stored values, got {got}")):
        class_of("AdamW")([torch.ones(3), torch.nn.Parameter(READ[kind]())], lr=LR)


@pytest.fixture(params=[True, False], ids=["guards", "one by one"])
def guards(request, monkeypatch):
    """Whether PyTorch's guards read many tensors at once."""
    if not request.param:
        monkeypatch.setattr(host, "TensorGuards", None)


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("kind", GRADIENTS)
def test_a_gradient_is_refused(kind, taken, guards):
    """Beside one of another parameter, also after a step with plain ones; the next step with plain ones is right."""
    make, said = REFUSED[kind]
    params, optimizer = stepped(taken=taken, shape=shape_of(make()))
    others, plain = stepped(taken=taken, shape=shape_of(make()))
    known = all_bits(params, optimizer)
    new_gradients(params, 7)
    params[1].grad = make()
    for _ in range(2):
        with pytest.raises(RuntimeError if kind == "sparse" else TypeError, match=re.escape(f"{P}: grad: {said}")):
            optimizer.step()
        assert all_bits(params, optimizer) == known
    steps(optimizer, params, [8])
    steps(plain, others, [8])
    assert all_bits(params, optimizer) == all_bits(others, plain)


def test_a_gradient_that_functorch_wraps():
    """As within ``vmap``."""
    params, optimizer = stepped(taken=0)

    def function(x):
        params[1].grad = x
        with pytest.raises(TypeError, match=re.escape(f"{P}: grad: {NO_MEMORY}Tensor on cpu without")):
            optimizer.step()
        return x

    torch.func.vmap(function)(torch.ones(4, *SHAPE))


@each_read
def test_a_gradient_is_read(kind, guards):
    """Between plain ones of the same parameter."""
    (params, ours), (others, plain) = (stepped(shape=READ[kind]().shape) for _ in range(2))
    for step in range(1, 4):
        for x in (params, others):
            new_gradients(x, step)
        if step == 2:
            params[1].grad, others[1].grad = READ[kind](), READ[kind]().as_subclass(torch.Tensor) + 0
        ours.step()
        plain.step()
    assert all_bits(params, ours) == all_bits(others, plain)


def scalar(make):
    """A tensor of one number of the same kind; some have none."""
    try:
        found = make().reshape(-1)[0]
    except (RuntimeError, NotImplementedError, IndexError, AttributeError):
        return None
    return found if type(found) is type(make()) else None


@pytest.mark.parametrize("key", ["exp_avg", "step"])
@each_refused
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_entry_of_a_state_is_refused(kind, key):
    """In the step after it was set, and in ``load_state_dict``, where no entry has changed then."""
    make, said = REFUSED[kind]
    given = make() if key == "exp_avg" else scalar(make)
    if given is None:
        return
    params, optimizer = stepped(shape=shape_of(make()))
    known = all_bits(params, optimizer)
    saved = copy.copy(optimizer.state_dict())
    kept = saved["state"][1][key]
    saved["state"][1][key] = given
    with pytest.raises(TypeError, match=re.escape(f"{S}['{key}']: {said}")):
        optimizer.load_state_dict(saved)
    assert all_bits(params, optimizer) == known
    optimizer.state[params[1]][key] = given
    new_gradients(params, 1)
    with pytest.raises(TypeError, match=re.escape(f"{P}: state['{key}']: {said}")):
        optimizer.step()
    assert optimizer.state[params[1]][key] is given
    optimizer.state[params[1]][key] = kept
    assert all_bits(params, optimizer) == known


@pytest.mark.parametrize("loads", [True, False])
@each_read
def test_an_entry_of_a_state_is_read(kind, loads):
    (params, ours), (others, plain) = (stepped(shape=READ[kind]().shape) for _ in range(2))
    for optimizer, given in ((ours, READ[kind]()), (plain, READ[kind]().as_subclass(torch.Tensor) + 0)):
        if loads:
            saved = optimizer.state_dict()
            saved["state"][1]["exp_avg"] = given
            optimizer.load_state_dict(saved)
        else:
            optimizer.state[optimizer.param_groups[0]["params"][1]]["exp_avg"] = given
    steps(ours, params, [1])
    steps(plain, others, [1])
    assert all_bits(params, ours) == all_bits(others, plain)


def of_pytorchs(shape, key, value):
    """A state dictionary of PyTorch's class, with another entry of the second parameter, and the parameters."""
    params = parameters(((3,), shape))
    optimizer = theirs("AdamW")(params, lr=LR)
    steps(optimizer, params, [0])
    saved = optimizer.state_dict()
    saved["state"][1][key] = value
    return saved, params


@pytest.mark.parametrize("key", ["exp_avg", "step"])
@pytest.mark.parametrize("kind", [kind for kind in REFUSED if "wrapper" not in kind])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_states_without_a_plan_refuse(kind, key):
    """`refopt.state.from_torch` names the entry; `to_torch` takes arrays of NumPy alone."""
    make = REFUSED[kind][0]
    given = make() if key == "exp_avg" else scalar(make)
    if given is None:
        return
    with pytest.raises((TypeError, ValueError), match=rf"^from_torch: adamw: state\[1\]: {key}: expected "):
        state.from_torch("adamw", *of_pytorchs(SHAPE, key, given))
    saved = state.from_torch("adamw", *of_pytorchs(SHAPE, "exp_avg", numbers()))
    saved["slots"]["moment1"][1] = given
    with pytest.raises(TypeError, match=r"^to_torch: moment1\[1\]: expected a NumPy array, got "):
        state.to_torch(saved)


@each_read
def test_states_without_a_plan_read(kind):
    given = READ[kind]()
    saved = state.from_torch("adamw", *of_pytorchs(given.shape, "exp_avg", given))
    assert saved["slots"]["moment1"][1].tolist() == (given.as_subclass(torch.Tensor) + 0).tolist()
