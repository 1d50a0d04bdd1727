"""The means to write kernels, and their translation to the compiled form.

Kernels are written once, in plain Numba spelling, with ``cuda`` of this module, which is the executor's.
A `Compilable` has both forms: the function as written, which `refopt.simt` runs, and a copy of it with
``cuda`` and the device functions replaced by the compiler's (`refopt.gpu.compiler`), which the GPU runs.

Instructions that only newer GPUs have are inline PTX, with an alternative for older GPUs (`intrinsic`).
"""

import dis
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from refopt import simt
from refopt.checks.arguments import shown
from refopt.checks.dtypes import name_of
from refopt.gpu.compiler import Wanted
from refopt.gpu.compiling import INSTALL, compiler, compiling, in_hand, no_compiler
from refopt.gpu.machine import OLDEST, Properties, dotted, require
from refopt.simt import cuda

__all__ = ["INSTALL", "Compilable", "cuda", "device_function", "intrinsic", "no_compiler"]

MEASURED = 9, 0  # the compute capability for which launch bounds were chosen, on an H200
_since: set[tuple[int, int]] = set()  # the capabilities that introduced instructions of intrinsics
TYPES = {"f": "float32", "d": "float64", "r": "uint32", "l": "int64"}  # the types of registers, by LLVM's letters


class Compilable:
    """A kernel in both forms. ``executor`` is launched as ``executor[grid, block](*args)``.

    Attributes:
        function, launch_bounds, name: the function and bounds that it was made of, and the function's name.
        contract: whether ``a * b + c`` may become one operation on a GPU, as it does in plain Numba.
        dynamic_shared: bytes of shared memory that a launch gives it in addition to what it declares.
        origin: the factory that made it, if any, and the factory's arguments.
    """

    def __init__(
        self, function: Callable, launch_bounds: tuple[int, int] | None = None, contract: bool = False,
        dynamic_shared: int = 0,
    ) -> None:
        self.function, self.launch_bounds, self.contract = function, launch_bounds, contract
        self.dynamic_shared = dynamic_shared
        self.name = function.__name__
        self.origin: tuple[Callable, tuple] | None = None
        self.executor = simt.cuda.jit(function)
        self.executor.ptx = self.ptx

    def require(self, machine: Properties) -> None:
        """Refuse a machine that lacks an instruction of the kernel, before anything is compiled or launched.

        Raises:
            RuntimeError: the message names the instruction's function and the compute capability that it needs.
        """
        for called in self._intrinsics:
            if called.before is None:
                require(f"{self.name}: {called.__name__}", machine, called.since, called.alone)

    @functools.cached_property
    def _intrinsics(self) -> list[Any]:
        return intrinsics(self.function)

    def _bounds(self, capability: tuple[int, int]) -> tuple[int, int] | None:
        """The launch bounds; with half the blocks on GPUs where they were not measured, so that no register spills."""
        if self.launch_bounds is None or capability == MEASURED:
            return self.launch_bounds
        threads, blocks = self.launch_bounds
        return threads, -(-blocks // 2)

    def wanted(self, capability: tuple[int, int], lines: bool = False) -> Wanted:
        """The options of the compiler for a compute capability."""
        alone = any(called.alone for called in self._intrinsics)
        return Wanted(capability, self._bounds(capability), self.contract, alone, lines)

    def form(self) -> Callable:
        """The function with the compiler's objects instead of the executor's; only for use during a compilation."""
        return _form(self.function)

    def ptx(self, signature: Sequence, capability: tuple[int, int] = (9, 0), lines: bool = False) -> str:
        """The kernel's PTX for a compute capability; no GPU is needed.

        With ``lines``, directives between the instructions give the lines of Python that they come from. The
        ``signature`` has a word for each argument, as `signature_of` returns them, or a Numba type.

        Raises:
            ValueError: the capability is below the oldest that the installed CUDA compiles for.
            RuntimeError: as `require`.
        """
        if capability < oldest():
            expected = f"expected ({oldest()[0]}, {oldest()[1]}) or later"
            raise ValueError(f"{self.name}: capability: {expected}, got {shown(capability)}")
        self.require(Properties("a device", capability, 0, 0))
        wanted = self.wanted(capability, lines)
        with compiling(wanted) as made:
            return made.ptx(self.form(), tuple(signature), wanted)


def device_function(function: Callable) -> Callable:
    """Make a function callable from kernels. On the executor it is an ordinary Python function."""
    function.__refopt_numba__ = lambda: compiler().device_function(  # type: ignore[attr-defined]
        _form(function), in_hand().lines
    )
    return cuda.jit(device=True)(function)


EXACT = "/* exact */"  # begins inline PTX whose results are exact as a whole


def intrinsic(
    asm: str, constraints: str, result: str, arguments: str, since: tuple[int, int] = OLDEST, before: str | None = None,
    lanes: Callable | bool = False, warp: Callable | None = None, alone: bool = False, exact: bool = False,
) -> Callable[[Callable], Callable]:
    """Give a function inline PTX for its compiled form; the function itself is its twin on the executor.

    On GPUs without the instructions, ``before`` computes the same bits. It may be empty, which compiles nothing, only
    if the instructions compute nothing and are just a hint.

    Args:
        asm: PTX, with the results as ``$0`` onwards and then the arguments.
        constraints: LLVM's, one per result and argument: f, d, r, l.
        result: the dtype letters of the results, f, d or r (32-bit words); more than one makes a tuple.
        arguments: the letters of the arguments: l for a 64-bit integer; several f, d or r in a row are one tuple; s for
            the 32-bit address of an element in shared memory; the function takes its array and index.
        since: the first compute capability with all instructions of ``asm``.
        before: PTX with the same operands for earlier ones; ``None`` if there is none, and then kernels that call the
            function are refused there.
        lanes: the twin for arrays over many threads, or True if the function is that itself (`simt.ptx_twin`).
        warp: for instructions of whole warps, computes the results from the operands of all lanes (`simt.ptx_twin`).
        alone: whether only GPUs of capability ``since`` have the instructions, not later ones. Such a function has no
            twin: the executor refuses it.
        exact: whether the results are the twin's although single instructions round otherwise or approximate, which a
            test has to show; `refopt.gpu.exactness` passes over them.
    """
    if not asm or (before == "" and result + arguments):
        raise ValueError("intrinsic: expected instructions, or no operands and before=\"\" for a hint, got none")

    _since.add(since)
    asm = f"{EXACT} {asm}" if exact else asm

    def decorate(twin: Callable) -> Callable:
        twin.__refopt_numba__ = lambda: compiler().inline_ptx(  # type: ignore[attr-defined]
            asm if in_hand().capability >= since else before or "", constraints, result, arguments
        )
        twin.asm = asm, constraints, result, arguments  # type: ignore[attr-defined]
        twin.since, twin.before, twin.alone = since, before, alone  # type: ignore[attr-defined]
        run = _refused(twin, since) if alone else twin
        return simt.ptx_twin(*(TYPES[letter] for letter in result), lanes=lanes, warp=warp)(run)

    return decorate


def _refused(function: Callable, capability: tuple[int, int]) -> Callable:
    """A function that the executor refuses to run."""

    @functools.wraps(function)
    def refuse(*_: Any) -> Any:
        raise RuntimeError(f"{function.__name__} runs only on GPUs of compute capability {dotted(capability)}")

    return refuse


@functools.lru_cache
def oldest() -> tuple[int, int]:
    """The oldest compute capability to compile for; a later CUDA may drop GPUs that refopt supports."""
    return max(OLDEST, compiler().oldest())


_forms: dict[Any, Any] = {}


def _newest(capability: tuple[int, int]) -> tuple[int, int]:
    """The last capability up to this one that introduced instructions: in between, device functions are the same."""
    return max(since for since in {OLDEST, *_since} if since <= capability)


def _compiled(value: Any) -> Any:
    """The compiled form's replacement for a global or closed-over value of a kernel."""
    if value is cuda:
        return compiler().cuda
    if isinstance(value, types.SimpleNamespace):
        module = types.ModuleType("namespace")  # Numba resolves attributes only of modules.
        module.__dict__.update((k, _compiled(v)) for k, v in vars(value).items())
        return module
    make = getattr(value, "__refopt_numba__", None)
    if make is None and isinstance(value, types.ModuleType) and _has_device_functions(value):
        make = functools.partial(_Module, value)
    if make is None:
        return value
    key = value, _newest(in_hand().capability), in_hand().lines
    if key not in _forms:
        _forms[key] = make()
    return _forms[key]


def _has_device_functions(module: types.ModuleType) -> bool:
    return any(hasattr(value, "__refopt_numba__") for value in vars(module).values())


class _Module(types.ModuleType):
    """A module of device functions for kernels that spell them ``module.name``."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return _compiled(getattr(self._module, name))


def held(function: Callable) -> list[Any]:
    """The values that a function takes from its module, from modules that it names there, and from its closure."""
    code, scope = function.__code__, function.__globals__
    values = [scope.get(name) for name in code.co_names]
    modules = [x for x in values if isinstance(x, types.ModuleType) and _has_device_functions(x)]
    values += [cell.cell_contents for cell in function.__closure__ or ()]
    return values + [vars(module).get(name) for module in modules for name in code.co_names]


def is_device_function(value: Any) -> bool:
    """Whether kernels call a value as a device function or an intrinsic."""
    return isinstance(value, types.FunctionType) and hasattr(value, "__refopt_numba__")


def called(function: Callable, holds: Callable[[Any], Iterable[Any]] = held) -> list[Any]:
    """A kernel's function and the device functions and intrinsics that it calls, callers first, each once.

    ``holds`` returns the values that a function holds, in the order in which they are to be visited.
    """
    waiting: list[Any] = [function]
    seen: dict[int, Any] = {}
    for value in waiting:
        if isinstance(value, types.SimpleNamespace):
            waiting += vars(value).values()
        elif id(value) not in seen and (value is function or is_device_function(value)):
            seen[id(value)] = value
            waiting += [] if hasattr(value, "asm") else holds(value)
    return [*seen.values()]


def intrinsics(function: Callable) -> list[Any]:
    """The functions with inline PTX that a kernel calls, directly or through device functions, each once."""
    return [value for value in called(function) if hasattr(value, "asm")]


def _form(function: Callable) -> Callable:
    """A copy of a function whose globals and closure hold the compiler's objects instead of the executor's."""
    names = {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}
    scope = {k: _compiled(v) if k in names else v for k, v in function.__globals__.items()}
    cells = tuple(types.CellType(_compiled(cell.cell_contents)) for cell in function.__closure__ or ())
    return types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)


def spelled(signature: tuple) -> list[str]:
    """The types of kernel arguments in words: int64, or an array's dtype and number of axes, float32[2]."""
    return [f"{kind.dtype}[{kind.ndim}]" if hasattr(kind, "ndim") else str(kind) for kind in signature]


def argument_spelled(where: str, arg: Any) -> str:
    """The type of a kernel's argument in words, as `spelled`.

    Raises:
        TypeError: a kernel cannot take the argument. A Python float is refused, since it would be fp64.
    """
    if isinstance(arg, int | np.float32):
        return "int64" if isinstance(arg, int) else "float32"
    if isinstance(arg, np.generic) or not (hasattr(arg, "dtype") and hasattr(arg, "shape")):
        raise TypeError(f"{where}: expected an array, an int or np.float32, got {shown(arg)}")
    return f"{name_of(arg.dtype)}[{len(arg.shape)}]"


def signature_of(args: tuple) -> tuple:
    """The types of kernel arguments: C-contiguous device arrays, 64-bit integers and fp32 numbers."""
    return tuple(argument_spelled(f"kernel: args[{k}]", arg) for k, arg in enumerate(args))
