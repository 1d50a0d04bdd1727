"""Arrays in a GPU's memory, against a stand-in for the driver with the host's memory."""

import gc

import numpy as np
import pytest

from gpu.fake_driver import CUDA, HERE
from refopt.gpu import arrays, driver

pytestmark = pytest.mark.usefixtures("frozen")
ORDERS = {"C": np.arange(24.0).reshape(2, 3, 4), "F": np.arange(24.0).reshape(4, 3, 2).T,
          "neither": np.arange(24.0).reshape(2, 4, 3).transpose(0, 2, 1), "none": np.zeros((3, 0)),
          "one": np.array(5.0), "half": np.arange(24, dtype=np.float16)}
PARTS = [0, -1, (slice(None), 1), (..., 0), slice(None, None, -1), (slice(None), slice(None, None, 2)), None, ...]


@pytest.mark.parametrize("order", ORDERS)
def test_arrays_on_the_device(fake, order):
    """As those of NumPy: copies there and back, views and their elements, in whatever order of axes."""
    host, machine = ORDERS[order], driver.Gpu()
    array = machine.to_device(host)
    assert array.copy_to_host().tobytes() == np.asarray(array).tobytes() == host.tobytes()
    assert (array.shape, array.dtype, array.nbytes, array.ndim) == (host.shape, host.dtype, host.nbytes, host.ndim)
    assert array.strides == host.strides or not host.size
    assert len(fake.memory) == bool(host.size)
    expected = host.copy("K")
    for item in PARTS:
        try:
            view = expected[item]
        except IndexError:
            with pytest.raises(IndexError):
                array[item]
            continue
        found = array[item]
        if isinstance(view, np.ndarray):
            assert found.strides == view.strides or not view.size
            assert found.copy_to_host().tobytes() == np.ascontiguousarray(view).tobytes()
            assert not view.size or found.address - array.address == view.ctypes.data - expected.ctypes.data
        else:
            assert found == view and type(found) is type(view)
        array[item] = expected[item] = -1.5 * np.ones(np.shape(view))
        assert np.array_equal(array.copy_to_host(), expected)
    assert array.T.copy_to_host().tobytes() == expected.T.tobytes()
    expected[...] = host
    for axes in "CF":
        array.copy_to_device(np.asarray(expected, order=axes))
        into = np.empty(host.shape, host.dtype, axes)
        assert array.copy_to_host(into) is into and np.array_equal(into, expected)
    for name, reshaped in (("C", expected.flags.c_contiguous), ("F", expected.flags.f_contiguous)):
        if reshaped:
            flat = expected.reshape(-1, order=name).tolist()
            assert array.reshape(-1, order=name).copy_to_host().tolist() == array.ravel(name).copy_to_host().tolist()
            assert array.ravel(name).copy_to_host().tolist() == flat
        else:
            with pytest.raises(NotImplementedError, match="a copy, not a view"):
                array.reshape(-1, order=name)
    del array, found
    gc.collect()
    assert not fake.memory


def test_arrays_are_copied_between_each_other(fake):
    machine = driver.Gpu()
    source, target = machine.to_device(np.arange(6.0).reshape(2, 3)), machine.empty((2, 3), float)
    target.copy_to_device(source)
    assert fake.calls[-2][0] == "cuMemcpyDtoDAsync" and target[1, 2] == 5
    target.T[...] = source.T
    target[:, 1] = source[:, 2]
    assert target.copy_to_host().tolist() == [[0, 2, 2], [3, 5, 5]]
    turned = machine.to_device(np.ones((2, 3), order="F"))
    fake.calls.clear()
    for stream, (into, given) in enumerate([(target, np.ones((2, 3))), (target.T, np.ones((3, 2))), (target, source),
                                            (target, turned), (target[:, 1], source[:, 2])], 7):
        into.copy_to_device(given, stream)
        assert {call[-1] for call in fake.calls} == {stream}
        fake.calls.clear()
    target.copy_to_host(stream=5)
    assert {call[-1] for call in fake.calls} == {5}
    for wrong in (np.zeros(6), np.zeros((2, 3), np.float32), source.T):
        with pytest.raises(ValueError, match="cannot copy"):
            target.copy_to_device(wrong)
    with pytest.raises(NotImplementedError, match="a copy, not a view"):
        target[[0, 1]]


def test_memory_goes_back_in_its_own_context_during_a_capture_too(fake):
    """From whatever thread the last array on it is let go."""
    array = driver.Gpu().to_device(np.ones(3))
    view, address = array[1:], array.address
    fake.calls.clear()
    del array
    gc.collect()
    assert not fake.calls
    del view
    gc.collect()
    modes = CUDA.CUstreamCaptureMode
    relaxed, held = modes.CU_STREAM_CAPTURE_MODE_RELAXED, modes.CU_STREAM_CAPTURE_MODE_GLOBAL
    exchange = "cuThreadExchangeStreamCaptureMode"
    assert fake.calls == [("cuCtxPushCurrent", HERE), (exchange, relaxed), ("cuMemFree", address), (exchange, held),
                          ("cuCtxPopCurrent",)]
    fake.calls.clear()
    fake.cuMemAlloc = lambda nbytes: (CUDA.CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        driver.Gpu().empty((3,), np.float32)
    assert fake.calls == [(exchange, relaxed), (exchange, held)]


def test_what_an_array_says_to_other_libraries(fake):
    """The array interface; which device it is on, by the driver; bf16 as NumPy says it."""
    array = driver.Gpu().to_device(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    fake.answers["cuPointerGetAttribute"] = 1
    assert array.__dlpack_device__() == (2, 1) == (2, arrays.ordinal_of(array))
    interface = array.__cuda_array_interface__
    assert interface == {"shape": (3, 2), "typestr": "<f4", "version": 3, "strides": (4, 12),
                         "data": (array.address, False)}
    assert arrays.describer("gpu")(array, "x") == (array.address, (3, 2), "float32", (4, 12), True)
    assert driver.Gpu().empty((0, 2), np.float32).__cuda_array_interface__["data"] == (0, False)
    assert repr(array) == f"DeviceArray({array.address:#x}, shape=(3, 2), dtype=float32)"
