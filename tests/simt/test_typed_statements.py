"""What Numba decides when it compiles a kernel, and what it types: each with its type and its value."""

import gc
import math
import weakref

import numpy as np
import pytest
from texts import executed

from refopt import simt
from refopt.simt import cuda
from refopt.simt.compiled import specialize
from refopt.simt.compiled.kinds import INTEGERS, Scalar, items_of, limits, of_value, scalar, widened

RATE, MODE, TABLE = 0.1, 2, (1, 0.7)


def type_of(text, *names, **scope):
    """The type of an expression of x and y, of these types."""
    scope = dict(math=math, np=np, cuda=cuda) | scope
    function = executed(f"def f({', '.join('xy'[: len(names)])}):\n    return {text}\n", **scope)["f"]
    typed = specialize._typed(function, tuple(of_value(np.dtype(name).type(1)) for name in names))
    assert not typed.untyped
    items = items_of(typed.result)
    return scalar(typed.result).name if items is None else tuple(scalar(item).name for item in items)


def value(body, *args, size=4, dtype=np.float64, **scope):
    """What a kernel of x, n and out leaves in out."""
    scope = executed("def kernel(x, n, out):\n" + body, np=np, math=math, cuda=cuda, **scope)
    out = np.zeros(size, dtype)
    cuda.jit(scope["kernel"])[1, 1](*args, out)
    return out.tolist()


X = np.array([1.1, 2.2, 3.3], np.float32)


def test_the_number_of_axes_decides_which_branch_is_typed():
    body = "    out[0] = x[n] if x.ndim == 1 else x[n, 0]\n"
    assert value(body, X, 1)[0] == X[1] and value(body, X.reshape(3, 1), 2)[0] == X[2]
    with pytest.raises(simt.SimtError):  # a size is no constant: both branches are typed
        value(body.replace("x.ndim == 1", "x.size == 3"), X, 1)


@pytest.mark.parametrize(("text", "expected"), [
    ("x if MODE == 2 else 0.5", "float32"), ("x if not MODE else 0.5", "float64"), ("MODE and x", "float32"),
    ("x if TABLE[0] else 0.5", "float64"), ("x if math.pi > 3 else 0.5", "float64"), ("1 << 63", "uint64"),
    ("x if 2 * 3 == 6 else 0.5", "float32"), ("x and 1 or x", "float64"), ("0.5 and 0 or x", "float32"),
    ("x if x < 1 and 0 else 1", "int64"), ("abs(True)", "int8"), ("x.item() * x.real", "float32"),
    ("x.view(np.int32)", "int32"), ("sum((x, x))", "float64"), ("math.modf(x)", ("float32", "float32")),
    ("math.frexp(x)", ("float32", "int32")), ("math.ldexp(x, 2)", "float32"), ("np.minimum(x, 1)", "float32"),
    ("np.minimum(np.uint64(1), 1)", "float64"), ("math.fmod(np.int16(1), True)", "float32"),
    ("np.float16(x) ** 2", "float32"), ("x ** MODE", "float32"),
    ("x if 1000 ** 2 > 5 else 0.5", "float32"), ("x ** TABLE[0]", "float32"), ("pow(x, 2)", "float32"),
    ("cuda.fma(x, x, x) * x", "float32"), ("cuda.cbrt(x)", "float32"), ("cuda.fp16.hadd(x, x)", "float16"),
    ("complex(x, x).imag", "float32"), ("abs(complex(x, 1))", "float64"), ("complex(x, x) * 2", "complex128"),
    ("cuda.float32x2(1, x).y", "float32"), ("round(x, 2)", "float32"), ("(MODE, 3)[int(x)]", "int64"),
    ("divmod(np.uint64(5), 3)[1]", "float64")])
def test_types_are_those_that_numba_infers(text, expected):
    assert type_of(text, "float32", MODE=MODE, TABLE=TABLE) == expected
    compiler, types = pytest.importorskip("numba.cuda.compiler"), pytest.importorskip("numba.core.types")
    from numba import cuda as numba_cuda

    if not hasattr(compiler, "compile_cuda") or "np." in text or "sum" in text:
        return
    scope = dict(math=math, np=np, cuda=numba_cuda, MODE=MODE, TABLE=TABLE)
    function = executed(f"def f(x):\n    return {text}\n", **scope)["f"]
    done = compiler.compile_cuda(function, None, (types.float32,), cc=(9, 0)).signature.return_type
    names = tuple(str(t) for t in done) if isinstance(expected, tuple) else str(getattr(done, "literal_type", done))
    assert names == expected


def test_a_loop_over_a_range_of_an_unsigned_integer_counts_in_uint64():
    body = "    s = n\n    for i in range(np.uint16(2)):\n        s = s - i\n    out[0] = s - 3\n"
    assert value(body, X, np.uint8(0), dtype=np.int64)[0] == -4
    assert value("    for i in range(np.uint8(3)):\n        out[0] = i - np.uint64(3)\n", X, 0)[0] == 2.0**64


def test_a_range_to_a_float_counts_in_int64():
    assert value("    for i in range(1.9, n + 0.5):\n        out[i] = i\n", X, 3) == [0, 1, 2, 0]


def test_a_branch_that_is_not_taken_does_not_widen():
    body = "    if MODE == 1:\n        s = 0.5\n    else:\n        s = x[0]\n    out[0] = s * s\n"
    assert value(body, X, 0, MODE=2)[0] == float(X[0] * X[0])
    body = "    s = 0.0\n    k = 0\n    while k < 2:\n        k += 1\n        s = x[0]\n    out[0] = s * s\n"
    assert value(body, X, 0)[0] == float(X[0] * X[0])
    body = "    while MODE == 1:\n        out[0] = 7\n    else:\n        out[1] = 8\n"
    assert value(body, X, 0, MODE=2)[:2] == [0, 8]
    body = "    s = 0.5\n    if n:\n        s = x[0]\n    else:\n        return\n    out[0] = s * s\n"
    assert value(body, X, 1)[0] == float(X[0] * X[0])
    body = "    if cuda.atomic.add(out, 0, 1) == 0 and False:\n        out[1] = 1\n"
    assert value(body, X, 0)[:2] == [1, 0]


def test_a_variable_set_on_two_ways_is_no_constant():
    body = "    if n:\n        k = 1\n    else:\n        k = 1\n    s = x[0] if k else 0.5\n    out[0] = s * s\n"
    assert value(body, X, 0)[0] == float(X[0]) ** 2 != float(X[0] * X[0])


def test_what_is_absent_drops_the_branch_that_uses_it():
    @cuda.jit(device=True)
    def scaled(a, by=None, add=0.1):
        if by is None:
            return a + add
        return a * by

    body = "    out[0] = scaled(x[0])\n    out[1] = scaled(x[0], x[0])\n    out[2] = scaled(add=x[1], a=x[0]) * n\n"
    assert value(body, X, 0.3, scaled=scaled)[:3] == [float(X[0]) + 0.1, float(X[0] * X[0]), float(X[0] + X[1]) * 0.3]


def test_limits_of_integers():
    """Functions are typed for those of shift counts, of 32 bits with a sign, or of the type."""
    for name in INTEGERS:
        of = np.iinfo(name) if name != "bool" else None
        assert limits(name) == ((of.min, of.max) if of else (0, 1))
    for low, high, expected in ((0, 63, (0, 63)), (-1, 63, (-(2**31), 2**31 - 1)), (0, 64, (0, 2**31 - 1)),
                                (-5, 2**31, limits("int64"))):
        assert widened(Scalar("int64", "py", low, high)) == Scalar("int64", "py", *expected)
    assert widened(Scalar("int8", "np", 0, 64)) == Scalar("int8", "np", 0, 127)


def test_constants_that_are_not_folded():
    assert value("    out[0], out[1] = 2 if 1 // 0 else 3, 5 + (1 << 200)\n", X, 0)[:2] == [3, 5]


def test_cases_are_branches():
    body = """
    match n:
        case None:
            v = x[1]
        case 1:
            v = 1.0
        case 2 | 3:
            v = x[0]
        case k:
            v = k
    out[0] = v * 0.1
"""
    assert [value(body, X, n)[0] for n in (1, 3, 5)] == [1.0 * 0.1, float(X[0]) * 0.1, 5 * 0.1]


def test_fields_are_added_to_in_their_type():
    records = np.zeros(1, [("a", np.int8), ("b", np.float32)])
    body = "    x[0].a += 100\n    x[0].a += 100\n    x[0].b += 0.1\n    out[0] = x[0].a + 1\n    out[1] = x[0].b * 3\n"
    assert value(body, records, 0)[:2] == [-55, float(np.float32(0.1)) * 3]
    with pytest.raises(simt.CompileError, match="a call of a record"):
        value("    out[0] = x[0]()\n", records, 0)


@pytest.mark.filterwarnings("error::refopt.simt.UntypedWarning")
def test_a_loop_may_count_in_an_element_or_a_field():
    records = np.zeros(1, [("a", np.int8)])
    assert value("    for out[n] in range(3):\n        out[0] += out[n]\n", X, 1)[:2] == [3, 2]
    assert value("    for x[n].a in range(3):\n        out[0] += x[n].a\n", records, 0)[0] == 3 and records["a"][0] == 2


@pytest.mark.filterwarnings("error::refopt.simt.UntypedWarning")
def test_functions_inside_are_typed():
    """CPython compiles a call of an imported module's function otherwise where it sees the import."""

    def kernel(x, out):
        def product(i):
            return x[i] * x[i] + cuda.grid(1)

        out[0] = product(0)

    out = np.zeros(1, np.int64)
    cuda.jit(kernel)[1, 1](np.array([2**20], np.int32), out)
    assert out.tolist() == [2**40]


@cuda.jit(device=True)
def bump(x):
    x[0] += 1
    return x[1]


@pytest.mark.parametrize(("text", "expected"), [
    ("bump(x) // x[0]", 50), ("bump(x) << x[0]", 400), ("(0 <= bump(x) < np.uint64(200)) + x[0]", 3),
    ("cuda.atomic.add(x, 1, 5) % x[1]", 100), ("x[0] % (bump(x) - 98)", 1), ("(bump(x) + x[0]) // bump(x)", 1)])
def test_operands_are_evaluated_from_left_to_right(text, expected):
    assert value(f"    k = 7\n    out[0] = {text}\n", np.array([1, 100], np.int32), 0, bump=bump)[0] == expected


def test_the_index_of_an_element_that_is_added_to_is_evaluated_once():
    body = "    x[bump(x) - 99] += 5\n    out[0], out[1] = x[0], x[1]\n"
    assert value(body, np.array([1, 100], np.int32), 0, bump=bump)[:2] == [2, 105]


@pytest.mark.parametrize(("test", "called", "taken"), [
    ("RATE and bump(x) > 0", 1, 1), ("not RATE and bump(x) > 0", 0, 0), ("bump(x) > 0 or RATE", 1, 1),
    ("RATE or bump(x) > 0", 0, 1), ("bump(x) < 0 and not RATE", 1, 0)])
def test_a_test_that_constants_decide_calls_what_it_has_to(test, called, taken):
    body = f"    if {test}:\n        out[0] += 1\n    out[1] = x[0]\n"
    assert value(body, np.array([0, 1], np.int32), 0, bump=bump, RATE=RATE)[:2] == [taken, called]


def test_a_lane_is_an_int32_and_the_size_of_a_warp_a_constant():
    assert [type_of(f"cuda.{name}", "int8", cuda=cuda) for name in ("laneid", "warpsize")] == ["int32", "int64"]
    assert value("    out[0], out[1] = cuda.laneid, cuda.warpsize\n", X, 0)[:2] == [0, 32]


def test_global_names_may_be_declared_and_not_assigned():
    assert value("    global RATE\n    out[0] = x[0] * RATE\n", X, 0, RATE=RATE)[0] == float(X[0]) * RATE
    with pytest.raises(simt.CompileError, match="assignment to the global RATE"):
        value("    global RATE\n    RATE = 3\n", X, 0)


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("other", [False, True])
def test_kernels_that_are_gone_are_forgotten(other):
    """One that is typed as it is runs itself, which nothing may keep; nor may the function that another calls."""
    def launched():
        def copies(x):
            x[1] = x[0]

        def own(x):
            return x[0]

        called = cuda.jit(device=True)(own)

        def doubles(x):
            x[1] = x[0] * 2 + called(x)

        kernel = doubles if other else copies
        cuda.jit(kernel)[1, 1](np.zeros(2, np.float32))
        return weakref.ref(kernel), weakref.ref(own)

    gone = launched()
    gc.collect()
    assert [each() for each in gone] == [None, None]
