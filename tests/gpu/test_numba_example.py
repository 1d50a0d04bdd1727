"""examples/numba_adamw.py: the elementwise kernel for who has Numba alone."""

import os
import re
import runpy
import subprocess
import sys
import zlib

import needs
import numpy as np
import pytest

from benchmarks.record import ROOT
from gpu.test_stock_numba import stock_ptx
from refopt import cpu

SCRIPT = ROOT / "examples" / "numba_adamw.py"
SIZES, STEPS = (3, 1000, 2500), 3  # those of its `main`


def expected():
    """What `refopt.cpu` makes of the same numbers."""
    values, ends = np.random.default_rng(1), np.cumsum(SIZES)[:-1]
    params = values.standard_normal(sum(SIZES)).astype(np.float32)
    arrays = [params, np.zeros_like(params), np.zeros_like(params)]
    powers = [[np.full(1, beta, np.float32) for _ in SIZES] for beta in (0.9, 0.999)]
    for _ in range(STEPS):
        grads = values.standard_normal(sum(SIZES)).astype(np.float32)
        lists = [np.split(x, ends) for x in (arrays[0], grads, *arrays[1:])]
        cpu.merged_adamw(*lists, *powers, lr=1e-3, coeff=0.01, epsilon=1e-8)
    return [f"{zlib.crc32(x.tobytes()):08x}" for x in arrays]


@pytest.mark.parametrize("way", [["-m", "refopt.simt"], []], ids=["executor", "Numba's simulator"])
def test_it_has_the_bits_of_the_reference(way):
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0" if way else "1"}
    done = subprocess.run([sys.executable, *way, SCRIPT], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert re.findall(r"crc32 of all bytes (\w+)", done.stdout) == expected(), done.stderr


def test_its_elements_are_in_registers(monkeypatch):
    needs.compiler()
    kernel = runpy.run_path(str(SCRIPT))["merged_adamw"]
    signature = *["float32[1]"] * 4, "int64[2]", "float32[2]", "float32[2]"
    ptx = stock_ptx(kernel, signature, (9, 0), monkeypatch)
    assert not re.search(r"(ld|st)\.local|\.f64", ptx)
