"""Kernels are compiled to PTX where numba-cuda is installed, which takes no GPU; where it is not, that is said."""

import importlib.util
import os

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, script
from refopt.simt.names import ptx

SIZE = 4


@cuda.jit(device=True)
def twice(x):
    return x * 2


@cuda.jit
def doubled(x, total, pair):
    part = cuda.shared.array(SIZE, np.float32)
    i = cuda.grid(1)
    part[i] = twice(x[i])
    cuda.syncthreads()
    cuda.atomic.add(total, 0, part[SIZE - 1 - i] * pair[0])


@cuda.jit
def last(x, y):
    found = None
    if x.size > 0:
        found = x[x.size - 1]
    if found:
        y[0] = found


SCRIPT = """
import numpy as np
from numba import cuda, float32

@cuda.jit
def ones(x):
    tile = cuda.shared.array(4, float32)
    tile[cuda.threadIdx.x] = 1
    x[cuda.threadIdx.x] = tile[cuda.threadIdx.x]

ones[1, 4](np.zeros(4, np.float32))
"""


@pytest.fixture
def _compiler():
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed")


def launch(kernel, *more, **options):
    x = np.arange(SIZE, dtype=np.float32)
    with simt.observe(compile=True, **options) as log:
        kernel[1, SIZE](x, np.zeros(1, np.float32), *more)
    return log.compiled


@pytest.mark.usefixtures("_compiler")
@pytest.mark.parametrize("watch", [False, True])
def test_a_kernel_is_compiled(watch):
    assert launch(doubled, (np.float32(2), 1), watch=watch) == {"doubled": "compiled to PTX"}


@pytest.mark.usefixtures("_compiler")
def test_what_the_compiler_alone_refuses_has_its_words():
    with pytest.raises(simt.CompileError, match=r"bool\(OptionalType\(float32\)\)") as caught:
        launch(last)
    error = caught.value
    assert (error.kernel, error.line) == ("last", last.py_func.__code__.co_firstlineno + 5)
    assert str(error).count("\n") == 2 and error.instead == "" and "if found:" in str(error)
    launched = simt.observe(watch=True)
    with launched as log:
        last[1, 1](np.zeros(2, np.float32), np.zeros(1, np.float32))
    assert log.compiled is None


@pytest.mark.usefixtures("_compiler")
def test_a_kernel_of_another_owner_is_compiled_by_it():
    asked = []
    kernel = cuda.jit(lambda x, y: None)
    kernel.ptx = asked.append
    assert launch(kernel) == {"<lambda>": "compiled to PTX"}
    assert [str(type_) for type_ in asked[0]] == ["array(float32, 1d, C)"] * 2
    with simt.observe(compile=True):
        kernel[1, 1](np.zeros(1), np.zeros(1))
    assert len(asked) == 2


@pytest.mark.usefixtures("_compiler")
def test_a_kernel_that_calls_a_twin_is_not_compiled():
    stands = simt.ptx_twin("float32")(lambda x: x)

    @cuda.jit
    def kernel(x, y):
        y[0] = stands(x[0])

    (said,) = launch(kernel).values()
    assert said.startswith("not compiled: ") and "emulates PTX" in said


def test_without_a_compiler_it_is_said(monkeypatch):
    monkeypatch.setattr(ptx, "_missing", lambda: "numba-cuda is not installed")
    assert launch(doubled, (np.float32(2), 1)) == {"doubled": "not compiled: numba-cuda is not installed"}


def test_a_script_says_what_came_of_it(tmp_path, capsys):
    path = tmp_path / "ones.py"
    path.write_text(SCRIPT)
    assert script.main(["--compile", os.fspath(path)]) == 0
    said = capsys.readouterr().err
    installed = importlib.util.find_spec("numba_cuda") is not None
    assert f"kernel ones: {'compiled to PTX' if installed else 'not compiled: numba-cuda is not installed'}\n" == said
    assert launch(doubled, (np.float32(2), 1))["doubled"].startswith("compiled" if installed else "not compiled")
