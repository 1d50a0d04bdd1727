"""The interface to a compiler: all that kernels need from one. `refopt.gpu.compiling` has the only implementation."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Wanted(NamedTuple):
    """What a kernel is compiled for: a compute capability, and how.

    Attributes:
        capability: of the GPUs that run it.
        launch_bounds: the most threads of a block, and the blocks that must fit on a multiprocessor.
        contract: whether ``a * b + c`` may become one operation.
        alone: whether only GPUs of this capability have its instructions.
        lines: whether the PTX has directives with the lines of Python that instructions come from.
    """

    capability: tuple[int, int]
    launch_bounds: tuple[int, int] | None = None
    contract: bool = False
    alone: bool = False
    lines: bool = False


class Linked(NamedTuple):
    """A kernel as the driver loads it: the name of its entry, and a self-contained cubin."""

    entry: str
    cubin: bytes


class Compiler(Protocol):
    """A compiler of functions in Numba's spelling. It rounds each operation separately, unless it may contract.

    Signatures have a word for each argument: ``"int64"``, ``"float32"``, or the dtype and the number of axes of an
    array in C order, ``"float32[2]"``. A kernel receives an array as words of 64 bits: two zeros, the number of
    elements, the bytes of one, the address, the shape, and the strides in bytes.

    Attributes:
        cuda: replaces the executor's ``cuda`` in functions.
    """

    cuda: Any

    def oldest(self) -> tuple[int, int]:
        """The oldest compute capability for which it compiles."""

    def ptx(self, function: Callable, signature: tuple, wanted: Wanted) -> str:
        """The PTX of a kernel as text."""

    def linked(self, function: Callable, signature: tuple, wanted: Wanted) -> Linked:
        """The kernel, linked with code of CUDA's libraries, such as a barrier across the grid."""

    def device_function(self, function: Callable, lines: bool) -> Any:
        """The compiled form of a function that kernels call: it is always inlined, and may return tuples."""

    def inline_ptx(self, asm: str, constraints: str, result: str, arguments: str) -> Any:
        """The compiled form of an intrinsic, as `refopt.gpu.target.intrinsic` describes it."""
