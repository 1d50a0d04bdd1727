"""The compiler in use: `refopt.gpu.by_numba`, numba-cuda behind `refopt.gpu.compiler.Compiler`.

It is imported when the first kernel is compiled: a process that finds all its kernels in the `refopt.gpu.cache` imports
no compiler.
"""

import contextlib
import functools
import textwrap
import threading
from collections.abc import Iterator

from refopt.gpu.compiler import Compiler, Wanted

INSTALL = "pip install 'refopt[cuda13]'"
# The packages, of CUDA 12 and 13, whose versions determine the compiler's output.
PACKAGES = (
    "numba", "numba-cuda", "llvmlite", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-runtime",
    "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12", "nvidia-cuda-runtime-cu12",
)


@functools.lru_cache
def compiler() -> Compiler:
    """The compiler. If it is not installed, the error of its import propagates."""
    from refopt.gpu import by_numba

    return by_numba


_one_at_a_time = threading.RLock()
_wanted: list[Wanted] = []


@contextlib.contextmanager
def compiling(wanted: Wanted) -> Iterator[Compiler]:
    """The compiler, for one kernel and what it calls; other threads wait."""
    with _one_at_a_time:
        _wanted.append(wanted)
        try:
            yield compiler()
        finally:
            _wanted.pop()


def in_hand() -> Wanted:
    """The options of the current compilation."""
    return _wanted[-1]


@functools.lru_cache
def no_compiler() -> str:
    """Why kernels cannot be compiled here, in one line; empty if they can. No GPU is needed."""
    try:  # much of numba-cuda is imported only when it compiles
        with compiling(wanted := Wanted((9, 0))) as made:
            made.linked(lambda x: None, ("int64",), wanted)
    except Exception as error:  # versions of numba-cuda fail in different ways with a NumPy that is too new for them
        text = textwrap.shorten(str(error), 180)
        if isinstance(error, ModuleNotFoundError) and error.name in ("numba", "numba_cuda"):
            return f"numba-cuda is not installed ({text})"
        return f"numba-cuda fails ({type(error).__name__}: {text})"
    return ""
