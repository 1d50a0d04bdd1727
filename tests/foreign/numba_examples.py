"""numba-examples: the kernels of its examples and of its legacy scripts."""

import contextlib
import io
import runpy
from typing import Any

import numpy as np
from foreign.cases import case, watched
from foreign.repositories import files
from foreign.source import kernels

from refopt import simt

NAME = "numba/numba-examples"


def random(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """Numbers from 0 to 1."""
    return np.random.default_rng(0).random(shape).astype(dtype)


def example(path: str) -> dict[str, Any]:
    """A file of the repository, run whole as a module."""
    with simt.replace_numba(), contextlib.redirect_stdout(io.StringIO()):
        return runpy.run_path(str(files(NAME, [path]) / path))


def histogram() -> None:
    """On 2,000 numbers, against NumPy's."""
    module = example("examples/density_estimation/histogram/gpu.py")
    values = np.random.default_rng(1).normal(0, 5, 2000)
    counts, edges = module["numba_gpu_histogram"](values, 10)
    expected, bins = np.histogram(values, 10)
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_allclose(edges, bins)


case(NAME, "histogram")(histogram)
case(
    NAME, "histogram, watched", simt.DataRace,
    "min_max reads the running minimum and maximum plainly while other threads update them by atomics",
)(lambda: watched(histogram))


def check_options(function: Any) -> None:
    """A function of prices against NumPy's."""
    numpy_form = example("examples/finance/blackscholes/blackscholes.py")["black_scholes"]
    stock, strike, years = (low + random(500) * high for low, high in ((5, 25), (1, 99), (0.25, 9.75)))
    found = function(stock, strike, years, 0.02, 0.3)
    np.testing.assert_allclose(found, numpy_form(stock, strike, years, 0.02, 0.3), rtol=1e-9)


@case(NAME, "Black-Scholes, watched")
def black_scholes() -> None:
    """The example."""
    function = example("examples/finance/blackscholes/blackscholes_cuda.py")["black_scholes_cuda"]
    watched(lambda: check_options(function))


def product(file: str) -> None:
    """A matrix product of 64 x 64 by blocks of 16 x 16."""
    kernel = kernels(NAME, f"legacy/cudajit/{file}.py", ["cu_square_matrix_mul"], n=64, bpg=4, tpb=16)
    a, b, c = random(64, 64, dtype=np.float32), random(64, 64, dtype=np.float32), np.zeros((64, 64), np.float32)
    watched(lambda: kernel.cu_square_matrix_mul[(4, 4), (16, 16)](a, b, c))
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


case(NAME, "matrix product in shared memory, watched")(lambda: product("matmul_smem"))


def laplace(file: str, threads: int, **values: Any) -> None:
    """A step of Jacobi's relaxation on 64 x 64."""
    path = f"legacy/laplace2d/{file}.py"
    device = {"get_max"} if "improve" in file else set()
    kernel = kernels(NAME, path, {"jacobi_relax_core"} | device, **values).jacobi_relax_core
    a = random(64, 64)
    new, blocks = a.copy(), 64 // threads
    error = np.zeros((blocks, blocks) if device else (64, 64))
    watched(lambda: kernel[(blocks, blocks), (threads, threads)](a, new, error))
    expected = a.copy()
    expected[1:-1, 1:-1] = 0.25 * (a[1:-1, 2:] + a[1:-1, :-2] + a[:-2, 1:-1] + a[2:, 1:-1])
    np.testing.assert_allclose(new, expected, rtol=1e-12)


case(NAME, "Laplace with a reduction, watched")(lambda: laplace("laplace2d-numba-cuda-improve", 16, tpb=16))
case(
    NAME, "Laplace in shared memory, watched", simt.OutOfBounds,
    "threads at the right edge read A[j, i + 1] past the end: the guard asks for j >= 1, not i < m - 1",
)(lambda: laplace("laplace2d-numba-cuda-smem", 32))


@case(NAME, "MPI: launch", simt.LaunchError, "the kernel is called without a launch configuration")
def mpi_launch() -> None:
    """As the script calls it."""
    kernels(NAME, "legacy/cuda_mpi.py", ["sqplus2"]).sqplus2(np.zeros(3, np.int32), np.zeros(3, np.int32))
