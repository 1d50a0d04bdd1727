"""Replaces `numba.cuda` by the executor, for code that imports it."""

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
    """Make ``from numba import cuda`` and the like import the executor: from now on, or for a with block.

    Modules imported meanwhile keep the executor, even after the block; modules that imported Numba's `cuda` before keep
    that (`simt.run` runs their kernels). The `cuda` of `numba_cuda` and of `numba_cuda_mlir` is replaced too. The rest
    of Numba, including `njit`, is unchanged. If Numba is not installed, a stub provides its types, and an `njit` that
    does nothing.

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
        """Make the names import the executor, with this finder at a position in `sys.meta_path`."""
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
        """Make the names import Numba's modules again; a second call does nothing."""
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
        """Find Numba itself, with the executor as its `cuda`, or the stub; missing submodules raise an error."""
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
    """Make the names import Numba's modules for a with block, if they import the executor's."""
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
    """Remove the replaced modules, Numba's or the executor's, from `sys.modules`, and return them."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if _is_replaced(name)}


class _Stub(importlib.abc.Loader):
    """Loads the stub of Numba and its submodules."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        sys.modules.update(stub())
        return stub()["numba"]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


class _WithCuda(importlib.abc.Loader):
    """Loads the installed Numba, then sets its `cuda` to the executor."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self.loader.exec_module(module)
        vars(module)["cuda"] = cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)
