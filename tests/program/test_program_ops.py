"""Variables and ops as they are made, and attributes of ops: what is taken, and what is refused by name."""

import re
import subprocess
import sys

import numpy as np
import pytest

from refopt.catalog import KNOWN, ROUTINES
from refopt.program import Op, Var, passes, step_program
from refopt.program.model import AXES
from refopt.program.ops.coalescing import padded


def refused(error, message, function, *args, **named):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        function(*args, **named)


# Variables.


@pytest.mark.parametrize(("shape", "expected"), [
    ((2, 3), (2, 3)), ([2], (2,)), ((), ()), ((np.int64(2), 0), (2, 0)), ((n for n in (4, 5)), (4, 5)), ((-1,), (-1,)),
    ((1,) * AXES, (1,) * AXES), ((2**61 - 1,), (2**61 - 1,))])
def test_shapes(shape, expected):
    found = Var("a", shape, "float32").shape
    assert found == expected and all(type(extent) is int for extent in found)


@pytest.mark.parametrize(("shape", "error", "message"), [
    ((2.5,), TypeError, "[0]: expected an integer, got 2.5"),
    ((3, 2.0), TypeError, "[1]: expected an integer, got 2.0"),
    ("23", TypeError, ": expected a sequence of extents, got '23'"),
    ((2, -1), ValueError, ": expected extents of at least 0, got (2, -1)"),
    ((-2, 1), ValueError, ": expected extents of at least 0, got (-2, 1)"),
    ((1,) * (AXES + 1), ValueError, f": expected at most {AXES} axes, got {AXES + 1}"),
    *((shape, ValueError, f": expected at most 2**63 - 1 bytes, got {shape} of 4 bytes per element")
      for shape in ((2**61,), (2**61, 0)))])
def test_shapes_that_are_none(shape, error, message):
    refused(error, f"Var: 'a': shape{message}", Var, "a", shape, "float32")


def test_a_sparse_variable_has_rows():
    message = "Var: 'a': shape: expected at least one axis, that of the rows of a sparse variable, got ()"
    refused(ValueError, message, Var, "a", (), "float32", sparse=True)
    assert Var("a", (3,), "float32", sparse=True).sparse and Var("a", (), "float32").shape == ()
    assert [str(Var("a", (3,), "float32", sparse=x)) for x in (True, False)] == [
        "a: sparse float32 (3,)", "a: float32 (3,)"]


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


# What an op is checked for, and run by, does not depend on what has been imported.

ALONE = """
import sys
from refopt.program import passes, counts
heavy = [name for name in sys.modules if name.startswith(("numba", "refopt.gpu", "refopt.simt"))]
assert not heavy, heavy
import numpy as np
from refopt.program import Op, Program, Var, bind
vars = {name: Var(name, (rows,), "float32", True, initial=0.0) for name, rows in dict(a=2, b=3, w=5).items()}
def program(kind, x, **attrs):
    return Program(vars, (), [Op(kind, {"x": x}, {"out": ["w"]}, attrs, "communicate")])
assert "refopt.program.placement" not in sys.modules
try:
    program("concat", ["a", "a"]).check()
except ValueError as error:
    assert str(error) == "program: main[0] concat: x: expected 5 rows in all, as 'w' has, got 4", error
else:
    raise AssertionError("accepted")
try:
    program("copy_in", ["a"]).check()
except TypeError as error:
    assert "main[0] copy_in: ring: expected variables, got none" in str(error), error
arrays = dict(a=np.ones(2, np.float32), b=np.zeros(3, np.float32), w=np.full(5, 7, np.float32))
bound = bind(program("concat", ["a", "b"]), arrays)
bound.startup()
bound.step()
assert arrays["w"].tolist() == [1, 1, 0, 0, 0]
program("anything", ["a"], of=3).check()
try:
    bind(program("anything", ["a"]), arrays)
except ValueError as error:
    assert "bind: anything: expected a type that can be run" in str(error)
"""


@pytest.mark.parametrize("first", ["", pytest.param("import refopt.comm", marks=pytest.mark.slow)])
def test_nothing_has_to_be_imported(first):
    """And kernels are not, before any is asked for."""
    found = subprocess.run([sys.executable, "-W", "error", "-c", first + ALONE], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


# Attributes.

X = {"x": ["a"]}, {"out": ["a"]}


# What scalars start from.


@pytest.mark.parametrize("routine", ROUTINES.values(), ids=lambda x: x.name)
def test_every_scalar_has_a_first_value(routine):
    """A number, or a hyperparameter of the routine, whose value a program then starts it from."""
    needed = {hyper.name: 0.5 for hyper in routine.hypers if hyper.default is None}
    program = step_program([("a", (2,))], routine.name, **{"lr": 0.5} | needed)
    hypers = {hyper.name: hyper.default for hyper in routine.hypers}
    for slot in routine.slots:
        assert (slot.initial is not None) == slot.scalar
        if slot.scalar:
            (name,) = program.main[-1].inputs[slot.name]
            assert program.vars[name].initial == hypers.get(slot.initial, slot.initial)


def test_a_scalar_without_a_first_value(monkeypatch):
    adam = KNOWN["adam"]
    slots = tuple(slot._replace(initial=None) if slot.name == "beta2_pow" else slot for slot in adam.slots)
    monkeypatch.setitem(KNOWN, "adam", adam._replace(slots=slots))
    with pytest.raises(ValueError, match="step_program: adam: beta2_pow: expected an initial value in the catalogue"):
        step_program([("a", (2,))], "adam", lr=0.5)


SIX = {"a": (4,), "b": (5,), "c": (4,), "d": (5,), "e": (4,), "f": (5,)}
STEP = step_program(SIX.items(), "adam", lr=1.0).with_vars([
    Var("other", (6,), "float32", True, initial=0.0), Var("double", (5,), "float64", True, initial=0.0),
    Var("rows", (5,), "float32", sparse=True), Var("powers", (3,), "float32", True, initial=0.0),
    Var("codes", (36,), "uint8", True, initial=0), Var("long", (72,), "uint8", True, initial=0)])
*_, FIRST, _, LAST = STEP.main  # both of shape (5,)
GRADIENTS = *STEP.main[:6], Op("backward", {"params": ["f"]}, {"grads": ["rows"]}, {}, "backward")


def of_two(*ops):
    """One update of what some updates are of."""
    inputs, outputs = (
        {slot: [name for op in ops for name in getattr(op, side)[slot]] for slot in getattr(ops[0], side)}
        for side in ("inputs", "outputs")
    )
    return ops[0].replace(type="merged_adam", inputs=inputs, outputs=outputs)


def reading(op, **names):
    """An update of other variables in some slots; what it writes is as ever."""
    outputs = {slot: names.get(slot, old) for slot, old in op.outputs.items()}
    return op.replace(inputs={**op.inputs, **names}, outputs=outputs)


MERGED = [of_two(*STEP.main[-6:-4]), of_two(*STEP.main[-4:-2])]


@pytest.mark.parametrize(("good", "bad", "message"), [
    (FIRST, reading(LAST, moment1=LAST.inputs["moment2"]), "expected memory of its own"),
    (FIRST, reading(LAST, moment1=["other"]), r"moment1\[0\]: expected shape \(5,\)"),
    (reading(FIRST, moment1=["codes"]), reading(LAST, moment1=["long"]), r"expected shape \(36,\) for 5 elements in 8"),
    (FIRST, reading(LAST, grads=["other"]), r"grads\[0\]: expected shape \(5,\)"),
    (FIRST, reading(LAST, beta1_pow=["powers"]), r"beta1_pow\[0\]: expected one element"),
    (FIRST, reading(LAST, moment1=["double"]), r"moment1\[0\]: expected float32"),
    (FIRST, reading(LAST, grads=["rows"]), r"grads\[0\]: expected a dense variable"),
    (FIRST, LAST.replace(outputs={**LAST.outputs, "moment1": LAST.outputs["moment2"]}), "outputs: expected"),
    (FIRST, LAST.replace(outputs={"params": LAST.outputs["params"]}), "outputs: expected"),
    (FIRST, LAST.replace(attrs={**LAST.attrs, "lr": True}), "lr: expected"),
    (FIRST, LAST.replace(attrs={**LAST.attrs, "lr": [1.0, 2.0]}), "lr: expected"),
    (FIRST, LAST.replace(attrs={**LAST.attrs, "beta1": 2.0}), "beta1: expected"),
    (FIRST, LAST.replace(attrs={**LAST.attrs, "rounding": "up"}), "rounding: expected"),
    (MERGED[0], reading(MERGED[1], grads=["c@GRAD", "other"]), r"grads\[1\]: expected shape \(5,\)"),
    (MERGED[0], of_two(STEP.main[-4], STEP.main[-4]), r"params\[1\]: expected each variable once, got 'c' again")])
def test_an_update_is_refused_whatever_came_before(good, bad, message):
    """Right updates that are much like it: of a long list of updates each is checked as the first is."""
    for before in (), (good,):
        program = STEP.replace(main=(*GRADIENTS, *before, bad))
        with pytest.raises((TypeError, ValueError), match=rf"main\[{7 + len(before)}\] {bad.type}: .*{message}"):
            program.check()
    STEP.replace(main=(*GRADIENTS, good)).check()


def test_an_update_of_a_buffer_has_no_tensors():
    """Nor one of a tensor buffers."""
    program = passes.fuse_optimizer(step_program([("a", (4,)), ("b", (4,))], "lion", lr=1.0), form="flat").program
    program = program.with_vars([STEP.vars["other"], STEP.vars["codes"]])
    *before, update = program.main
    for names, error in (
        ({"moment": ["codes"]}, r"moment\[0\]: expected floats in a buffer, got a state in 8 bits, 'codes'; the mer"),
        ({"grads": ["other"]}, r"grads\[0\]: expected a buffer, as params has, got a tensor, 'other'"),
        ({"params": ["other"]}, r"grads\[0\]: expected a tensor, as params has, got a buffer, '.*Grad.*'"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            program.replace(main=(*before, reading(update, **names))).check()


def test_a_layout_that_is_not_given():
    """Tensors are padded to what the machine aligns."""
    attrs = {"use_align": True, "align_size": -1, "size_of_dtype": -1}
    for given in (attrs, {}, *({name: x} for name, x in attrs.items())):
        assert padded(given, 3, "float32", 256) == 64
