"""What a GPU makes of operations whose result Numba and CUDA leave open, beside the executor.

    python -m benchmarks.left_open [--out benchmarks/results/left_open-DEVICE.json]
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stock() -> Iterator[tuple[Any, Callable]]:
    """numba-cuda as it is installed: its ``cuda``, and a ``jit`` whose kernels round ``a * b + c`` twice."""
    import numba_cuda  # noqa: F401  (Without it numba.cuda may be Numba's own.)
    from numba import cuda
    from numba.cuda.cudadrv import nvvm

    contracting = nvvm.compile_ir
    nvvm.compile_ir = functools.partial(contracting, fma=0)
    try:
        yield cuda, lambda function: cuda.jit(function, lto=False)  # as a decorator, jit drops the argument
    finally:
        nvvm.compile_ir = contracting
