"""Optimizers of PyTorch as what makes runs."""

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
from refopt.oracle.subjects.names import accepted, public_name
from refopt.oracle.subjects.run import LibraryRun
from refopt.oracle.subjects.timm import TIMM, USUAL, peer_of
from refopt.oracle.subjects.torch_peers import TORCH


class TorchOptimizer:
    """A class derived from ``torch.optim.Optimizer``, or a function of parameters that returns one.

    Attributes:
        kind: the class.
        accepts: what may be among the options: defaults by name.
        values: the numbers of its group, by its own names.
    """

    dtypes = "float32", "float64", "float16", "bfloat16"
    in_place, recompiled = True, False
    peers = *TORCH.values(), *TIMM.values(), *USUAL.values()

    def __init__(self, make: Callable[..., Any], options: Mapping[str, Any], device: str = "cpu") -> None:
        own = {"device": device} if device != "cpu" else {}
        self.make, self.options, self.arrays = make, dict(options), Torch(device)
        self.torch = self.arrays.torch
        self.name = public_name(make, {**options, **own})
        if "lr" in _names(make) and "lr" not in self.options:
            self.options["lr"] = float(NUMBERS["lr"])  # by which 0 is divided as in Python
        self.notes: list[str] = []
        first = self._first()
        self.kind = type(first)
        self.accepts = _names(make)
        group = {**self.options, **{name: x for name, x in first.param_groups[0].items() if name != "params"}}
        if isinstance(group.get("betas"), tuple | list) and len(group["betas"]) == 2:
            group["beta1"], group["beta2"] = group.pop("betas")
        self.values = group
        closure = inspect.signature(first.step).parameters.get("closure")
        self.needs_closure = closure is not None and closure.default is closure.empty
        self.named = "found_inf" in inspect.signature(first.step).parameters
        fused = first.param_groups[0].get("fused", True)
        told = getattr(first, "_step_supports_amp_scaling", False) or _reads(self.kind, "found_inf")
        self.gated = bool(self.named or (fused and (told or self._looks(first))))

    def _first(self) -> Any:
        """An optimizer of a matrix, which more of them take than a vector."""
        try:
            return self.built([self.torch.nn.Parameter(self.torch.ones(2, 2))])
        except Exception as error:  # whatever somebody's function raises
            what = str(error) if isinstance(error, Wrong) else f"{kind_of(error)}: {error}"
            raise TypeError(f"check: {self.name}: expected an optimizer, got {what}") from error

    def _looks(self, optimizer: Any) -> bool:
        """Whether a step looks for ``found_inf`` of an optimizer of one matrix, by whatever functions."""
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
        except Exception:  # whatever it raises, a case will show
            pass
        finally:
            optimizer.__class__ = kind
        return "found_inf" in seen

    def called(self, routine: str) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """What it calls the numbers of a routine, and which it has for itself."""
        peer = peer_of(routine, self.kind, self.options)[0]
        return peer.numbers, peer.choices if (routine, self.kind.__name__) in TIMM else {}

    def built(self, params: list[Any]) -> Any:
        """An optimizer of parameters, or of groups of them."""
        optimizer = self.make(params, **self.options)
        if not isinstance(optimizer, self.torch.optim.Optimizer):
            raise Wrong(f"expected an optimizer of PyTorch, got {kind_of(optimizer)}")
        return optimizer

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> "TorchRun":
        if not params:
            raise Lacks("an empty list of parameters")
        return TorchRun(self, params, saved, apart)


class TorchRun(LibraryRun):
    """A run of an optimizer of PyTorch. A checkpoint is its ``state_dict``, saved and loaded by ``torch``."""

    def __init__(self, of: TorchOptimizer, params: Sequence[Placed], saved: bytes | None, apart: bool) -> None:
        super().__init__(of, params)
        self.torch = of.torch
        self._params = [self.torch.nn.Parameter(x) for x in self._params]
        try:
            self.optimizer = of.built([{"params": [p]} for p in self._params] if apart else list(self._params))
        except (TypeError, ValueError) as error:  # shapes, dtypes or groups that it does not take
            if apart and not isinstance(of.make, type):  # but a function that makes groups itself
                raise Lacks("takes no groups") from error
            if isinstance(error, TypeError):
                raise
            raise NotImplementedError(str(error)) from error
        if callable(train := getattr(self.optimizer, "train", None)):
            train()  # which some want before a step, such as those without a schedule
        if saved is not None:
            self.optimizer.load_state_dict(self.torch.load(io.BytesIO(saved), weights_only=False))

    def add(self, params: Sequence[Placed]) -> None:
        wholes, parts = self._lists(params)
        added = [self.torch.nn.Parameter(part) for part in parts]
        self.optimizer.add_param_group({"params": added})
        self._params += added
        self._wholes += wholes
        self._grads = []

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None, refill: bool = False) -> None:
        if refill and self._grads:
            self.optimizer.zero_grad(set_to_none=False)
            for p, g in zip(self._params, grads, strict=True):
                if g is not None:
                    p.grad.copy_(self.of.arrays.of(g.view().copy()))
        else:
            for p, g in zip(self._params, self._given(grads), strict=True):
                p.grad = g
        named = {}
        if found_inf is not None:
            flag = self.torch.full((), found_inf, dtype=self.torch.float32, device=self.of.arrays.device)
            if self.of.named:
                named["found_inf"] = flag
            else:
                self.optimizer.found_inf = flag
                self.optimizer.grad_scale = self.torch.ones_like(flag)
        try:
            if self.of.needs_closure:
                named["closure"] = lambda: self.torch.zeros(())  # the gradients are there
            self.optimizer.step(**named)
        finally:
            if found_inf is not None and not self.of.named:
                del self.optimizer.found_inf, self.optimizer.grad_scale

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
                except (TypeError, RuntimeError):  # a dtype that NumPy has not
                    if type(x) is self.torch.Tensor and not x.is_sparse:
                        seen[str(name)] = self._copy(x.detach().contiguous().view(self.torch.uint8))
        return seen

    def slow(self, group: int | None = None) -> None:
        groups = self.optimizer.param_groups
        for one in groups if group is None else [groups[group]]:
            if "lr" not in one:
                raise Lacks("has no lr in its groups")
            one["lr"] = one["lr"] / 2

    def save(self) -> bytes:
        file = io.BytesIO()
        self.torch.save(self.optimizer.state_dict(), file)
        return file.getvalue()


def _names(make: Callable[..., Any]) -> dict[str, Any]:
    """What a class, or a function, takes by name beside parameters: defaults."""
    if isinstance(make, type):
        return accepted(make)
    return {name: x.default for name, x in list(inspect.signature(make).parameters.items())[1:]}


def _reads(kind: type, name: str) -> bool:
    """Whether any method of a class, or of those that it is derived from, reads an attribute of the name."""
    for base in kind.__mro__:
        if base.__module__ in ("builtins", "torch.optim.optimizer"):
            continue
        for method in vars(base).values():
            code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
            if code is not None and (name in code.co_names or name in code.co_consts):
                return True
    return False


def of_torch(torch: Any, subject: Any, options: Mapping[str, Any], device: str) -> TorchOptimizer | None:
    """The optimizer that a class, an instance, a partial or a function of parameters is; ``None`` for anything else."""
    base = torch.optim.Optimizer
    if isinstance(subject, partial) and isinstance(subject.func, type) and not subject.args:
        subject, options = subject.func, {**subject.keywords, **options}
    if isinstance(subject, base):
        group = {**subject.defaults, **{name: x for name, x in subject.param_groups[0].items() if name != "params"}}
        subject, known = type(subject), group
        options = {name: x for name, x in known.items() if name in accepted(subject)} | dict(options)
    if isinstance(subject, type):
        return TorchOptimizer(subject, options, device) if issubclass(subject, base) else None
    if not isinstance(subject, FunctionType | partial) or not _makes(torch, subject, options):
        return None
    return TorchOptimizer(subject, options, device)


def _makes(torch: Any, function: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Whether a function of parameters alone returns an optimizer."""
    try:
        lr = {"lr": float(NUMBERS["lr"])} if "lr" in _names(function) else {}
        options = {**lr, **options}
        inspect.signature(function).bind([], **options)
        made = function([torch.nn.Parameter(torch.ones(2, 2))], **options)
    except Exception:  # whatever somebody's function raises: it is a step, or its fault shows there
        return False
    return isinstance(made, torch.optim.Optimizer)
