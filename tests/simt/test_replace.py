"""The executor in place of `numba.cuda`: in a with block, by an environment variable, for a script."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import numba
import numba.cuda
import numpy as np
import pytest

from refopt import cli, simt
from refopt.simt.names import modules
from refopt.simt.names.replace import unreplaced
from refopt.simt.watch import defects

REAL = numba.cuda
SCRIPT = """\
import sys
import numba
import numpy as np
from numba import cuda, float32, njit

assert numba.cuda is cuda and numba.cuda.cudadrv.devices.gpus is cuda.gpus

@njit
def halved(x):
    return x / 2

@cuda.jit
def kernel(x):
    s = cuda.shared.array(4, float32)
    i = cuda.grid(1)
    s[i] = halved(x[i])
    cuda.syncthreads()
    x[i] = s[3 - i]

if __name__ == "__main__":
    x = np.arange(4, dtype=np.float32)
    kernel[1, 4](x)
    print(__name__, sys.argv[1:], x, halved(3.0), cuda.__name__)
"""
OUTPUT = "__main__ ['a', '--watch'] [1.5 1.  0.5 0. ] 1.5 refopt.simt.cuda\n"


def test_names_of_cuda():
    with simt.replace_numba():
        import numba_cuda.numba.cuda
        import numba_cuda_mlir.cuda
        from numba import cuda
        from numba.cuda import grid
        from numba.cuda.cudadrv.devicearray import DeviceNDArray
        from numba_cuda import cuda as short

        assert cuda is numba.cuda is numba_cuda.numba.cuda is numba_cuda_mlir.cuda is short is simt.cuda
        assert grid is simt.cuda.grid and DeviceNDArray is simt.DeviceArray
        assert numba.njit(lambda x: x + 1)(2) == 3
    assert numba.cuda is REAL is sys.modules["numba.cuda"]
    assert "numba_cuda_mlir" not in sys.modules


def test_what_is_missing_says_so():
    with simt.replace_numba():
        with pytest.raises(ModuleNotFoundError, match=r"^the executor has no numba.cuda.nothing$"):
            importlib.import_module("numba.cuda.nothing")
        with pytest.raises(simt.Unsupported, match=r"^the executor has no numba.cuda.cudadrv.driver.nothing"):
            _ = importlib.import_module("numba.cuda.cudadrv.driver").nothing
        with pytest.raises(ImportError, match="cannot import name 'nothing'"):
            from numba.cuda import nothing  # noqa: F401


def test_what_is_in_front_of_the_executor_stays_there(monkeypatch):
    """After its names have been Numba's for a while, as where PTX is compiled."""
    first = SimpleNamespace(find_spec=lambda *_: None)
    with simt.replace_numba() as replaced, monkeypatch.context() as patch:
        patch.setattr(sys, "meta_path", [first, *sys.meta_path])
        with unreplaced():
            assert replaced not in sys.meta_path
        assert sys.meta_path[:2] == [first, replaced]


def test_undone_after_an_error_and_once():
    replaced = simt.replace_numba()
    with pytest.raises(ZeroDivisionError), replaced:
        _ = 1 / 0
    assert numba.cuda is REAL
    replaced.undo()
    assert numba.cuda is REAL


def test_kernels_outlive_the_with_block():
    with simt.replace_numba():
        space: dict = {"__name__": "other"}
        exec(SCRIPT, space)
    x = np.arange(4, dtype=np.float32)
    space["kernel"][1, 4](x)
    assert x.tolist() == [1.5, 1, 0.5, 0]


def test_modules_are_all_there():
    assert all(module.__name__ for module in modules.replacements().values())
    assert set(modules.stub()) >= {"numba", "numba.types", "numba.core.errors"}


def test_without_numba_its_functions_change_nothing():
    stub = modules.stub()["numba"]
    assert stub.njit(fastmath=True)(abs_of)(-2) == stub.jit(abs_of)(-2) == 2 and list(stub.prange(1, 3)) == [1, 2]


def abs_of(x):
    return abs(x)


def test_the_loader_of_numba_is_its_own():
    with simt.replace_numba(), pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "numba")
        assert importlib.util.find_spec("numba").loader.get_filename("numba") == numba.__file__


def python(tmp_path, *args, numba=True, **environment):
    """A new process of Python, one that finds no Numba if asked for, and what it prints."""
    (tmp_path / "script.py").write_text(SCRIPT)
    path = [os.getcwd()]
    if not numba:
        hidden = "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'umba' not in type(f).__name__]\n" + (
            "from importlib.machinery import PathFinder\nfind = PathFinder.find_spec\n"
            "PathFinder.find_spec = classmethod(lambda cls, name, *rest: "
            "None if name.partition('.')[0] in ('numba', 'numba_cuda', 'llvmlite') else find(name, *rest))\n")
        (tmp_path / "sitecustomize.py").write_text(hidden)
        path.insert(0, str(tmp_path))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment}
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, env=variables, check=False)
    return done.stdout, done.stderr, done.returncode


@pytest.mark.parametrize("numba", [True, False], ids=["numba", "without"])
def test_a_script(tmp_path, numba):
    script = str(tmp_path / "script.py")
    stdout, stderr, status = python(tmp_path, "-m", "refopt.simt", "--watch", script, "a", "--watch", numba=numba)
    assert (stdout, stderr, status) == (OUTPUT, "", 0)
    if not numba:
        assert "No module named 'numba'" in python(tmp_path, "-c", "import numba", numba=False)[1]


@pytest.mark.parametrize(("value", "replaced"), [("1", True), ("0", False)])
def test_the_environment_variable(tmp_path, value, replaced):
    program = "import sys, refopt.simt; print('replace_numba' in [type(one).__name__ for one in sys.meta_path])"
    assert python(tmp_path, "-c", program, REFOPT_SIMT=value) == (f"{replaced}\n", "", 0)


@pytest.mark.parametrize("named", [["script.py"], ["-m", "script"]], ids=["script", "module"])
def test_the_command(tmp_path, capsys, monkeypatch, named):
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["simt", *named, "a", "--watch"]) == 0
    assert capsys.readouterr().out == OUTPUT
    assert numba.cuda is REAL


@pytest.mark.parametrize("given", [
    "nothing.py", "tests", "-m nothing", "-m nothing.inside", "-m os.path.nothing", "-m email.nothing"])
def test_no_script(given, capsys):
    before = list(sys.path)
    assert cli.main(["simt", *given.split()]) == 2
    kind = "module" if "-m" in given else "script"
    assert f"no {kind} {given.split()[-1]}\n" in capsys.readouterr().err
    assert sys.path == before and numba.cuda is REAL


def test_a_module_of_a_package_that_imports_cuda(tmp_path, monkeypatch, capsys):
    package = tmp_path / "of_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("from numba import cuda\n")
    (package / "inside.py").write_text("from . import cuda\nprint(cuda.__name__)\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["simt", "-m", "of_kernels.inside"]) == 0
    assert capsys.readouterr().out == "refopt.simt.cuda\n"
    sys.modules.pop("of_kernels")
    (package / "__init__.py").write_text("import missing_here\n")
    assert cli.main(["simt", "-m", "of_kernels.inside"]) == 1
    assert "No module named 'missing_here'" in capsys.readouterr().err


@pytest.mark.parametrize(("end", "status", "said"), [
    ("sys.exit(7)", 7, ""), ("sys.exit()", 0, ""), ("sys.exit('words')", 1, "words\n"), ("sys.exit([])", 1, ""),
    ("1 / 0", 1, "ZeroDivisionError: division by zero\n")])
def test_the_status_of_a_script(tmp_path, capsys, end, status, said):
    (tmp_path / "ends.py").write_text(f"import sys\n{end}\n")
    before = list(sys.path)
    assert cli.main(["simt", str(tmp_path / "ends.py")]) == status
    assert capsys.readouterr().err.endswith(said) and sys.path == before


BLOCKS = """
import sys
import numpy as np
from numba import cuda
@cuda.jit
def arrive(counter, places):
    places[cuda.atomic.add(counter, 0, 1)] = cuda.blockIdx.x
@cuda.jit
def between(x, counter):  # a race if block 1 comes between the others
    cuda.cg.this_grid()
    if cuda.blockIdx.x == 0:
        x[0] = 1
        cuda.threadfence()
    if cuda.atomic.add(counter, 0, 1) == 1 and cuda.blockIdx.x == 2:
        x[0] = 2
@cuda.jit
def skip(x):
    if cuda.threadIdx.x:
        cuda.syncthreads()
@cuda.jit
def outside(x):
    x[3] = 1
    x[4] = 1
@cuda.jit
def equal(x):
    x[0] = 1
@cuda.jit
def last(x):
    x[-1] = x[0] * 0.5
arrive[8, 1](np.zeros(1, np.int32), places := np.zeros(8, np.int32))
print(*places)
{launch}
"""
FORWARD = "0 1 2 3 4 5 6 7\n"


@pytest.mark.parametrize(("options", "launch", "status", "out", "err"), [
    ("", "", 0, FORWARD, ""), ("--schedule reverse", "", 0, "7 6 5 4 3 2 1 0\n", ""),
    ("--schedule random", "", 0, "6 7 3 0 2 5 1 4\n", ""),
    ("--schedule random --seed 5", "", 0, "4 5 2 7 0 1 3 6\n", ""),
    ("--watch", "between[3, 1](np.zeros(1), np.zeros(1, int))", 0, FORWARD, ""),
    ("--orders 20", "between[3, 1](np.zeros(1), np.zeros(1, int))", 1, FORWARD, "found with schedule random (seed"),
    ("", "skip[1, 2](0)", 1, FORWARD, "BarrierDivergence"),
    ("--lenient skipped-barrier", "skip[1, 2](0)", 0, FORWARD, ""),
    ("--keep-going", "outside[1, 2](np.zeros(3)); sys.exit(3)", 1, FORWARD, "1 of 1 (2 times): "),
    ("--keep-going", "outside[1, 1](np.zeros(3))", 1, FORWARD, "\nand 1 more\n"),
    ("--watch", "equal[1, 2](np.zeros(3))", 0, FORWARD, "refopt simt: equal values written to x, unordered"),
    ("--watch", "equal[1, 2](np.zeros(3)); sys.exit(3)", 3, FORWARD, ""),
    ("--watch --strict same-value", "equal[1, 2](np.zeros(3))", 1, FORWARD, "DataRace"),
    ("--watch --strict same-value --lenient same-value --lenient acquire", "", 0, FORWARD, ""),
    ("--strict negative-index", "last[1, 1](np.zeros(2))", 1, FORWARD, "OutOfBounds"),
    ("--strict nothing", "", 2, "", "invalid choice: 'nothing'"),
    ("--doubles ignore", "last[1, 1](np.zeros(2, np.float32))", 0, FORWARD, ""),
    ("--doubles refuse", "last[1, 1](np.zeros(2, np.float32))", 1, FORWARD, "computes in fp64")])
def test_options_of_a_script(tmp_path, capsys, monkeypatch, options, launch, status, out, err):
    monkeypatch.setattr(defects, "MOST", 1)
    (tmp_path / "blocks.py").write_text(BLOCKS.replace("{launch}", launch))
    assert cli.main(["simt", *options.split(), str(tmp_path / "blocks.py")]) == status
    told = capsys.readouterr()
    assert told.out == out and (err in told.err if err else not told.err)
