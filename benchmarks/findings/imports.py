"""timm's optimizers without timm, which imports torchvision."""

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
from functools import cache


@cache
def optimizers_of_timm() -> dict[str, type]:
    """Its classes by name, the modules of which are imported with packages around them that only say where they are."""
    import torch

    spec = importlib.util.find_spec("timm")
    (folder,) = spec.submodule_search_locations  # type: ignore[union-attr, misc]
    around = {"timm": folder, "timm.optim": f"{folder}/optim"}
    for name, path in around.items():
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules.setdefault(name, package)
    found = {}
    for module in pkgutil.iter_modules([around["timm.optim"]]):
        if module.name.startswith("_"):
            continue
        try:
            loaded = importlib.import_module(f"timm.optim.{module.name}")
        except ModuleNotFoundError:  # it needs more of timm
            continue
        for name, kind in vars(loaded).items():
            is_optimizer = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
            if is_optimizer and kind.__module__ == loaded.__name__ and not inspect.isabstract(kind):
                found[name] = kind
    return dict(sorted(found.items()))
