"""What refopt is timed against: PyTorch's optimizers, and CuPy for what PyTorch has no optimizer for.

Every peer is made over tensors and gives a step, a call without arguments that does what one step does.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.tensors import REQUIRED, Tensors

Step = Callable[[], Any]
LR = REQUIRED["lr"]
# Class, arguments, and refopt's slot for each of its states.
CLASSES: dict[str, tuple[type, dict[str, Any], dict[str, str]]] = {
    "sgd": (torch.optim.SGD, {}, {}),
    "momentum": (torch.optim.SGD, {"momentum": REQUIRED["mu"]}, {"momentum_buffer": "velocities"}),
    "adam": (torch.optim.Adam, {"capturable": True}, {"exp_avg": "moment1", "exp_avg_sq": "moment2"}),
    "adamw": (torch.optim.AdamW, {"capturable": True}, {"exp_avg": "moment1", "exp_avg_sq": "moment2"}),
    "adagrad": (torch.optim.Adagrad, {}, {"sum": "moment"}),
    "rmsprop": (torch.optim.RMSprop, {"capturable": True, "momentum": 0.9}, {}),
    "adadelta": (torch.optim.Adadelta, {"capturable": True}, {}),
    "adamax": (torch.optim.Adamax, {"capturable": True}, {}),
    "nadam": (torch.optim.NAdam, {"capturable": True}, {}),
    "radam": (torch.optim.RAdam, {"capturable": True}, {}),
}
IMPLEMENTATIONS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}


def parameters(values: list, grads: list) -> list[torch.nn.Parameter]:
    """Parameters that share memory with tensors, with gradients that do."""
    params = [torch.nn.Parameter(value) for value in values]
    for parameter, grad in zip(params, grads, strict=True):
        parameter.grad = grad
    return params


def torch_step(tensors: Tensors, implementation: str) -> Step:
    """The step of PyTorch's optimizer, which makes its own states.

    With masters, which PyTorch's optimizers do not have: gradients are copied to fp32, the masters updated, the
    parameters copied from them, each for all tensors at once.
    """
    kind, arguments, _ = CLASSES[tensors.routine.name]
    grads, masters = tensors.slots["grads"], tensors.slots.get("master_params")
    wide = [grad.float() for grad in grads] if masters else grads
    params = parameters(masters or tensors.slots["params"], wide)
    optimizer = kind(params, lr=LR, **arguments, **IMPLEMENTATIONS[implementation])
    if not masters:
        return optimizer.step

    def step() -> None:
        torch._foreach_copy_(wide, grads)
        optimizer.step()
        torch._foreach_copy_(tensors.slots["params"], masters)

    return step


def compiled(step: Step) -> Step:
    """A peer's step through torch.compile, to be captured as a CUDA graph as the others are."""
    torch._dynamo.reset()
    return torch.compile(lambda: step())


def clipped_torch_step(tensors: Tensors, implementation: str, max_norm: float) -> Step:
    """The same with the gradients clipped by their global norm before."""
    kind, arguments, _ = CLASSES[tensors.routine.name]
    params = parameters(tensors.slots["params"], tensors.slots["grads"])
    optimizer = kind(params, lr=LR, **arguments, **IMPLEMENTATIONS[implementation])

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(params, max_norm, foreach=True)
        optimizer.step()

    return step


def cupy_step(tensors: Tensors) -> Step:
    """Lion, LAMB or NovoGrad: for each tensor one elementwise kernel, and one reduction for each norm."""
    import cupy

    names = [name for name in ("params", "grads", *tensors.routine.states)]
    columns = zip(*([cupy.asarray(x) for x in tensors.slots[name]] for name in names), strict=True)
    kernels = CUPY[tensors.routine.name](cupy)
    arrays = [tuple(column) for column in columns]

    def step() -> None:
        for column in arrays:
            kernels(*column)

    return step


def _lion(cupy: Any) -> Callable[..., Any]:
    update = cupy.ElementwiseKernel(
        "raw float32 h, float32 g",
        "float32 p, float32 m",
        """
        float c = h[1] * m + (1 - h[1]) * g;
        p -= h[0] * ((c > 0) - (c < 0));
        m = h[2] * m + (1 - h[2]) * g;
        """,
        "lion",
    )
    h = cupy.array([LR, 0.9, 0.99], "float32")
    return lambda p, g, m: update(h, g, p, m)


def _lamb(cupy: Any) -> Callable[..., Any]:
    moments = cupy.ElementwiseKernel(
        "float32 p, float32 g",
        "float32 m, float32 u, float32 r",
        """
        m = 0.9f * m + 0.1f * g;
        u = 0.999f * u + 0.001f * g * g;
        r = m / 0.1f / (sqrtf(u / 0.001f) + 1e-6f) + 0.01f * p;
        """,
        "lamb_moments",
    )
    norm = cupy.ReductionKernel("float32 x", "float32 y", "x * x", "a + b", "y = sqrtf(a)", "0", "lamb_norm")
    update = cupy.ElementwiseKernel(
        "float32 r, raw float32 pn, raw float32 rn, float32 lr",
        "float32 p",
        "p -= lr * (pn[0] > 0 && rn[0] > 0 ? pn[0] / rn[0] : 1.0f) * r",
        "lamb_update",
    )

    def step(p: Any, g: Any, m: Any, u: Any) -> None:
        r = cupy.empty_like(p)
        moments(p, g, m, u, r)
        update(r, norm(p), norm(r), cupy.float32(LR), p)

    return step


def _novograd(cupy: Any) -> Callable[..., Any]:
    norm = cupy.ReductionKernel("float32 x", "float32 y", "x * x", "a + b", "y = a", "0", "novograd_norm")
    update = cupy.ElementwiseKernel(
        "float32 g, raw float32 v, float32 lr",
        "float32 p, float32 m",
        "m = 0.95f * m + g / (sqrtf(v[0]) + 1e-8f); p -= lr * m",
        "novograd_update",
    )

    def step(p: Any, g: Any, m: Any) -> None:
        update(g, norm(g), cupy.float32(LR), p, m)

    return step


CUPY: dict[str, Callable[[Any], Callable[..., Any]]] = {"lion": _lion, "lamb": _lamb, "novograd": _novograd}
