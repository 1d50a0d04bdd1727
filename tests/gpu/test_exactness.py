"""The check of a kernel's exactness: every planted violation is reported with its line, and exact kernels are not."""

import inspect
import math
import re
from pathlib import Path

import needs
import numpy as np
import pytest

from refopt.gpu import cuda, exactness
from refopt.gpu.instructions import sqrt
from refopt.gpu.kernels import kernel
from refopt.gpu.ladder import adam
from refopt.gpu.notes import digest
from refopt.gpu.target import EXACT, device_function

X = np.ones(3, np.float32)


@device_function
def one_minus(x):
    return 1 - x  # planted


@device_function
def through_another(x):
    y = x + x
    return one_minus(y) * x  # call


@device_function
def exponential(x):
    return math.exp(x)  # planted


def stored(value):
    """A kernel that stores what a function makes of its array."""

    @kernel()
    def planted(x):
        x[0] = value(x)  # call

    return planted


def planted_in(function):
    """A kernel that calls a device function, and the lines of both that are marked."""
    return stored(device_function(function))


def line_of(function, mark):
    lines, first = inspect.getsourcelines(function)
    (found,) = (first + k for k, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))
    return found


def constant(x):
    return (
        x[0]  # planted
        * 0.1
    )


def integer(x):
    return x[0] / len(x)  # planted


def library(x):
    y = x[0] + x[1]
    return math.exp(y)  # planted


def fused(x):
    return cuda.fma(x[0], x[1], x[2])  # planted


def fast(x):
    return cuda.libdevice.fast_fdividef(x[0], x[1])  # planted


def towards_zero(x):
    return cuda.libdevice.fadd_rz(x[0], x[1])  # planted


def power(x):
    return x[0] ** x[1]  # planted


def atomic(x):
    cuda.atomic.add(x, 1, x[0])  # planted
    return x[0]


PLANTED = [
    (constant, "fp64", r"mul\.rn\.f64"), (integer, "fp64", r"div\.rn\.f64"), (library, "one rounding", r"fma\."),
    (library, "approximation", r"ex2\.approx"), (library, "subnormal", r"\.ftz"), (fused, "one rounding", r"fma\.rn"),
    (fast, "approximation", r"div\.approx"), (towards_zero, "not rounded to nearest", r"add\.rz"),
    (power, "approximation", "approx"), (atomic, "order", r"atom.*add\.f32")]


@pytest.fixture(scope="module", autouse=True)
def compiler():
    needs.compiler()


@pytest.mark.clause("N3")
@pytest.mark.parametrize(("function", "why", "opcode"), PLANTED, ids=lambda x: getattr(x, "__name__", str(x)))
def test_every_violation_is_reported_with_its_line(function, why, opcode):
    """In a device function, with the line that calls it."""
    found = planted_in(function).inexact(X)
    (one,) = [x for x in found if why in x.why and (x.file, x.line) == (__file__, line_of(function, "planted"))]
    assert re.search(opcode, ", ".join(one.opcodes))
    assert one.calls == ((__file__, line_of(stored, "call")),)
    assert {x.line for x in found} <= {one.line, line_of(stored, "call")}


@kernel()
def in_the_kernel(x):
    x[0] = x[0] + x[1]
    x[1] = x[1] * 0.1  # planted


@kernel()
def through_two(x):
    x[0] = through_another(x[0])  # call


def test_a_line_of_the_kernel_itself():
    found = in_the_kernel.inexact(X)
    assert {(x.file, x.line, x.calls) for x in found} == {(__file__, line_of(in_the_kernel.function, "planted"), ())}
    (one,) = found
    assert str(one).startswith(f"test_exactness.py:{one.line}: x[1] = x[1] * 0.1  # planted: ") and "f64" in str(one)


def test_calls_are_named_from_the_inside_out():
    one = next(x for x in through_two.inexact(X) if x.line == line_of(one_minus, "planted"))
    calls = line_of(through_another, "call"), line_of(through_two.function, "call")
    assert one.calls == tuple((__file__, line) for line in calls)
    assert f"called at test_exactness.py:{calls[0]}, called at test_exactness.py:{calls[1]}" in str(one)


tenth = device_function(lambda x: x * 0.1)
further = device_function(
    lambda x:
        x * 0.3
)


@pytest.mark.filterwarnings("error")
def test_lambdas_have_their_lines():
    """Also one whose source is no statement by itself."""

    @kernel()
    def two(x):
        x[0] = tenth(x[0])
        x[1] = further(x[1])

    lines = Path(__file__).read_text().splitlines()
    texts = {lines[x.line - 1].strip() for x in two.inexact(X) if x.calls}
    assert texts == {"tenth = device_function(lambda x: x * 0.1)", "x * 0.3"}


def test_a_function_called_from_two_lines():
    """Each of its calls is reported; what is right on one line does not hide what is wrong on the other."""

    @kernel()
    def twice(x):
        x[0] = exponential(x[1])
        x[1] = exponential(x[2])

    first = twice.function.__code__.co_firstlineno
    inside = [x for x in twice.inexact(X) if x.line == line_of(exponential, "planted")]
    assert {x.calls for x in inside} == {((__file__, first + k),) for k in (2, 3)}


def test_fp64_that_is_meant():
    """Is no fault; all else is one as before."""
    x = np.ones(3)

    @kernel()
    def half(x):
        x[0] = sqrt(x[0]) * 0.5

    assert half.inexact(x) and not half.inexact(x, double=True)
    assert any("one rounding" in one.why for one in planted_in(fused).inexact(x, double=True))


@pytest.mark.clause("N3")
def test_contraction_is_seen_where_it_is_allowed():
    """Plain Numba's product and sum, of the same text that is exact here."""
    args = [X] * 4 + [np.float32(0.5)] * 6
    assert not adam.adam_1.inexact(*args)
    lines, first = inspect.getsourcelines(adam.adam_1.function)
    found = adam.adam_0.inexact(*args)
    texts = {lines[x.line - first].split(" = ")[0].strip() for x in found if "one rounding" in x.why}
    assert {"m[i]", "u[i]"} == texts and all(x.file == adam.__file__ for x in found)


def test_lines_change_no_instruction():
    signature = ["int64[2]", "int64[2]", *["float32"] * 6]
    plain, lined = (adam.adam_4.ptx(signature, lines=lines) for lines in (False, True))
    code, section, _ = lined.partition(".section\t.debug_str")  # the names of the functions
    assert digest(plain) == digest(code) and section and "inlined_at" in lined and ".loc" not in plain


@pytest.mark.parametrize("capability", [(8, 0), (12, 0)])
def test_of_any_capability(capability, monkeypatch):
    found = planted_in(library).inexact(X, capability=capability)
    assert {x.line for x in found} == {line_of(library, "planted")}
    texts = []
    monkeypatch.setattr(exactness, "read", lambda ptx, double: texts.append(ptx))
    in_the_kernel.inexact(X, capability=capability)
    assert f".target sm_{capability[0]}{capability[1]}" in texts[0]


@pytest.mark.parametrize(
    "opcode", ["add.f32", "fma.rn.f32", "mad.rn.f32", "div.full.f32", "sqrt.approx.f32", "mul.rn.ftz.f32", "add.rn.f64",
               "sub.rz.f32", "rsqrt.approx.f32", "red.global.add.f32", "mul.bf16", "rcp.rz.f32",
               "atom.global.add.noftz.f16"])
def test_every_rule_is_looked_at(opcode):
    text = "\n\tmul.rn.f32 \t%f1, %f2, %f3;\n\t@%p1 {} \t%f4, %f5, %f6; // fma.rn.f32 in a comment\n"
    for exact in ("add.rn.f32", "sqrt.rn.f32", "red.global.add.u32", "max.f32", "mad.lo.s32", "cvt.rn.f16.f32"):
        assert exactness.read(text.format(exact)) == []
    (first, *_) = exactness.read(text.format(opcode))
    assert first.opcodes == (opcode,) and (first.file, first.line, first.calls) == ("", 0, ())
    for double, found in (("mad.rn.f64", True), ("add.rn.f64", False)):
        assert bool(exactness.read(text.format(double), double=True)) == found


def test_directives_of_lines():
    """Line 0 is none of Python's; a function on the line that calls it is not followed for ever."""
    fused = "fma.rn.f32 \t%f1, %f2, %f3, %f4;"
    text = f"""
        .loc\t1 10 1
        {fused}
        .loc\t1 3 1, function_name $L__info_string0, inlined_at 1 12 1
        {fused}
        .loc\t1 0 1
        {fused}
        .loc\t2 5 1, function_name $L__info_string0, inlined_at 2 5 1
        {fused}
        .loc\t1 3 1
        {fused}
        .file\t1 "/folder/a.py"
        .file\t2 "/folder/<string>"
        """
    places = [(x.file, x.line, x.calls) for x in exactness.read(text)]
    a = "/folder/a.py"
    assert places == [(a, 10, ()), (a, 3, ((a, 12),)), ("<string>", 5, ()), (a, 3, ())]


def test_what_is_refused(monkeypatch):
    with pytest.raises(TypeError, match=r"^check: kernel: expected a kernel of refopt.gpu.cuda.jit, got function$"):
        exactness.check(constant, X)
    for bad in (0.5, None, [1], np.float64(1), np.int64(1), "floats[1]", "float32[x]"):
        with pytest.raises(TypeError, match=r"^check: args\[0\]: expected an array, an int or np.float32, got "):
            in_the_kernel.inexact(bad)
    with pytest.raises(TypeError, match=r"^check: args: expected 1, as planted takes, got 2$"):
        planted_in(constant).inexact(X, X)
    with pytest.raises(TypeError, match=r"^check: double: expected True or False, got 3$"):
        in_the_kernel.inexact(X, double=3)
    why = "numba-cuda is not installed (No module named 'numba')"
    monkeypatch.setattr(exactness, "no_compiler", lambda: why)
    with pytest.raises(RuntimeError, match=r"^check: expected a compiler") as error:
        in_the_kernel.inexact(X)
    assert str(error.value).endswith(f"got none: {why}")


def test_what_is_exact_as_a_whole_ends_with_its_block():
    """What is between two blocks is read."""
    block = f"// begin inline asm\n{EXACT} {{ fma.rn.f32 %f1, %f2, %f3, %f4; }}\n// end inline asm\n"
    assert exactness.read(block + block) == []
    (found,) = exactness.read(f"{block}ex2.approx.f32 %f5, %f6;\n{block}")
    assert found.opcodes == ("ex2.approx.f32",)
