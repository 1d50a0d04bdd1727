"""Device arrays as the host sees them."""

from types import SimpleNamespace

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda

CUBE = np.arange(24).reshape(2, 3, 4)
ORDERS = {
    "C": CUBE, "F": np.asfortranarray(CUBE), "neither": CUBE.transpose(1, 0, 2), "one axis": np.arange(3.0),
    "no axis": np.array(3, np.float32), "no elements": np.zeros((0, 4), np.int8), "halves": np.ones((1, 2), np.float16)}
VIEWS = {"reversed": lambda x: x.T, "transposed": lambda x: x.transpose(), "axes": lambda x: x.transpose((2, 0, 1)),
         "reshaped": lambda x: x.reshape(6, 4), "reshaped to a shape": lambda x: x.reshape((3, 8)),
         "reshaped in Fortran's order": lambda x: x.reshape(6, 4, order="F"), "ravelled": lambda x: x.ravel(),
         "ravelled in Fortran's order": lambda x: x.ravel("F"), "squeezed": lambda x: x[:, 1:2, :1].squeeze(),
         "squeezed at an axis": lambda x: x[:, 1:2, :1].squeeze(2), "sliced": lambda x: x[1:, ::2, 1:3],
         "backwards": lambda x: x[:, ::-1, ::-2], "indexed": lambda x: x[1, :, 2], "new axis": lambda x: x[:, None, 0],
         "other type": lambda x: x[..., :2].view(np.float64)}


def attributes(x):
    flags = x.flags["C_CONTIGUOUS"], x.flags["F_CONTIGUOUS"]
    return x.shape, x.strides, x.dtype, x.size, x.ndim, x.nbytes, x.size and flags


@pytest.mark.parametrize("order", ORDERS)
def test_round_trip_keeps_everything(order):
    """But for the order of axes that is neither C's nor Fortran's, of which there are copies alone."""
    host = ORDERS[order]
    if order == "neither":
        with pytest.raises(ValueError, match="contiguous"):
            cuda.to_device(host)
        device = simt.over(host.copy("K"))
    else:
        device = cuda.to_device(host)
        assert attributes(device.copy_to_host()) == attributes(host)
    assert attributes(device) == attributes(host) and np.array_equal(device.copy_to_host(), host)
    assert device.is_c_contiguous() == host.flags.c_contiguous and device.is_f_contiguous() == host.flags.f_contiguous
    like = cuda.device_array_like(device)
    assert attributes(like) == attributes(np.empty_like(host)) == attributes(cuda.pinned_array_like(host))
    if order not in ("neither", "no elements"):
        assert all(attributes(cuda.mapped_array_like(one)) == attributes(host) for one in (device, host))
    assert cuda.pinned_array_like(host).tobytes() == like.copy_to_host().tobytes() == b"\xab" * host.nbytes
    assert len(device.coverage()) == device.nbytes and device.coverage().all()


def test_a_field_of_records_is_set():
    x = cuda.to_device(np.zeros(3, [("a", np.float32), ("b", np.int8)]))
    x["a"] = 5
    assert x.copy_to_host().tolist() == [(5, 0)] * 3


@pytest.mark.parametrize("order", ["C", "F", "neither"])
@pytest.mark.parametrize("what", VIEWS)
def test_views_are_those_of_numpy(what, order):
    """With the same elements, read and written; what NumPy copies is refused, as is what it refuses."""
    host, view = ORDERS[order].copy("K"), VIEWS[what]
    device = simt.over(host.copy("K"))
    try:
        expected = view(host)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)[:20]):
            view(device)
        return
    if not np.may_share_memory(expected, host):
        with pytest.raises(NotImplementedError, match="a copy, not a view"):
            view(device)
        return
    found = view(device)
    assert attributes(found) == attributes(expected) and np.array_equal(found.copy_to_host(), expected)
    assert attributes(cuda.device_array_like(found)) == attributes(np.empty_like(expected))
    assert found.address - device.address == expected.ctypes.data - host.ctypes.data
    found[...] = expected[...] = -np.arange(1, 1 + expected.size).reshape(expected.shape)
    assert np.array_equal(device.copy_to_host(), host)
    mask = np.zeros(host.nbytes, bool)
    np.ndarray((*found.shape, 8), bool, mask, found.address - device.address, (*found.strides, 1))[...] = True
    assert np.array_equal(found.coverage(), mask)


@pytest.mark.parametrize(("keywords", "strides", "nbytes"), [
    ({}, (32, 8), 96), ({"order": "F"}, (8, 24), 96), ({"strides": (8, 32)}, (8, 32), 120),
    ({"dtype": np.int8}, (4, 1), 12)])
def test_where_elements_of_a_fresh_array_are(keywords, strides, nbytes):
    array = cuda.device_array((3, 4), **keywords)
    assert array.strides == strides and array.buffer.nbytes == nbytes
    array[2, 3] = 5
    assert array.copy_to_host()[2, 3] == 5 and array.flags["F_CONTIGUOUS"] == ("order" in keywords)


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
    assert cuda.pinned_array(3, np.uint8).tolist() == [0xAB] * 3
    assert (cuda.to_device(np.zeros(3, np.uint8), copy=False).copy_to_host() == 0xAB).all()


def test_views_share_memory():
    x = cuda.to_device(np.arange(12, dtype=np.int32))
    x.name = "x"
    table = x.reshape(3, 4)
    x[2:4] = np.array([7, 8])
    x[-1] = table[2, 0] = 9
    table.T[3, 0] = 6
    table[:, 1] = x[:3]
    assert x.copy_to_host().tolist() == [0, 0, 7, 6, 4, 1, 6, 7, 9, 7, 10, 9] and table.name == "x"
    assert x[3] == 6 and isinstance(x[3], np.int32) and table[2, 3] == 9 and len(table) == 3
    assert isinstance(x[..., 3], simt.DeviceArray) and x[..., 3].shape == ()
    assert [part.copy_to_host().tolist() for part in x.split(5)] == [[0, 0, 7, 6, 4], [1, 6, 7, 9, 7], [10, 9]]
    with pytest.raises(IndexError):
        x[12]


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
    with simt.observe(watch=True) as log:
        fresh = cuda.device_array(4)
        with pytest.raises(ValueError):
            fresh.copy_to_device(np.zeros(3))
        assert not log.copies
        with pytest.raises(simt.UninitializedRead):  # a refused copy has written nothing
            fresh.copy_to_host()


def test_no_silent_conversion_to_a_host_array():
    x = cuda.to_device(np.zeros(3))
    for use in (np.asarray, np.array, np.sum, lambda x: x + np.zeros(3), lambda x: np.zeros(3) + x):
        with pytest.raises(TypeError):
            use(x)


def offering(x, **changed):
    """What offers the memory of a device array, or something else in its place."""
    return SimpleNamespace(__cuda_array_interface__=x.__cuda_array_interface__ | changed)


def test_cuda_array_interface():
    x = cuda.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
    assert x.__cuda_array_interface__ == {
        "shape": (3, 4), "typestr": "<f4", "strides": None, "version": 3, "data": (x.address, False)}
    assert x[3:].__cuda_array_interface__["data"] == (0, False)
    assert cuda.as_cuda_array(x) is x and not cuda.is_cuda_array(np.zeros(3))
    for again, expected in ((x[1:, ::2], [[4, 6], [8, 10]]), (x.T[1:], [[1, 5, 9], [2, 6, 10], [3, 7, 11]]), (x, None)):
        assert cuda.is_cuda_array(offering(again))
        same = cuda.as_cuda_array(offering(again))
        assert same.address == again.address and same.strides == again.strides
        assert expected is None or same.copy_to_host().tolist() == expected
    same[1, 0] = 40
    assert x[1, 0] == 40
    empty = cuda.as_cuda_array(offering(x, shape=(0, 4), data=(0, False)))
    assert empty.shape == (0, 4) and empty.dtype == x.dtype
    with pytest.raises(simt.OutOfBounds):
        cuda.as_cuda_array(offering(x, shape=(4, 4)))


def test_kernels_take_views_and_foreign_arrays():
    @cuda.jit
    def fill(x):
        x[cuda.threadIdx.x] = cuda.threadIdx.x + 1

    x = cuda.to_device(np.zeros(6, np.int64))
    fill[1, 3](x[::2])
    fill[1, 2](offering(x[4:]))
    assert x.copy_to_host().tolist() == [1, 0, 2, 0, 1, 2]


def test_a_device_array_over_a_host_array_shares_its_memory():
    host = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    device = simt.over(host)
    device[:, 1] = 8
    host[0, 0] = 7
    assert host.tolist() == device.copy_to_host().tolist() == [[7, 8], [2, 8], [4, 8]]
    assert simt.over(np.zeros((0, 3))).shape == (0, 3) and simt.over(np.array(2.0)).shape == ()


def test_read_only_memory_stays_so():
    host = np.zeros(2)
    host.flags.writeable = False
    cuda.jit(lambda x: None)[1, 1](host)
    device, other = simt.over(host), cuda.device_array(2)
    for array in (device, cuda.as_cuda_array(offering(other, data=(other.address, True)))):
        assert array.__cuda_array_interface__["data"] == (array.address, True)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_what_no_device_array_can_be_over_is_refused():
    for wrong in (np.arange(6.0)[::2], np.arange(6.0)[::-1], np.broadcast_to(np.zeros(1), 4)):
        with pytest.raises(ValueError, match="array: expected a dense array, got shape"):
            simt.over(wrong)
    with pytest.raises(TypeError, match="array: expected a NumPy array, got"):
        simt.over([1.0])
