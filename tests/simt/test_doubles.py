"""Arithmetic on doubles in kernels that have no array of them: by line, or refused."""

import math

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda


@cuda.jit(device=True)
def halved(a):
    return a * 0.5  # line: halved


@cuda.jit
def mixed(x, n):
    i = cuda.grid(1)
    if i < n and x[i] > 0.5:
        x[i] = x[i] * 0.1  # line: constant
        x[i] += 1  # line: integer
        x[i] = np.float32(x[i] > n)  # line: compared
        x[i] = halved(x[i])
        x[i] = np.float32(2) * x[i] / np.float32(n)


@cuda.jit
def single(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = x[i] * np.float32(0.1) + np.float32(n // 2)


def test_doubles_are_reported_by_line():
    x, y = np.ones(4, np.float32), np.ones(4)
    with simt.observe(doubles="report") as log:
        single[1, 4](x, 4)
        assert log.doubles == []
        mixed[1, 4](y, 4)
        assert log.doubles == []
        mixed[1, 4](x, 4)
        mixed[1, 4](x, 4)
    said = [double.text.rpartition("line: ")[2] for double in log.doubles]
    assert said == ["halved", "constant", "integer", "compared"]
    assert [double.operands for double in log.doubles][1:] == ["float32 and float64", *["float32 and int64"] * 2]


def test_a_line_on_doubles_alone_is_reported_too():
    @cuda.jit
    def kernel(x):
        s = 0.5
        t = s * s  # line: doubles
        x[0] = math.sqrt(t)  # line: root

    with simt.observe(doubles="report") as log:
        kernel[1, 1](np.ones(4, np.float32))
    assert [double.text.rpartition("line: ")[2] for double in log.doubles] == ["doubles", "root"]


def test_doubles_are_refused_before_the_launch():
    x = np.ones(4, np.float32)
    with simt.observe(doubles="refuse") as log:
        with pytest.raises(simt.LaunchError, match=r"mixed has no fp64 array[\s\S]*line: constant") as caught:
            mixed[1, 4](x, 4)
        assert f"in kernel mixed at {__file__}:{caught.value.line}\n" in str(caught.value)  # of no thread
        single[1, 4](x, 4)
    assert len(log.launches) == 1
    with pytest.raises(ValueError, match="expected ignore, report or refuse"), simt.observe(doubles="maybe"):
        pass
