"""PyTorch optimizers as `Optimizer`."""

import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.oracle.cases import NUMBERS
from refopt.oracle.memory import Placed
from refopt.oracle.subject import Lacks, Wrong
from refopt.oracle.subjects.arrays import Torch
from refopt.oracle.subjects.names import makes, names_of, public_name, refusing
from refopt.oracle.subjects.run import LibraryRun
from refopt.oracle.subjects.timm import TIMM, USUAL, peer_of
from refopt.oracle.subjects.torch_peers import TORCH
from refopt.state.peers import NONE

SHARING = "load_state_dict of torch.optim.Optimizer, which it inherits, shares tensors: pytorch/pytorch#196083"


class TorchOptimizer:
    """A class derived from ``torch.optim.Optimizer``, or a function of parameters that returns one.

    Attributes:
        kind: the class.
        excused: why it may fail a law through PyTorch's fault, by id.
        accepts: the possible options: defaults by name.
        values: the numbers of its group, by its own names.
    """

    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")
    in_place, recompiled = True, False
    peers = *TORCH.values(), *TIMM.values(), *USUAL.values()

    def __init__(
        self, make: Callable[..., Any], options: Mapping[str, Any], device: str = "cpu", name: str = "",
        accepts: Any = None,
    ) -> None:
        self.make, self.options, self.arrays = make, dict(options), Torch(device)
        self.torch = self.arrays.torch
        self.name, self.accepts = name, names_of(make) if accepts is None else accepts
        self.notes: list[str] = []
        self.group: Mapping[str, Any] = self.options
        with refusing(self.name):  # with a matrix, which more optimizers take than a vector
            first = self.built([self.parameter(self.ones(np.float32))])
        self.kind = type(first)
        of_base = self.torch.optim.Optimizer.load_state_dict
        self.excused = {"L28": SHARING} if self.kind.load_state_dict is of_base else {}
        self.group = {name: x for name, x in first.param_groups[0].items() if name != "params"}
        self.values: dict[str, Any] = {**self.options, **self.group}
        if isinstance(self.values.get("betas"), tuple | list) and len(self.values["betas"]) == 2:
            self.values["beta1"], self.values["beta2"] = self.values.pop("betas")
        closure = inspect.signature(first.step).parameters.get("closure")
        self.takes_closure = closure is not None
        self.needs_closure = closure is not None and closure.default is closure.empty
        self.named = "found_inf" in inspect.signature(first.step).parameters
        self.scales = bool(getattr(first, "_step_supports_amp_scaling", False))
        told = self.scales or _reads(self.kind, "found_inf")
        self.gated = bool(self.named or (self.group.get("fused", True) and (told or self._looks(first))))

    def ones(self, dtype: Any) -> np.ndarray:
        """A parameter, or its gradient, to examine the optimizer with."""
        return np.ones((4, 4), dtype)

    def parameter(self, x: Any) -> Any:
        """A parameter; a plain tensor for a differentiable step, which cannot write a leaf that requires grad."""
        tensor = self.arrays.of(x) if isinstance(x, np.ndarray) else x
        return tensor if self.group.get("differentiable") else self.torch.nn.Parameter(tensor)

    def _looks(self, optimizer: Any) -> bool:
        """Whether a step on one matrix reads the optimizer's ``found_inf``, in any function."""
        kind, seen = type(optimizer), set()

        class Watched(kind):  # type: ignore[misc, valid-type]
            def __getattribute__(self, name: str) -> Any:
                seen.add(name)
                return super().__getattribute__(name)

        try:
            for p in optimizer.param_groups[0]["params"]:
                p.grad = self.torch.ones_like(p)
            optimizer.__class__ = Watched
            optimizer.step()
        except Exception:  # a case will show what it raises
            pass
        finally:
            optimizer.__class__ = kind
        return "found_inf" in seen

    def called(self, routine: str) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """Its names for the numbers of a routine, and those that it fixes."""
        peer = peer_of(routine, self.kind, self.options)[0]
        return peer.numbers, peer.choices if (routine, self.kind.__name__) in TIMM else {}

    def built(self, params: list[Any], numbers: Mapping[str, Any] = NONE) -> Any:
        """An optimizer of parameters or groups, with numbers that its options leave open."""
        named = {name: x for name, x in numbers.items() if name in self.accepts} | self.options
        try:
            optimizer = self.make(params, **named)
        except ValueError as error:  # numbers, shapes, dtypes or groups that it does not take
            raise NotImplementedError(str(error)) from error
        if not isinstance(optimizer, self.torch.optim.Optimizer):
            raise Wrong(f"expected an optimizer of PyTorch, got {kind_of(optimizer)}")
        return optimizer

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> "TorchRun":
        return TorchRun(self, params, saved, apart)


class TorchRun(LibraryRun):
    """A run of a PyTorch optimizer. A checkpoint is its ``state_dict``, saved and loaded by ``torch``."""

    def __init__(
        self, of: TorchOptimizer, params: Sequence[Any], saved: Any = None, apart: bool = False, *told: Any
    ) -> None:
        """``told`` are further arguments of `TorchOptimizer.built`."""
        if not params:
            raise Lacks("an empty list of parameters")
        super().__init__(of, params)
        self.torch = of.torch
        self._params = [of.parameter(x) for x in self._params]
        try:
            self.optimizer = of.built([{"params": [p]} for p in self._params] if apart else list(self._params), *told)
        except (TypeError, NotImplementedError) as error:
            if apart and not isinstance(of.make, type):  # a function may make groups itself
                raise Lacks("takes no groups") from error
            raise
        if callable(train := getattr(self.optimizer, "train", None)):
            train()  # some, such as schedule-free ones, need this before a step
        if saved is not None:
            of_file = isinstance(saved, bytes)
            loaded = self.torch.load(io.BytesIO(saved), weights_only=False) if of_file else saved
            self.optimizer.load_state_dict(loaded)

    def add(self, params: Sequence[Placed]) -> None:
        wholes, parts = self._lists(params)
        added = [self.of.parameter(part) for part in parts]
        self.optimizer.add_param_group({"params": added})
        self._params += added
        self._wholes += wholes
        self._grads = []

    def step(
        self, grads: Sequence[Any], found_inf: float | None = None, refill: bool = False, scale: float | None = None
    ) -> None:
        """``scale`` divides gradients, for optimizers that do this themselves."""
        if refill and self._grads:
            self.optimizer.zero_grad(set_to_none=False)
            for p, g in zip(self._params, grads, strict=True):
                if g is not None:
                    p.grad.copy_(self.of.arrays.of(g.view().copy()))
        else:
            for p, g in zip(self._params, self._given(grads), strict=True):
                p.grad = g
        gate = {} if found_inf is None else {"found_inf": found_inf}
        if (gate and not self.of.named) or scale is not None:
            gate["grad_scale"] = 1.0 if scale is None else scale
        named = {
            name: self.torch.full((), x, dtype=self.torch.float32, device=self.of.arrays.device)
            for name, x in gate.items()
        }
        told = {} if self.of.named else named
        for name, x in told.items():
            setattr(self.optimizer, name, x)
        named = named if self.of.named else {}
        if self.of.needs_closure:
            named["closure"] = lambda: self.torch.zeros(())  # the gradients are set already
        try:
            self.optimizer.step(**named)
        finally:
            for name in told:
                delattr(self.optimizer, name)

    def closed(self, grads: Sequence[Any]) -> None:
        """A step whose closure computes the gradients."""
        if not self.of.takes_closure:
            raise Lacks("takes no closure")
        parts, loss = self._given(grads), self.torch.full((), 1.5)

        def closure() -> Any:
            if not self.torch.is_grad_enabled():
                raise Wrong("step: expected to call the closure with gradients enabled, got them disabled")
            for p, g in zip(self._params, parts, strict=True):
                p.grad = g
            return loss

        if (got := self.optimizer.step(closure)) is not None and float(got) != float(loss):
            raise Wrong(f"step: expected the loss that the closure returns, {float(loss)}, got {got!r}")

    def states(self) -> list[dict[str, np.ndarray]]:
        return [self._entry(self.optimizer.state.get(p, {})) for p in self._params]

    def _entry(self, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
        seen = {}
        for name, x in entry.items():
            if isinstance(x, bool | int | float):
                seen[str(name)] = np.asarray(x)
            elif isinstance(x, self.torch.Tensor) and hasattr(x, "__tensor_flatten__"):  # codes and their scales
                parts = {f"{name}.{part}": getattr(x, part) for part in x.__tensor_flatten__()[0]}
                seen |= self._entry(parts)
            elif isinstance(x, self.torch.Tensor):
                try:
                    seen[str(name)] = self._copy(x)
                except (TypeError, RuntimeError):  # a dtype that NumPy lacks
                    if type(x) is self.torch.Tensor and not x.is_sparse:
                        seen[str(name)] = self._copy(x.detach().contiguous().view(self.torch.uint8))
        return seen

    def slow(self, group: int | None = None) -> None:
        groups = self.optimizer.param_groups
        for one in groups if group is None else [groups[group]]:
            if "lr" not in one:
                raise Lacks("has no lr in its groups")
            one["lr"] = one["lr"] / 2

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def save(self) -> bytes:
        file = io.BytesIO()
        self.torch.save(self.state_dict(), file)
        return file.getvalue()


def _reads(kind: type, name: str) -> bool:
    """Whether any method of a class or its bases reads an attribute of the name."""
    for base in kind.__mro__:
        if base.__module__ in ("builtins", "torch.optim.optimizer"):
            continue
        for method in vars(base).values():
            code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
            if code is not None and (name in code.co_names or name in code.co_consts):
                return True
    return False


def unpacked(torch: Any, subject: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The function or class that makes an optimizer, its options, and the numbers of an instance."""
    if isinstance(subject, partial) and isinstance(subject.func, type) and not subject.args:
        subject, options = subject.func, {**subject.keywords, **options}
    if not isinstance(subject, torch.optim.Optimizer):
        return subject, dict(options), {}
    group = {name: x for name, x in subject.param_groups[0].items() if name != "params"}
    return type(subject), dict(options), {**subject.defaults, **group}


def of_torch(torch: Any, subject: Any, options: Mapping[str, Any], device: str) -> TorchOptimizer | None:
    """The optimizer of a class, an instance, a partial or a function of parameters; ``None`` for anything else."""
    make, options, own = unpacked(torch, subject, options)
    if isinstance(make, type) and not issubclass(make, torch.optim.Optimizer):
        return None
    if not isinstance(make, FunctionType | partial | type):
        return None
    try:
        known = names_of(make)
    except (TypeError, ValueError):
        return None
    options = {name: x for name, x in own.items() if name in known} | options
    name = public_name(make, options | ({"device": device} if device != "cpu" else {}))
    rate = {"lr": float(NUMBERS["lr"])} if "lr" in known else {}  # by which 0 is divided as in Python
    params = [torch.nn.Parameter(torch.ones(2, 2))]
    made = isinstance(make, type) or makes(torch.optim.Optimizer, make, [params], rate, options)
    return TorchOptimizer(make, rate | options, device, name) if made else None
