"""Translates functions written for `numba.cuda`, so that the executor can run them.

In copies of the function and of the functions that it calls, the executor's objects replace Numba's in globals and
closures. The function itself is unchanged. Numba's objects are recognized by their modules: Numba is not imported.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from .. import cuda
from ..base.arguments import shown
from ..base.copies import content, names_in, replaced
from ..base.numba_types import TYPES, Scalar, is_numba_type
from ..base.places import unsupported
from ..kernels.kernel import Kernel
from .modules import CUDA, PACKAGES, replacements

_WITHOUT = {"numpy", *sys.stdlib_module_names}  # packages that do not refer to Numba and are not searched
_NAMESPACES = ("atomic", "shared", "local", "const", "cg", "fp16")


def run(kernel: Any) -> Kernel:
    """The executor's form of a kernel written for `numba.cuda`: ``simt.run(kernel)[grid, block](*args)``.

    Args:
        kernel: a function, a kernel decorated by `numba.cuda.jit`, or one of the executor, which is returned.

    Raises:
        TypeError: for anything else.
        Unsupported: when launched, for a name of `numba.cuda` that the executor lacks.
    """
    if isinstance(kernel, Kernel):
        return kernel
    function = python_function(kernel)
    if function is None:
        raise TypeError(f"run: kernel: expected a function or a kernel of numba.cuda, got {shown(kernel)}")
    return Kernel(function, tuple(args for _, args in _signatures(kernel)))


def _signatures(dispatcher: Any) -> tuple[tuple[Any, tuple], ...]:
    """The signatures for which Numba has compiled a function explicitly: return type and argument types of each."""
    if getattr(dispatcher, "_can_compile", True) is not False:
        return ()
    compiled = ((getattr(each, "signature", None), args) for args, each in dispatcher.overloads.items())
    return tuple((getattr(signature, "return_type", None), args) for signature, args in compiled)


def python_function(value: Any) -> types.FunctionType | None:
    """The Python function of a function, kernel or Numba dispatcher; None for anything else."""
    if isinstance(value, types.FunctionType):
        return value
    if isinstance(value, Kernel) or type(value).__module__.startswith("numba"):
        function = getattr(value, "py_func", None)
        if isinstance(function, types.FunctionType):
            return function
    return None


def translated(function: Any) -> Any:
    """A copy in which the executor's objects replace Numba's; the function itself if it uses none of them."""
    return _Translation().function(function)


Kernel.translated = staticmethod(translated)


class Missing:
    """A placeholder for an object of Numba that the executor lacks: any use raises `Unsupported`."""

    def __init__(self, name: str) -> None:
        self._simt_name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise unsupported(f"{self._simt_name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise unsupported(self._simt_name)

    __getitem__ = __call__


class _Translation:
    """The translation of a function and all that it refers to; each object is translated once, even if recursive."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.names = _numba_names()

    def function(self, function: types.FunctionType) -> types.FunctionType:
        if id(function) in self.done:
            return self.done[id(function)]
        if not self._refers(function, set()):
            return function
        return replaced(function, self.done, self.value)

    def value(self, value: Any, names: set[str]) -> Any:
        """The replacement of a value in a function that uses these names."""
        if isinstance(value, types.ModuleType):
            return self._module(value, names)
        if type(value) is tuple:
            return tuple(self.value(part, names) for part in value)
        if id(value) in self.names:
            return self._named(self.names[id(value)])
        if is_numba_type(value):
            known = TYPES.get("bool" if str(value) == "bool" else str(value))
            return known if isinstance(known, Scalar) else value
        if isinstance(value, Kernel):  # translated when it is called
            return value
        function = None if isinstance(value, types.FunctionType) and _is_of_cuda(value) else python_function(value)
        if function is None:
            return self._counterpart(value) if _is_of_cuda(value) else value
        new = self.function(function)
        if function is not value:  # Numba has compiled it, or would
            vars(new)["__simt_device__"] = True
        if signatures := _signatures(value):
            vars(new)["__simt_signatures__"] = signatures
        return value if new is function and value is function else new

    def _counterpart(self, value: Any) -> Any:
        """The executor's object with the name of a Numba object that no module exports under that name."""
        name = getattr(value, "__name__", "")
        return vars(cuda)[name] if name in cuda.__all__ else Missing(_called(value))

    def _named(self, name: str) -> Any:
        owner, _, member = name.rpartition(".")
        if name == "laneid":
            return Missing("laneid imported by name (write cuda.laneid)")
        try:
            return getattr(getattr(cuda, owner) if owner else cuda, member)
        except AttributeError:
            return Missing(f"cuda.{name}")

    def _module(self, module: types.ModuleType, names: set[str]) -> Any:
        name = module.__name__
        if module is cuda or name in CUDA:
            return cuda
        if name.startswith(PACKAGES):
            owner, _, member = name.rpartition(".")  # namespaces, which may be modules
            if owner in CUDA and member in _NAMESPACES:
                return vars(cuda)[member]
            return replacements().get(name) or _missing(name)
        if name.startswith("numba.") or not self._refers(module, set(), names):
            return module
        new = self.done.get(id(module))
        if new is None:
            new = self.done[id(module)] = types.ModuleType(name)
            new.__dict__.update(vars(module))
        for used in names & vars(module).keys():
            part = vars(module)[used]
            if vars(new)[used] is part and (name != "numba" or not isinstance(part, types.ModuleType)):
                setattr(new, used, self.value(part, names))
        if name == "numba":
            vars(new)["cuda"] = cuda
        return new

    def _refers(self, value: Any, seen: set[int], names: set[str] | None = None) -> bool:
        """Whether any Numba object can be reached from a value, by these names if it is a module."""
        if id(value) in seen:
            return False
        seen.add(id(value))
        if isinstance(value, types.ModuleType):
            if value is cuda or value.__name__.partition(".")[0] in _WITHOUT:
                return False
            if value.__name__ == "numba" or value.__name__.startswith((*PACKAGES, "numba.")):
                return True
            return any(self._refers(vars(value)[name], seen, names) for name in (names or set()) & vars(value).keys())
        if type(value) is tuple:
            return any(self._refers(part, seen, names) for part in value)
        if isinstance(value, types.FunctionType) and not _is_of_cuda(value):
            if str(value.__module__).partition(".")[0] in _WITHOUT - {"__main__"}:
                return False
            used = names_in(value.__code__)
            return any(self._refers(part, seen, used) for part in _parts(value, used))
        if isinstance(value, Kernel):
            return False
        return is_numba_type(value) or _is_of_cuda(value) or python_function(value) is not None


def _parts(function: types.FunctionType, used: set[str]) -> Iterator[Any]:
    """The globals and closure variables that a function uses."""
    for name in used & function.__globals__.keys():
        yield function.__globals__[name]
    for cell in function.__closure__ or ():
        if (held := content(cell)) is not cell:
            yield held


def _missing(name: str) -> types.ModuleType:
    module = types.ModuleType(name)

    def missing(attribute: str) -> Any:
        raise unsupported(f"{name}.{attribute}")

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module


def _numba_names() -> dict[int, str]:
    """The names of the objects in the loaded Numba `cuda` modules, by identity, since kernels refer to the objects."""
    names: dict[int, str] = {}
    for module_name in CUDA:
        module = sys.modules.get(module_name)
        if module is None or module is cuda:
            continue
        for name, value in vars(module).items():
            if _is_of_cuda(value):
                names[id(value)] = name
            if name in _NAMESPACES:
                names |= {id(part): f"{name}.{n}" for n, part in _members(value) if _is_of_cuda(part)}
    return names


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    for name in dir(value):
        if not name.startswith("_"):
            yield name, getattr(value, name, None)


def _called(value: Any) -> str:
    """The name of a Numba object."""
    home = getattr(value, "__module__", type(value).__module__)
    return f"{home}.{getattr(value, '__name__', type(value).__name__)}"


def _is_of_cuda(value: Any) -> bool:
    """Whether an object belongs to Numba's `cuda`, and is not a module, a Numba type or a constant."""
    if isinstance(value, types.ModuleType) or is_numba_type(value):
        return False
    home = getattr(value, "__module__", None) if isinstance(value, (type, types.FunctionType)) else None
    home = home or type(value).__module__
    return isinstance(home, str) and home.startswith(PACKAGES) and ".tests" not in home
