"""Loads and stores: widening is exact, rounding is NumPy's, and nothing beyond the end is touched."""

from itertools import product

import numpy as np
import pytest

from refopt.checks.dtypes import SIZES, numpy_dtype
from refopt.gpu.cuda import address
from refopt.gpu.kernels import kernel
from refopt.gpu.rows import ROW, access, rounding
from refopt.gpu.target import cuda
from refopt.oracle.exact.cases import same_bits
from refopt.oracle.exact.placed import Placed

pytestmark = pytest.mark.clause("N1")

SMALL = ["float16", "bfloat16"]


def copied(machine, values, target, real=np.float32, partial=False, shift=0):
    """Values as they are after a load and a store by a kernel, one row to a block; whole rows unless partial."""
    load, store, whole = access(values.dtype.name, real).load, access(target, real).store, not partial

    @kernel()
    def copy(x, y, stop):
        first, eight = cuda.blockIdx.x * ROW + 4 * cuda.threadIdx.x, cuda.local.array((1, 8), real)
        load(x, first, stop, whole, eight, 0)
        store(y, first, stop, whole, eight, 0)

    rows = -(-values.size // ROW)
    size = values.size if partial else rows * ROW
    host = np.zeros(size, values.dtype)
    host[: values.size] = values
    x, y = Placed(machine, host, shift), Placed(machine, np.zeros(size, numpy_dtype(target)), shift)
    args = address(x.array), address(y.array), size
    machine.prepare(copy, rows, 32, args)(machine.stream(0))
    machine.synchronize()
    return y.read()[: values.size]


def patterns(dtype):
    return np.arange(2**16, dtype=np.uint16).view(numpy_dtype(dtype))


def halfway(dtype):
    """Every fp32 half-way between two neighbours of a 16-bit type, and the fp32 on either side of it."""
    values = converted(patterns(dtype), "float32")
    values = np.sort(values[np.isfinite(values)])
    between = (values[1:] / 2 + values[:-1] / 2)[::7]
    most = np.abs(values).max()
    edges = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, most, most * np.float32(1.001), np.finfo(np.float32).max])
    nans = np.array([0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32)  # which an addition turns into numbers
    beside = np.nextafter(between, np.inf), np.nextafter(between, -np.inf)
    return np.concatenate([between, *beside, edges, -edges, nans, -nans])


def assert_equal(got, expected):
    same = same_bits(got, expected)
    assert same.all(), (got[~same][:3], expected[~same][:3])


def converted(values, dtype):
    with np.errstate(all="ignore"):
        return values.astype(numpy_dtype(dtype))


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("target", ["float32", "float64"])
@pytest.mark.parametrize("dtype", SMALL)
def test_widening_every_pattern(machine, dtype, target, partial):
    """All 65536 patterns of a 16-bit type become the fp32 and fp64 of the same value."""
    real = np.dtype(target).type
    assert_equal(copied(machine, patterns(dtype), target, real, partial), converted(patterns(dtype), target))


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("dtype", SMALL)
def test_rounding_at_half_way(machine, dtype, partial):
    """Values half-way between two neighbours go to the even one, those beside it to the nearer one."""
    assert_equal(copied(machine, halfway(dtype), dtype, partial=partial), converted(halfway(dtype), dtype))


@pytest.mark.parametrize("dtype", SMALL)
def test_rounding_in_registers(machine, dtype):
    """What is carried on as the stored value is the stored value."""
    load, store, rounded = *access("float32", np.float32), rounding(dtype)

    @kernel()
    def roundtrip(x, y, stop):
        first, eight = cuda.blockIdx.x * ROW + 4 * cuda.threadIdx.x, cuda.local.array((1, 8), np.float32)
        load(x, first, stop, True, eight, 0)
        rounded(y, first, stop, True, eight, 0)
        store(y, first, stop, True, eight, 0)

    values = halfway(dtype)
    values = values[: values.size // ROW * ROW]
    x, y = Placed(machine, values), Placed(machine, np.zeros_like(values))
    args = address(x.array), address(y.array), values.size
    machine.prepare(roundtrip, values.size // ROW, 32, args)(machine.stream(0))
    machine.synchronize()
    assert_equal(y.read(), converted(values, dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", SIZES)
def test_rows(machine, dtype):
    """A partial row is copied whole, from and to any element, and the bytes after it keep their values.

    Of whole rows, each element comes to its place.
    """
    real = np.float64 if dtype == "float64" else np.float32
    for size, shift in product((1, 2, 3, 4, 5, 127, 128, 129, 131, 255, 257), (0, 1, 3)):
        values = np.arange(1, size + 1).astype(numpy_dtype(dtype))
        assert_equal(copied(machine, values, dtype, real, partial=True, shift=shift), values)
    values = np.random.default_rng(0).normal(size=3 * ROW).astype(numpy_dtype(dtype))
    values[:4] = [0.0, -0.0, np.inf, np.finfo(np.float16).smallest_subnormal]
    for partial in (False, True):
        assert_equal(copied(machine, values, dtype, real, partial), values)


@pytest.mark.parametrize("size", [0, 1, 5, 128, 130, 255])
@pytest.mark.parametrize("dtype", SIZES)
def test_partial_loads_are_zero_beyond_the_end(machine, dtype, size):
    """An element that is not there counts as +0."""
    real = np.float64 if dtype == "float64" else np.float32
    load, store = access(dtype, real).load, access(np.dtype(real).name, real).store

    @kernel()
    def spread(x, y, stop):
        eight = cuda.local.array((1, 8), real)
        load(x, 4 * cuda.threadIdx.x, stop, False, eight, 0)
        store(y, 4 * cuda.threadIdx.x, stop, True, eight, 0)

    x, y = Placed(machine, np.ones(size, numpy_dtype(dtype))), Placed(machine, np.full(ROW, -7, real))
    machine.prepare(spread, 1, 32, (address(x._memory), address(y.array), 0))(machine.stream(0))
    assert_equal(y.read(), np.zeros(ROW, real))
    machine.prepare(spread, 1, 32, (address(x._memory) + 64, address(y.array), size))(machine.stream(0))
    machine.synchronize()
    assert_equal(y.read(), (np.arange(ROW) < size).astype(real))
