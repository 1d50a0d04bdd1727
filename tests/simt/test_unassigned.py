"""Variables that are read before they are assigned: zero, as in Numba, and reported where they are stored."""

import ast

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from refopt.simt.base.variables import unassigned


def in_a_branch(x, n, out):
    if n > 3:
        value = x[0] * 2
    out[0] = value + np.float32(1)


def the_loop_variable(x, n, out):
    for i in range(n - 4):  # noqa: B007
        pass
    out[0] = i + 1


BODIES = [in_a_branch, the_loop_variable]


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_it_is_zero_and_watched_it_may_not_be_stored(body):
    def stored(n, **options):
        out = np.zeros(1)
        with simt.observe(**options):
            cuda.jit(body)[1, 1](np.full(5, 3, np.float32), n, out)
        return out[0]

    assert stored(1) == stored(1, watch=True, lenient="uninitialized") == 1
    assert stored(8) == stored(8, watch=True) > 1
    said = r"stores a value at .*test_unassigned.py:\d+, where variable \w+ is not assigned .*rule uninitialized"
    with pytest.raises(simt.UninitializedRead, match=said):
        stored(1, watch=True)


def test_what_an_expression_assigns_is_assigned():
    @cuda.jit
    def kernel(n, out):
        double = lambda k: 2 * k  # noqa: E731
        if (m := n) > 3:
            out[0] = m
        k = double(m)
        out[1] = k + m

    out = np.zeros(2, np.int64)
    with simt.observe(watch=True):
        kernel[1, 1](4, out)
    assert out.tolist() == [4, 12]


@cuda.jit(device=True)
def added(value, x):
    return x + value


def test_it_may_be_passed_on_and_left_alone():
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            value = x[i]
        total = added(value, np.float32(1))
        if i < x.size:
            out[i] = total

    out = np.zeros(3)
    with simt.observe(watch=True):
        kernel[1, 8](np.ones(3, np.float32), out)
    assert out.tolist() == [2, 2, 2]


@pytest.mark.parametrize(("text", "expected"), [
    ("y = x", ""), ("y = z", ""), ("if x: y = 1\nz = y", "y"), ("if x: y = 1\nelse: y = 2\nz = y", ""),
    ("if x: y = 1\nelse: return\nz = y", ""), ("for i in x: y = i\nz = i", "i"), ("for i in x: z = i", ""),
    ("while x: y = 1\nz = y", "y"), ("while True:\n  y = 1\n  if y: break\nz = y", ""),
    ("while True:\n  if x: break\n  y = 1\nz = y", "y"), ("y += 1", "y"), ("y: int = 1\ny += y", ""),
    ("while True:\n  while True:\n    if x: break\n    y = 1\n  z = y\n  break", "y"),
    ("for i in x:\n  if i: y = 1\n  else: continue\n  z = y", ""),
    ("try: y = 1\nexcept E as e: z = e\nz = y", "y"), ("x[y] = 1\ny = 2", "y"),
    ("a, (b, c) = x\nz = a + b + c", ""),])
def test_definite_assignment(text, expected):
    node = ast.parse("def f(x):\n" + "\n".join(f"  {line}" for line in text.splitlines())).body[0]
    assert unassigned(node) == set(expected.split())
