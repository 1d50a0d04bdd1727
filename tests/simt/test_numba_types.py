"""Numba's types and signatures: they mean the dtypes that Numba's mean, and arguments are held to signatures."""

from enum import IntEnum

import numba
import numpy as np
import pytest
from numba.core import types
from numba.np import numpy_support

from refopt import simt
from refopt.simt import cuda
from refopt.simt.base import numba_types
from refopt.simt.base.numba_types import TYPES, Scalar, Type, dtype_of
from refopt.simt.kernels.signatures import as_declared, parsed

SCALARS = {name: value for name, value in TYPES.items() if isinstance(value, Scalar)}


@pytest.mark.parametrize("name", sorted(SCALARS))
def test_scalars_are_numbas(name):
    theirs = getattr(types, name, None) or getattr(types, f"np_{name}")
    assert str(SCALARS[name]) == str(theirs)
    assert SCALARS[name].dtype == dtype_of(theirs) == numpy_support.as_dtype(theirs)
    assert SCALARS[name].bitwidth == 8 * numpy_support.as_dtype(theirs).itemsize


RECORD = np.dtype([("a", np.int8), ("b", np.float64, (2, 3)), ("c", [("d", np.int32)])], align=True)


def test_records_are_read_from_numbas_types():
    assert dtype_of(numpy_support.from_dtype(RECORD)) == RECORD
    assert dtype_of(numba_types.Record(RECORD)) == RECORD


@pytest.mark.parametrize("text", ["float32[:]", "int8[:, ::1]", "float64[::1, :]"])
def test_arrays_are_numbas(text):
    ours, theirs = eval(text, {}, TYPES), eval(text, {}, vars(types))
    assert isinstance(ours, Type)
    assert (ours.ndim, ours.layout, str(ours.dtype)) == (theirs.ndim, theirs.layout, str(theirs.dtype))
    assert str(ours) == str(theirs)


def test_types_and_signatures_are_equal_by_their_names():
    ours = cuda.void(cuda.float32[:], cuda.int8)
    assert str(ours) == "(array(float32, 1d, A), int8) -> none" and ours != cuda.void(cuda.float32[:])
    assert {ours: 1}[cuda.void(cuda.float32[:], cuda.int8)] == {cuda.float32: 1}[TYPES["f4"]] == 1
    assert str(numba_types.Optional(cuda.int8)) == str(types.Optional(types.int8))


@pytest.mark.parametrize("dtype", [
    numba.float32, cuda.float32, np.float32, "float32", np.dtype("float32"), numba.types.float32], ids=str)
@pytest.mark.parametrize("memory", ["shared", "local"])
def test_dtypes_of_arrays_in_kernels(dtype, memory):
    space = getattr(cuda, memory)

    @cuda.jit
    def kernel(x):
        s = space.array(2, dtype)
        s[0] = x[0]
        x[1] = s[0] + s.itemsize

    x = np.array([1.5, 0], np.float32)
    kernel[1, 1](x)
    assert x[1] == 5.5


class Level(IntEnum):
    HIGH = 7


def number(x, n):
    x[0] = n


def parts(x, n):
    x[0], x[1] = n


def none(x, n):
    x[0] = n is None


def fields(x, n):
    x[0], x[1] = n.a, n.b


SIGNATURES = [
    "void(float32[:], int8)", "(float32[:], int8)", ["(int32[:], int8)", "(float32[::1], int8)"],
    types.void(types.float32[:], types.int8), (types.float32[:], types.int8), cuda.void(cuda.float32[:], cuda.int8)]
RATIONAL = np.dtype([("a", np.int8), ("b", np.float64)], align=True)
# Of int8 are the lowest 8 bits; tuples are converted by their parts, records and members of enumerations not at all.
CONVERTED = [
    *((number, signature, 300, [44, 0]) for signature in SIGNATURES),
    (parts, (types.float32[:], types.Tuple((types.int8, types.float32))), (300, 0.1), [44, float(np.float32(0.1))]),
    (fields, (types.float32[:], numpy_support.from_dtype(RATIONAL)), np.array([(3, 0.5)], RATIONAL)[0], [3, 0.5]),
    *((none, (types.float32[:], of), None, [1, 0]) for of in (types.none, numba_types.TYPES["none"])),
    (number, (types.float32[:], types.IntEnumMember(Level, types.int64)), Level.HIGH, [7, 0])]


@pytest.mark.parametrize(("body", "signature", "given", "left"), CONVERTED, ids=lambda x: getattr(x, "__name__", None))
def test_arguments_are_converted(body, signature, given, left):
    x = np.zeros(2, np.float32)
    cuda.jit(signature)(body)[1, 1](x, given)
    assert x.tolist() == left


@pytest.mark.parametrize("signature", [
    types.void(types.float64[::1, :], types.Optional(types.int8)), "void(float64[::1, :], Optional(int8))"], ids=str)
@pytest.mark.parametrize(("value", "left"), [(None, -1), (300, 44)])
def test_what_may_be_none_is_converted_if_it_is_not(value, left, signature):
    @cuda.jit(signature)
    def kernel(x, n):
        x[0, 1] = -1 if n is None else n

    x = np.zeros((2, 2), order="F")
    kernel[1, 1](x, value)
    assert x[0, 1] == left


@pytest.mark.parametrize(("value", "name"), [(1, "i8"), (1.5, "f8"), (np.float32(1), "f4"), (np.int16(1), "i4")])
def test_the_best_signature_is_taken(value, name):
    signatures = tuple(args for _, args in parsed([f"({each},)" for each in ("i4", "f4", "i8", "f8")]))
    (declared,) = as_declared("kernel", ["x"], signatures, (value,))
    assert declared.dtype == name


@pytest.mark.parametrize("signature", ["void(int32[:])", "(int32[:])", types.int32[:]], ids=str)
def test_integers_of_the_other_sign(signature):
    @cuda.jit(signature)
    def kernel(x):
        x[0] = -1

    x = np.zeros(1, np.uint32)
    kernel[1, 1](x)
    assert x[0] == 2**32 - 1


def test_pointers_are_refused():
    kernel = cuda.jit(types.void(types.CPointer(types.int8)))(lambda x: None)
    with pytest.raises(simt.Unsupported, match=r"^the executor has no arguments of type int8\*"):
        kernel[1, 1](1 << 40)


REFUSED = {
    "another type": ("void(float32[:])", (np.zeros(2),), "x: array(float32, 1d, A) expected, got float64 of 1 dim"),
    "other dimensions": ("void(float64[:])", (np.zeros((2, 2)),), "expected, got float64 of 2 dimensions"),
    "strides": ("void(float64[::1])", (cuda.to_device(np.zeros(4))[::2],), "an array that is not contiguous"),
    "Fortran's order": ("void(float64[::1, :])", (np.zeros((2, 2)),), "an array that is not contiguous"),
    "C's order": ("void(float64[:, ::1])", (np.zeros((2, 2), order="F"),), "an array that is not contiguous"),
    "wider integers": ("void(int32[:])", (np.zeros(2, np.uint64),), "expected, got uint64 of 1 dimensions"),
    "a number": ("void(float64[:])", (1.0,), "array(float64, 1d, A) expected, got 1.0"),
    "an array": ("void(float64)", (np.zeros(2),), "float64 expected, got an array of shape (2,)"),
    "a float": ("void(int64)", (1.0,), "int64 expected, got 1.0"),
    "too few": ("void(float64, float64)", (1.0,), "2 arguments expected, got 1")}


@pytest.mark.parametrize(("signature", "args", "why"), REFUSED.values(), ids=REFUSED)
def test_arguments_that_are_other(signature, args, why):
    def kernel(x):
        raise AssertionError("it must not run")

    with pytest.raises(TypeError, match=r"^kernel kernel is compiled for other arguments: ") as error:
        cuda.jit(signature)(kernel)[1, 1](*args)
    assert why in str(error.value)


@pytest.mark.parametrize("junk", [3, "void(flaot32)", "void(", [3], (3,), ...], ids=str)
def test_no_signatures(junk):
    with pytest.raises(TypeError, match=r"^cuda.jit: expected a function, a signature or a list of signatures, got "):
        cuda.jit(junk)


def test_an_option_that_is_none():
    with pytest.raises(TypeError, match=r"^cuda.jit: option fast_math: expected one of abi, "):
        cuda.jit(fast_math=True)
    with pytest.raises(simt.Unsupported, match=r"cuda.jit\(link=...\)"):
        cuda.jit(link=["a.cu"])
    with pytest.raises(TypeError, match=r"^cuda.jit: expected a function, got 3"):
        cuda.jit("void(int32)")(3)


def test_launch_bounds_hold():
    @cuda.jit(launch_bounds=(64, 2))
    def kernel():
        pass

    kernel[1, 64]()
    with pytest.raises(simt.LaunchError, match="kernel kernel: block of 65 threads, launch_bounds 64"):
        kernel[1, 65]()
