"""Notes of the kernels that ran on a GPU, from which their PTX can be generated again elsewhere.

If ``REFOPT_KERNELS`` names a folder, every process writes a line there for each kernel that it compiles: the factory
that made it, the factory's arguments, and the types of the kernel's. Otherwise nothing is written; launches never are.
"""

import hashlib
import importlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from refopt.catalog import ROUTINES, Routine
from refopt.gpu.target import Compilable, cuda, held, is_device_function, spelled

Note = dict[str, Any]


def append(kernel: Compilable, signature: tuple, folder: str | Path) -> None:
    """Write the note of a kernel and the types of its arguments to this process's file of a folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / f"{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(note(kernel, signature)) + "\n")


def read(folder: str | Path) -> list[Note]:
    """The notes of all processes, each once, sorted."""
    lines = {line for path in Path(folder).glob("*.jsonl") for line in path.read_text().splitlines()}
    return [json.loads(line) for line in sorted(lines)]


def note(kernel: Compilable, signature: tuple) -> Note:
    """A note for `rebuilt`; a kernel inside a function that is not a factory has no ``made_by``, and cannot be rebuilt.

    The keys: module, name (the kernel's), ``made_by`` (the factory's name, or the kernel's), ``args`` (the factory's,
    or None for a kernel that no factory made), signature.
    """
    about: Note = {"module": kernel.function.__module__, "name": kernel.name}
    if kernel.origin:
        make, args = kernel.origin
        about |= {"module": make.__module__, "made_by": make.__name__, "args": list(map(_plain, args))}
    else:
        about |= {"made_by": None if "<locals>" in kernel.function.__qualname__ else kernel.name, "args": None}
    return about | {"signature": spelled(signature)}


def rebuilt(note: Note) -> tuple[Compilable, tuple]:
    """The kernel of a note as the present code makes it, and the types of its arguments.

    Raises:
        LookupError: the code no longer has such a kernel, or its factory takes other arguments.
    """
    try:
        kernel = getattr(importlib.import_module(note["module"]), note["made_by"] or "")
        if note["args"] is not None:
            kernel = kernel(*map(_value, note["args"]))
    except Exception as error:  # a factory that takes other arguments may raise anything
        raise LookupError(f"{note['module']}.{note['made_by']}: {type(error).__name__}: {error}") from error
    if not isinstance(kernel, Compilable):
        raise LookupError(f"{note['module']}.{note['made_by']}: expected a kernel, got {type(kernel).__name__}")
    return kernel, tuple(note["signature"])


def made_from(kernel: Compilable, signature: tuple, whole: bool = False) -> str:
    """A digest of everything that a kernel's PTX is made from, except the compiler and the version of Python.

    It covers the code and values of each function that the kernel calls, the PTX of each intrinsic, the kernel's launch
    bounds and whether it may be contracted, and the types of its arguments. Functions made twice from the same parts
    are equal.

    Values that refopt's kernels do not have are left out or covered only by name. With ``whole``, for any kernel, the
    digest also covers the contents of plain modules, and functions within functions.

    Raises:
        LookupError: with ``whole``, the kernel has a value whose content is unknown.
    """
    known: dict[Any, Any] = {}

    def named(value: Any, names: tuple[str, ...] = ()) -> Any:
        """A value in a form that is the same in every process; functions are replaced by what they are made from."""
        if isinstance(value, SimpleNamespace):
            return [(name, named(x)) for name, x in vars(value).items()]
        if isinstance(value, tuple | list):
            return [*map(named, value), *(value._fields if whole and hasattr(value, "_fields") else ())]
        if isinstance(value, np.ndarray):
            return repr(value.dtype) if whole else value.dtype.str, value.tolist()
        if value is None or isinstance(value, bool | int | float | str | np.generic):
            return type(value).__name__, value
        if is_device_function(value):
            return function_of(value)
        if whole and isinstance(value, ModuleType) and not hasattr(value, "__refopt_numba__") and value is not cuda:
            return module_of(value, names)
        if whole and (isinstance(value, np.dtype) or hasattr(value, "bitwidth")):  # Numba's types have a bitwidth
            return type(value).__name__, repr(value)
        of_python = isinstance(value, type) and value.__module__ in ("builtins", "numpy")
        if whole and not (of_python or isinstance(value, _BY_NAME)):
            raise LookupError(f"{kernel.name} holds a {type(value).__name__}")
        return getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__name__)

    def function_of(function: Any) -> Any:
        if id(function) not in known:
            known[id(function)] = function.__name__  # to itself
            known[id(function)] = _digest(_of_function(function, named, whole))
        return known[id(function)]

    def module_of(module: ModuleType, names: tuple[str, ...]) -> Any:
        """The values in a module of the names that a function uses."""
        key = id(module), names
        if key not in known:
            known[key] = module.__name__
            inside = vars(module)
            known[key] = [module.__name__, *((x, named(inside[x], names)) for x in names if x in inside)]
        return known[key]

    about = kernel.name, kernel.launch_bounds, kernel.contract, spelled(signature)
    return _digest((*about, *_of_function(kernel.function, named, whole)))


# Values that a compiler knows by name; it does not compile Python functions that are not device functions.
_BY_NAME = FunctionType, BuiltinFunctionType, ModuleType, np.ufunc


def _of_function(function: Any, named: Callable[..., Any], whole: bool) -> tuple:
    """A function's code and values, or the PTX of an intrinsic."""
    if hasattr(function, "asm"):
        return function.__name__, function.asm, function.since, function.before
    code = function.__code__
    constants = [x for x in code.co_consts if not hasattr(x, "co_code")]
    parts = code.co_code, code.co_names, constants, function.__defaults__
    if not whole:
        return *parts, list(map(named, held(function)))
    codes = [code]
    for each in codes:
        codes += [x for x in each.co_consts if hasattr(x, "co_code")]
    names = tuple(dict.fromkeys(name for each in codes for name in each.co_names))
    within = [(each.co_code, each.co_names, [x for x in each.co_consts if x not in codes]) for each in codes[1:]]
    scope = [function.__globals__.get(name) for name in names]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return *parts, within, [named(value, names) for value in (*(function.__defaults__ or ()), *scope, *cells)]


def _digest(parts: tuple) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def digest(ptx: str) -> str:
    """The digest of a PTX text, independent of the compiler's version, of paths, and of earlier compilations.

    It leaves out comments, positions in files, the version, and the handles of Numba's environments, which no kernel
    reads; mangled names and those of shared arrays, which count compilations, are numbered in order of use.
    """
    ptx = re.sub(r"//[^\n]*|/\*.*?\*/", "", ptx, flags=re.DOTALL)
    ptx = re.sub(r"(?m)^\s*\.(version|file|loc)\s[^\n]*$|^\s*\.common [^\n]*NumbaEnv[^\n]*$", "", ptx)
    names: dict[str, str] = {}
    ptx = re.sub(r"\b_Z\w+", lambda name: names.setdefault(name[0], f"name{len(names)}"), ptx)
    shared = re.findall(r"_cudapy_smem_\d+", ptx[ptx.find("{") :] + ptx)
    for k, name in enumerate(dict.fromkeys(shared)):
        ptx = re.sub(rf"\b{name}\b", f"shared{k}", ptx)
    every = [" ".join(line.split()) for line in ptx.splitlines() if line.strip()]
    lines = sorted(x for x in every if " .shared " in x) + [x for x in every if " .shared " not in x]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """An argument of a factory in JSON's types."""
    if isinstance(value, Routine):
        return {"routine": value.name}
    if isinstance(value, type) and issubclass(value, np.generic):
        return {"dtype": np.dtype(value).name}
    if type(value) is tuple:
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"other": type(value).__name__}  # from which the kernel cannot be rebuilt


def _value(plain: Any) -> Any:
    """The argument from JSON's types."""
    if isinstance(plain, list):
        return tuple(_value(entry) for entry in plain)
    if not isinstance(plain, dict):
        return plain
    return ROUTINES[plain["routine"]] if "routine" in plain else np.dtype(plain["dtype"]).type
