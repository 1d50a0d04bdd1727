"""The optimizers of the libraries that are installed, each in all the ways that it can be run."""

import contextlib
import importlib
import importlib.util
import inspect
import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from benchmarks.findings.imports import optimizers_of_timm
from benchmarks.oracle import CAPTURABLE

HALF = "float16", "bfloat16"
# By class of torch.optim, the routines that it is; those of others are identified.
ROUTINES = {
    "SGD": ("sgd", "momentum"), "Adam": ("adam",), "AdamW": ("adamw",), "Adagrad": ("adagrad",),
    "RMSprop": ("rmsprop",), "Adadelta": ("adadelta",), "Adamax": ("adamax",), "NAdam": ("nadam",),
    "RAdam": ("radam",),
}
# Modules whose public classes are optimizers, by the distribution's name.
MODULES = {
    "bitsandbytes": "bitsandbytes.optim", "pytorch-optimizer": "pytorch_optimizer", "torch-optimi": "optimi",
    "schedulefree": "schedulefree", "lion-pytorch": "lion_pytorch", "prodigyopt": "prodigyopt",
    "came-pytorch": "came_pytorch", "dadaptation": "dadaptation", "madgrad": "madgrad", "muon-optimizer": "muon",
    "torch-optimizer": "torch_optimizer", "pytorch-ranger": "pytorch_ranger", "torchao": "torchao.optim",
    "transformers": "transformers.optimization",
}
# Arguments without which a class cannot be made, or is another optimizer than by its name; by patterns.
NEEDED: dict[str, dict[str, Any]] = {
    "bitsandbytes.optim.SGD*": {"momentum": 0.9},
    "bitsandbytes.optim.LARS*": {"momentum": 0.9},
    "bitsandbytes.optim.*8bit": {"min_8bit_size": 16},  # smaller tensors have states of fp32
    "torchao.optim.Adam*": {"block_size": 16},  # of which the number of elements has to be a multiple, for fewer bits
    "transformers.optimization.Adafactor": {"relative_step": False},  # which refuses a learning rate
    "torch_optimizer.Adafactor": {"relative_step": False},
}
# Which are given groups alone, each of which says whether Muon is used, or Adam.
OF_GROUPS = (
    "muon.SingleDeviceMuonWithAuxAdam",
    *(f"pytorch_optimizer.{name}" for name in ("AdaGO", "AdaMuon", "Muon", "MuonClip", "NorMuon")),
)
# What identification has to be told.
NUMBERS = {f"bitsandbytes.optim.RMSprop{bits}": {"rho": "beta1"} for bits in ("", "32bit", "8bit")}


class Subject(NamedTuple):
    """An optimizer: its distribution, where it is, its options, and which routines it is expected to be.

    ``dtypes`` are those in which it is held to a formula; ``None`` for those of a plain check.
    """

    library: str
    module: str
    name: str
    options: Mapping[str, Any]
    routines: tuple[str, ...] = ()
    dtypes: tuple[str, ...] | None = None
    device: str = "cpu"

    def __str__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{self.module}.{self.name}{options}" + (f" on {self.device}" if self.device != "cpu" else "")

    def load(self) -> Any:
        """The class, or the function that makes it."""
        if self.library == "timm":
            return optimizers_of_timm()[self.name]
        made = getattr(importlib.import_module(self.module), self.name)
        return of_groups(made) if "use_muon" in self.options else made


def of_groups(kind: type) -> Any:
    """A function of parameters, or of groups of them, that makes an optimizer of groups with ``use_muon``."""

    def made(params: list[Any], use_muon: bool = True, **options: Any) -> Any:
        groups = params if params and isinstance(params[0], dict) else [{"params": params}]
        return kind([{**group, "use_muon": use_muon} for group in groups], **options)

    own = inspect.signature(kind)
    parameters = [*own.parameters.values()]
    use_muon = inspect.Parameter("use_muon", inspect.Parameter.KEYWORD_ONLY, default=True)
    last = parameters.pop() if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else None
    made.__signature__ = own.replace(parameters=[*parameters, use_muon, *filter(None, [last])])  # type: ignore[attr-defined]
    made.__module__, made.__qualname__ = kind.__module__, kind.__qualname__
    return made


def subjects(device: str = "cpu") -> Iterator[Subject]:
    """Every optimizer that can be found."""
    if _installed("torch"):
        yield from _of_torch(device)
        for library, module in MODULES.items():
            if _installed(module.partition(".")[0]):
                yield from _of_classes(library, module, device)
        if _installed("timm"):
            for name, kind in optimizers_of_timm().items():
                yield Subject("timm", kind.__module__, name, {}, device=device)
    if _installed("optax") and device == "cpu":
        yield from _of_optax()
    if _installed("keras") and device == "cpu":
        yield from _of_keras()


def _of_torch(device: str) -> Iterator[Subject]:
    for name, kind in _classes("torch.optim").items():
        takes = inspect.signature(kind).parameters
        ways: list[tuple[dict[str, Any], tuple[str, ...] | None]] = [({}, None)]
        if "foreach" in takes:
            ways = [({"foreach": False}, None), ({"foreach": True}, None)]
        if "fused" in takes:
            ways.append(({"fused": True}, ("float32", "float64", *HALF)))
        if name in CAPTURABLE and device != "cpu":
            ways.append(({"capturable": True}, None))
        for options, dtypes in ways:
            yield Subject("torch", "torch.optim", name, options, ROUTINES.get(name, ()), dtypes, device)


def _of_classes(library: str, module: str, device: str) -> Iterator[Subject]:
    for name, kind in _classes(module).items():
        if not kind.__module__.startswith(module):  # many offer PyTorch's beside theirs
            continue
        needed = [of for pattern, of in NEEDED.items() if fnmatchcase(f"{module}.{name}", pattern)]
        options = {key: x for of in needed for key, x in of.items()}
        ways: tuple[dict[str, Any], ...] = ({},)
        if f"{module}.{name}" in OF_GROUPS:
            ways = {"use_muon": True}, {"use_muon": False}
        for way in ways:
            yield Subject(library, module, name, options | way, device=device)


def _of_optax() -> Iterator[Subject]:
    for module in ("optax", "optax.contrib"):
        for name in _public(module):
            made = getattr(importlib.import_module(module), name)
            if name.startswith("scale_by"):  # a part of one
                continue
            if inspect.isfunction(made) and "learning_rate" in inspect.signature(made).parameters:
                yield Subject("optax", module, name, {})


def _of_keras() -> Iterator[Subject]:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = importlib.import_module("keras.optimizers")
    for name in _public("keras.optimizers"):
        kind = getattr(keras, name)
        if isinstance(kind, type) and issubclass(kind, keras.Optimizer) and kind is not keras.Optimizer:
            yield Subject("keras", "keras.optimizers", name, {})


def _classes(module: str) -> dict[str, type]:
    import torch

    found = {name: getattr(importlib.import_module(module), name) for name in _public(module)}
    base = torch.optim.Optimizer
    return {
        name: kind for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and not inspect.isabstract(kind)
    }


def _public(module: str) -> list[str]:
    return sorted(name for name in dir(importlib.import_module(module)) if not name.startswith("_"))


def _installed(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False
