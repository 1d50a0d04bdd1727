"""The tests on other machines: with a GPU or without, with what some of them need, or with a broken one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest

from refopt import gpu
from refopt.gpu import compiling, cuda, runtime

from .stand_ins import script

HERE = Path(__file__).parents[1]


def mpiexec(folder, text):
    return str(script(folder / "mpiexec", f"#!/bin/sh\n{text}\n"))


@pytest.mark.parametrize(("text", "why"), [
    ("echo mpiexec has detected an attempt to run as root. >&2; exit 1", r"status 1: .* attempt to run as root\.$"),
    ("for i in 1 2 3 4; do echo rank of 1; done", r"status 0: rank of 1 rank of 1 "),
    ("for i in 1 2 3 4; do echo rank of 4; done; exit 7", r"status 7: ")])
def test_an_mpiexec_that_starts_no_ranks(tmp_path, monkeypatch, text, why):
    """Its tests are skipped, with what it said."""
    command = mpiexec(tmp_path, text)
    said = needs.no_ranks(command)
    assert re.search(why, said) and "\n" not in said and said.startswith(command)
    monkeypatch.setattr(needs, "no_ranks", lambda command: said)
    with pytest.raises(pytest.skip.Exception, match=why):
        needs.ranks()


def test_an_mpiexec_that_is_none_and_one_that_starts_ranks(tmp_path):
    assert needs.no_ranks(None) == "mpiexec was not found"
    assert needs.no_ranks(str(tmp_path / "none")).endswith("No such file or directory")
    assert needs.no_ranks(str(tmp_path)).endswith("Permission denied")
    assert needs.no_ranks(mpiexec(tmp_path, "for i in 1 2 3 4; do echo rank of 4; done")) == ""


@pytest.fixture
def beside_a_gpu(monkeypatch):
    """A machine on which a GPU would be chosen by itself."""
    monkeypatch.setattr(runtime, "_why_no_gpu", lambda: "")
    monkeypatch.setattr(runtime, "_gpu", lambda: "a GPU")


@pytest.fixture(scope="module")
def of_the_module():
    return gpu.to_device(np.zeros(3))


ON_IMPORT = gpu.device()


def test_tests_mean_the_executor(beside_a_gpu, of_the_module):
    assert gpu.device().name == ON_IMPORT.name == "executor"
    assert type(gpu.to_device(np.zeros(3))) is type(of_the_module)


TESTS = """
import os, pytest
from refopt import gpu
gpu.device = lambda name: None  # as if there were one
on_import = os.environ["REFOPT_DEVICE"]
@pytest.mark.parametrize("routine", ["sgd"])
def test_plain(routine): assert (on_import, os.environ["REFOPT_DEVICE"]) == ("executor", "executor")
@pytest.mark.gpu
def test_gpu(): assert os.environ["REFOPT_DEVICE"] == "gpu"
"""


@pytest.mark.parametrize("asked", [None, *(pytest.param(name, marks=pytest.mark.slow) for name in ("executor", "gpu"))])
def test_what_is_asked_for_is_taken(tmp_path, monkeypatch, asked):
    """REFOPT_DEVICE decides, where it is given. Without pytest-xdist, too."""
    file = tmp_path / "test_of_a_project.py"
    file.write_text(TESTS.replace('"gpu"', f'"{asked or "gpu"}"').replace('"executor"', f'"{asked or "executor"}"'))
    monkeypatch.delenv("REFOPT_DEVICE")
    if asked:
        monkeypatch.setenv("REFOPT_DEVICE", asked)
    settings = HERE.parent / "pyproject.toml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "conftest", "-c", settings, file]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=HERE, env=os.environ | path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


class Broken:
    """Finds a module, and fails in it."""

    def __init__(self, name, error):
        self.name, self.error = name, error

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            raise self.error


FAILURES = [
    (ModuleNotFoundError("No module named 'numba_cuda'", name="numba_cuda"), "numba-cuda is not installed (No module"),
    (ImportError("libcuda: cannot\n  open"), "numba-cuda fails (ImportError: libcuda: cannot open)"),
    (AttributeError("module 'numpy' has no attribute 'row_stack'"), "numba-cuda fails (AttributeError: module 'numpy'"),
    (RuntimeError("a driver " + 500 * "so old "), "numba-cuda fails (RuntimeError: a driver so old so old"),
    (KeyError("LD_LIBRARY_PATH"), "numba-cuda fails (KeyError: 'LD_LIBRARY_PATH')")]


@pytest.fixture
def one_gpu(monkeypatch):
    """A machine with a GPU, on which no kernel has been kept."""
    monkeypatch.setattr(runtime, "gpus", lambda: 1)
    monkeypatch.setattr(runtime, "_gpu", lambda: gpu.device("executor"))  # which says what it is
    monkeypatch.setenv("REFOPT_CACHE", "0")
    monkeypatch.delenv("REFOPT_DEVICE")
    caches = runtime._why_no_gpu, compiling.no_compiler, compiling.compiler
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture(params=FAILURES, ids=lambda failure: type(failure[0]).__name__)
def broken(request, monkeypatch, one_gpu):
    """A compiler whose import fails in some way, and how that is put."""
    error, why = request.param
    monkeypatch.delitem(sys.modules, "refopt.gpu.by_numba", raising=False)
    monkeypatch.delattr("refopt.gpu.by_numba", raising=False)
    monkeypatch.delitem(sys.modules, "numba_cuda", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken("numba_cuda", error), *sys.meta_path])
    return why


def test_a_compiler_that_cannot_be_imported_is_none(broken):
    """The executor is taken; who asks for the GPU is told why there is none, in a line."""
    assert gpu.device().name == "executor"
    with pytest.raises(RuntimeError, match="expected a CUDA GPU, got none: " + re.escape(broken)) as told:
        gpu.device("gpu")
    assert "\n" not in str(told.value) and len(str(told.value)) < 300
    with pytest.raises(pytest.skip.Exception, match=re.escape(broken)):
        needs.compiler()


def test_whose_kernels_are_kept_needs_no_compiler(broken, monkeypatch, tmp_path):
    """The GPU is taken; a kernel that is not there says what is missing, and what to install."""
    monkeypatch.setenv("REFOPT_CACHE", str(tmp_path))
    (tmp_path / "another.kernel").write_bytes(b"")
    assert runtime._why_no_gpu() == ""
    machine = gpu.device("executor").properties
    with pytest.raises(RuntimeError, match=r"^lone: expected a compiler \(pip install 'refopt\[cuda13\]'\), got none: "
                       + re.escape(broken)):
        lone.linked(("float32[1]",), machine)


@cuda.jit
def lone(x):
    x[0] = 1


def test_a_compiler_that_fails_later_is_none(monkeypatch, one_gpu):
    """Much of it is imported when it compiles, after a GPU has been found."""
    needs.compiler()

    def fails(*_):
        raise AttributeError("no attribute 'row_stack'")

    monkeypatch.setattr(compiling.compiler(), "linked", fails)
    compiling.no_compiler.cache_clear()
    why = "numba-cuda fails (AttributeError: no attribute 'row_stack'); pip install 'refopt[cuda13]'"
    assert runtime._why_no_gpu() == why


@pytest.mark.parametrize(("error", "why"), [
    (ModuleNotFoundError("No module named 'cuda'"), "cuda-bindings is not installed (No module named 'cuda')"),
    (type("DynamicLibNotFoundError", (RuntimeError,), {})("no libcuda"), "no CUDA device or driver was found"),
    (RuntimeError("CUDA_ERROR_NO_DEVICE: none is there"), "no CUDA device or driver was found"),
    (RuntimeError("CUDA_ERROR_SYSTEM_NOT_READY: so\n it is"),
     "the CUDA driver fails (RuntimeError: CUDA_ERROR_SYSTEM_NOT_READY: so it is)")])
def test_a_driver_that_fails_is_none(one_gpu, monkeypatch, error, why):
    def fails():
        raise error

    monkeypatch.setattr(runtime, "gpus", fails)
    assert runtime._why_no_gpu() == why and gpu.device().name == "executor"


def test_a_plain_installation_imports_everything():
    """Every package but `refopt.torch` with NumPy and greenlet alone: the extras stay away until they are used."""
    extras = "ml_dtypes", "numba", "numba_cuda", "hypothesis", "torch", "matplotlib"
    text = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:]))\n"
    text += "from refopt import catalog, checks, cli, comm, cpu, gpu, oracle, program, simt, state\n"
    text += "from refopt.gpu import ladder, matmul, parts, products, tensor_core"
    subprocess.run([sys.executable, "-c", text, *extras], check=True, cwd=HERE.parent)
