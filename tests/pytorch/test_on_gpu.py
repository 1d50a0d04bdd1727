"""Tensors on a GPU: the configurations and laws of the CPU there, streams, devices, GradScaler, compile.

What equal bits are asked of is asked of the executor beside the GPU, too: both have the reference's bits.
"""

import copy

import pytest

from pytorch.subjects import BUSY, LR, PYTORCHS, all_bits, class_of, drawn, every_class, on_a_gpu, torch
from pytorch.trials import assert_alike, beside, held, in_turn, new_gradients, one, pair, parameters, steps

pytestmark = pytest.mark.gpu
db = pytest.importorskip("torch.testing._internal.common_optimizers", exc_type=ImportError)
STEPS = {"RAdam": 7}
CAPTURABLE = {"capturable"}  # means something else to PyTorch's class: its state on the GPU


@pytest.fixture(autouse=True)
def a_gpu():
    on_a_gpu()


def configurations():
    """PyTorch's for a GPU, but those whose arguments have tensors on it or that are capturable."""
    every = [(info.name, given) for info in db.optim_db if info.name in PYTORCHS
             for given in info.optim_inputs_func(device="cuda")]
    return [pytest.param(name, given, id=f"{name}-{given.desc.replace(' ', '_')}")
            for name, given in every if not CAPTURABLE & given.kwargs.keys()]


@pytest.mark.parametrize(("name", "given"), configurations())
def test_every_configuration(name, given):
    """Steps from PyTorch's parameters, states and gradients are within the bound."""
    beside(name, given.kwargs, STEPS.get(name, 3), device="cuda")


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_beside_pytorchs_fused_class(name):
    """Which has its number of steps on the GPU: states are exchanged all the same."""
    kwargs = BUSY[name] | {"fused": True}
    if name == "Adagrad":
        kwargs.pop("fused")  # on the CPU alone
    beside(name, kwargs, 3, device="cuda", shapes=((33, 7), (), (0,), (300,)))


@every_class
def test_the_bits_of_the_executor(name):
    """New gradients in each step, of every dtype; some are None."""
    shapes, dtypes = ((33, 5), (), (0,), (257,), (4, 4)), ("float32", "float16", "bfloat16", "float64", "float32")
    kept = []
    for device in ("cpu", "cuda"):
        params = [torch.nn.Parameter(p.detach().to(device, getattr(torch, d)))
                  for p, d in zip(parameters(shapes), dtypes, strict=True)]
        optimizer = class_of(name)(params, lr=LR, **BUSY[name])
        for step in range(4):
            steps(optimizer, params, [step], only={0, 1, 2, 3} if step < 2 else {0, 1, 2, 4})
        kept.append(all_bits(params))
    assert kept[0] == kept[1]


def train(forward, optimizer, shape):
    """Steps with the gradients of backward passes, each held to the bound."""
    for step in range(4):
        optimizer.zero_grad()
        clutter = [torch.empty(step * 1000 + 64 * i, device="cuda") for i in range(8)]  # so that addresses change
        (forward(drawn(shape, torch.Generator().manual_seed(step)).cuda()) ** 2).mean().backward()
        del clutter
        held(optimizer)


@every_class
def test_new_gradients_that_a_backward_pass_makes(name):
    """``zero_grad`` drops gradients; the allocator gives the next ones any of the memory that is free."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 4)).cuda()
    train(model, class_of(name)(model.parameters(), lr=LR, **BUSY[name]), (8, 16))


@every_class
def test_a_step_on_another_stream(name):
    """Is in the order of PyTorch's current stream."""
    (params, ours), (others, plain) = pair(name, device="cuda")
    stream = torch.cuda.Stream()
    for step in range(3):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # gradients come late
            steps(ours, params, [step])
        torch.cuda.current_stream().wait_stream(stream)
        steps(plain, others, [step])
    assert all_bits(params, ours) == all_bits(others, plain)


def test_two_devices():
    """A model on two GPUs is stepped on both."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    params = [*parameters(device="cuda:0"), *parameters(seed=1, device="cuda:1")]
    others = [*parameters(device="cuda:0"), *parameters(seed=1, device="cuda:0")]
    assert_alike(params, others)
    assert [p.device.index for p in params] == [0] * 4 + [1] * 4


def test_a_device_that_is_not_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    params, others = parameters(device="cuda:1"), parameters(device="cuda:0")
    with torch.cuda.device(0):
        assert_alike(params, others)


def test_a_model_on_the_host_and_on_the_gpu():
    """Parameters on the CPU are stepped by the executor beside those on the GPU."""
    params, others = [*parameters(), *parameters(seed=1, device="cuda")], [*parameters(), *parameters(seed=1)]
    assert_alike(params, others)


@pytest.mark.parametrize(("dtype", "masters"), [("float32", None), ("float16", "fp32"), ("bfloat16", "remainder")])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_a_scaler_of_gradients(dtype, masters, max_norm):
    """Steps whose gradients overflow are left out and not counted, with the bits of the executor."""
    kept = []
    for device in ("cpu", "cuda"):
        params = parameters(dtype=getattr(torch, dtype), device=device)
        optimizer = class_of("AdamW")(params, lr=LR, masters=masters, max_norm=max_norm)
        scaler = torch.amp.GradScaler(device, init_scale=64.0, growth_interval=2)
        for step in range(6):
            new_gradients(params, step)
            factor = scaler.scale(torch.ones((), device=device))
            for p in params:
                p.grad.mul_(factor.to(p.grad.dtype))
            if step in (0, 3):
                params[-1].grad[-1] = float("inf")
            try:
                scaler.step(optimizer)
            except NotImplementedError as error:  # of PyTorch's own scan, before the optimizer is asked
                assert device == "cuda" and dtype == "bfloat16" and "_amp_foreach_non_finite" in str(error)
                pytest.skip("PyTorch's GradScaler takes no bf16 gradients on a GPU")
            scaler.update()
        kept.append((all_bits(params, optimizer), scaler.get_scale()))
    assert kept[0] == kept[1]


def test_the_host_waits_for_nothing():
    """A step with new gradients, a scaler and clipping has returned while the GPU is still at what came before."""
    params = parameters(device="cuda")
    optimizer = class_of("AdamW")(params, lr=LR, max_norm=0.5)
    scale, found_inf = (torch.full((), x, device="cuda") for x in (64.0, 0.0))
    for step in range(4):
        new_gradients(params, step)
        torch.cuda.synchronize()
        optimizer.grad_scale, optimizer.found_inf = scale, found_inf
        optimizer.param_groups[0]["lr"] = LR / (1 + step)
        torch.cuda._sleep(1_000_000_000)  # half a second
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if step:  # the first makes the plans
            assert not torch.cuda.current_stream().query(), f"step {step} has waited"
    torch.cuda.synchronize()


def test_compiled_forward_and_backward():
    """Gradients of ``torch.compile`` are as good as any."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2)).cuda()
    try:
        compiled = torch.compile(model)
        compiled(torch.ones(2, 8, device="cuda")).sum().backward()
    except Exception as error:  # no compiler here
        pytest.skip(f"torch.compile: {type(error).__name__}")
    train(compiled, class_of("AdamW")(model.parameters(), lr=LR), (4, 8))


@every_class
def test_state_dictionaries_between_devices(name):
    """What was saved on the GPU goes on on the CPU, and the other way round, with the same bits."""
    params, optimizer = one(name, device="cuda")
    steps(optimizer, params, range(2))
    others = [torch.nn.Parameter(p.detach().cpu().clone()) for p in params]
    other = class_of(name)(others, lr=LR, **BUSY[name])
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    in_turn(range(2, 4), (params, optimizer), (others, other))
    assert all_bits(params, optimizer) == all_bits(others, other)
