"""timm's optimizers without timm, which imports torchvision."""

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
from functools import cache


def packages_of_timm() -> dict[str, types.ModuleType]:
    """Packages by name that only say where timm's files are, to stand in `sys.modules` for its own."""
    spec = importlib.util.find_spec("timm")
    (folder,) = spec.submodule_search_locations  # type: ignore[union-attr, misc]
    found = {}
    for name, path in (("timm", folder), ("timm.optim", f"{folder}/optim")):
        found[name] = types.ModuleType(name)
        found[name].__path__ = [path]
    return found


@cache
def optimizers_of_timm() -> dict[str, type]:
    """Its classes by name, the modules of which are imported with such packages around them."""
    import torch

    for name, package in packages_of_timm().items():
        sys.modules.setdefault(name, package)
    found = {}
    for module in pkgutil.iter_modules(sys.modules["timm.optim"].__path__):
        if module.name.startswith("_"):
            continue
        try:
            loaded = importlib.import_module(f"timm.optim.{module.name}")
        except ImportError:  # it needs more of timm
            continue
        for name, kind in vars(loaded).items():
            is_optimizer = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
            if is_optimizer and kind.__module__ == loaded.__name__ and not inspect.isabstract(kind):
                found[name] = kind
    return dict(sorted(found.items()))
