"""What `benchmarks.torch_step` steps: parameters with two sets of gradients, and the optimizers over them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from benchmarks.tensors import REQUIRED, shapes_of
from refopt import torch as merged
from refopt.catalog import ROUTINES, Spec

Step = Callable[[], Any]
OURS, ACCELERATED, EMPTY = "refopt.torch", "refopt.torch, accelerated", "an empty step"
FEWER, SMALL = "2,000 tensors of 100", "10,000 tensors of 100"
WORKLOADS = "resnet50", "bert-large", FEWER, SMALL
# By routine, PyTorch's class and what it is given.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {"lr": REQUIRED["lr"]}),
    "momentum": ("SGD", {"lr": REQUIRED["lr"], "momentum": REQUIRED["mu"]}),
}
CAPTURABLE = {"foreach": True, "capturable": True}
# By what it is called, what else PyTorch's class is given, eager and to be captured in a graph. SGD counts no steps,
# and is capturable as it is.
PYTORCH: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "fused": ({"fused": True}, {"fused": True, "capturable": True}),
    "foreach": ({"foreach": True}, None),
    "capturable": (CAPTURABLE, CAPTURABLE),
}


class Work:
    """Parameters, and two sets of gradients that lie elsewhere; all normally distributed, in fp32.

    Attributes:
        name: of the workload.
        params: the parameters, with the gradients of the first set.
    """

    def __init__(self, name: str, shapes: Sequence[tuple[int, ...]], device: str) -> None:
        random = torch.Generator(device).manual_seed(0)

        def normal(shape: tuple[int, ...]) -> torch.Tensor:
            return torch.empty(shape, device=device).normal_(generator=random)

        self.name, self.device = name, device
        self.params = [torch.nn.Parameter(normal(shape)) for shape in shapes]
        self._sets = [[normal(shape) for shape in shapes] for _ in range(2)]
        self._turn = 1
        self.turn()

    @property
    def elements(self) -> int:
        return sum(param.numel() for param in self.params)

    def bytes(self, routine: str) -> int:
        """What a step of a routine has to read and write."""
        row = ROUTINES[routine]
        dtypes = tuple(None if slot.scalar or slot.optional else "float32" for slot in row.slots)
        return row.bytes([Spec(self.elements, dtypes)], row.merged_form)

    def turn(self) -> None:
        """Give the parameters the other set of gradients, as a backward pass does after ``zero_grad()``."""
        self._turn = 1 - self._turn
        for param, grad in zip(self.params, self._sets[self._turn], strict=True):
            param.grad = grad

    def backward(self) -> None:
        """Have autograd make new gradients, none of which is an object of Python's yet."""
        for param in self.params:
            param.grad = None
        torch.autograd.backward(self.params, self._sets[0])

    def grads(self) -> list[torch.Tensor | None]:
        """The gradients that there are."""
        return [param.grad for param in self.params]

    def other_mask(self) -> None:
        """New gradients, of all parameters and of all but the last by turns."""
        self.turn()
        if self._turn:
            self.params[-1].grad = None

    def clone(self) -> list[torch.nn.Parameter]:
        """Parameters of the same values, with the same gradients."""
        params = [torch.nn.Parameter(param.detach().clone()) for param in self.params]
        for own, param in zip(params, self.params, strict=True):
            own.grad = param.grad
        return params


def work_of(name: str, device: str = "cuda") -> Work:
    """A workload of the catalogue, or the one of many small tensors."""
    count = {FEWER: 2_000, SMALL: 10_000}.get(name)
    return Work(name, [(100,)] * count if count else shapes_of(name), device)


class Empty(Optimizer):
    """A step that does nothing: what PyTorch's own part of each step takes."""

    def __init__(self, params: Sequence[torch.nn.Parameter]) -> None:
        super().__init__(params, {"lr": REQUIRED["lr"]})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing."""


class Subject(NamedTuple):
    """An optimizer, and how its step is run.

    Attributes:
        name: whose it is.
        how: ``eager``, ``graph``, ``compiled``, or ``compiled graph``.
        make: from parameters, the optimizer.
    """

    name: str
    how: str
    make: Callable[[Sequence[torch.nn.Parameter]], Optimizer]


def subjects(routine: str) -> list[Subject]:
    """All that a routine is measured by; those that have to be compiled come last."""
    kind, given = OPTIMIZERS[routine]

    def ours(params: Sequence[torch.nn.Parameter], accelerated: bool = False) -> Optimizer:
        if merged.accelerate(accelerated) != accelerated:
            raise RuntimeError("this machine cannot compile refopt/torch/_host.cpp")
        return getattr(merged, kind)(params, **given)

    made = [Subject(OURS, how, ours) for how in ("eager", "graph")]
    made += [Subject(ACCELERATED, "eager", lambda params: ours(params, True)), Subject(EMPTY, "eager", Empty)]

    def pytorchs(name: str, how: str, options: dict[str, Any]) -> Subject:
        return Subject(name, how, lambda params: getattr(torch.optim, kind)(params, **given, **options))

    for name, (eager, captured) in PYTORCH.items():
        if routine == "momentum":
            if name == "capturable":
                continue
            captured = eager
        made.append(pytorchs(name, "eager", eager))
        if captured is not None:
            made.append(pytorchs(name, "graph", captured))
    options = {"foreach": True} if routine == "momentum" else CAPTURABLE
    return [*made, *(pytorchs("torch.compile", how, options) for how in ("compiled", "compiled graph"))]


def states_of(optimizer: Optimizer) -> dict[str, int]:
    """Bytes of an optimizer's states, on its parameters' device and elsewhere."""
    states = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    tensors = [value for value in states if isinstance(value, torch.Tensor)]
    near = {param.device for group in optimizer.param_groups for param in group["params"]}
    own = sum(tensor.nbytes for tensor in tensors if tensor.device in near)
    return {"state_bytes": own, "state_bytes_elsewhere": sum(tensor.nbytes for tensor in tensors) - own}
