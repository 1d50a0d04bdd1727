"""numba-cuda as the `refopt.gpu.compiler.Compiler`.

Exact arithmetic (numerics, N3) needs two settings. NVVM contracts ``a * b + c`` into one rounding unless it gets
``fma=0``, for which ``@cuda.jit`` has no argument. And the linker, given LTO code, would generate the code again and
contract after all; the decorator form ``@cuda.jit(lto=False)`` drops the argument, the call
``cuda.jit(function, lto=False)`` keeps it.
"""

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numba_cuda  # noqa: F401  (Without it numba.cuda may be Numba's own, which compiles no kernel of refopt.)
import numpy as np
from llvmlite import ir
from numba import cuda as numba_cuda_target
from numba.core import cgutils
from numba.core import types as nb
from numba.cuda import codegen, dispatcher, lowering  # type: ignore[attr-defined]
from numba.cuda.cudadrv import nvrtc, nvvm
from numba.cuda.extending import intrinsic
from numba.np.numpy_support import from_dtype

from refopt.gpu.compiler import Linked, Wanted

cuda: Any = numba_cuda_target  # for mypy, which takes it for the simulator


def oldest() -> tuple[int, int]:
    """`Compiler.oldest`; a later CUDA may drop more GPUs."""
    return min(map(tuple, nvrtc.get_supported_ccs()))  # type: ignore[attr-defined]


def ptx(function: Callable, signature: tuple, wanted: Wanted) -> str:
    """`Compiler.ptx`."""
    own = (*wanted.capability, "a") if wanted.alone else wanted.capability
    with _set_for(wanted):
        text, _ = cuda.compile(
            function, types_of(signature), cc=own, device=False, abi="numba", output="ptx",
            launch_bounds=wanted.launch_bounds, lineinfo=wanted.lines,
        )
    return text


def linked(function: Callable, signature: tuple, wanted: Wanted) -> Linked:
    """`Compiler.linked`."""
    with _set_for(wanted):
        jitted = cuda.jit(function, lto=False, launch_bounds=wanted.launch_bounds)
        library = dispatcher._Kernel(function, types_of(signature), **jitted.targetoptions)._codelibrary
        made = library.get_cubin()
    return Linked(library._entry_name, bytes(getattr(made, "code", made)))


def device_function(function: Callable, lines: bool) -> Any:
    """`Compiler.device_function`."""
    return cuda.jit(function, device=True, forceinline=True, lineinfo=lines)


def types_of(signature: tuple) -> tuple:
    """Numba's types of a kernel's arguments, from words; types pass unchanged."""
    return tuple(_type(each) if isinstance(each, str) else each for each in signature)


def _type(word: str) -> Any:
    name, _, axes = word.rstrip("]").partition("[")
    dtype: Any = from_dtype(np.dtype(name))
    return nb.Array(dtype, int(axes), "C") if axes else dtype


@contextlib.contextmanager
def _set_for(wanted: Wanted) -> Iterator[None]:
    """Make numba-cuda compile as wanted, even without such a GPU, of which it only queries the compute capability."""
    device = SimpleNamespace(compute_capability=wanted.capability)
    compile_ir = functools.partial(nvvm.compile_ir, fma=int(wanted.contract))
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (nvvm, "compile_ir", compile_ir),
            (dispatcher, "get_current_device", lambda: device),
            (codegen, "devices", SimpleNamespace(get_context=lambda: SimpleNamespace(device=device))),
            # Numba parses the source to find the line, which fails for lambdas.
            (lowering, "get_func_def_lineno", lambda function: function.__code__.co_firstlineno),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def inline_ptx(asm: str, constraints: str, result: str, arguments: str) -> Any:
    """`Compiler.inline_ptx`."""
    kind_of = {"f": nb.float32, "d": nb.float64, "l": nb.int64, "r": nb.uint32, "s": None}  # None: any array
    outputs = [kind_of[letter] for letter in result]
    several = len(outputs) > 1
    returns: Any = nb.UniTuple(outputs[0], len(outputs)) if several else outputs[0] if outputs else nb.void
    takes: list[Any] = []
    for letter, run in itertools.groupby(arguments):
        kind, count = kind_of[letter], len(list(run))
        if letter == "s":
            takes += [None, nb.int64] * count
        else:
            takes += [kind] * count if letter == "l" else [kind if count == 1 else nb.UniTuple(kind, count)]

    def shared_address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
        """The address of an element of a shared array in the address space of shared memory, number 3."""
        data, word = context.make_array(kind)(context, builder, array).data, ir.IntType(32)
        start = builder.ptrtoint(builder.addrspacecast(data, data.type.pointee.as_pointer(3)), ir.IntType(64))
        # In 32 bits, so that LLVM also narrows the computation of the index.
        distance = builder.mul(builder.trunc(index, word), word(kind.dtype.bitwidth // 8))
        return builder.add(builder.trunc(start, word), distance)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not asm:  # a hint that this GPU does not have
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

    def typed(typingctx: Any, *kinds: Any) -> Any:
        return returns(*(kind or of for kind, of in zip(takes, kinds, strict=True))), codegen

    # Numba examines the number of an intrinsic's parameters, and their names.
    given = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
             for name in ("typingctx", *(f"x{k}" for k in range(len(takes))))]
    typed.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    return intrinsic(typed)
