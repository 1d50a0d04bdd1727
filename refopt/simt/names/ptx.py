"""Compiles kernels to PTX with numba-cuda, if it is installed, to report the compiler's own verdict; needs no GPU."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import linecache
import re
import textwrap
import traceback
import types
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .. import cuda
from ..base.copies import replaced
from ..base.errors import CompileError, Place
from ..base.numba_types import Type
from ..kernels.kernel import Kernel
from ..machine import atomics
from ..machine.barriers import cg
from ..machine.half import fp16
from ..memory.arrays import DeviceArray
from ..memory.observed import ObservedArray
from ..memory.shared import const, local, shared
from .replace import unreplaced

_CAPABILITY = 9, 0
_NAMESPACES = {"atomic": atomics, "shared": shared, "local": local, "const": const, "cg": cg, "fp16": fp16}
_done: WeakKeyDictionary[Kernel, set[tuple]] = WeakKeyDictionary()  # the types that each was compiled for
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class _NotCompiled(Exception):
    """A kernel cannot be passed to the compiler; the message says why."""


def compiled(kernel: Kernel, args: tuple) -> str:
    """The outcome of compiling a kernel for arguments: "compiled to PTX", or "not compiled" and why.

    Raises:
        CompileError: Numba refuses it, with Numba's reason and the line.
    """
    with unreplaced():
        if reason := _missing():
            return f"not compiled: {reason}"
        try:
            signature = tuple(map(_type_of, args))
            done = _done.setdefault(kernel, set())
            if signature not in done:
                _compile(kernel, signature)
                done.add(signature)
            return "compiled to PTX"
        except _NotCompiled as reason:
            return f"not compiled: {reason}"


def _compile(kernel: Kernel, signature: tuple) -> None:
    dispatcher: Any = importlib.import_module("numba.cuda.dispatcher")
    from numba.cuda.cudadrv.error import CudaSupportError, NvvmSupportError

    ask = dispatcher.get_current_device
    # Device functions ask for the device only to get its compute capability.
    dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=_CAPABILITY)
    try:
        if kernel.ptx is not None:
            kernel.ptx(signature)
        else:
            forms = _Forms()
            function = replaced(kernel.py_func, forms.done, forms.value)
            _cuda().compile(function, signature, device=False, abi="numba", cc=_CAPABILITY, output="ptx")
    except (_NotCompiled, CudaSupportError, NvvmSupportError, OSError) as error:
        raise _NotCompiled(textwrap.shorten(str(error), 200)) from None
    except Exception as error:  # the compiler fails in many ways, with KeyErrors and assertions among them
        raise _refusal(kernel, error) from None
    finally:
        dispatcher.get_current_device = ask


@functools.cache
def _missing() -> str:
    """Why no compiler is available; empty if one is."""
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed"
    try:
        if not hasattr(_cuda(), "compile"):
            return "numba.cuda is the simulator, or too old"
        _cuda().compile(lambda: None, (), device=False, abi="numba", cc=_CAPABILITY, output="ptx")
    except Exception as error:  # each version fails in its own way with a NumPy that it does not support
        return f"numba-cuda fails ({type(error).__name__}: {textwrap.shorten(str(error), 150)})"
    return ""


def _cuda() -> Any:
    importlib.import_module("numba_cuda")  # else numba.cuda may be the old one built into Numba
    return importlib.import_module("numba.cuda")


def _refusal(kernel: Kernel, error: Exception) -> CompileError:
    """The compiler's message, in one line, with the line of the kernel that it refers to."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in ")]
    reason = lines[0] if lines else ""
    if reason.endswith("for signature:") and len(lines) > 1:
        reason += lines[1].replace(">>>", "")
    if type(error).__module__.partition(".")[0] not in ("numba", "numba_cuda"):
        reason = f"{type(error).__name__}: {reason}"
    code = kernel.py_func.__code__
    files = {code.co_filename.rpartition("/")[2]: code.co_filename}
    line = code.co_firstlineno
    told = [(file, int(number)) for file, number in _LINE.findall(text)]
    held: list[Any] = [error]
    for frame, _ in traceback.walk_tb(error.__traceback__):  # not all errors name the statement being compiled
        held += [frame.f_locals.get(name) for name in ("constraint", "inst")]
    for loc in (getattr(each, "loc", None) for each in held):
        told += [(str(loc.filename), loc.line)] if loc is not None else []
    line = next((number for file, number in told if file.rpartition("/")[2] in files), line)
    place = Place(kernel.__name__, code.co_filename, line, None, None)
    return CompileError(textwrap.shorten(reason, 240), place, 0, linecache.getline(code.co_filename, line))


def _type_of(arg: Any) -> Any:
    """Numba's type of an argument."""
    import numba
    from numba.core import types as nb
    from numba.cuda.np import numpy_support

    if isinstance(arg, ObservedArray):
        arg = arg._data
    if isinstance(arg, tuple):
        return nb.BaseTuple.from_types([_type_of(part) for part in arg], type(arg))
    if isinstance(arg, np.ndarray | DeviceArray):
        data = arg.data if isinstance(arg, DeviceArray) else arg
        layout = "C" if data.flags.c_contiguous else "F" if data.flags.f_contiguous else "A"
        dtype = np.dtype((np.void, data.dtype)) if data.dtype.names else data.dtype
        array: Any = nb.Array
        return array(numpy_support.from_dtype(dtype), data.ndim, layout)
    try:
        return numba.typeof(arg)
    except ValueError as error:
        raise _NotCompiled(textwrap.shorten(str(error), 200)) from None


class _Forms:
    """Copies of functions in which Numba's names replace the executor's."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.cuda = _cuda()
        self.names = {id(vars(cuda)[name]): name for name in cuda.__all__ if name in vars(cuda)}

    def value(self, value: Any, names: set[str]) -> Any:
        """The value that the compiler sees for a value, in a function that uses these names."""
        if value is cuda:
            return self.cuda
        for name, namespace in _NAMESPACES.items():
            if value is namespace:
                return getattr(self.cuda, name)
        if isinstance(value, Type):
            return self._type(value)
        if isinstance(value, tuple):
            parts = [self.value(part, names) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, types.ModuleType | types.SimpleNamespace):
            return self._module(value, names)
        if isinstance(value, DeviceArray):
            return value.copy_to_host()
        if isinstance(value, Kernel):
            return self._device(value.py_func)
        if isinstance(value, types.FunctionType) and hasattr(value, "__simt_device__"):
            return self._device(value)
        if hasattr(value, "__simt_types__"):
            raise _NotCompiled(f"{value.__name__} emulates PTX that the executor does not know")
        if id(value) in self.names:
            return getattr(self.cuda, self.names[id(value)])
        name = getattr(value, "__name__", "")
        if isinstance(value, types.FunctionType) and vars(atomics).get(name) is value:
            return getattr(self.cuda.atomic, name)
        return value

    def _device(self, function: Any) -> Any:
        if id(function) not in self.done:
            replaced(function, self.done, self.value)
        new = self.done[id(function)]
        if isinstance(new, types.FunctionType):
            new = self.done[id(function)] = self.cuda.jit(new, device=True)
        return new

    def _type(self, value: Type) -> Any:
        from numba.core import types as nb

        return getattr(nb, "boolean" if value.name == "bool" else value.name, value)

    def _module(self, module: Any, names: set[str]) -> Any:
        name = getattr(module, "__name__", "")
        if name.startswith(("numba.", "numba_cuda")) and str(module.__doc__).startswith("Of refopt.simt"):
            return importlib.import_module(name)
        if name == "numba":
            return importlib.import_module("numba")
        held = vars(module)
        changed = {key: new for key in names & held.keys() if (new := self.value(held[key], names)) is not held[key]}
        if not changed and isinstance(module, types.ModuleType):
            return module
        copy = types.ModuleType(name or "namespace")
        vars(copy).update(held | changed)
        return copy
