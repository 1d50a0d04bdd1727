"""The compiler, and what kernels need of it that it does not offer: the one file that knows Numba.

Kernels are written once, in plain Numba spelling, against ``cuda`` of this module, which is the executor's.
A `Compilable` holds both forms: the function as written, which `refopt.simt` runs, and a copy of it with
``cuda`` and the device functions replaced by Numba's, which the GPU runs.

Instructions that only newer GPUs have are inline PTX, with another form for the GPUs before them (`intrinsic`).

Exact arithmetic (numerics, N3) takes two settings. NVVM contracts ``a * b + c`` into one rounding unless it
is told ``fma=0``, for which ``@cuda.jit`` has no argument. And the linker, given LTO code, would generate
code anew and contract after all; the decorator form ``@cuda.jit(lto=False)`` drops the argument, the call
``cuda.jit(function, lto=False)`` keeps it.
"""

import contextlib
import dis
import functools
import itertools
import math
import textwrap
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from refopt import simt
from refopt.checks.arguments import shown
from refopt.checks.dtypes import name_of
from refopt.gpu.machine import OLDEST, Properties, require
from refopt.simt import cuda

__all__ = ["Compilable", "cuda", "device_function", "intrinsic", "no_compiler", "sqrt"]

MEASURED = 9, 0  # the compute capability that launch bounds were chosen for, on an H200
_compiling = threading.RLock()
_since: set[tuple[int, int]] = set()  # the capabilities with which instructions of intrinsics have come
TYPES = {"f": "float32", "d": "float64", "r": "uint32", "l": "int64"}  # what registers of LLVM's letters hold


class Compilable:
    """A kernel in both forms. ``executor`` is launched as ``executor[grid, block](*args)``.

    Attributes:
        function, launch_bounds, name: what it was made of, and the function's name.
        contract: whether ``a * b + c`` may become one operation on a GPU, as it does in plain Numba.
        dynamic_shared: bytes of shared memory that a launch gives it beside what it declares.
        origin: the factory that made it and with what, if one did.
    """

    def __init__(
        self, function: Callable, launch_bounds: tuple[int, int] | None = None, contract: bool = False,
        dynamic_shared: int = 0,
    ) -> None:  # fmt: skip
        self.function, self.launch_bounds, self.contract = function, launch_bounds, contract
        self.dynamic_shared = dynamic_shared
        self.name = function.__name__
        self.origin: tuple[Callable, tuple] | None = None
        self.executor = simt.cuda.jit(function)
        self.executor.ptx = self.ptx
        self._compiled: dict[tuple, Any] = {}

    def require(self, machine: Properties) -> None:
        """Refuse a machine that lacks an instruction of the kernel, before anything is compiled or launched.

        Raises:
            RuntimeError: naming the instruction's function and the compute capability that it needs.
        """
        for called in self._intrinsics:
            if called.before is None:
                require(f"{self.name}: {called.__name__}", machine, called.since, called.alone)

    @functools.cached_property
    def _intrinsics(self) -> list[Any]:
        return intrinsics(self.function)

    def _bounds(self, capability: tuple[int, int]) -> tuple[int, int] | None:
        """The launch bounds; with half the blocks where they were not measured, so that nothing is spilled."""
        if self.launch_bounds is None or capability == MEASURED:
            return self.launch_bounds
        threads, blocks = self.launch_bounds
        return threads, -(-blocks // 2)

    def compiled(self, signature: tuple) -> Any:
        """The Numba kernel for a tuple of Numba argument types, compiled for the GPU in hand."""
        if signature not in self._compiled:
            self.require(Properties.of(numba_cuda().get_current_device()))
            with exact_arithmetic(contract=self.contract):
                bounds = self._bounds(_capability())
                dispatcher = numba_cuda().jit(_numba_form(self.function), lto=False, launch_bounds=bounds)
                dispatcher.compile(signature)
                self._compiled[signature] = dispatcher.overloads[signature]
        return self._compiled[signature]

    def ptx(self, signature: tuple, capability: tuple[int, int] = (9, 0), lines: bool = False) -> str:
        """The PTX that `compiled` gives for a compute capability; no GPU is needed.

        With ``lines``, directives between the instructions say which lines of Python they come from.

        Raises:
            ValueError: the capability is below the oldest that CUDA compiles for here.
            RuntimeError: as `require`.
        """
        if capability < oldest():
            expected = f"expected ({oldest()[0]}, {oldest()[1]}) or later"
            raise ValueError(f"{self.name}: capability: {expected}, got {shown(capability)}")
        self.require(Properties("a device", capability, 0, 0))
        own = (*capability, "a") if any(called.alone for called in self._intrinsics) else capability
        with exact_arithmetic(contract=self.contract), _pretend(capability, lines):
            text, _ = numba_cuda().compile(
                _numba_form(self.function), signature, cc=own, device=False, abi="numba", output="ptx",
                launch_bounds=self._bounds(capability), lineinfo=lines,
            )  # fmt: skip
        return text


def device_function(function: Callable) -> Callable:
    """Mark a function as one that kernels call. On the executor it is an ordinary Python function."""
    function.__refopt_numba__ = lambda: numba_cuda().jit(  # type: ignore[attr-defined]
        _numba_form(function), device=True, forceinline=True, lineinfo=_with_lines()
    )
    return cuda.jit(device=True)(function)


def intrinsic(
    asm: str, constraints: str, result: str, arguments: str, since: tuple[int, int] = OLDEST, before: str | None = None,
    lanes: Callable | bool = False, warp: Callable | None = None, alone: bool = False,
) -> Callable[[Callable], Callable]:  # fmt: skip
    """Give a function inline PTX for its compiled form; the function itself is its twin on the executor.

    On GPUs without the instructions, ``before`` computes the same bits. Only where nothing is computed, and the
    instructions are no more than a hint, may it be empty: nothing is compiled then.

    Args:
        asm: PTX, with the results as ``$0`` onwards and then the arguments.
        constraints: LLVM's, one per result and argument: f, d, r, l.
        result: the dtype letters of the results, f, d or r (32-bit words); more than one makes a tuple.
        arguments: the letters of the arguments: l for a 64-bit integer; several f, d or r in a row are one tuple; s for
            the 32-bit address of an element in shared memory, of which the function takes the array and the index.
        since: the compute capability from which on there are all instructions of ``asm``.
        before: PTX with the same operands for those before it; ``None`` if there is none, and kernels that call the
            function are refused there.
        lanes: the twin for arrays over many threads, or True if it is that itself (`simt.ptx_twin`).
        warp: for instructions of whole warps, what makes the results of what the lanes bring (`simt.ptx_twin`).
        alone: whether GPUs of the capability ``since`` alone have the instructions, and not the later ones.
    """
    if not asm or (before == "" and result + arguments):
        raise ValueError("intrinsic: expected instructions, or no operands and before=\"\" for a hint, got none")

    _since.add(since)

    def decorate(twin: Callable) -> Callable:
        twin.__refopt_numba__ = lambda: _inline_asm(  # type: ignore[attr-defined]
            asm if _capability() >= since else before or "", constraints, result, arguments
        )
        twin.asm = asm, constraints, result, arguments  # type: ignore[attr-defined]
        twin.since, twin.before, twin.alone = since, before, alone  # type: ignore[attr-defined]
        return simt.ptx_twin(*(TYPES[letter] for letter in result), lanes=lanes, warp=warp)(twin)

    return decorate


def numba_cuda() -> types.ModuleType:
    """Numba's CUDA target."""
    import numba_cuda  # noqa: F401  (Without it numba.cuda may be Numba's own, of which no kernel of refopt compiles.)
    from numba import cuda

    return cuda


@functools.lru_cache
def no_compiler() -> str:
    """Why kernels cannot be compiled to PTX here, in one line; empty if they can."""
    try:
        check_compiler(launch=False)
    except Exception as error:  # each version of numba-cuda fails in its own ways beside a NumPy it does not know
        return failure(error)
    return ""


@functools.lru_cache
def oldest() -> tuple[int, int]:
    """The oldest compute capability that kernels are compiled for here: a later CUDA may leave out more than refopt."""
    numba_cuda()
    from numba.cuda.cudadrv import nvrtc

    return max(OLDEST, min(map(tuple, nvrtc.get_supported_ccs())))  # type: ignore[attr-defined]


def check_compiler(launch: bool) -> None:
    """Compile an empty kernel, to PTX or for the GPU in hand, since much of numba-cuda is imported only then."""
    numba_cuda()
    from numba.core import types as nb

    empty = Compilable(lambda x: None)
    empty.compiled((nb.int64,)) if launch else empty.ptx((nb.int64,))


def failure(error: Exception) -> str:
    """What went wrong in the compiler or the driver, in one line."""
    text = textwrap.shorten(str(error), 200)
    if isinstance(error, ModuleNotFoundError) and error.name in ("numba", "numba_cuda"):
        return f"numba-cuda is not installed ({text})"
    return f"numba-cuda fails ({type(error).__name__}: {text})"


_forms: dict[Any, Any] = {}
_pretended: list[tuple[tuple[int, int], bool]] = []


def _capability() -> tuple[int, int]:
    """The compute capability that is being compiled for."""
    return _pretended[-1][0] if _pretended else tuple(numba_cuda().get_current_device().compute_capability)


def _newest(capability: tuple[int, int]) -> tuple[int, int]:
    """The last capability up to this one with which instructions came: in between, device functions are the same."""
    return max(since for since in {OLDEST, *_since} if since <= capability)


def _with_lines() -> bool:
    """Whether what is being compiled is to say which lines it comes from."""
    return _pretended[-1][1] if _pretended else False


def _numba(value: Any) -> Any:
    """What stands for a global or closed-over value of a kernel in its compiled form."""
    if value is cuda:
        return numba_cuda()
    if isinstance(value, types.SimpleNamespace):
        module = types.ModuleType("namespace")  # Numba resolves the attributes of modules, and of nothing else.
        module.__dict__.update((k, _numba(v)) for k, v in vars(value).items())
        return module
    make = getattr(value, "__refopt_numba__", None)
    if make is None and isinstance(value, types.ModuleType) and _has_device_functions(value):
        make = functools.partial(_Module, value)
    if make is None:
        return value
    key = value, _newest(_capability()), _with_lines()
    if key not in _forms:
        _forms[key] = make()
    return _forms[key]


def _has_device_functions(module: types.ModuleType) -> bool:
    return any(hasattr(value, "__refopt_numba__") for value in vars(module).values())


class _Module(types.ModuleType):
    """A module of device functions as a kernel sees it, which spells them ``module.name``."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return _numba(getattr(self._module, name))


def held(function: Callable) -> list[Any]:
    """The values that a function takes from its module, as it names them, from modules named there, and its closure."""
    code, scope = function.__code__, function.__globals__
    values = [scope.get(name) for name in code.co_names]
    modules = [x for x in values if isinstance(x, types.ModuleType) and _has_device_functions(x)]
    values += [cell.cell_contents for cell in function.__closure__ or ()]
    return values + [vars(module).get(name) for module in modules for name in code.co_names]


def is_device_function(value: Any) -> bool:
    """Whether kernels call a value as a device function or an intrinsic."""
    return isinstance(value, types.FunctionType) and hasattr(value, "__refopt_numba__")


def intrinsics(function: Callable) -> list[Any]:
    """The functions with inline PTX that a kernel calls, itself or by way of device functions, each once."""
    waiting: list[Any] = [function]
    seen: dict[int, Any] = {}
    while waiting:
        value = waiting.pop()
        if isinstance(value, types.SimpleNamespace):
            waiting += vars(value).values()
        elif id(value) not in seen and (value is function or is_device_function(value)):
            seen[id(value)] = value
            waiting += [] if hasattr(value, "asm") else held(value)
    return [value for value in seen.values() if hasattr(value, "asm")]


def _numba_form(function: Callable) -> Callable:
    """A copy of a function whose globals and closure hold Numba's objects instead of the executor's."""
    names = {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}
    scope = {k: _numba(v) if k in names else v for k, v in function.__globals__.items()}
    cells = tuple(types.CellType(_numba(cell.cell_contents)) for cell in function.__closure__ or ())
    return types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)


@contextlib.contextmanager
def exact_arithmetic(contract: bool = False) -> Iterator[None]:
    """Compile without contraction of ``a * b + c`` while this is entered, unless asked to ``contract``."""
    from numba.cuda.cudadrv import nvvm

    with _compiling:
        compile_ir = nvvm.compile_ir
        nvvm.compile_ir = functools.partial(compile_ir, fma=int(contract))
        try:
            yield
        finally:
            nvvm.compile_ir = compile_ir


@contextlib.contextmanager
def _pretend(capability: tuple[int, int], lines: bool) -> Iterator[None]:
    """Let device functions compile without a GPU: they ask for the device only to know what it is."""
    from numba.cuda import dispatcher, lowering  # type: ignore[attr-defined]

    ask, find = dispatcher.get_current_device, lowering.get_func_def_lineno
    # Numba parses the source for it, which fails for lambdas.
    lowering.get_func_def_lineno = lambda function: function.__code__.co_firstlineno
    dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=capability)
    _pretended.append((capability, lines))
    try:
        yield
    finally:
        _pretended.pop()
        dispatcher.get_current_device, lowering.get_func_def_lineno = ask, find


def _inline_asm(asm: str, constraints: str, result: str, arguments: str) -> Any:
    from llvmlite import ir
    from numba.core import cgutils
    from numba.core import types as nb
    from numba.cuda.extending import intrinsic as numba_intrinsic

    types_of = {"f": nb.float32, "d": nb.float64, "l": nb.int64, "r": nb.uint32, "s": None}  # None: any array
    outputs = [types_of[letter] for letter in result]
    several = len(outputs) > 1
    returns: Any = nb.UniTuple(outputs[0], len(outputs)) if several else outputs[0] if outputs else nb.void
    takes: list[Any] = []
    for letter, run in itertools.groupby(arguments):
        kind, count = types_of[letter], len(list(run))
        if letter == "s":
            takes += [None, nb.int64] * count
        else:
            takes += [kind] * count if letter == "l" else [kind if count == 1 else nb.UniTuple(kind, count)]

    def shared_address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
        """The address of an element of a shared array in the address space of shared memory, which has number 3."""
        data, word = context.make_array(kind)(context, builder, array).data, ir.IntType(32)
        start = builder.ptrtoint(builder.addrspacecast(data, data.type.pointee.as_pointer(3)), ir.IntType(64))
        # In 32 bits, so that whatever the index is made of is narrowed as well.
        distance = builder.mul(builder.trunc(index, word), word(kind.dtype.bitwidth // 8))
        return builder.add(builder.trunc(start, word), distance)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not asm:  # a hint, which this GPU does not take
            return context.get_dummy_value()
        operands: list[Any] = []
        entries = iter(zip(args, signature.args, strict=True))
        for arg, kind in entries:
            if isinstance(kind, nb.Array):
                operands.append(shared_address(context, builder, kind, arg, next(entries)[0]))
                continue
            operands += cgutils.unpack_tuple(builder, arg, len(kind)) if isinstance(kind, nb.UniTuple) else [arg]
        results = [context.get_value_type(kind) for kind in outputs]
        answers = ir.LiteralStructType(results) if several else results[0] if results else ir.VoidType()
        # The side effect keeps loads behind barriers and stores where they are written.
        shape = ir.FunctionType(answers, [operand.type for operand in operands])
        answer = builder.call(ir.InlineAsm(shape, asm, constraints, side_effect=True), operands)
        if several:
            return cgutils.pack_array(builder, cgutils.unpack_tuple(builder, answer, len(results)))
        return answer if results else context.get_dummy_value()

    # Numba looks at how many parameters an intrinsic has, and their names.
    given = ", ".join(f"x{k}" for k in range(len(takes)))

    def typed(*kinds: Any) -> Any:
        return returns(*(kind or of for kind, of in zip(takes, kinds, strict=True)))

    scope = {"typed": typed, "codegen": codegen}
    return numba_intrinsic(eval(f"lambda typingctx, {given}: (typed({given}), codegen)", scope))


@intrinsic("fence.acq_rel.gpu;", "", "", "")
def fence():
    """Order memory between blocks around an atomic: a lighter ``cuda.threadfence()``."""
    cuda.threadfence()


# From where on launches may overlap. The two functions are hints: on other GPUs a launch begins when the one before it
# has ended.
OVERLAPS = 9, 0


@intrinsic("griddepcontrol.launch_dependents;", "", "", "", since=OVERLAPS, before="")
def let_next_launch_begin():
    """Let a launch prepared with ``overlaps`` start its blocks; they wait where they need this one's results."""


@intrinsic("griddepcontrol.wait;", "", "", "", since=OVERLAPS, before="")
def wait_for_previous_launch():
    """Wait until the launch before this one is complete and its writes can be seen."""


def spelled(signature: tuple) -> list[str]:
    """Numba's types of kernel arguments in words: int64, or an array's dtype and number of axes, float32[2]."""
    return [f"{kind.dtype}[{kind.ndim}]" if hasattr(kind, "ndim") else str(kind) for kind in signature]


def argument_spelled(where: str, arg: Any) -> str:
    """The type of a kernel's argument in words, as `spelled`.

    Raises:
        TypeError: a kernel takes no such argument, a number of Python's among them: it would be fp64.
    """
    if isinstance(arg, int | np.float32):
        return "int64" if isinstance(arg, int) else "float32"
    if isinstance(arg, np.generic) or not (hasattr(arg, "dtype") and hasattr(arg, "shape")):
        raise TypeError(f"{where}: expected an array, an int or np.float32, got {shown(arg)}")
    return f"{name_of(arg.dtype)}[{len(arg.shape)}]"


def signature_spelled(words: list[str]) -> tuple:
    """The types that `spelled` put into words."""
    from numba.core import types as nb
    from numba.np.numpy_support import from_dtype

    pairs = [word.rstrip("]").partition("[") for word in words]
    types_of = [(from_dtype(np.dtype(dtype)), axes) for dtype, _, axes in pairs]
    return tuple(nb.Array(dtype, int(axes), "C") if axes else dtype for dtype, axes in types_of)


def signature_of(args: tuple) -> tuple:
    """Numba's types of kernel arguments: C-contiguous device arrays, 64-bit integers and fp32 numbers."""
    return signature_spelled([argument_spelled(f"kernel: args[{k}]", arg) for k, arg in enumerate(args)])


def sqrt(x: np.floating) -> np.floating:
    """The square root, rounded once: ``sqrt.rn`` in the kernel."""
    return math.sqrt(x)  # type: ignore[return-value]


sqrt.__refopt_numba__ = lambda: math.sqrt  # type: ignore[attr-defined]
cuda.jit(device=True)(sqrt)


def transposed(rows: tuple) -> tuple:
    """The columns of a tuple of tuples. On a GPU it moves nothing: registers are called by other names."""
    return tuple(zip(*rows))  # noqa: B905


cuda.jit(device=True)(transposed)


def _transposed() -> Any:
    from llvmlite import ir
    from numba.core import types as nb
    from numba.cuda.extending import intrinsic as numba_intrinsic

    def typed(typingctx: Any, rows: Any) -> Any:
        columns = nb.UniTuple(nb.Tuple([row.dtype for row in rows]), rows[0].count)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            whole = ir.Constant(context.get_value_type(columns), ir.Undefined)
            for i, j in itertools.product(range(rows.count), range(columns.count)):
                whole = builder.insert_value(whole, builder.extract_value(args[0], (i, j)), (j, i))
            return whole

        return columns(rows), codegen

    return numba_intrinsic(typed)


transposed.__refopt_numba__ = _transposed  # type: ignore[attr-defined]
