"""What Numba does not compile for CUDA is refused before it is launched, and what it compiles is not."""

import importlib.util
import sys
import types

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda

from .refused_kernels import REFUSED, RIGHT, loaded

ARGUMENTS = np.ones(8, np.float32), np.ones(8, np.float32), 1


@pytest.fixture(scope="module")
def compile_kernel():
    """What compiles a body to PTX with the real compiler."""
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed")
    import numba_cuda  # noqa: F401
    from numba import cuda
    from numba.cuda import dispatcher
    from numba.cuda import types as nb

    signature = nb.void(nb.float32[::1], nb.float32[::1], nb.int64)
    before = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=(9, 0))

    def compiled(body):
        function = loaded(body, cuda, "from numba import cuda").py_func
        return cuda.compile(function, signature, device=False, abi="numba", cc=(9, 0), output="ptx")[0]

    yield compiled
    dispatcher.get_current_device = before


def launch(body, **options):
    kernel = loaded(body, simt.cuda, "from refopt.simt import cuda")
    with simt.observe(**options):
        kernel[1, 1](*(np.array(arg) if isinstance(arg, np.ndarray) else arg for arg in ARGUMENTS))


def some(bodies):
    """What Numba says of a body depends on Numba alone: make test asks it about every tenth."""
    return [pytest.param(what, marks=[pytest.mark.slow] * (k % 10 > 0)) for k, what in enumerate(bodies)]


@pytest.mark.parametrize("what", REFUSED)
def test_what_numba_refuses_does_not_run(what):
    body, reason = REFUSED[what]
    with pytest.raises(simt.CompileError) as caught:
        launch(body)
    error = caught.value
    assert reason in error.reason and error.instead and str(error).count("\n") >= 3
    assert error.line > 0 < error.column and f"line {error.line}" not in error.reason
    assert f":{error.line}, column {error.column}" in str(error)


def test_columns_count_letters():
    with pytest.raises(simt.CompileError) as caught:
        launch("größe = n; y[0] = größe + x.foo()")
    assert caught.value.column == 5 + len("größe = n; y[0] = größe + ")


def test_what_is_of_the_host_is_not_captured():
    stream = cuda.stream()

    @cuda.jit
    def kernel():
        stream.synchronize()

    with pytest.raises(simt.CompileError, match="stream is for the host"):
        kernel[1, 1]()


@pytest.mark.parametrize("by", ["environment", "configuration"])
def test_kernels_may_create_arrays_with_numbas_runtime(by, monkeypatch):
    body = "z = x + x\ny[0] = z[1]"
    with pytest.raises(simt.CompileError, match=r"\+ of a whole array"):
        launch(body)
    if by == "environment":
        monkeypatch.setenv("NUMBA_CUDA_ENABLE_NRT", "1")
    else:
        monkeypatch.setitem(sys.modules, "numba.cuda.core.config", types.SimpleNamespace(CUDA_ENABLE_NRT=True))
    launch(body)


@pytest.mark.parametrize("what", some(REFUSED))
def test_numba_refuses_it(what, compile_kernel):
    with pytest.raises(Exception) as caught:
        compile_kernel(REFUSED[what][0])
    assert not isinstance(caught.value, ImportError | SyntaxError) and "driver" not in str(caught.value)


@pytest.mark.parametrize("what", RIGHT)
@pytest.mark.filterwarnings("error::refopt.simt.UntypedWarning")
def test_what_numba_compiles_runs(what):
    launch(RIGHT[what], watch=False)


@pytest.mark.parametrize("what", some(RIGHT))
def test_numba_compiles_it(what, compile_kernel):
    assert ".visible .entry" in compile_kernel(RIGHT[what])
