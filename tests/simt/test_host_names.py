"""Host code of `numba.cuda`: devices, mapped and pinned memory, reductions, functions of elements, vectors, streams."""

import asyncio

import numba
import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda


def test_there_is_one_device():
    assert cuda.is_available() and len(cuda.list_devices()) == len(cuda.gpus) == 1
    assert [device.id for device in cuda.list_devices()] == [0]
    with cuda.gpus[0] as context:
        assert context.device is cuda.get_current_device() is cuda.select_device(0)
    assert cuda.current_context().device.compute_capability == (9, 0)
    with pytest.raises(simt.LaunchError, match="only device 0, got 1"):
        cuda.select_device(1)
    with pytest.raises(IndexError):
        cuda.gpus[1]
    assert repr(cuda.gpus) == repr(cuda.gpus[0]) == "<Managed Device 0>"
    assert cuda.is_supported_version() is cuda.is_float16_supported() is True and not cuda.is_bfloat16_supported()
    assert cuda.require_context(doubled) is doubled


def test_memory_is_counted():
    before = cuda.current_context().get_memory_info()
    array = cuda.device_array(1000, np.float64)
    after = cuda.current_context().get_memory_info()
    assert before.free - after.free == array.nbytes and before.total == after.total
    waiting = cuda.current_context().deallocations
    waiting.clear()
    with waiting.disable(), cuda.defer_cleanup(), cuda.profiling():
        del array
        assert len(waiting) == 0 and cuda.current_context().get_memory_info() == before


@cuda.jit
def doubled(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


@pytest.mark.parametrize("create", [cuda.mapped_array, cuda.managed_array])
def test_arrays_that_both_see(create):
    x = create(4, np.float32)
    assert isinstance(x, np.ndarray) and x.tobytes() == b"\xab" * 16
    assert create((2, 3), np.int8, order="F").strides == (1, 2)
    x[:] = [1, 2, 3, 4]
    with simt.observe() as log:
        doubled[1, 4](x)
    assert x.tolist() == [2, 4, 6, 8] and not log.copies
    x[1:3].copy_to_device(np.zeros(2, np.float32))
    assert x.copy_to_host().tolist() == [2, 0, 0, 8] and x[2:].copy_to_host().tolist() == [0, 8]
    assert x[2:].copy_to_host(out := np.zeros(2, np.float32)) is out and out.tolist() == [0, 8]


def test_mapped_lends_a_host_array():
    x, y = np.arange(3.0), np.arange(6.0).reshape(2, 3, order="F")
    with cuda.mapped(x) as device:
        doubled[1, 3](device)
        assert x.tolist() == [0, 2, 4]
    with cuda.mapped(x, y) as (first, second):
        doubled[1, 3](first)
        assert second.strides == y.strides and second.copy_to_host().tolist() == y.tolist()
    assert x.tolist() == [0, 4, 8]
    words = "^mapped: argument 1: expected a contiguous NumPy array"
    with pytest.raises(TypeError, match=words), cuda.mapped(x, x[::2]):
        pass
    with pytest.raises(TypeError, match=r"^pinned: argument 0"), cuda.pinned(3):
        pass


@pytest.mark.parametrize(("way", "before", "after"), [(cuda.In, 1, 1), (cuda.InOut, 1, 2), (cuda.Out, 1, None)])
def test_ways_of_copying(way, before, after):
    x = np.full(2, before, np.int64)
    doubled[1, 2](way(x))
    poison = int(np.array([0xAB] * 8, np.uint8).view(np.int64)[0])
    assert x.tolist() == [after if after is not None else (2 * poison + 2**63) % 2**64 - 2**63] * 2
    there = cuda.to_device(np.full(2, before, np.int64))
    doubled[1, 2](way(there))
    assert there.copy_to_host().tolist() == [2, 2]
    with pytest.raises(TypeError, match=f"^cuda.{way.__name__}: expected an array, got 3"):
        way(3)


def test_reduce():
    @cuda.reduce
    def total(a, b):
        return a + b

    x = np.arange(100, dtype=np.int64)
    assert total(x) == total(cuda.to_device(x)) == x.sum()
    assert total(x, init=5) == x.sum() + 5 and total(x, size=10) == 45 and total(x[:0]) == 0
    out, stream = cuda.to_device(np.zeros(2, np.int64)), cuda.stream()
    with simt.observe() as log:
        total(cuda.to_device(x), res=out, stream=stream)
    assert log.launches[0].stream is stream
    assert total(x, res=out) is None and out.copy_to_host().tolist() == [x.sum(), 0]
    assert cuda.Reduce(max)(np.array([3.0, 7.0, 5.0])) == 7
    with pytest.raises(TypeError, match=r"^arr: expected an array of one dimension"):
        total(np.zeros((2, 2)))
    with pytest.raises(TypeError, match=r"^res: expected a device array"):
        total(x, res=np.zeros(1))
    assert total(x, size=0, init=7) == 7


@pytest.mark.parametrize("by", ["cuda", "numba"])
def test_vectorize(by):
    signatures = ["int32(int32, int32)", "float64(float64, float64)"]
    with simt.replace_numba():
        if by == "cuda":
            decorate = cuda.vectorize(signatures)
        else:
            decorate = numba.vectorize(signatures, target="cuda")

        @decorate
        def combined(x, y):
            return x * 10 + y

    x, y = np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32).reshape(2, 1)
    result = combined(x, y)
    assert result.dtype == np.int32 and result.tolist() == [[0, 10, 20], [1, 11, 21]]
    assert combined(0.5, 1) == 6 and combined(x.astype(np.float32), 1.5).dtype == np.float64
    device = combined(cuda.to_device(x), y)
    assert isinstance(device, simt.DeviceArray) and device.copy_to_host().tolist() == result.tolist()
    out = np.zeros((2, 3))
    assert combined(x.astype(float), y.astype(float), out=out) is out and out.tolist() == result.tolist()
    there = cuda.to_device(np.zeros((2, 3), np.int32))
    assert combined(x, y, out=there) is there and there.copy_to_host().tolist() == result.tolist()
    with pytest.raises(TypeError, match=r"^combined: no signature takes \(complex128, int32\)"):
        combined(x.astype(complex), y)
    with pytest.raises(simt.Unsupported, match="no reduce of vectorized functions"):
        combined.reduce(x)
    stream = cuda.stream()
    with simt.observe() as log:
        combined(x, y, out=there, stream=stream)
    assert {each.stream for each in [*log.launches, *log.copies]} == {stream}


def test_no_precision_is_lost_by_a_signature():
    @cuda.vectorize(["float32(float32)", "float64(float64)"])
    def third(x):
        return x / 3

    assert third(np.ones(1)).tolist() == [1 / 3] and third(np.ones(1, np.float32)).dtype == np.float32
    assert third(np.float64(1)).dtype == np.float64


def test_vectorize_without_a_signature():
    @cuda.vectorize
    def combined(x, y):
        return x * 10 + y

    result = combined(np.arange(3, dtype=np.int16), np.int16(1))
    assert result.dtype == np.int16 and result.tolist() == [1, 11, 21]
    assert combined(np.arange(2), 0.5).tolist() == [0.5, 10.5]


def test_guvectorize_says_that_it_is_missing():
    with simt.replace_numba(), pytest.raises(simt.Unsupported, match="no guvectorize for the device"):
        numba.guvectorize(["(float64[:], float64[:])"], "(n)->()", target="cuda")(lambda x, y: None)


def test_numbers_become_what_a_signature_of_arrays_says():
    @cuda.vectorize(["int16(int16, int16)"])
    def above(x, least):
        return x if x > least else 0

    x = np.arange(4, dtype=np.int16)
    for least in (1.9, np.float64(1.9), np.int64(1)):
        result = above(x, least)
        assert result.tolist() == [0, 0, 2, 3] and result.dtype == np.int16
    for wrong in (np.full(4, 1.9), 1j):
        with pytest.raises(TypeError, match="above: no signature takes"):
            above(x, wrong)


def test_forall():
    x = np.ones(300)
    stream = cuda.stream()
    with simt.observe() as log:
        doubled.forall(300)(x)
        doubled.forall(300, tpb=64, stream=stream)(x)
        doubled.forall(0)(x)
    assert set(x) == {4.0}
    assert [(launch.grid[0], launch.block[0]) for launch in log.launches] == [(3, 128), (5, 64)]
    assert log.launches[1].stream is stream
    with pytest.raises(simt.LaunchError, match=r"^ntasks: expected an integer of at least 0, got -1"):
        doubled.forall(-1)
    doubled.configure(5, 64)(x)
    assert set(x) == {8.0}
    for same in (doubled.specialize(x), doubled.overloads[numba.float64[::1],], *doubled.overloads.values()):
        same[5, 64](x)
    assert set(x) == {64.0} and doubled.configure(5, 64, stream, 8).dynamic_bytes == 8


def test_vector_types():
    @cuda.jit
    def kernel(out):
        two = cuda.float32x2(1, 2)
        four = cuda.float4(0, two, 3)
        out[0], out[1], out[2], out[3] = four.x, four.w + two.y, four.z, four.w

    out = np.zeros(4)
    kernel[1, 1](out)
    assert out.tolist() == [0, 5, 2, 3]
    assert cuda.int8x1 is cuda.char1 and cuda.long2 is cuda.int64x2 is cuda.longlong2
    assert list(cuda.uint8x2(7, 1)) == [7, 1] and cuda.uint8x2(7, 1).x.dtype == np.uint8
    assert repr(cuda.uchar2(7, 1)) == "uint8x2(7, 1)"
    with pytest.raises(TypeError, match=r"^float32x3: expected 3 elements, got 2"):
        cuda.float3(1, 2)


def test_device_arrays_become_host_arrays_in_numbas_place():
    x = cuda.to_device(np.arange(3))
    with simt.replace_numba():
        assert np.asarray(x).tolist() == np.array(x, np.float32).tolist() == [0, 1, 2]
        with pytest.raises(ValueError, match="needs a copy"):
            np.asarray(x, copy=False)
    with pytest.raises(TypeError, match="use copy_to_host"):
        np.asarray(x)


def test_callbacks_and_coroutines_of_streams():
    called = []
    stream = cuda.stream()
    stream.add_callback(lambda *args: called.append(args), "data")
    assert called == [(stream, 0, "data")]

    async def wait():
        await stream.async_done()
        return 1

    assert asyncio.run(wait()) == 1


def test_cache_hints_load_and_store():
    @cuda.jit
    def kernel(x):
        cuda.stcg(x, 1, cuda.ldca(x, 0) + cuda.ldcv(x, 0))

    x = np.array([2.0, 0])
    kernel[1, 1](x)
    assert x[1] == 4
