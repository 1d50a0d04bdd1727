"""The arithmetic of kernels: each operator for each pair of types, as Numba types it for CUDA, and its values."""

import functools
import itertools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import executed

from refopt import simt
from refopt.simt import cuda
from refopt.simt.base import record, scalars
from refopt.simt.compiled import operators

numba = pytest.importorskip("numba")

SCALARS = list(scalars.SCALARS)
OPERATORS = {
    "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "LShift": "<<",
    "RShift": ">>", "BitAnd": "&", "BitOr": "|", "BitXor": "^", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=",
    "Eq": "==", "NotEq": "!="}
FUNCTIONS = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "Pow": operator.pow, "LShift": operator.lshift,
    "RShift": operator.rshift, "BitAnd": operator.and_, "BitOr": operator.or_, "BitXor": operator.xor,
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge, "Eq": operator.eq,
    "NotEq": operator.ne}
COMPARISONS = ("Lt", "LtE", "Gt", "GtE", "Eq", "NotEq")


SIGNS = {"USub": operator.neg, "UAdd": operator.pos, "Invert": operator.invert}


def test_operators_of_one_operand():
    """An integer has its own width when it is negated."""
    for (symbol, function), name in itertools.product(SIGNS.items(), SCALARS):
        x, result = np.dtype(name).type(3), record.result(f"{scalars.SIGNS[symbol]}a", name)
        if result is not None:
            own = function(np.array(x)) if name != "bool" else function(1) if result == "int64" else False
            got = operators.negation(symbol, name)(x)
            assert got == own and np.asarray(got).dtype == result, (symbol, name)


def compute(expression, *values, **scope):
    """The value of an expression of a[0] and b[0] in a kernel, and the name of its type."""
    notes = []
    note = simt.ptx_twin()(lambda value: notes.append(value))
    kernel = executed(f"def kernel(a, b):\n    note({expression})\n", note=note, **scope)["kernel"]
    cuda.jit(kernel)[1, 1](*(np.array([value]) for value in values))
    (value,) = notes
    return value, "int64" if type(value) is int else "bool" if type(value) is bool else np.asarray(value).dtype.name


def numbers(name):
    """Values of a type, its limits among them."""
    dtype = np.dtype(name)
    if name == "bool":
        values = st.booleans()
    elif dtype.kind == "f":
        special = [0.0, -0.0, 1.0, -1.0, 2.0, 0.1, 7.5, -7.5, 1e-7, np.inf, -np.inf, np.nan]
        values = st.sampled_from(special) | st.floats(width=8 * dtype.itemsize)
    else:
        info = np.iinfo(dtype)
        edges = [info.min, info.max, 0, 1, 2, 3, 7, info.max - 1, info.max // 2]
        values = st.sampled_from(edges) | st.integers(int(info.min), int(info.max)) | st.integers(0, 63)
    return values.map(lambda x: np.array(x).astype(dtype)[()])


def njit(expression):
    scope = {}
    exec(f"def f(a, b): return {expression}", scope)
    return numba.njit(error_model="numpy")(scope["f"])


def same(x, y):
    """Equal in every bit, but for the payload of a NaN."""
    x, y = np.asarray(x), np.asarray(y)
    return bool((x != x and y != y) or (x == y and np.signbit(x) == np.signbit(y)) if x.dtype.kind == "f" else x == y)


def divided(symbol, x, y):
    """``x % y`` or ``x // y`` of floats, by the instructions of Numba's PTX."""
    left = abs(x) - np.floor(abs(x) / abs(y)) * abs(y)
    left = -left if x < 0 else left
    apart = left != 0 and (y < 0) != (left < 0)
    if symbol == "Mod":
        return left if y == 0 else left + y if apart else left if left != 0 else np.copysign(type(x)(0), y)
    ratio = (x - left) / y - type(x)(apart)
    if y == 0 or ratio == 0 or ratio != ratio:
        return x / y if y == 0 else ratio * ratio * x / y
    return np.floor(ratio) + type(x)(ratio - np.floor(ratio) > 0.5)


def computed(symbol, x, y, result):
    """An operator on converted operands."""
    if symbol in ("Mod", "FloorDiv") and result in scalars.FLOATS:
        return divided(symbol, x, y)
    return JITTED.get(symbol, FUNCTIONS[symbol])(x, y)


# By Numba, which takes time to compile, but for what NumPy computes alike.
JITTED = {symbol: njit(f"a {op} b") for symbol, op in OPERATORS.items() if symbol not in (*COMPARISONS, "Div")}


@settings(deadline=None, max_examples=max(settings().max_examples // 2, 5))
@given(st.data())
@pytest.mark.parametrize("symbol", OPERATORS)
@pytest.mark.parametrize("a", [
    a if a in ("uint64", "float16", "float32") else pytest.param(a, marks=pytest.mark.slow)
    for a in SCALARS])
def test_values_are_those_that_numba_computes(symbol, a, data):
    b = data.draw(st.sampled_from(SCALARS))
    x, y = data.draw(numbers(a)), data.draw(numbers(b))
    compare = symbol in COMPARISONS
    rule = record.signature(f"a {OPERATORS[symbol]} b", a, b)
    expression = f"a[0] {OPERATORS[symbol]} b[0]"
    if rule is None:
        with pytest.raises(simt.CompileError, match=" of "):
            compute(expression, x, y)
        return
    value, name = compute(expression, x, y)
    assert name == rule[2]
    if symbol in ("LShift", "RShift") and not 0 <= y < 64:
        return  # undefined in LLVM; PTX pushes all bits out
    if symbol == "Pow" and rule[2] in scalars.INTEGERS and abs(int(y)) > 65536:
        return  # a float that may be infinite, as an integer, is undefined in LLVM; PTX clamps it
    with np.errstate(all="ignore"):
        left, right = np.dtype(rule[0]).type(x), np.dtype(rule[1]).type(y)
        if rule[2] == "float16" or (compare and rule[0] == "float16"):
            expected = FUNCTIONS[symbol](left, right)  # rounded once from an exact result
        elif symbol == "Pow" and rule[2] == "float32":
            return  # for the CPU Numba takes powers in double
        elif symbol == "Pow" and rule[1] in scalars.INTEGERS and right < 0 and (
                right == np.iinfo(rule[1]).min or left ** -float(right) == 0):
            return  # of the opposite exponent, which may not exist, it divides by the power, as Python by zero
        else:
            expected = computed(symbol, left, right, rule[2])
    assert same(value, expected), (x, y, value, expected)


HIGHEST = -(2**63)


@pytest.mark.parametrize(("dtype", "x", "expected"), [
    ("float32", 2.5, [2, 2, 2, 2, 2, 2]), ("float16", 2.5, [2, 2, 2, 2, 2, 2]), ("float16", 3.5, [4, 4, 4, 4, 4, 4]),
    ("float32", 3.5, [3, 3, 3, 3, 3, 3]), ("float16", 300, [127, 255, 300, 300, 300, 300]),
    ("float32", 20000, [32, 32, 20000, 20000, 20000, 20000]), ("float32", 70000, [-1, 255, 32767, 65535, 70000, 70000]),
    ("float64", -70000, [0, 0, -32768, 0, -70000, -70000]),
    ("float32", np.inf, [-1, 255, 32767, 65535, 2**31 - 1, 2**63 - 1]),
    ("float64", -np.inf, [0, 0, -32768, 0, -(2**31), HIGHEST]), ("float32", np.nan, [0, 0, 0, 0, 0, HIGHEST]),
    ("float64", np.nan, [0, 0, -32768, 32768, -(2**31), HIGHEST])])
def test_floats_as_integers(dtype, x, expected):
    """As ``cvt`` has it: clamped, and of 8 bits the lower half of 16, except from float16."""
    kinds = ["int8", "uint8", "int16", "uint16", "int32", "int64"]
    values = [compute("to(a[0])", np.dtype(dtype).type(x), 0, to=getattr(np, kind)) for kind in kinds]
    assert values == list(zip(expected, kinds, strict=True))


def test_powers_are_squarings_up_to_numbas_limit():
    x = np.float32(1.0001)
    squared = functools.reduce(lambda y, _: y * y, range(16), x)
    assert compute("a[0] ** b[0]", x, np.int64(65536)) == (squared, "float32")
    assert compute("a[0] ** b[0]", x, np.int64(65537))[0] == np.float32(np.float64(x) ** 65537) != squared * x
