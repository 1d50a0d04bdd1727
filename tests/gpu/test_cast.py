"""Merged casts and copies: what is rounded, how often, and what is only moved; clauses are of docs/numerics.md."""

import gc
import math
import re
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import cpu, gpu, simt
from refopt.checks import cast_type, flat
from refopt.checks.dtypes import ITEM_SIZES, SIZES, numpy_dtype
from refopt.oracle.exact.build import dense
from refopt.oracle.exact.placed import Placed
from refopt.oracle.exact.strategies import layouts, nasty_floats
from refopt.oracle.ulp import same_bits

FLOATS = tuple(SIZES)
PAIRS = tuple(product(FLOATS, FLOATS))
WHOLE = tuple(name for name in ITEM_SIZES if name not in SIZES)
NUMBERS = (0.37, -2.0, 0.0, 1 + 2**-30, 65536.0, 1e-30)
ARRAYS = [np.full(1, x, real) for x in (1.0, 0.37, 1e30, np.inf, np.nan, -0.0) for real in (np.float32, np.float64)]


def bits_of(rng, size, dtype):
    """Any bit patterns: NaN payloads, subnormals, all of it."""
    if dtype == "bool":
        return rng.integers(0, 2, size).astype(np.bool_)
    return np.frombuffer(rng.bytes(size * ITEM_SIZES[dtype]), numpy_dtype(dtype)).copy()


def values_of(rng, size, dtype):
    """Half of them of any bits, half of about 1."""
    values = bits_of(rng, size, dtype)
    if dtype in SIZES:
        some = rng.integers(0, 2, size).astype(bool)
        values[some] = rng.normal(size=int(some.sum())).astype(values.dtype)
    return values


@st.composite
def casts(draw, whole=WHOLE):
    """Sources, some None, and the dtypes they are to have."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pairs = [*PAIRS, *((name, name) for name in whole)]
    common = draw(st.one_of(st.none(), st.sampled_from(pairs)))
    sources, dtypes = [], []
    for _ in range(draw(st.integers(1, 5))):
        shape, order = draw(layouts())
        source, target = common or draw(st.sampled_from(pairs))
        values = values_of(rng, math.prod(shape), source)
        if values.size and source in SIZES:
            values[rng.integers(values.size)] = draw(nasty_floats(source))
        sources.append(None if draw(st.integers(0, 7)) == 0 else dense(values, shape, order))
        dtypes.append(target)
    return sources, dtypes


def blank(sources, dtypes):
    """Targets, of the axis orders of the sources, with something in them."""
    pairs = zip(sources, dtypes, strict=True)
    return [None if x is None else np.ones_like(x, dtype=numpy_dtype(dtype), order="K") for x, dtype in pairs]


def expected(sources, dtypes, scale=1.0):
    targets = blank(sources, dtypes)
    cpu.merged_cast(sources, targets, scale=scale)
    return targets


class There:
    """Sources and targets on a device, with a plan of their cast."""

    def __init__(self, machine, sources, dtypes, scale=1.0, shifts=(0,)):
        self.machine, self.sources = machine, sources
        targets = blank(sources, dtypes)
        self.x = [x if x is None else Placed(machine, x, shifts[i % len(shifts)]) for i, x in enumerate(sources)]
        self.y = [y if y is None else Placed(machine, y, shifts[-1 - i % len(shifts)]) for i, y in enumerate(targets)]
        if isinstance(scale, np.ndarray):
            self.scale = scale = machine.to_device(scale)
        lists = ([a if a is None else a.array for a in side] for side in (self.x, self.y))
        with gpu.use(machine.name):
            self.plan = gpu.cast_plan(*lists, scale=scale)

    def read(self):
        """The targets; an AssertionError if a source or anything around has changed."""
        self.machine.synchronize()
        for x, placed in zip(self.sources, self.x, strict=True):
            assert x is None or placed.read().tobytes() == x.tobytes(), "a source was written"
        return [y if y is None else y.read() for y in self.y]


def assert_casts(left, got, sources, moved):
    """Equal as N4 has it; where values are only moved, in every bit."""
    for i, (a, b, x) in enumerate(zip(left, got, sources, strict=True)):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if moved and a.dtype == x.dtype:
            same = np.frombuffer(flat(a).tobytes(), np.uint8) == np.frombuffer(flat(b).tobytes(), np.uint8)
        else:
            same = same_bits(flat(a), flat(b))
        assert same.all(), f"N4: targets[{i}]: {x.dtype} to {a.dtype}, {(~same).sum()} of {same.size} differ"


def assert_reference(machine, sources, dtypes, scale=1.0, shifts=(0,), moved=False):
    """A plan's first call leaves what the reference does."""
    there = There(machine, sources, dtypes, scale, shifts)
    there.plan()
    assert_casts(expected(sources, dtypes, scale), there.read(), sources, moved)


@pytest.mark.clause("N4")
@given(given=casts(), shifts=st.lists(st.integers(0, 17), min_size=1, max_size=3))
def test_kernels_are_reference(machine, given, shifts):
    """Any list, any mixture of dtypes, any axis order, anywhere in memory; what is only moved keeps every bit."""
    assert_reference(machine, *given, shifts=shifts, moved=True)


@given(given=casts(whole=()), shifts=st.lists(st.integers(0, 9), min_size=1, max_size=2),
       scale=st.sampled_from([*NUMBERS, *ARRAYS]))
def test_scaled_kernels_are_reference(machine, given, shifts, scale):
    """The same with a scale: a number, or an array that the kernel reads."""
    assert_reference(machine, *given, scale, shifts)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("scale", [1, 0.37])
def test_every_pair_of_dtypes(machine, pair, scale):
    """Whole rows and partial ones, in several chunks; and values of which two roundings make others than one does."""
    steps = (np.arange(300) * 2.0**-9 + 1 + 2.0**-40).astype(numpy_dtype(pair[0]))
    sources = [steps, *(values_of(np.random.default_rng(size), size, pair[0]) for size in (4100, 1, 259))]
    assert_reference(machine, sources, [pair[1]] * 4, scale, shifts=(0, 0, 1), moved=scale == 1)


# The reference against exact arithmetic.

# Digits of each type, its least and its largest exponent.
DIGITS = {"float16": (11, -14, 15), "bfloat16": (8, -126, 127), "float32": (24, -126, 127),
          "float64": (53, -1022, 1023)}


def nearest(value, dtype):
    """A rational number of no sign rounded to nearest even; beyond the largest number, None."""
    digits, least, most = DIGITS[dtype]
    if not value:
        return value
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= value < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - digits + 1)
    rounded = round(value / unit) * unit  # Python rounds half to even
    return None if rounded >= Fraction(2) ** (most + 1) else rounded


def exactly(x, target, scale=None):
    """What a finite value becomes: widened, multiplied, rounded to the arithmetic type, rounded to the target."""
    real = cast_type(x.dtype.name, target)
    factor = 1.0 if scale is None else float(real(scale))
    sign = math.copysign(1, x) * math.copysign(1, factor)
    value = nearest(Fraction(abs(float(x))) * Fraction(abs(factor)), np.dtype(real).name)
    value = None if value is None else nearest(value, target)
    return sign * (math.inf if value is None else float(value))


def assert_exact(x, target, scale=None):
    (y,) = expected([np.array([x])], [target], 1.0 if scale is None else scale)
    got, wanted = float(y[0]), exactly(x, target, scale)
    assert (got, np.signbit(got)) == (wanted, np.signbit(wanted))


@st.composite
def near_half_way(draw, target):
    """An fp64 half-way between two neighbours of a dtype, or off it by as little as fp64 can say, or a little more.

    Half-way to what would be the number after the largest is where infinity begins.
    """
    word = f"u{SIZES[target]}"
    infinity = int(np.array(np.inf, numpy_dtype(target)).view(word))
    low = draw(st.one_of(st.integers(1, infinity - 1), st.just(infinity - 1)))
    a, b = (float(np.array(n, word).view(numpy_dtype(target))) for n in (low - 1, low))
    middle = b + (b - a) / 2 if low == infinity - 1 else (a + b) / 2
    off = draw(st.sampled_from([0, 1, -1, 2**20, -(2**20), 2**30, -(2**30)]))
    return np.float64(draw(st.sampled_from([1, -1])) * (middle + off * math.ulp(middle)))


@pytest.mark.clause("N1", "N2")
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@given(data=st.data())
def test_reference_is_exact(pair, data):
    """One rounding of the scale, one of the product, one of what is stored."""
    source, target = pair
    x = data.draw(nasty_floats(source, finite=True))
    if source == "float64" != target:  # not by way of fp32, as ml_dtypes goes
        assert_exact(data.draw(near_half_way(target)), target)
    assert_exact(x, target, data.draw(st.sampled_from([None, 0.37, 1 + 2**-30, -3.0])))


# Laws.


@pytest.mark.clause("N4")
@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_a_copy_keeps_every_bit(machine, dtype):
    """NaN payloads, at every offset from a 16-byte address and with every rest of bytes."""
    rng = np.random.default_rng(0)
    sources = [bits_of(rng, size, dtype) for size in (*range(20), 2100)]
    for shifts in ((0,), (0, 1), (4, 0), (3, 3), (8, 2)):
        there = There(machine, sources, [dtype] * len(sources), shifts=shifts)
        there.plan()
        assert [y.tobytes() for y in there.read()] == [x.tobytes() for x in sources]
    targets = expected(sources, [dtype] * len(sources))
    assert [y.tobytes() for y in targets] == [x.tobytes() for x in sources]


def test_launches_and_bytes(executor):
    """One launch for each pair of dtypes; every element is read once and written once; no race."""
    rng = np.random.default_rng(0)
    sizes = (1100, 3, 0, 257)
    sources, dtypes = [], []
    for source, target in (*PAIRS, ("int8", "int8"), ("int64", "int64")):
        sources += [values_of(rng, size, source) for size in sizes]
        dtypes += [target] * len(sizes)
    sources[5:5], dtypes[5:5] = [None], ["float32"]
    there = There(executor, sources, dtypes)
    assert there.plan.launches == len(PAIRS) + 2
    with simt.observe(watch=True) as log:
        there.plan()
    assert len(log.launches) == there.plan.launches
    total = 0
    for x, y in zip(there.x, there.y, strict=True):
        if x is not None and x.array.size:
            assert (log.bytes_read(x.array), log.bytes_written(x.array)) == (x.array.nbytes, 0)
            assert (log.bytes_read(y.array), log.bytes_written(y.array)) == (0, y.array.nbytes)
            total += x.array.nbytes + y.array.nbytes
    assert there.plan.bytes == total


@pytest.mark.parametrize("sources", [[], [None, None], [np.zeros(0, np.float32)], [np.zeros((3, 0), np.int8), None]])
def test_nothing_to_do(machine, sources):
    """No tensors, none there, none with elements: no launch."""
    there = There(machine, sources, [x is None or x.dtype.name for x in sources])
    assert (there.plan.launches, there.plan.bytes) == (0, 0)
    there.plan()
    there.read()
    cpu.merged_cast([None], [None], scale=1e300)


def test_lists_stay_the_callers(executor):
    xs, ys = ([executor.to_device(np.full(3, k, np.float32))] for k in (1, 2))
    plan, (y,) = gpu.cast_plan(xs, ys, scale=2.0), ys
    xs.clear()
    gc.collect()
    plan()
    assert y.copy_to_host().tolist() == [2] * 3


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shift", [0, 3])
def test_in_place(machine, dtype, shift):
    """A target that is its source is scaled where it is; at scale 1 it is left as it is."""
    values = values_of(np.random.default_rng(1), 2100, dtype)
    for scale in (0.37, 1):
        host, placed = values.copy(), Placed(machine, values, shift)
        cpu.merged_cast([host], [host], scale=scale)
        gpu.merged_cast([placed.array], [placed.array], scale=scale)
        assert_casts([host], [placed.read()], [values], scale == 1)
    assert host.tobytes() == values.tobytes()


def test_what_is_only_read_may_be_shared():
    x, targets = np.full(1, 1.5, np.float32), [np.zeros(1, np.float16), np.zeros(1)]
    cpu.merged_cast([x, x], targets, scale=x)
    assert [target[0] for target in targets] == [2.25, 2.25]


def test_a_scale_that_changes(machine):
    """Calls take another number, and keep it; 1 takes the multiplication out, and with it the loss of payloads."""
    rng = np.random.default_rng(2)
    sources = [bits_of(rng, 300, name) for name in ("float32", "float16", "float64", "float32")]
    dtypes = ["float32", "float16", "float32", "bfloat16"]
    there = There(machine, sources, dtypes)
    for new, scale in ((None, 1), (0.1, 0.1), (None, 0.1), (1, 1), (np.float32(3), 3), (0.1, 0.1)):
        there.plan(scale=new)
        assert_casts(expected(sources, dtypes, scale), there.read(), sources, scale == 1)
    there.plan.set(scale=2.0)
    assert there.plan.scale == 2
    there.plan()
    assert_casts(expected(sources, dtypes, 2.0), there.read(), sources, False)


def test_a_scale_on_the_device(machine):
    """An array is read at every call, and there is no other way to change it."""
    sources = [values_of(np.random.default_rng(3), 300, name) for name in FLOATS]
    dtypes = FLOATS[::-1]
    there = There(machine, sources, dtypes, np.ones(1))
    assert there.plan.scale is there.scale
    for value in (0.37, 3.0, 1.0):
        there.scale.copy_to_device(np.array([value]))
        there.plan()
        assert_casts(expected(sources, dtypes, np.array([value])), there.read(), sources, False)
    with pytest.raises(TypeError, match=r"^merged_cast: scale: expected no new value, since the planned scale is an"):
        there.plan(scale=2.0)


def test_a_new_scale_during_a_capture(executor, monkeypatch):
    there = There(executor, [np.ones(3, np.float32)], ["float16"], 2.0)
    monkeypatch.setattr(executor, "capturing", lambda stream: True, raising=False)
    there.plan(scale=2.0)
    with pytest.raises(RuntimeError, match=r"^merged_cast: scale: expected no new value during a capture"):
        there.plan(scale=3.0)
    assert there.plan.scale == 2
    monkeypatch.undo()
    there.plan(scale=3.0)
    assert (there.read()[0] == 3).all()


@pytest.mark.gpu
@pytest.mark.parametrize("machine", ["gpu"], indirect=True)
def test_replays_of_a_captured_call(machine):
    """A graph reads its scale anew at every replay."""
    from cuda.bindings import driver

    from refopt.gpu.streams import checked

    source, target = (machine.to_device(np.full(300, 3, dtype)) for dtype in (np.float32, np.float16))
    stream = checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    plan = gpu.cast_plan([source], [target], scale=2.0, stream=int(stream))
    plan()
    machine.synchronize()
    checked(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    plan()
    graph = checked(driver.cuGraphInstantiate(checked(driver.cuStreamEndCapture(stream)), 0))
    for scale in (2.0, 5.0, 1.0):
        plan.set(scale=scale)
        checked(driver.cuGraphLaunch(graph, stream))
        checked(driver.cuStreamSynchronize(stream))
        assert (target.copy_to_host() == 3 * scale).all()


@pytest.mark.gpu
@pytest.mark.parametrize("machine", ["gpu"], indirect=True)
@pytest.mark.slow
@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("float16", "bfloat16")])
def test_beyond_two_to_the_31(machine, dtypes):
    """Offsets are of 64 bits: the last elements of a tensor of more than 2**31, and bytes beyond 2**32."""
    size = 2**31 + 1025
    source, target = (machine.empty((size,), numpy_dtype(name)) for name in dtypes)
    tail = values_of(np.random.default_rng(0), 2048, dtypes[0])
    source[size - 2048 :].copy_to_device(tail)
    gpu.merged_cast([source], [target])
    got = target[size - 2048 :].copy_to_host()
    assert_casts(expected([tail], [dtypes[1]]), [got], [tail], True)


# Errors.

ONE = np.ones(4, np.float32)
LARGE = np.ones(64, np.float32)
REFUSED = {"sources: expected a list of arrays, got int": (TypeError, 3, [ONE]),
           "targets: expected 2 entries, as sources has, got 1": (ValueError, [ONE, None], [ONE]),
           "targets[1]: expected None, as sources[1] is, got an array": (TypeError, [None, None], [None, ONE]),
           "targets[0]: expected an array, as sources[0] is, got None": (TypeError, [ONE], [None]),
           "targets[2]: expected memory of its own, got an overlap with sources[2]":
               (ValueError, [None, ONE[:0], LARGE[:8]], [None, np.ones(0, np.float32), LARGE[4:12]]),
           "sources[0]: expected one of float16,": (TypeError, [np.ones(4, np.complex64)], [ONE]),
           "targets[0]: expected one of float16, bfloat16, float32, float64 for sources[0] of float32, got int32":
               (TypeError, [ONE], [np.ones(4, np.int32)]),
           "targets[0]: expected int32 for sources[0] of int32, got int64":
               (TypeError, [np.ones(4, np.int32)], [np.ones(4, np.int64)]),
           "targets[1]: expected shape (4,), as sources[1] has, got (5,)":
               (ValueError, [None, ONE], [None, np.ones(5, np.float32)]),
           "targets[0]: expected a dense array": (ValueError, [np.ones(32)], [LARGE[::2]]),
           "targets[0]: expected the axis order of sources[0]":
               (ValueError, [np.ones((2, 3), np.float32)], [np.ones((3, 2), np.float16).T]),
           "targets[0]: expected memory of its own, got an overlap with sources[1]":
               (ValueError, [ONE, LARGE[:4]], [LARGE[:4], np.ones(4)]),
           "targets[1]: expected memory of its own, got an overlap with targets[0]":
               (ValueError, [ONE, ONE], [LARGE[:4], LARGE[:4]]),
           "sources[0]: expected memory of its own, got an overlap with targets[0]":
               (ValueError, [LARGE[:4]], [LARGE.view(np.float16)[:4]])}
SCALES = {
          "scale: expected a finite float32, got 1e+300": (ValueError, 1e300, ONE),
          "scale: expected a number in the range of float64, got one beyond it": (ValueError, 10**400, ONE),
          "scale: expected a number or an array of one element, got '2'": (TypeError, "2", ONE),
          "scale: expected one element, got shape (2,)": (ValueError, np.ones(2, np.float32), ONE),
          "scale: expected float32 or float64, got float16": (TypeError, np.ones(1, np.float16), ONE),
          "sources[0]: expected one of float16, bfloat16, float32, float64 to scale, got bool":
              (TypeError, np.ones(1, np.float32), np.ones(4, np.bool_))}


def on_device(machine, memories, x):
    """An array on the device; views of one array are views of one there."""
    if not isinstance(x, np.ndarray):
        return x
    base = x if x.base is None else x.base
    if id(base) not in memories:
        memories[id(base)] = machine.to_device(base)
    if x.base is None:
        return memories[id(base)]
    address = memories[id(base)].__cuda_array_interface__["data"][0] + x.ctypes.data - base.ctypes.data
    interface = dict(shape=x.shape, strides=x.strides, typestr=x.dtype.str, version=3, data=(address, False))
    view = type("View", (), {"__cuda_array_interface__": interface})()
    return simt.cuda.as_cuda_array(view) if machine.name == "executor" else view


def refuses(machine, message, error, sources, targets, scale=1.0):
    """Both refuse, with the same words, and touch nothing."""
    lists = [x for x in (sources, targets) if isinstance(x, list)]
    before = [x.tobytes() for values in lists for x in values if x is not None]
    start = f"^merged_cast: {re.escape(message)}"
    with pytest.raises(error, match=start):
        cpu.merged_cast(sources, targets, scale=scale)
    assert before == [x.tobytes() for values in lists for x in values if x is not None]
    memories = {}
    there = [[on_device(machine, memories, x) for x in values] if isinstance(values, list) else values
             for values in (sources, targets)]
    with gpu.use(machine.name), pytest.raises(error, match=start):
        gpu.merged_cast(*there, scale=on_device(machine, memories, scale))


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(machine, message):
    refuses(machine, message, *REFUSED[message])


@pytest.mark.parametrize("message", SCALES)
def test_refuses_scale(machine, message):
    error, scale, source = SCALES[message]
    refuses(machine, message, error, [source], [source.copy()], scale)


def test_refuses_scale_that_is_written(machine):
    """A scale that is a target would be read by one block and written by another."""
    scale = machine.to_device(np.ones(1, np.float32))
    with pytest.raises(ValueError, match="overlap with"):
        gpu.merged_cast([machine.to_device(np.ones(1, np.float32))], [scale], scale=scale)


def test_refuses_read_only_targets():
    target = np.ones(4, np.float32)
    target.flags.writeable = False
    with pytest.raises(ValueError, match=r"^merged_cast: targets\[0\]: expected a writable array"):
        cpu.merged_cast([ONE], [target])
