"""Raw addresses: bounds, alignment, lifetime."""

import gc
from contextlib import nullcontext

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, memory


def at_address(body, *args):
    """Run a body as a one-thread kernel."""
    cuda.jit(body)[1, 1](*args)


def test_loads_and_stores_elements_of_any_type():
    x = cuda.to_device(np.arange(8, dtype=np.float32))

    @simt.ptx_twin()
    def check(values):
        assert values == (0, 1, 2, 3) and all(type(value) is np.float32 for value in values)

    def body(address):
        values = memory.load(address, np.float32, 4)
        check(values)
        memory.store(address + 16, np.float32, values)
        assert memory.load(address + 4, np.uint32) == (np.float32(1).view(np.uint32),)
        assert memory.load(np.uint64(address + 4), np.dtype(np.uint8), 3) == (0, 0, 0x80)

    at_address(body, x.address)
    assert x.copy_to_host().tolist() == [0, 1, 2, 3] * 2


def test_atomic_add():
    x = cuda.to_device(np.array([5], np.int32))
    at_address(lambda address: memory.atomic_add(address, np.int32, memory.atomic_add(address, np.int32, 2)), x.address)
    assert x[0] == 12


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = cuda.to_device(np.arange(4).astype(ml_dtypes.bfloat16))

    def body(array, address):
        array[1] = array[1] + array[2]
        memory.store(address, ml_dtypes.bfloat16, memory.load(address + 2, ml_dtypes.bfloat16))

    for _ in range(2):
        with simt.observe(watch=True):
            at_address(body, x, x.address)
    assert x.copy_to_host().astype(float).tolist() == [5, 5, 2, 3]


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize("offset", [-4, 12, 16, 1 << 40, -(1 << 50)])
@pytest.mark.parametrize("access", [
    lambda address: memory.load(address, np.int32, 3), lambda address: memory.store(address, np.int32, (1, 2, 3))])
def test_out_of_bounds(access, offset, watch):
    x = cuda.to_device(np.zeros(4, np.int32))
    x.name = "momentum"
    neighbour = cuda.to_device(np.zeros(4, np.int32))  # noqa: F841

    first = x.address

    access = cuda.jit(device=True)(access)

    def body(address):
        access(first)
        access(address)

    with pytest.raises(simt.OutOfBounds) as caught, simt.observe(watch=True) if watch else nullcontext():
        at_address(body, x.address + offset)
    assert caught.value.address == x.address + offset
    assert caught.value.filename == __file__ and caught.value.thread == (0, 0, 0)
    if offset in (12, 16):
        assert (caught.value.array == "momentum" and caught.value.offset == offset and "momentum" in str(caught.value))
        assert f"the access ends {offset - 4} bytes past its end" in str(caught.value)


@pytest.mark.parametrize("dtype, count, alignment", [
    (np.float32, 1, 4), (np.float32, 2, 8), (np.float32, 4, 16), (np.float32, 8, 4), (np.float32, 3, 4),
    (np.float16, 8, 16), (np.float16, 4, 8), (np.float64, 2, 16), (np.float64, 4, 8)])
def test_alignment(dtype, count, alignment):
    x = cuda.to_device(np.zeros(256, np.uint8))
    for offset in range(32):

        def body(address):
            memory.load(address, dtype, count)

        if offset % alignment:
            with pytest.raises(simt.MisalignedAddress, match=f"aligned to {alignment} bytes"):
                at_address(body, x.address + offset)
        else:
            at_address(body, x.address + offset)


def test_use_after_free(frozen):
    x = cuda.to_device(np.zeros(4))
    address = x.address
    view = x[1:3]

    def read():
        memory.load(address, np.float64)

    at_address(read)
    del x
    gc.collect()
    at_address(read)  # the view keeps the allocation
    del view
    gc.collect()
    with pytest.raises(simt.OutOfBounds):
        at_address(read)


def test_live_allocations_are_counted_and_addresses_never_reused(frozen):
    gc.collect()
    before = memory.live_bytes(), memory.live_allocations()
    first = cuda.device_array(100, np.float32)
    second = cuda.device_array(0, np.float32)
    assert (memory.live_bytes() - before[0], memory.live_allocations() - before[1]) == (400, 2)
    assert first.address % 256 == second.address % 256 == 0
    old = first.address
    del first, second
    gc.collect()
    assert (memory.live_bytes(), memory.live_allocations()) == before
    assert cuda.device_array(100, np.float32).address > old
