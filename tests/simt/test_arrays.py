"""Device arrays as the host sees them."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda


def test_round_trip_keeps_everything():
    for host in (
        np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.float32(3),
        np.zeros((0, 4), np.int8), np.array([], np.float16),
    ):
        device = cuda.to_device(host)
        back = device.copy_to_host()
        assert np.array_equal(back, host) and back.dtype == host.dtype
        assert (
            device.shape, device.size, device.ndim, device.nbytes,
        ) == (host.shape, host.size, host.ndim, host.nbytes)
        assert host.size == 0 or device.strides == host.strides == back.strides


def test_to_device_copies():
    host = np.zeros(3)
    host.flags.writeable = False
    device = cuda.to_device(host)
    device[:] = 5
    assert (host == 0).all() and (device.copy_to_host() == 5).all()
    target = cuda.device_array(3)
    assert cuda.to_device(host, to=target) is target and (target.copy_to_host() == 0).all()
    assert cuda.to_device(device) is device
    with pytest.raises(ValueError, match="contiguous"):
        cuda.to_device(np.zeros((4, 4))[:, ::2])


def test_fresh_memory_is_poisoned():
    for array in (cuda.device_array(3, np.uint8).copy_to_host(), cuda.pinned_array(3, np.uint8)):
        assert array.tolist() == [0xAB] * 3
    assert (cuda.to_device(np.zeros(3, np.uint8), copy=False).copy_to_host() == 0xAB).all()


def test_views_share_memory():
    x = cuda.to_device(np.arange(12, dtype=np.int32))
    x.name = "x"
    table = x.reshape(3, 4)
    column = table[:, 1]
    assert column.name == "x" and column.address == x.address + 4 and column.strides == (16,)
    column[:] = 0
    x[2:4] = np.array([7, 8])
    x[-1] = 9
    table[2, 0] = 1
    table.T[3, 0] = 6
    assert x.copy_to_host().tolist() == [0, 0, 7, 6, 4, 0, 6, 7, 1, 0, 10, 9]
    assert x[3] == 6 and isinstance(x[3], np.int32) and table[2, 3] == 9
    assert x.view(np.int16).shape == (24,) and table.ravel().address == x.address
    assert column.copy_to_host().tolist() == [0, 0, 0]
    with pytest.raises(IndexError):
        x[12]
    with pytest.raises(NotImplementedError):
        table.T.ravel()


def test_copies_check_shape_and_type():
    x = cuda.to_device(np.arange(3.0))
    y = cuda.device_array_like(x)
    y.copy_to_device(x)
    x.copy_to_device(np.ones(3))
    assert y.copy_to_host().tolist() == [0, 1, 2] and x.copy_to_host().tolist() == [1, 1, 1]
    for wrong in (np.zeros(4), np.zeros(3, np.float32)):
        with pytest.raises(ValueError):
            x.copy_to_device(wrong)
        with pytest.raises(ValueError):
            x.copy_to_host(wrong)


def test_no_silent_conversion_to_a_host_array():
    x = cuda.to_device(np.zeros(3))
    for use in (np.asarray, np.array, np.sum, lambda x: x + np.zeros(3), lambda x: np.zeros(3) + x):
        with pytest.raises(TypeError):
            use(x)


def test_cuda_array_interface():
    x = cuda.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
    assert x.__cuda_array_interface__ == {
        "shape": (3, 4), "typestr": "<f4", "strides": None, "version": 3, "data": (x.address, False),
    }

    class Foreign:
        __cuda_array_interface__ = x[1:, ::2].__cuda_array_interface__

    assert cuda.is_cuda_array(Foreign()) and not cuda.is_cuda_array(np.zeros(3))
    again = cuda.as_cuda_array(Foreign())
    assert again.copy_to_host().tolist() == [[4, 6], [8, 10]] and again.address == x.address + 16
    again[0, 0] = 40
    assert x[1, 0] == 40
    x_again = cuda.as_cuda_array(x)
    assert x_again is x
    Foreign.__cuda_array_interface__ = {**x.__cuda_array_interface__, "shape": (0, 4), "data": (0, False)}
    empty = cuda.as_cuda_array(Foreign())
    assert empty.shape == (0, 4) and empty.dtype == x.dtype
    Foreign.__cuda_array_interface__ = {**x.__cuda_array_interface__, "shape": (4, 4)}
    with pytest.raises(simt.OutOfBounds):
        cuda.as_cuda_array(Foreign())


def test_kernels_take_views_and_foreign_arrays():
    @cuda.jit
    def fill(x):
        x[cuda.threadIdx.x] = cuda.threadIdx.x + 1

    class Foreign:
        pass

    x = cuda.to_device(np.zeros(6, np.int64))
    fill[1, 3](x[::2])
    foreign = Foreign()
    foreign.__cuda_array_interface__ = x[4:].__cuda_array_interface__
    fill[1, 2](foreign)
    assert x.copy_to_host().tolist() == [1, 0, 2, 0, 1, 2]


def test_a_device_array_over_a_host_array_shares_its_memory():
    @cuda.jit
    def double(x):
        x[cuda.grid(1), 1] *= 2

    for host in (np.arange(6.0).reshape(3, 2), np.asfortranarray(np.arange(6.0).reshape(3, 2))):
        device = simt.over(host)
        assert device.strides == host.strides
        double[1, 3](device)
        assert host.tolist() == [[0, 2], [2, 6], [4, 10]]
        host[0, 0] = 7
        assert device.copy_to_host()[0, 0] == 7
    assert simt.over(np.zeros((0, 3))).shape == (0, 3) and simt.over(np.array(2.0)).shape == ()


def test_what_no_device_array_can_be_over_is_refused():
    for wrong in (np.arange(6.0)[::2], np.arange(6.0)[::-1], np.broadcast_to(np.zeros(1), 4)):
        with pytest.raises(ValueError, match="array: expected a dense array, got shape"):
            simt.over(wrong)
    with pytest.raises(TypeError, match="array: expected a NumPy array, got"):
        simt.over([1.0])
