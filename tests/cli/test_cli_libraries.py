"""What each command says where a library is missing: status 2 and what to install, if it needs that library."""

import importlib.abc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refopt import cli

STEP = """
import numpy as np

def step(params, grads, *, lr, l2_decay):
    for p, g in zip(params, grads):
        real = np.float64 if p.dtype == np.float64 else np.float32
        p[...] = p.astype(real) - real(lr) * (g.astype(real) + real(l2_decay) * p.astype(real))
"""
SCRIPT = "from numba import cuda\n"
LIBRARIES = {"ml_dtypes": "refopt[bf16]", "cupy": "cupy-cuda13x", "greenlet": "greenlet",  # and what pip calls them
             **{name: name for name in ("torch", "jax", "optax", "numba", "numba_cuda", "cuda", "hypothesis", "mpi4py",
                                        "nccl", "matplotlib")}}
SGD = "check step.py:step --as sgd --law L1 --examples 0"
TWO = "compare step.py:step step.py:step"
COMMANDS = {  # and the libraries that each needs
    f"{SGD} --dtype fp32": [], f"{SGD} --in-place": [], f"{SGD} --dtype fp32 bf16": ["ml_dtypes"],
    f"{SGD} --arrays cupy": ["cupy"], f"{SGD} --arrays jax --in-place": ["jax"], f"{SGD} --arrays torch": ["torch"],
    "check step.py:step --as none --law L4 --dtype bf16": ["ml_dtypes"], "check --list-laws": [],
    "check --identify step.py:step": [], "check --identify step.py:step --arrays cupy": ["cupy"],
    "check --identify step.py:step --arrays torch": ["torch"],
    f"{TWO} --in-place": [], f"{TWO} --dtype bf16": ["ml_dtypes"], f"{TWO} --arrays jax": ["jax"],
    "vectors sgd --examples 0": [], "vectors sgd --examples 0 --dtype bf16": ["ml_dtypes"],
    "vectors muon --examples 0": ["ml_dtypes"],
    "show adam --dtype bf16": [], "show muon": [],
    "verify --device executor --routine sgd --dtype fp32": ["greenlet"],
    "verify --device executor --routine sgd --form merged": ["greenlet"],
    "verify --device executor --routine sgd --dtype bf16": ["ml_dtypes", "greenlet"],
    "verify --device executor --routine muon --dtype fp16 fp64": ["ml_dtypes", "greenlet"],
    "simt script.py": []}
LONG = f"{TWO} --in-place", f"{SGD} --in-place", "show muon"
CASES = [pytest.param(line, name, marks=[pytest.mark.slow] * (line in LONG and name != "ml_dtypes"))
         for line, needs in COMMANDS.items() for name in needs or ["ml_dtypes", "all"]]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize(("line", "name"), CASES)
def test_a_missing_library(line, name, monkeypatch, capfd):
    """Without one it needs, a command ends with 2, and says what to install. It needs no other."""
    for gone in [x for x in LIBRARIES if not (x == "numba" and "simt" in line)] if name == "all" else [name]:
        monkeypatch.setitem(sys.modules, gone, None)
    status, (out, err) = cli.main(line.split()), capfd.readouterr()
    if not COMMANDS[line]:
        assert status == 0 and "Traceback" not in err, err
        return
    assert status == 2 and not out and not Path("x.npz").exists()
    assert f"{name} is not installed (pip install '{LIBRARIES[name]}')" in " ".join(err.split())


class Broken(importlib.abc.MetaPathFinder):
    """A library whose import fails."""

    def __init__(self, name, error):
        self.name, self.error = name, error

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            raise self.error


@pytest.mark.parametrize(("error", "said"), [
    (ModuleNotFoundError("No module named 'cupy'", name="cupy"), "cupy is not installed (pip install 'cupy-cuda13x')"),
    (ModuleNotFoundError("No module named 'fastrlock'", name="fastrlock"),
     "cupy cannot be imported: No module named 'fastrlock'"),
    (ImportError("libcuda.so.1:\n no such file"), "cupy cannot be imported: libcuda.so.1: no such file")])
@pytest.mark.parametrize("way", [[], ["--in-place"]], ids=["apart", "in place"])
def test_a_library_that_cannot_be_imported(error, said, way, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken("cupy", error), *sys.meta_path])
    assert cli.main([*SGD.split(), "--arrays", "cupy", *way]) == 2
    assert capsys.readouterr() == ("", f"refopt: {said}\n")


def test_a_module_of_refopt_that_is_missing_is_a_failure_of_the_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "refopt.oracle.process", None)
    assert cli.main(SGD.split()) == 3 and "ModuleNotFoundError" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["numba", "numba_cuda"])
def test_ptx_needs_a_compiler(name):
    """In a process that has not imported one."""
    code = f"import sys; sys.modules[{name!r}] = None; from refopt import cli; cli.run()"
    done = subprocess.run([sys.executable, "-c", code, "show", "sgd", "--ptx"], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, timeout=120)
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("refopt: --ptx: numba-cuda ") and "pip install 'refopt[cuda13]'" in done.stderr
