"""The arithmetic of kernels: each operator for each pair of types, as Numba types it for CUDA, and its values."""

import itertools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import executed

from refopt.simt import cuda
from refopt.simt.compiled import rules

numba = pytest.importorskip("numba")

SCALARS = list(rules.SCALARS)
PAIRS = list(itertools.product(SCALARS, SCALARS))
OPERATORS = {
    "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "LShift": "<<",
    "RShift": ">>", "BitAnd": "&", "BitOr": "|", "BitXor": "^", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=",
    "Eq": "==", "NotEq": "!=",
}  # fmt: skip
FUNCTIONS = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "Pow": operator.pow, "LShift": operator.lshift,
    "RShift": operator.rshift, "BitAnd": operator.and_, "BitOr": operator.or_, "BitXor": operator.xor,
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge, "Eq": operator.eq,
    "NotEq": operator.ne,
}  # fmt: skip


@pytest.fixture(scope="module")
def numbas():
    """The types of an operator or function's result by Numba's typing for CUDA; None if it refuses."""
    pytest.importorskip("numba_cuda")
    from numba.core import types
    from numba.core.errors import NumbaError
    from numba.cuda.descriptor import cuda_target

    context = cuda_target.typing_context
    context.refresh()

    def resolve(function, *names):
        args = tuple(types.boolean if name == "bool" else getattr(types, name) for name in names)
        try:
            return str(context.resolve_function_type(function, args, {}).return_type)
        except (NumbaError, NotImplementedError):
            return None

    resolve.unify = lambda a, b: str(
        context.unify_types(*(types.boolean if name == "bool" else getattr(types, name) for name in (a, b)))
    )
    return resolve


@pytest.mark.parametrize("symbol", OPERATORS)
def test_results_have_numbas_types(symbol, numbas):
    name = "Compare" if symbol in ("Lt", "LtE", "Gt", "GtE", "Eq", "NotEq") else symbol
    for a, b in PAIRS:
        rule = rules.binary(name, a, b)
        assert (rule and rule[2]) == numbas(FUNCTIONS[symbol], a, b), (symbol, a, b)


def test_variables_have_numbas_types(numbas):
    for a, b in PAIRS:
        assert rules.unify(a, b) == numbas.unify(a, b), (a, b)


def test_signs_have_numbas_types(numbas):
    for symbol, function in {"USub": operator.neg, "UAdd": operator.pos, "Invert": operator.invert}.items():
        for a in SCALARS:
            assert rules.unary(symbol, a) == numbas(function, a), (symbol, a)


def compute(expression, *values):
    """The value of an expression of a[0] and b[0] in a kernel, and the name of its type."""
    notes = []
    kernel = executed(f"def kernel(a, b):\n    note({expression})\n", note=notes.append)["kernel"]
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


JITTED = {symbol: njit(f"a {op} b") for symbol, op in OPERATORS.items()}


@settings(deadline=None, max_examples=12)
@given(st.data())
@pytest.mark.parametrize("symbol", OPERATORS)
@pytest.mark.parametrize("a", SCALARS)
def test_values_are_those_that_numba_computes(symbol, a, data):
    b = data.draw(st.sampled_from(SCALARS))
    x, y = data.draw(numbers(a)), data.draw(numbers(b))
    compare = symbol in ("Lt", "LtE", "Gt", "GtE", "Eq", "NotEq")
    rule = rules.binary("Compare" if compare else symbol, a, b)
    expression = f"a[0] {OPERATORS[symbol]} b[0]"
    if rule is None:
        with pytest.raises(TypeError, match="no such operator"):
            compute(expression, x, y)
        return
    value, name = compute(expression, x, y)
    assert name == rule[2]
    if symbol in ("LShift", "RShift") and not 0 <= y < 64:
        return  # undefined in LLVM; PTX pushes all bits out
    if symbol == "Pow" and rule[2] in rules.INTEGERS and abs(int(y)) > 65536:
        return  # a float that may be infinite, as an integer, is undefined in LLVM; PTX clamps it
    with np.errstate(all="ignore"):
        left, right = np.dtype(rule[0]).type(x), np.dtype(rule[1]).type(y)
        if rule[2] == "float16" or (compare and rule[0] == "float16"):
            expected = FUNCTIONS[symbol](left, right)  # rounded once from an exact result
        elif symbol == "Pow" and rule[2] == "float32":
            return
        else:
            expected = JITTED[symbol](left, right)
    assert same(value, expected), (x, y, value, expected)
