"""Variables cut and put together: the recorded cases, and what holds for any."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_cases import few

from refopt import gpu
from refopt.checks.dtypes import numpy_dtype
from refopt.program.blocks import Block, concat, slice_variable, split_by_ref
from refopt.simt import cuda, observe

# Paddle's test_slice_var and the older default of 1024, with 10 blocks aimed at: sizes of blocks.
GOLDEN = [((3, 5), [15], [15]), ((1024,), [1024], [1024]), ((28, 784), [2352] * 9 + [784], [10976] * 2),
          ((8, 1020), [2040] * 4, [8160]), ((800, 10), [1150] * 6 + [1100], [8000]),
          ((6, 33, 33, 33), [35937] * 6, [35937] * 6)]
CASES = [(shape, least, sizes) for shape, *both in GOLDEN for least, sizes in zip((1024, 8192), both, strict=True)]


@pytest.mark.parametrize(("shape", "least", "sizes"), CASES)
def test_recorded_cases(shape, least, sizes):
    (found,) = slice_variable([shape], 10, least)
    assert [block.size for block in found] == sizes
    assert [block.text("w") for block in found] == [f"w:{j}:{size}" for j, size in enumerate(sizes)]
    if least == 8192:
        assert slice_variable([shape], 10) == [found], "the default"


SHAPES = st.lists(st.integers(1, 9), max_size=4).map(tuple)


@given(shape=SHAPES, count=st.integers(1, 9), least=st.integers(1, 40))
@few(100)
def test_blocks_of_any_variable(shape, count, least):
    (found,) = slice_variable([shape], count, least)
    n, row = math.prod(shape), math.prod(shape[1:])
    end = 0
    for number, block in enumerate(found):
        assert block.number == number and block.first == end, "in order, without a gap, by elements"
        assert block.size > 0
        end += block.size
    assert end == n, "all of it"
    size = found[0].size
    assert all(block.size == size for block in found[:-1]) and found[-1].size <= size, "equal but for the last"
    assert all(block.first % row == block.size % row == 0 for block in found), "whole rows"
    assert 1 <= len(found) <= count
    assert len(found) <= max(1, n // least), "none more than are worth while"
    # The least multiple of rows of which no more than the aim make it up.
    aim = min(count, max(1, n // least))
    step = row if len(shape) > 1 else 1
    assert size * aim >= n and (size - step) * aim < n, "no larger than it must be"


@pytest.mark.parametrize(("args", "message"), [
    (([(3, 0)], 2), r"slice_variable: shapes\[0\]\[1\]: expected an integer of at least 1, got 0"),
    (([(True, 3)], 2), r"slice_variable: shapes\[0\]\[0\]: expected an integer of at least 1, got True")])
def test_bad_arguments(args, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        slice_variable(*args)


# Split and put together.


def bits(shape, dtype, seed):
    """Any bits, NaN with payloads among them."""
    kind = numpy_dtype(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, math.prod(shape) * kind.itemsize, np.uint8)
    return raw.view(kind).reshape(shape)


def joined(array, host, cut):
    """A copy of the blocks, put together elsewhere."""
    parts = split_by_ref(array, cut)
    target = gpu.to_device(np.zeros_like(host)) if array is not host else np.zeros_like(host)
    concat(parts, target)
    return parts, target if array is host else target.copy_to_host()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@given(shape=SHAPES.filter(len), count=st.integers(1, 5), seed=st.integers(0, 99),
       dtype=st.sampled_from(["float32", "float16", "bfloat16", "float64"]))
@few(25)
def test_split_and_concat_is_identity(backend, shape, count, seed, dtype):
    host = bits(shape, dtype, seed)
    array = gpu.to_device(host) if backend == "gpu" else host
    (cut,) = slice_variable([shape], count, 1)
    parts, whole = joined(array, host, cut)
    assert whole.tobytes() == host.tobytes()
    for part, block in zip(parts, cut, strict=True):
        assert tuple(part.shape[1:]) == shape[1:] and part.size == block.size
        values = part.copy_to_host() if backend == "gpu" else part
        assert values.tobytes() == host.reshape(-1)[block.first : block.first + block.size].tobytes()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_blocks_are_views(backend):
    """What is written into a block is in the variable; the memory is the same, so nothing has been copied."""
    host = np.arange(12, dtype=np.float32).reshape(4, 3)
    array = gpu.to_device(host) if backend == "gpu" else host.copy()
    parts = split_by_ref(array, slice_variable([(4, 3)], 2, 1)[0])
    assert [tuple(part.shape) for part in parts] == [(2, 3), (2, 3)]
    if backend == "gpu":
        assert [part.address - array.address for part in parts] == [0, 24]
        parts[1].copy_to_device(np.full((2, 3), 9, np.float32))
        after = array.copy_to_host()
    else:
        assert all(part.base is array for part in parts)
        parts[1][...] = 9
        after = array
    assert after.tolist() == [[0, 1, 2], [3, 4, 5], [9, 9, 9], [9, 9, 9]]
    concat(parts, array)  # each part is its own place
    assert (array.copy_to_host() if backend == "gpu" else array).tolist() == after.tolist()


def test_a_scalar_is_one_block():
    array = np.array(3.0, np.float32)
    (part,) = split_by_ref(array, slice_variable([()], 4, 1)[0])
    target = np.zeros((), np.float32)
    concat([part], target)
    assert part is array and target == 3


@pytest.mark.parametrize(("cut", "message"), [
    ([Block(0, 0, 6)], r"blocks: expected the 12 elements of shape \(4, 3\), got 6"),
    ([Block(0, 0, 6), Block(1, 1, 6)], r"blocks\[1\]: expected it to start at element 6, got 1"),  # Paddle's offset
    ([Block(0, 0, 4), Block(1, 4, 8)], r"block 0: expected whole rows of shape \(4, 3\), got elements 0 to 3")])
def test_blocks_that_do_not_make_up_the_variable(cut, message):
    """Paddle's split_byref does not add up its rows."""
    with pytest.raises((TypeError, ValueError), match=message):
        split_by_ref(np.zeros((4, 3), np.float32), cut)


@pytest.mark.parametrize(("parts", "error", "message"), [
    ([np.ones((2, 3), "f4"), np.ones((1, 3), "f4")], ValueError, "concat: parts: expected 4 rows in all, got 3"),
    ([np.ones((2, 3), "f4"), np.ones((2, 2), "f4")], ValueError, r"parts\[1\]: expected rows of shape \(3,\), got sh"),
    ([np.ones((2, 3), "f4"), np.ones((2, 3), "f8")], TypeError, r"parts\[1\]: expected float32, as target has, got fl"),
])
def test_parts_that_do_not_fit(parts, error, message):
    target = np.zeros((4, 3), np.float32)
    with pytest.raises(error, match=message):
        concat(parts, target)
    assert not target.any(), "nothing has been modified"


@pytest.mark.parametrize(("cut", "which"), [
    (lambda y: [y[2:], y[:2]], 0),  # in another order
    (lambda y: [y[:2], y[1:3]], 1),  # in part at its own place
    (lambda y: [y[:1], y[1:2], y[:2]], 2),
    (lambda y: [y.T], 0),  # at its own address, in another order of axes
], ids=["turned", "in part", "twice", "transposed"])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_parts_of_the_target_elsewhere(backend, cut, which):
    """They would be overwritten before they are read."""
    host = np.arange(16, dtype=np.float32).reshape(4, 4)
    target = gpu.to_device(host) if backend == "gpu" else host.copy()
    with pytest.raises(ValueError, match=rf"^concat: parts\[{which}\]: expected its own place in target or other"):
        concat(cut(target), target)
    assert (target.copy_to_host() if backend == "gpu" else target).tobytes() == host.tobytes(), "nothing is modified"


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_parts_beside_the_target(backend):
    """Between its rows, of no rows, or given one by one."""
    host = np.arange(16, dtype=np.float32).reshape(4, 4)
    both = gpu.to_device(host) if backend == "gpu" else host.copy()
    concat((part for part in (both[:3, 2:], both[3:3, 2:], both[3:, 2:])), both[:, :2])
    assert (both.copy_to_host() if backend == "gpu" else both).tobytes() == np.tile(host[:, 2:], 2).tobytes()


def test_a_row_that_is_its_own_place_whatever_its_stride():
    target = np.arange(16, dtype=np.float32).reshape(4, 4)
    concat([target[:1][::-1], target[1:]], target)
    assert target.tolist() == np.arange(16).reshape(4, 4).tolist()


def test_arrays_of_a_device_are_copied_on_the_stream_given(executor):
    parts, stream = [executor.to_device(np.ones(2, np.float32)) for _ in range(2)], cuda.stream()
    with observe() as log:
        concat(parts, executor.to_device(np.zeros(4, np.float32)), stream)
    assert [copy.stream for copy in log.copies[-2:]] == [stream] * 2


def test_arrays_of_the_host_are_on_no_stream_but_the_first():
    target = np.zeros(4, np.float32)
    for stream in (None, 0):
        concat([np.ones(4, np.float32)], target, stream)
    for stream in (1, -1):
        with pytest.raises(ValueError, match="concat: stream: expected an integer from 0 to 0"):
            concat([np.zeros(4, np.float32)], target, stream)
    assert target.tolist() == [1] * 4
