"""Kernels as they are typed: variables, constants, conversions, elements, functions, and what is reported."""

import ast
import importlib
import itertools
import math
import re
import sys
import warnings

import numpy as np
import pytest
from texts import executed

from refopt import simt
from refopt.simt import cuda
from refopt.simt.base.conversions import CONVERSIONS
from refopt.simt.base.source import definition
from refopt.simt.compiled import specialize
from refopt.simt.compiled.kinds import of_value, scalar


def results(function, *args, size=4, dtype=np.float64):
    """What a kernel leaves in ``out``, its last argument."""
    out = np.zeros(size, dtype)
    cuda.jit(function)[1, 1](*args, out)
    return out.tolist()


# Device functions whose results' types are compared with Numba's.


def if_only(x, n):
    s = x
    if n > 3:
        s = 1.0
    return s


def summed(x, n):
    s = 0
    for _ in range(n):
        s += x
    return s


def summed_from_a_float(x, n):
    s = 0.0
    for _ in range(3):
        s += x
    return s


def broken_out_of(x, n):
    i = 0
    while i < n:
        v = x
        if i > 5:
            break
        i += 1
    else:
        v = 2
    return v


def nested(x, n):
    s, t = 0, x
    for _ in range(n):
        for _ in range(2):
            t = t + s
        s = t
    return t


def squared_in_a_loop(x, n):
    v, s = x, 0
    while s * v < n:
        v, s = v + n, s + v * v
    return s + v


def two_returns(x, n):
    if n > 2:
        return x
    return n


NAMED = if_only, summed, summed_from_a_float, broken_out_of, nested, squared_in_a_loop, two_returns
TYPED = {function.__name__: function for function in NAMED} | {
    "conditional": lambda x, n: x if n else 2, "any_of": lambda x, n: x and n, "greatest": lambda x, n: max(x, n, 1),
    "pair": lambda x, n: (x, n)[0] * (n, x)[0]}
EVERY = [*itertools.product(("int8", "uint16", "uint32", "float32", "float64"), ("int16", "int32", "int64"))]
SOME = [("int8", "int64"), ("uint32", "int32"), ("float32", "int16"), ("float32", "int64"), ("float64", "int32")]


@pytest.mark.parametrize("names", [SOME, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["some", "every"])
@pytest.mark.parametrize("what", TYPED)
def test_variables_have_the_types_that_numba_infers(what, names):
    pytest.importorskip("numba_cuda")
    from numba.core import types
    from numba.core.errors import NumbaError
    from numba.cuda.compiler import compile_cuda

    for pair_of in names:
        try:
            done = compile_cuda(TYPED[what], None, tuple(getattr(types, name) for name in pair_of), cc=(9, 0))
        except NumbaError:
            continue
        typed = specialize._typed(TYPED[what], tuple(of_value(np.dtype(name).type(1)) for name in pair_of))
        assert not typed.untyped
        expected = re.sub(r"Literal\[int\].*", "int64", str(done.signature.return_type))
        assert scalar(typed.result).name == expected, pair_of


ENDS = np.array([np.nan, 1, 0.0, -0.0], np.float32)


@pytest.mark.parametrize(("x", "expected"), [
    # Booleans are integers of 8 bits; the bits of a number are those of its type, also where Python has the number.
    (np.array([True]), {"-x[0]": -1, "+x[0]": 1, "~x[0]": 0, "abs(x[0])": 1}),
    (np.array([6, 4]), {"np.bitwise_and(x.size, 6)": 2, "x[0].bit_count()": 2, "float('1.5')": 1.5}),
    (np.array([1, 3]), {"(x.size + 2**62 - 1).view(np.float64)": 2 + 2.0**-51}),
    # Extremes drop a NaN, and know the sign of zeros.
    (ENDS, {"max(x[0], x[1])": 1, "1 / max(x[2], x[3])": np.inf, "1 / min(x[3], x[2])": -np.inf}),
    (ENDS, {"max(x[1], x[0], x[2])": 1, "math.isnan(max(x[0], x[1], x[2]))": 1, "min(x[1], x[0], 2)": 1}),
    (np.array([-17]), {"divmod(x[0], 5)[0]": -4, "divmod(x[0], 0.75)[1]": 0.25, "sum((x[0], 0.5))": -16.5}),
    (np.array([3, 4]), {"abs(sum((x[0], 4j)))": 5, "(-complex(x[0], 2)).imag": -2, "abs(x.size - 5)": 3}),
    (np.array([1, 2]), {"math.hypot(x[0], x[1])": math.hypot(1, 2), "math.atan2(x[0], x[1])": math.atan2(1, 2)}),
    # Where Python raises an error, the result is infinite or none.
    (np.array([-0.0, 200]), {"math.gamma(x[0])": -np.inf, "math.gamma(x[1])": np.inf, "math.lgamma(x[0])": np.inf}),
    (np.array([np.inf, 1]), {"math.isnan(math.gamma(-x[0]))": 1, "math.isnan(math.remainder(x[0], x[1]))": 1}),
    # By as many bits as there are not, nothing is left.
    (np.array([1, 70, 2**62]), {"x[0] << x[1]": 0, "x[0] << x[2]": 0, "x[1] >> x[2]": 0, "-x[1] >> x[2]": -1})])
def test_values(x, expected):
    lines = "".join(f"    out[{k}] = {text}\n" for k, text in enumerate(expected))
    kernel = executed(f"def kernel(x, out):\n{lines}", np=np, math=math, cuda=cuda)["kernel"]
    assert results(kernel, x, size=len(expected)) == [*expected.values()]


def test_conversions_round_once():
    for n, to in (2**60 + 2**36 + 1, 2.0**60 + 2**37), (2**63 + 2**39 + 1, 2.0**63 + 2**40), (-(2**53) - 1, -(2.0**53)):
        assert CONVERSIONS["float32"](n) == to and CONVERSIONS["float32"](n).dtype == np.float32
    assert CONVERSIONS["float16"](1 + 2**-11 + 2**-40) == 1 + 2**-10
    def kernel(n, out):
        out[0] = n + 1

    assert results(kernel, 2**60 + 2**36, size=1, dtype=np.float32) == [2.0**60 + 2**37]


def test_an_atomic_gives_a_value_of_its_arrays_type():
    @cuda.jit
    def kernel(x, out):
        s = 0
        for _ in range(2):
            s = cuda.atomic.add(x, 0, 1)
        out[0] = s * 0.1

    x, out = np.full(1, 0.1, np.float32), np.zeros(1)
    kernel[1, 1](x, out)
    assert out[0] == float(np.float32(0.1) + np.float32(1)) * 0.1
    assert scalar(specialize._typed(first_of, tuple(map(of_value, (x, out)))).result).name == "float32"


def first_of(x, out):
    return cuda.atomic.max(x, 0, out[0])


def test_a_function_without_source_is_said_to_be_untyped():
    scope = {"cuda": cuda}
    exec("def kernel(x):\n    x[0] += 1", scope)
    x = np.zeros(1)
    with pytest.warns(simt.UntypedWarning, match=r"kernel .*NumPy's rules.*its source cannot be read"):
        cuda.jit(scope["kernel"])[1, 1](x)
    assert x[0] == 1


def test_a_twin_of_ptx_runs_as_it_is():
    @simt.ptx_twin("float32")
    def flipped(x):
        return (x.view(np.uint32) | np.uint32(1 << 31)).view(np.float32)

    def kernel(x, out):
        out[0] = flipped(x[0]) * 0.1

    x = np.array([1.1], np.float32)
    assert results(kernel, x)[0] == float(-x[0]) * 0.1
    with pytest.raises(ValueError, match=r"types\[0\]: expected one of bool"):
        simt.ptx_twin("float")


def test_what_computes_as_numba_does_runs_as_it_is():
    def kernel(x, out):
        out[0] = x[0]

    x = np.ones(1, np.float32)
    assert specialize.compiled(kernel, (x, x)).function is kernel


def test_a_captured_number_is_that_of_the_first_launch():
    scope = executed("def kernel(x):\n    x[0] = x[0] * factor\n", factor=2)
    kernel, x = cuda.jit(scope["kernel"]), np.ones(1)
    kernel[1, 1](x)
    scope["factor"] = 100
    kernel[1, 1](x)
    assert x[0] == 4


def test_print_shows_numbers_alone(capsys):
    def kernel(x, out):
        print(x[0], (x[0], (cuda.threadIdx.x, np.int8(3))), "text")

    results(kernel, np.ones(1))
    assert capsys.readouterr().out == "1.0 (1.0, (0, 3)) text\n"


three = 3
SIDE_BY_SIDE = (lambda at: False), (lambda at: three), (lambda at: 1), (lambda at: 2), (lambda at: True)
NESTED = lambda at: lambda at: 3  # noqa: E731


def test_lambdas_of_one_line_are_told_apart():
    """By the places in their code, where there are any: Python 3.12 has none for a constant that is returned."""
    texts = [ast.unparse(definition(function)) for function in (*SIDE_BY_SIDE, NESTED, NESTED(0))]
    assert texts[:5] == ["lambda at: False", "lambda at: three", "lambda at: 1", "lambda at: 2", "lambda at: True"]
    assert texts[5:] == ["lambda at: lambda at: 3", "lambda at: 3"]


def one_of_the_file(out):
    out[0] = 1


def test_text_that_is_not_in_its_file_is_not_typed_by_it():
    """As a mutant's, compiled in the name of the file that it is a mutant of."""
    line = one_of_the_file.__code__.co_firstlineno
    changed = {}
    exec(compile("\n" * (line - 1) + "def one_of_the_file(out):\n    out[0] = 2\n", __file__, "exec"), changed)
    assert results(one_of_the_file, size=1) == [1]
    with pytest.warns(simt.UntypedWarning, match="its source cannot be read"):
        assert results(changed["one_of_the_file"], size=1) == [2]


def test_a_file_that_has_been_edited_is_read_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for k, sign in enumerate("+*"):
        text = f"def body(x):\n    x[0] = x[1] {sign} x[2]\n"
        (tmp_path / "edited_kernels.py").write_text("import math\n" * k + text)
        module, x = importlib.reload(importlib.import_module("edited_kernels")), np.array([0, 3, 4], np.int8)
        with warnings.catch_warnings(action="error"):
            cuda.jit(module.body)[1, 1](x)
        assert x[0] == (7, 12)[k]
