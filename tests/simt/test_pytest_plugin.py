"""``pytest --simt-watch``: a suite of `numba.cuda` runs watched, and a report is the failure."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = "refopt.cli.pytest_plugin"
CONFTEST = """
import numpy as np
import pytest
from numba import cuda

@pytest.fixture
def ones():
    return cuda.to_device(np.ones(64, np.float32))
"""
SUITE = """
import numpy as np
from numba import cuda

@cuda.jit
def total(x, out):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    if t == 0:
        for i in range(64):
            out[0] += s[i]

@cuda.jit
def double(x):
    x[cuda.grid(1)] *= 2

@cuda.jit
def one(x):
    x[0] = 1

def test_race(ones):
    out = np.zeros(1, np.float32)
    total[1, 64](ones, out)
    assert out[0] == 64

def test_right(ones):
    double[2, 32](ones)
    one[1, 32](ones)
    assert (ones.copy_to_host()[1:] == 2).all()

def test_that_observes_itself(ones):
    from refopt import simt
    with simt.observe() as log:
        double[2, 32](ones)
    assert log.bytes_read(ones) == 256

def test_plain():
    assert 1 == 2
"""


@pytest.mark.parametrize("options", [["--simt-watch"], ["--simt-orders", "1"]], ids=" ".join)
def test_a_suite(tmp_path, options):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", PLUGIN, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""})
    assert done.returncode == 1 and "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    report = done.stdout.partition(" test_race ")[2].partition("\n____")[0].splitlines()[1:]
    assert 6 < len(report) <= 12 and report[2].strip() == "total[1, 64](ones, out)"
    assert report[3].startswith("refopt.simt.DataRace: data race on [1], byte 4 of shared array s (shape"), report
    assert "FAILED test_it.py::test_race - refopt.simt.DataRace: " in done.stdout
    assert "refopt simt: equal values written to x" in done.stdout and "assert 1 == 2" in done.stdout


def test_it_is_registered_and_imports_nothing_but_pytest():
    """Under one name whichever way it is loaded, so that it is loaded once."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert points == {"refopt.cli.pytest_plugin": "refopt.cli.pytest_plugin"}
    heavy = "import sys, pytest; old = set(sys.modules); import refopt.cli.pytest_plugin; print(set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert set(eval(done.stdout)) == {"refopt", "refopt.cli", "refopt.cli.output", "refopt.cli.pytest_plugin"}
