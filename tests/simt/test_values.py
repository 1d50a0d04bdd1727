"""Defects of values: integers, types of shared memory, copies of what nobody wrote, the end of `cuda.pinned`."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from refopt.simt.memory import pinned
from simt.cases import Cases, ints, is_race

MOST = 2**31 - 1


def long(n=8):
    return np.zeros(n, np.int64)


def full(n=8):
    return np.full(n, MOST, np.int32)


wrong, right = Cases(), Cases()


@wrong("zero-division", ints, ints, block=4)
def quotient(x, y):
    y[0] = 7 // x[cuda.threadIdx.x]


@wrong("zero-division", ints, ints, block=4)
def remainder(x, y):
    y[0] = 7 % x[cuda.threadIdx.x]


@wrong("zero-division", ints, block=1)
def both(y):
    y[0], y[1] = divmod(5, y[2])


@wrong("zero-division", ints, block=1)
def unsigned(y):
    y[0] //= np.uint32(y[1])


@wrong("int32-overflow", full, block=1)
def in_place(x):
    x[0] += 1


@wrong("int32-overflow", full, ints, block=1)
def a_little_too_large_from_a_variable(x, out):
    total = 0
    for i in range(1 << 1):
        total += x[i & 1]
    out[0] = total


@wrong("int32-overflow", lambda: np.full(1, 3_000_000_000), ints, block=1)
def from_an_array_of_int64(x, out):
    out[0] = x[0]


@wrong("int32-overflow", full, long, block=1)
def accumulator_in_shared_memory(x, out):
    total = cuda.shared.array(1, np.int32)
    total[0] = 0
    for i in range(8):
        total[0] += x[i]
    out[0] = total[0]


@wrong("int32-overflow", full, long, block=1)
def accumulator_in_local_memory(x, out):
    total = cuda.local.array(1, np.int32)
    total[0] = x[0]
    total[0] -= -x[1]
    out[0] = total[0]


@wrong("int32-overflow", full, ints, block=8)
def by_an_atomic(x, out):
    cuda.atomic.add(out, 0, x[cuda.threadIdx.x])


@wrong("int32-overflow", full, ints, block=8)
def by_an_atomic_that_subtracts(x, out):
    cuda.atomic.sub(out, 0, x[cuda.threadIdx.x])


@wrong("int32-overflow", full, long, block=1)
def cast_before_it_is_long(x, out):
    out[0] = np.int32(x[0] * 2)


@wrong("int32-overflow", full, long, block=1)
def cast_on_another_line(x, out):
    product = np.int32(x[0] + 1)
    out[0] = product


@wrong("int32-overflow", ints, block=1)
def more_bits_than_a_word_has(out):
    word = 1
    for _ in range(40):
        word = word << 1
    out[0] = word


@wrong("shared-types", ints, block=8)
def two_types_at_one_place(out):
    t = cuda.threadIdx.x
    keys, values = cuda.shared.array(0, np.int32), cuda.shared.array(0, np.float32)
    keys[t] = t + 1
    values[t] = 0.5
    out[t] = keys[t]


@wrong("shared-types", long, block=8)
def two_types_that_overlap(out):
    t = cuda.threadIdx.x
    keys, values = cuda.shared.array(0, np.int64)[:8], cuda.shared.array(0, np.float32)[8:16]
    keys[t] = t + 1
    cuda.syncthreads()
    values[t] = 1.5
    cuda.syncthreads()
    out[t] = keys[t]


@wrong("shared-types", ints, block=8)
def atomic_on_another_type(out):
    t = cuda.threadIdx.x
    keys, values = cuda.shared.array(0, np.int32), cuda.shared.array(0, np.float32)
    keys[t] = t + 1
    values[t] = 0.5
    out[t] = cuda.atomic.add(keys, t, 1)


@right(MOST, ints, block=1)
def up_to_the_last(out):
    out[0] = MOST - 1
    out[0] += 1


@right(-(2**31), ints, block=1)
def bits(out):
    word = 0
    for lane in range(31, 32):
        word |= 1 << lane
    out[0] = word


@right(2_999_999_999 - 2**32, lambda: np.full(1, -3_000_000_000), ints, block=1)
def bits_that_are_inverted(x, out):
    out[0] = ~x[0]


@right(7, ints, block=1)
def meant_to_be_cut_off(out):
    out[0] = np.int32(2**40 + 7)


@right(5, long, block=1)
def cut_off_and_dropped(out):
    out[1] = np.int32(2**40 + out[3]) == 0
    out[0] = np.int32(5 + out[3])


@right([7, 256], long, block=1)
def halves_of_a_word(out):
    word = (256 << 32) + 7
    out[0] = np.int32(word & 0xFFFFFFFF)
    out[1] = np.int32(word >> 32)


@right(2, lambda: np.full(1, 2**32 - 1, np.uint32), block=1)
def unsigned_wraps(out):
    out[0] += 3


@right(3, ints, block=1)
def hash_that_is_cast(out):
    h = 5381
    for i in range(20):
        h = h * 33 + i
    out[1] = np.int32(h)
    out[0] = 3


@right(4, ints, block=4)
def types_side_by_side(out):
    """Numba's documentation has it: views of one dynamic array that do not overlap."""
    t = cuda.threadIdx.x
    keys, values = cuda.shared.array(0, np.int32)[:4], cuda.shared.array(0, np.float32)[4:]
    keys[t], values[t] = t, t + 1
    cuda.syncthreads()
    if t == 3:
        out[0] = values[keys[3]]


@right(2, ints, block=4)
def types_after_each_other(out):
    t = cuda.threadIdx.x
    values, keys = cuda.shared.array(0, np.float64), cuda.shared.array(0, np.int32)
    values[t] = 0.5
    cuda.syncthreads()
    half = values[t ^ 1]
    cuda.syncthreads()
    keys[t] = 4 * half
    cuda.syncthreads()
    if t == 0:
        out[0] = keys[3]


@right(0, lambda: np.zeros(4, np.float32), block=4)
def zeroed_as_integers(out):
    t = cuda.threadIdx.x
    words, values = cuda.shared.array(0, np.int32), cuda.shared.array(0, np.float32)
    words[t] = 0
    cuda.syncthreads()
    out[t] = values[3 - t]


@right(1.5, lambda: np.zeros(4, np.float32), block=4)
def moved_as_words(out):
    t = cuda.threadIdx.x
    words, values = cuda.shared.array(0, np.uint32), cuda.shared.array(0, np.float32)
    words[t] = 0x3FC00000
    out[t] = values[t]


@right([1.5, 0], lambda: np.zeros(4, np.float32), block=1)
def overwritten_as_words_and_by_zeros(out):
    words, values = cuda.shared.array(0, np.uint32), cuda.shared.array(0, np.float32)
    values[0] = values[1] = 2
    words[0] = 0x3FC00000
    words.view(np.int32)[1] = 0
    out[0], out[1] = values[0], values[1]


@right(0x3F800000, ints, block=1)
def bits_of_a_float_by_a_view(out):
    values = cuda.shared.array(0, np.float32)
    values[0] = 1
    out[0] = values.view(np.int32)[0]


@pytest.mark.parametrize("name", wrong)
def test_a_defect_is_found(name):
    case = wrong[name]
    with pytest.raises(simt.SimtError, match=f"rule {case.outcome}") as caught, simt.observe(watch=True):
        cuda.jit(case.body)[1, case.block, 0, 64](*case.arguments())
    kind = simt.UninitializedRead if case.outcome == "shared-types" else simt.IntegerError
    assert type(caught.value) is kind and caught.value.kernel == name
    with simt.observe(watch=True, lenient=[case.outcome, "same-value"]):
        cuda.jit(case.body)[1, case.block, 0, 64](*case.arguments())
    cuda.jit(case.body)[1, case.block, 0, 64](*case.arguments())


@pytest.mark.parametrize(("name", "words"), [
    ("in_place", "overflow of int32: 2147483648 is stored in x, int32, as -2147483648 (rule int32-overflow)"),
    ("cast_before_it_is_long", "overflow of int32: 4294967294 is stored in out, int64, as -2 (rule int32-overflow)"),
    ("by_an_atomic", "overflow of int32: an atomic adds 2147483647 to 2147483647 (rule int32-overflow)"),
    ("by_an_atomic_that_subtracts", "overflow of int32: an atomic adds -2147483647 to -2147483647 (rule ")])
def test_an_overflow_is_told_with_its_numbers(name, words):
    case = wrong[name]
    with pytest.raises(simt.IntegerError) as caught, simt.observe(watch=True):
        cuda.jit(case.body)[1, case.block](*case.arguments())
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("name", right)
def test_a_right_kernel_passes(name):
    case = right[name]
    arguments = case.arguments()
    with simt.observe(watch=True):
        cuda.jit(case.body)[1, case.block, 0, 64](*arguments)
    expected = np.atleast_1d(case.outcome)
    assert arguments[-1][: expected.size].tolist() == expected.tolist()


def test_a_copy_of_what_nobody_wrote():
    @cuda.jit
    def first_half(x):
        x[cuda.threadIdx.x] = 1

    for make in (cuda.device_array, cuda.mapped_array):
        x = make(8, np.float64)
        with pytest.raises(simt.UninitializedRead, match="unwritten-copy"), simt.observe(watch=True):
            x.copy_to_host()
        with simt.observe(watch=True, lenient="unwritten-copy"):
            x.copy_to_host()
        with simt.observe(watch=True):
            first_half[1, 4](x)
            x.copy_to_host()
        with simt.observe(watch=True), pytest.raises(simt.UninitializedRead, match="never written"):
            cuda.as_cuda_array(x)[5:].copy_to_host()
        partly = simt.observe(watch=True, strict="partly-written-copy")
        with partly, pytest.raises(simt.UninitializedRead, match="rule partly-written-copy"):
            x.copy_to_host()
    with simt.observe(watch=True), pytest.raises(simt.UninitializedRead):
        cuda.device_array(4)[2]
    with simt.observe(watch=True), pytest.raises(simt.UninitializedRead):
        first_half[1, 0 + 1](out := np.zeros(4)), cuda.jit(lambda x: None)[1, 1](cuda.Out(out))


def test_copies_of_what_somebody_wrote():
    with simt.observe(watch=True, strict="partly-written-copy"):
        assert cuda.to_device(np.ones(3)).copy_to_host().sum() == 3
        x = cuda.device_array(4)
        x[:2], x[2:] = 1, 2
        assert x.copy_to_host().tolist() == [1, 1, 2, 2]
        y = cuda.device_array(4)
        y.copy_to_device(x)
        assert y[3] == 2 and cuda.device_array(0).copy_to_host().size == 0
        mapped = cuda.mapped_array(4)
        mapped[...] = 5
        assert mapped.copy_to_host().tolist() == [5] * 4
    z = cuda.device_array(4)
    cuda.jit(lambda x: None)[1, 1](z)  # nobody watched it
    with simt.observe(watch=True):
        z.copy_to_host()


@pytest.mark.parametrize("how", ["to", "from", "part"])
@pytest.mark.parametrize("end", ["stream", "device", "event", None])
def test_the_end_of_pinned(how, end):
    def work():
        stream, event = cuda.stream(), cuda.event()
        host, x = np.ones(16), cuda.to_device(np.zeros(16))
        with cuda.pinned(np.ones(4), host):
            if how == "to":
                cuda.to_device(host, stream=stream)
            elif how == "from":
                x.copy_to_host(host, stream=stream)
            else:
                x[:4].copy_to_host(host[2:6], stream=stream)
            event.record(stream)
            if end is not None:
                {"stream": stream, "event": event, "device": cuda}[end].synchronize()

    assert is_race(work) is (end is None)
    assert is_race(work, lenient="host-access") is False
    work()
    assert not pinned.locks  # whatever its end has reported


def test_pinned_and_what_is_not():
    """Copies on the default stream end before they return; what is raised within is not hidden."""
    host, other, stream = np.ones(16), np.ones(16), cuda.stream()
    with simt.observe(watch=True):
        with cuda.pinned(host):
            cuda.to_device(host).copy_to_host(host)
            cuda.to_device(other, stream=stream)
        with cuda.pinned(host):
            with cuda.pinned(other):  # which ends before the copy of what is still locked
                cuda.to_device(host, stream=stream)
            stream.synchronize()
        with pytest.raises(KeyError), cuda.pinned(host):
            cuda.to_device(host, stream=stream)
            raise KeyError
    with pytest.raises(TypeError, match="pinned: argument 1: expected a contiguous NumPy array"):
        cuda.pinned(host, [1])
