"""Variables and ops as they are made, and attributes of ops: what is taken, and what is refused by name."""

import re

import numpy as np
import pytest

from refopt.program import Op, Program, Var


def refused(error, message, function, *args, **named):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        function(*args, **named)


# Variables.


@pytest.mark.parametrize(("shape", "expected"), [
    ((2, 3), (2, 3)), ([2], (2,)), ((), ()), ((np.int64(2), 0), (2, 0)), ((n for n in (4, 5)), (4, 5)), ((-1,), (-1,)),
])  # fmt: skip
def test_shapes(shape, expected):
    found = Var("a", shape, "float32").shape
    assert found == expected and all(type(extent) is int for extent in found)


@pytest.mark.parametrize(("shape", "error", "message"), [
    ((2.5,), TypeError, "[0]: expected an integer, got 2.5"),
    ((3, 2.0), TypeError, "[1]: expected an integer, got 2.0"),
    ((3, True), TypeError, "[1]: expected an integer, got True"),
    ("23", TypeError, ": expected a sequence of extents, got '23'"),
    (3, TypeError, ": expected a sequence of extents, got 3"),
    (None, TypeError, ": expected a sequence of extents, got None"),
    ((2, -1), ValueError, ": expected extents of at least 0, got (2, -1)"),
])  # fmt: skip
def test_shapes_that_are_none(shape, error, message):
    refused(error, f"Var: 'a': shape{message}", Var, "a", shape, "float32")


def test_a_sparse_variable_has_rows():
    message = "Var: 'a': shape: expected at least one axis, that of the rows of a sparse variable, got ()"
    refused(ValueError, message, Var, "a", (), "float32", sparse=True)
    assert Var("a", (3,), "float32", sparse=True).sparse and Var("a", (), "float32").shape == ()


# Ops.


@pytest.mark.parametrize("names", [["a", "b"], ("a", "b"), (n for n in "ab"), {"a": 1, "b": 2}.keys()])
def test_names(names):
    """Those that can be gone through once are kept all the same."""
    assert Op("scale", {"x": names}).inputs == {"x": ("a", "b")}


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("names", ["ab", None, 3, ["a", 3]])
def test_names_that_are_none(names, side):
    message = f"Op: scale: x: expected a sequence of names, got {names!r}"
    refused(TypeError, message, Op, "scale", **{side: {"x": names}})


# Attributes.

X = {"x": ["a"]}, {"out": ["a"]}


@pytest.mark.parametrize(("kind", "attrs", "message"), [
    ("all_reduce", dict(ranks=True), "ranks: expected an integer of at least 1, got True"),
    ("broadcast", dict(ranks=True, root=0), "ranks: expected an integer of at least 1, got True"),
    ("broadcast", dict(ranks=2, root=True), "root: expected a rank from 0 to 1, got True"),
    ("reduce", dict(ranks=2, root=False), "root: expected a rank from 0 to 1, got False"),
])  # fmt: skip
def test_a_truth_value_is_no_rank(kind, attrs, message):
    program = Program({"a": Var("a", (3,), "float32", persistable=True)}, (), (Op(kind, *X, attrs, "communicate"),))
    refused(ValueError, f"program: main[0] {kind}: {message}", program.check)
    Program(program.vars, (), (program.main[0].replace(attrs=dict(ranks=2, root=1)),)).check()


@pytest.mark.parametrize(("factor", "message"), [
    pytest.param(10**400, "expected a number in the range of float64, got one beyond it", id="beyond float64"),
    (float("inf"), "expected a finite number, got inf"), (True, "expected a finite number, got True"),
])  # fmt: skip
def test_factors_that_are_none(factor, message):
    program = Program({"a": Var("a", (3,), "float32", persistable=True)}, (), (Op("scale", *X, {"scale": factor}),))
    refused(ValueError, f"program: main[0] scale: scale: {message}", program.check)
