"""The executor in place of `numba.cuda`, for code that imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import cuda
from ..base.state import current
from .modules import PACKAGES, replacements, stub

_ABSENT = object()


class replace_numba(importlib.abc.MetaPathFinder):
    """Have ``from numba import cuda`` and the like mean the executor: from now on, or for a with block.

    What is imported meanwhile keeps the executor, whenever it runs; what has imported Numba's `cuda` before keeps that
    (`simt.run` runs its kernels). Also replaced are `numba_cuda`'s and `numba_cuda_mlir`'s `cuda`. The rest of Numba
    stays as it is, `njit` too. Where it is not installed, a stub has its types, and an `njit` that changes nothing.

        >>> from refopt import simt
        >>> with simt.replace_numba():
        ...     from numba import cuda
        >>> cuda is simt.cuda
        True
    """

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}
        self.attribute: Any = _ABSENT
        self._begin(0)

    def _begin(self, place: int) -> None:
        """Have the names mean the executor, for whoever imports them, as the finder of a place among others."""
        self.saved = _taken()
        sys.modules.update(replacements())
        cuda.__path__ = []
        sys.meta_path.insert(place, self)
        current.as_numba += 1
        numba = sys.modules.get("numba")
        if numba is not None:
            self.attribute = vars(numba).get("cuda", _ABSENT)
            vars(numba)["cuda"] = cuda

    def __enter__(self) -> replace_numba:
        return self

    def __exit__(self, *_: Any) -> None:
        self.undo()

    def undo(self) -> None:
        """Have the names mean Numba's modules again; nothing the second time."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        current.as_numba -= 1
        _taken()
        sys.modules.update(self.saved)
        numba = sys.modules.get("numba")
        if numba is not None and getattr(numba, "__version__", "") == "0+refopt.simt":
            for name in [name for name in sys.modules if name == "numba" or name.startswith("numba.")]:
                del sys.modules[name]
        elif numba is not None:
            if self.attribute is _ABSENT:
                vars(numba).pop("cuda", None)
            else:
                vars(numba)["cuda"] = self.attribute

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Numba itself, with the executor for its `cuda`, or the stub; what is not below it says so."""
        if _is_replaced(fullname):
            raise ModuleNotFoundError(f"the executor has no {fullname}", name=fullname)
        if fullname != "numba":
            return None
        spec = importlib.machinery.PathFinder.find_spec("numba")
        if spec is None or spec.loader is None:
            return importlib.util.spec_from_loader("numba", _Stub())
        spec.loader = _WithCuda(spec.loader)
        return spec


@contextmanager
def unreplaced() -> Iterator[None]:
    """Have the names mean Numba's modules for a with block, if they mean the executor's."""
    active = [(n, finder) for n, finder in enumerate(sys.meta_path) if isinstance(finder, replace_numba)]
    for _, finder in active:
        finder.undo()
    try:
        yield
    finally:
        for n, finder in reversed(active):
            finder._begin(min(n, len(sys.meta_path)))


def _is_replaced(name: str) -> bool:
    return name.startswith(tuple(f"{package}." for package in PACKAGES)) or name in PACKAGES


def _taken() -> dict[str, Any]:
    """The modules that are replaced, Numba's or the executor's, which are known no longer."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if _is_replaced(name)}


class _Stub(importlib.abc.Loader):
    """Loads the stub of Numba, and the modules below it."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        sys.modules.update(stub())
        return stub()["numba"]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


class _WithCuda(importlib.abc.Loader):
    """Loads the installed Numba, then gives it the executor."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self.loader.exec_module(module)
        vars(module)["cuda"] = cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)
