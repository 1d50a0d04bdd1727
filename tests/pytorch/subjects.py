"""What is tested, and beside what: the classes of `refopt.torch`, PyTorch's of the same name, and how tests make both.

Without PyTorch a module that imports this is skipped.
"""

import pytest

torch = pytest.importorskip("torch")
ours = pytest.importorskip("refopt.torch")

PYTORCHS = "SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "NAdam", "RAdam"
OWN = tuple(name for name in ("LARS", "LAMB", "Lion", "NovoGrad") if hasattr(ours, name))
# What makes a class keep all states that it has, of numbers that fp32 has, so that bounds are tight.
BETAS = {"betas": (0.875, 0.9375), "eps": 2.0**-10}
BUSY = {"SGD": {"momentum": 0.875, "weight_decay": 0.125}, "Adam": BETAS | {"weight_decay": 0.125, "amsgrad": True},
        "AdamW": BETAS | {"weight_decay": 0.125, "amsgrad": True}, "Adamax": BETAS | {"weight_decay": 0.125},
        "Adagrad": {"lr_decay": 0.125, "weight_decay": 0.125, "initial_accumulator_value": 0.125, "eps": 2.0**-10},
        "Adadelta": {"rho": 0.875, "weight_decay": 0.125, "eps": 2.0**-10},
        "RMSprop": {"alpha": 0.875, "momentum": 0.875, "centered": True, "weight_decay": 0.125, "eps": 2.0**-10},
        "NAdam": BETAS | {"weight_decay": 0.125, "momentum_decay": 0.25}, "RAdam": BETAS | {"weight_decay": 0.125},
        "LARS": {}, "LAMB": {}, "Lion": {}, "NovoGrad": {},
        "Muon": {"momentum": 0.875, "weight_decay": 0.125, "ns_steps": 1}}
MASTERS = [("float16", "fp32"), ("bfloat16", "fp32"), ("bfloat16", "remainder"), ("bfloat16", "remainder8")]
LR = 0.0625
SHAPES = (3, 4), (), (0,), (5,)
MATRICES = (3, 5), (9, 4), (0, 3)  # of Muon, which has tests of its own

EVERY = *PYTORCHS, *OWN
every_class = pytest.mark.parametrize("name", EVERY)
each_of_pytorchs = pytest.mark.parametrize("name", PYTORCHS)
each_kind = pytest.mark.parametrize(("dtype", "masters"), MASTERS)
each_exact_kind = pytest.mark.parametrize(("dtype", "masters"), MASTERS[:3])


def class_of(name):
    """The class under test."""
    return getattr(ours, name)


def theirs(name):
    """PyTorch's class of the same name."""
    return getattr(torch.optim, name)


def on_a_gpu():
    """Skip a test of a GPU where PyTorch has none."""
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")


def drawn(shape, generator, dtype=None):
    """A tensor of numbers from 1/2 to 3/2 with random signs."""
    sizes = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    signs = torch.randint(0, 2, tuple(shape), generator=generator) * 2 - 1
    return (sizes * signs).to(dtype or torch.float32)


def bits(x):
    """What tells two tensors apart that differ in any bit, or in dtype or shape."""
    if not isinstance(x, torch.Tensor):
        return repr(x)
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    host = x.detach().cpu().contiguous()
    return str(x.dtype), tuple(x.shape), host.view(words).tolist()


def all_bits(params, optimizer=None):
    """The bits of parameters, and of the states that an optimizer has of them."""
    of_params = [bits(p) for p in params]
    if optimizer is None:
        return of_params
    return of_params, [{name: bits(x) for name, x in sorted(optimizer.state[p].items())} for p in params]
