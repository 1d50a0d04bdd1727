"""Streams, events and page-locked memory of a GPU, against a stand-in for the driver with the host's memory."""

import ctypes
import gc
import types
from functools import partial

import numpy as np
import pytest

from gpu.fake_driver import CUDA, HERE, INVALID, MODULES, SUCCESS, Fake, host, of, of_capability
from refopt import gpu, simt
from refopt.gpu import driver, staging, streams, transfer
from refopt.gpu.compiler import Linked
from refopt.gpu.exclusive import Exclusive
from refopt.gpu.machine import Properties

pytestmark = pytest.mark.usefixtures("frozen")


def test_streams(fake):
    machine = driver.Gpu()
    stream = machine.new_stream()
    assert fake.calls == [("cuStreamCreate", CUDA.CUstream_flags.CU_STREAM_NON_BLOCKING)]
    handle = machine.stream(stream)
    assert handle == 101 and type(handle) is int
    del stream
    assert fake.calls[1:] == [("cuStreamDestroy", 101)]


def test_streams_of_some_multiprocessors(fake):
    """Those of one number are set apart once; what is captured for such a stream is captured on the same ones."""
    machine = driver.Gpu()
    first, second, other = (machine.new_stream(count) for count in (64, 64, 8))
    assert [call[0] for call in fake.calls].count("cuGreenCtxCreate") == 2
    splits = [call for call in fake.calls if call[0] == "cuDevSmResourceSplitByCount"]
    assert [call[-1] for call in splits] == [64, 8]
    contexts = [call[1] for call in fake.calls if call[0] == "cuGreenCtxStreamCreate"]
    assert contexts[0] == contexts[1] != contexts[2]
    fake.calls.clear()
    run = driver.Sequenced([])
    assert run(second.handle) and run(second.handle)
    assert [call for call in fake.calls if call[0].endswith("StreamCreate")] == [
        ("cuGreenCtxStreamCreate", contexts[0], CUDA.CUstream_flags.CU_STREAM_NON_BLOCKING, 0)]
    made = [call[0] for call in fake.calls]
    assert made.count("cuGraphInstantiate") == made.count("cuGraphDestroy") == 1
    del first, second, other, run
    gc.collect()
    assert not streams._confined and [call[0] for call in fake.calls].count("cuGraphExecDestroy") == 1
    fake.calls.clear()
    assert driver.Sequenced([])(0) and fake.calls[0] == ("cuStreamCreate", CUDA.CUstream_flags.CU_STREAM_NON_BLOCKING)


@pytest.mark.parametrize(("stream", "handle"), [
    (0, 0), (np.int64(7), 7), (type("Own", (), {"__cuda_stream__": lambda self: (0, 8)})(), 8), (of(cuda_stream=9), 9),
    (of(ptr=10), 10), (of(handle=of(value=11)), 11), (of(handle=of(value=None)), 0),
    (-1, "or its handle, got -1"), ("a", "or its handle, got 'a'"), (True, "or its handle, got True"),
    (simt.cuda.stream(), "or its handle, got a stream of the executor")])
def test_handles_of_streams(stream, handle):
    if isinstance(handle, int):
        assert driver.Gpu().stream(stream) == handle
    else:
        with pytest.raises(TypeError, match=f"^here: expected a CUDA stream {handle}$"):
            driver.Gpu().stream(stream, "here")


def test_default_streams_are_not_captured(fake):
    """The driver would say that it is wrong to ask."""
    assert not any(map(driver.Gpu.capturing, range(4))) and fake.calls == [("cuStreamIsCapturing", 3)]
    for status in ("ACTIVE", "INVALIDATED"):
        fake.answers["cuStreamIsCapturing"] = getattr(
            CUDA.CUstreamCaptureStatus, f"CU_STREAM_CAPTURE_STATUS_{status}")
        assert driver.Gpu.capturing(3)


@pytest.mark.parametrize(("mode", "capability", "attribute"), [
    ("", (9, 0), None), ("cooperative", (8, 0), "COOPERATIVE"), ("cooperative", (9, 0), "COOPERATIVE"),
    ("overlapping", (8, 9), None), ("overlapping", (9, 0), "PROGRAMMATIC_STREAM_SERIALIZATION")])
def test_launches(fake, monkeypatch, mode, capability, attribute):
    """Arguments as Numba's kernels take them, and what is said of the launch."""
    fake.answers |= {"cuLibraryLoadData": 4, "cuLibraryGetKernel": 5, "cuKernelGetAttribute": 17}
    machine = of_capability(*capability)
    array, given = machine.pinned(np.zeros((3, 4), np.float16)), []
    kernel = of(linked=lambda *args: given.append(args) or Linked("entry", b"cubin"), dynamic_shared=0, name="k")
    launch = machine.prepare(kernel, 7, 64, (array, 3, np.float32(1)), mode)
    assert given == [(("float16[2]", "int64", "float32"), machine.properties)]
    assert [call[1] for call in fake.calls if call[0].startswith("cuLibrary")] == [b"cubin", 4]
    address = array.__cuda_array_interface__["data"][0]
    assert [*launch._words] == [0, 0, 12, 2, address, 3, 4, 8, 2, 3, 0x3F800000] and launch.registers == 17
    launch(9)
    assert not any(call[0].startswith("cuFuncSet") for call in fake.calls)
    name, config, function, params, _ = fake.calls[-1]
    words = ctypes.cast((ctypes.c_void_p * 11).from_address(params)[4], ctypes.POINTER(ctypes.c_int64))
    assert (name, function, words[0], config.hStream) == ("cuLaunchKernelEx", 5, address, CUDA.CUstream(9))
    assert (config.gridDimX, config.blockDimX, config.numAttrs) == (7, 64, int(attribute is not None))
    assert [x.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_") for x in config.attrs] == [attribute] * config.numAttrs
    field = "cooperative" if mode == "cooperative" else "programmaticStreamSerializationAllowed"
    assert all(getattr(x.value, field) == 1 for x in config.attrs)
    del array
    gc.collect()
    assert fake.memory  # of the array, as long as the launch is there


def test_a_kernel_is_allowed_its_dynamic_shared_memory(fake):
    """On the device; each launch has as much, and so has the question how many blocks there is room for."""
    fake.answers |= {"cuLibraryGetKernel": 5, "cuOccupancyMaxActiveBlocksPerMultiprocessor": 2}
    kernel = of(linked=lambda *_: Linked("entry", b"cubin"), dynamic_shared=229_472, name="k")
    machine, most = of_capability(9, 0), "MAX_DYNAMIC_SHARED_SIZE_BYTES"
    launch = machine.prepare(kernel, 7, 64, (3,))
    name, attribute, nbytes, allowed, device = fake.calls[-1]
    assert (name, nbytes, allowed, device) == ("cuKernelSetAttribute", 229_472, 5, 0)
    assert attribute == getattr(CUDA.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{most}")
    launch(9)
    assert fake.calls[-1][1].sharedMemBytes == 229_472 and fake.calls[-1][2] == 5
    assert [machine.resident(kernel, 64, (3,), wanted) for wanted in (7, 1000)] == [7, 264]
    assert fake.calls[-1] == ("cuOccupancyMaxActiveBlocksPerMultiprocessor", 5, 64, 229_472)
    assert fake.calls[-2][:3] == ("cuKernelSetAttribute", attribute, 229_472)


def test_tensor_maps(fake, monkeypatch):
    """Columns, rows and the pitch in bytes; boxes of 64 x 64, swizzled, with zeros outside; sixteen words each."""
    monkeypatch.setattr(driver.Gpu, "to_device", lambda self, array: array)
    words = iter([range(16), range(16, 32)])
    encoded = []

    def encode(*args):
        encoded.append(args)
        return SUCCESS, of(opaque=list(next(words)))

    fake.cuTensorMapEncodeTiled, fake.cuuint32_t, fake.cuuint64_t = encode, int, int
    maps = driver.Gpu().tensor_maps([1024, 4096], [(5, 7, 8), (130, 64, 64)])
    assert maps.dtype == np.uint64 and maps.tolist() == [[*range(16)], [*range(16, 32)]]
    for args, address, sizes, pitch in zip(encoded, (1024, 4096), ((7, 5), (64, 130)), (16, 128), strict=True):
        kind, axes, at, extents, strides, box, ones, interleave, swizzle, _, outside = args
        assert (axes, at, extents, strides, box, ones) == (2, address, [*sizes], [pitch], [64, 64], [1, 1])
        names = [x.name.split("_")[-1] for x in (kind, interleave, swizzle, outside)]
        assert names == ["UINT16", "NONE", "128B", "NONE"]


def test_writing(fake, monkeypatch):
    """From an element on, in the array's dtype; equal numbers of fp32 are set by the driver."""
    machine = driver.Gpu()
    single, double = (machine.pinned(np.zeros(6, dtype)) for dtype in (np.float32, np.float64))
    upload = machine.uploader(single)
    upload(1, np.array([1, 2], np.float32), 9)
    upload(3, np.array([7, 3, 0], np.float32), 9)
    machine.filler(double, 2, 3)(0.5, 9)
    assert host(single).tolist() == [0, 1, 2, 7, 3, 0] and host(double).tolist() == [0, 0, 0.5, 0.5, 0.5, 0]
    assert {call[-1] for call in fake.calls if call[0] == "cuMemcpyHtoDAsync"} == {9}
    machine.filler(single, 2, 3)(1.0, 9)
    address = single.__cuda_array_interface__["data"][0]
    assert fake.calls[-1] == ("cuMemsetD32Async", address + 8, 0x3F800000, 3, 9)
    given = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert machine.to_device(given).strides == given.strides and fake.calls[-1] == ("cuStreamSynchronize", 0)


def test_multiprocessors_that_cannot_be_set_apart(fake):
    fake.most = 128
    machine = driver.Gpu()
    assert machine.new_stream(128)
    with pytest.raises(ValueError, match="multiprocessors: expected a number that can be reserved out of 132, got 129"):
        machine.new_stream(129)
    fake.cuDevSmResourceSplitByCount = lambda *args: (INVALID, [], 0, "rest")
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE: as told"):
        machine.new_stream(8)


def test_events(fake):
    machine, flags = driver.Gpu(), CUDA.CUevent_flags
    start, stop, plain = machine.new_event(True), machine.new_event(True), machine.new_event()
    kinds = [flags.CU_EVENT_DEFAULT, flags.CU_EVENT_DEFAULT, flags.CU_EVENT_DISABLE_TIMING]
    assert fake.calls == [("cuEventCreate", kind) for kind in kinds]
    start.record(7)
    plain.wait(8)
    assert start.elapsed_time(stop) == 1.5
    assert fake.calls[3:] == [("cuEventRecord", 101, 7), ("cuStreamWaitEvent", 8, 103, 0),
                              ("cuEventElapsedTime", 101, 102)]
    fake.answer = INVALID
    for call in (partial(start.record, 7), partial(plain.wait, 8), partial(start.elapsed_time, stop),
                 machine.new_event, plain.is_done, plain.synchronize):
        with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE: as told"):
            call()
    fake.calls.clear()
    del start, stop, plain, call
    assert sorted(fake.calls) == [("cuEventDestroy", handle) for handle in (101, 102, 103)]


def test_pinned_memory(fake):
    """It has the values, and lives as long as a view of it does."""
    machine = driver.Gpu()
    given = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = machine.pinned(given.T)
    assert array.shape == (4, 3) and np.array_equal(host(array), given.T)
    block = machine.pinned(np.arange(512, dtype=np.uint8))
    view = machine.view(block, 256, (2, 3), (12, 4), np.float32)
    assert view.shape == (2, 3) and view.dtype == np.float32
    expected = np.arange(512, dtype=np.uint8)[256 : 256 + 24].view(np.float32).reshape(2, 3)
    assert host(view).tobytes() == expected.tobytes()
    part = machine.view(block, 4, (8,), (1,))
    assert host(part).tolist() == list(range(4, 12))
    flat = machine.pinned(given.reshape(-1))
    assert host(machine.view(flat, 2, (3, 2), (8, 4))).tolist() == given.reshape(-1)[2:8].reshape(3, 2).tolist()
    del array, flat
    gc.collect()
    assert len(fake.memory) == 1
    del block, part
    gc.collect()
    assert len(fake.memory) == 1 and host(view).tobytes() == expected.tobytes()
    fake.calls.clear()
    del view
    gc.collect()
    assert not fake.memory and [call[0] for call in fake.calls] == ["cuCtxSynchronize", "cuMemFreeHost"]


def test_copies(fake):
    """The bytes of an array, in stream order, from source to target."""
    machine = driver.Gpu()
    source, target = machine.pinned(np.arange(6, dtype=np.float16)), machine.pinned(np.zeros(6, np.float16))
    fake.calls.clear()
    copy = machine.copier(source, target)
    assert not fake.calls
    copy(9)
    ends = [array.__cuda_array_interface__["data"][0] for array in (target, source)]
    assert fake.calls == [("cuMemcpyAsync", *ends, 12, 9)] and host(target).tolist() == list(range(6))
    empty = machine.pinned(np.zeros((0, 3), np.float16))
    machine.copier(empty, empty)(9)
    assert empty.shape == (0, 3) and len(fake.calls) == 1  # nothing is allocated or copied
    fake.answer = INVALID
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        copy(9)


class Late(Fake):
    """Copies are done when their stream is waited for, as far as `done` says."""

    copies = ()

    def __init__(self):
        super().__init__()
        self.under_way, self.recorded, self.capturing = [], {}, False

    def __getattr__(self, name):
        plain = super().__getattr__(name)

        def call(*args):
            if name == "cuMemcpyHtoDAsync":
                self.under_way.append(tuple(map(int, args[:3])))
            if name == "cuEventRecord":
                self.recorded[int(args[0])] = len(self.under_way)
            if name == "cuEventQuery" and self.recorded[int(args[0])] > self.done:
                self.calls.append((name, int(args[0])))
                return (CUDA.CUresult.CUDA_ERROR_NOT_READY,)
            if name == "cuEventSynchronize":
                self.finish(self.recorded[int(args[0])])
            if name == "cuStreamIsCapturing" and self.capturing:
                return SUCCESS, CUDA.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
            if name == "cuThreadExchangeStreamCaptureMode":
                self.calls.append((name, args[0]))
                return SUCCESS, CUDA.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
            return plain(*args)

        return call

    done = 0

    def finish(self, count):
        """Make the copies up to that one."""
        for target, source, nbytes in self.under_way[self.done : count]:
            ctypes.memmove(target, source, nbytes)
        self.done = max(self.done, count)

    def count(self, name):
        return sum(call[0] == name for call in self.calls)


@pytest.fixture
def late(fake, monkeypatch):
    made = Late()
    for module in MODULES:
        monkeypatch.setattr(module, "driver", made)
    yield made
    gc.collect()


def test_uploads_that_nobody_waits_for(late, monkeypatch):
    """Each copy brings what was given to it, however late it is made; blocks whose copies are done serve again."""
    monkeypatch.setattr(staging, "BLOCKS", 4)
    target = np.zeros(6, np.int64)
    one = staging.Staging(target.ctypes.data, target.nbytes)
    for k in range(3):
        one.upload(8 * k, np.full(2, k + 1), 7)
    assert late.count("cuMemHostAlloc") == 3 and late.count("cuEventSynchronize") == 0
    late.finish(1)
    assert target.tolist() == [1, 1, 0, 0, 0, 0]
    one.upload(24, np.full(3, 4), 7)  # by the first block
    assert late.count("cuMemHostAlloc") == 3
    one.upload(0, np.full(1, 5), 7)
    assert late.count("cuMemHostAlloc") == 4 and late.count("cuEventSynchronize") == 0
    one.upload(0, np.full(1, 6), 7)  # there are as many blocks as may be, so the oldest copy, the second, is waited for
    assert late.count("cuMemHostAlloc") == 4 and late.count("cuEventSynchronize") == 1 and late.done == 2
    for k in range(7):
        one.upload(0, np.full(1, 7 + k), 7)
    late.finish(len(late.under_way))
    assert target.tolist() == [13, 2, 3, 4, 4, 4] and late.count("cuMemHostAlloc") == 4
    one.upload(0, np.zeros(0, np.int64), 7)
    assert len(late.under_way) == 13
    del one
    gc.collect()
    assert not late.memory


def test_a_cycle_of_garbage_uses_no_event_that_is_destroyed(late):
    """Python finalizes the parts of a cycle in any order."""
    target = np.zeros(2, np.int64)
    one = staging.Staging(target.ctypes.data, target.nbytes)
    one.upload(0, np.ones(2, np.int64), 7)
    one.itself = one
    late.finish(1)
    del one
    gc.collect()
    assert late.count("cuEventSynchronize") == 0 and late.count("cuEventDestroy") == 1 and not late.memory


def test_uploads_of_a_capture(late):
    """Made at each replay, from memory that nothing else is written to; no event is asked, which a capture forbids."""
    target = np.zeros(2, np.int64)
    one = staging.Staging(target.ctypes.data, target.nbytes)
    late.capturing = True
    for k in (1, 2):
        one.upload(0, np.full(2, k), 7)
    late.capturing = False
    assert late.count("cuEventCreate") == late.count("cuEventRecord") == late.count("cuEventQuery") == 0
    modes = CUDA.CUstreamCaptureMode
    relaxed, held = modes.CU_STREAM_CAPTURE_MODE_RELAXED, modes.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert [call[1] for call in late.calls if call[0].startswith("cuThread")] == [relaxed, held] * 2
    for k in range(8):
        one.upload(0, np.full(2, 10 + k), 7)
        late.finish(len(late.under_way))
    late.done = 0
    late.finish(2)  # the graph, replayed
    assert target.tolist() == [2, 2]


def test_launches_of_a_capture_are_part_of_its_graph(late):
    """They have not run, and there is no graph of their own."""
    ran = []
    late.capturing = True
    assert driver.Sequenced([ran.append, lambda stream: ran.append(-stream)])(7) is False and ran == [7, -7]
    assert not late.count("cuGraphLaunch") and not late.count("cuStreamBeginCapture")


def test_a_stream_lives_as_long_as_it_is_in_use(fake):
    """The next one waits for the former one's work before that is let go."""
    machine = driver.Gpu()
    one = Exclusive(machine, machine.new_stream(), "one")
    gc.collect()
    former = one.stream
    assert not [call for call in fake.calls if call[0] == "cuStreamDestroy"]
    one.stream = machine.new_stream()
    gc.collect()
    kinds = "cuEventRecord", "cuStreamWaitEvent", "cuStreamDestroy"
    recorded, waits, destroyed = (call for call in fake.calls if call[0] in kinds)
    assert recorded[2] == destroyed[1] == former and waits[:2] == ("cuStreamWaitEvent", one.stream)


def test_arrays_are_transferred_in_their_own_order(fake, monkeypatch):
    """Both ways on the stream, which each copy waits for."""
    monkeypatch.setattr(transfer, "device", lambda name: driver.Gpu())
    monkeypatch.setattr("cuda.bindings.driver", fake)
    given = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(1, 2, 0)
    array, none = driver.Gpu().to_device(given), driver.Gpu().to_device(np.zeros((0, 2)))
    fake.calls.clear()
    copies = transfer.Transfer(array, 7)
    about = copies.describe(array, "x")
    read = copies.read(array, about)
    assert read.tobytes() == given.tobytes() and read.strides == given.strides
    copies.write(array, about, given + 1)
    assert copies.read(none, copies.describe(none, "x")).shape == (0, 2)
    moved = [call for call in fake.calls if call[0] != "cuStreamIsCapturing"]
    assert [(call[0], call[-1]) for call in moved] == [
        ("cuMemcpyDtoHAsync", 7), ("cuStreamSynchronize", 7), ("cuMemcpyHtoDAsync", 7), ("cuStreamSynchronize", 7)]
    assert array.copy_to_host().tolist() == (given + 1).tolist()


def test_the_device_of_an_index(fake):
    """It is entered where another is current, and left again; where it is, that is all that is looked at."""
    current = [HERE]

    def push(context):
        current.append(int(context))
        return (SUCCESS,)

    def pop():
        return SUCCESS, current.pop()

    fake.cuCtxGetCurrent = lambda: (SUCCESS, current[-1])
    fake.cuCtxPushCurrent, fake.cuCtxPopCurrent = push, pop
    fake.answers |= {"cuDeviceGet": 1, "cuDevicePrimaryCtxRetain": 501}
    machine = driver.Gpu(1)
    for _ in range(2):
        leave = machine.enter()
        assert current == [HERE, 501] and machine.enter() is None
        leave()
        assert current == [HERE]
    assert [call for call in fake.calls if call[0] == "cuDevicePrimaryCtxRetain"] == [("cuDevicePrimaryCtxRetain", 1)]


def test_a_thread_without_a_context_has_the_first_devices(fake):
    fake.answers |= {"cuCtxGetCurrent": 0, "cuDeviceGet": 7, "cuDevicePrimaryCtxRetain": 501}
    assert driver.Gpu().enter() is None
    assert fake.calls == [("cuDeviceGet", 0), ("cuDevicePrimaryCtxRetain", 7), ("cuCtxSetCurrent", 501)]


def test_what_the_gpu_says_of_itself(fake):
    said = {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132,
            "L2_CACHE_SIZE": 1 << 20}
    asked = set()

    def answer(name, device):
        asked.add(device)
        return SUCCESS, said[name.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    fake.cuDeviceGetAttribute = answer
    fake.answers |= {"cuDeviceGetName": b"NVIDIA H200" + bytes(9), "cuDeviceGet": 5}
    for index, device in ((None, 0), (1, 5)):
        assert driver.Gpu(index).properties == Properties("NVIDIA H200", (9, 0), 132, 1 << 20)
        assert asked == {device}
        asked.clear()
    assert [of_capability(*x).warpgroups for x in ((8, 9), (9, 0), (10, 0))] == [False, True, False]


def elsewhere(shape, typestr, strides=None):
    interface = {"shape": shape, "typestr": typestr, "data": (4096, False), "strides": strides, "version": 3}
    return types.SimpleNamespace(__cuda_array_interface__=interface)


@pytest.mark.parametrize(("source", "target", "got"), [
    (elsewhere((6,), "<f4"), elsewhere((3,), "<f4"), r"float32 of shape \(3,\)"),
    (elsewhere((6,), "<f4"), elsewhere((6,), "<f2"), r"float16 of shape \(6,\)"),
    (elsewhere((2, 3), "<f4"), elsewhere((2, 3), "<f4", (4, 8)), r"shape \(2, 3\) and strides \(4, 8\)")])
def test_copies_that_are_refused(fake, source, target, got):
    with pytest.raises(ValueError, match=f"copy: expected C-contiguous arrays of float32 and shape .*, got .*{got}"):
        driver.Gpu().copier(source, target)


@pytest.mark.gpu
def test_on_a_gpu():
    """A copy there and back by way of the device, on a stream of its own; and its time."""
    machine = driver.Gpu()
    stream = machine.new_stream()
    values = np.random.default_rng(0).integers(0, 256, 1 << 22, np.uint8)
    source, target = machine.pinned(values), machine.pinned(np.zeros_like(values))
    between = machine.empty(values.shape, values.dtype)
    start, stop = machine.new_event(True), machine.new_event(True)
    handle = machine.stream(stream)
    start.record(handle)
    machine.copier(source, between)(handle)
    machine.copier(between, target)(handle)
    stop.record(handle)
    machine.synchronize()
    assert host(target).tobytes() == target.copy_to_host().tobytes() == values.tobytes()
    assert 0 < start.elapsed_time(stop) < 1000


@pytest.mark.gpu
def test_multiprocessors_on_a_gpu():
    """On 8 multiprocessors a step gives the same bits, and takes much longer."""
    machine = driver.Gpu()
    values = np.random.default_rng(0).normal(size=1 << 26).astype(np.float32)
    found = []
    for count in (None, 8):
        stream = machine.new_stream(count)
        param, grad = machine.to_device(values), machine.to_device(values[::-1])
        plan = gpu.plan("sgd", [param], [grad], lr=0.5, stream=stream)
        times = []
        for _ in range(3):
            start, stop = machine.new_event(True), machine.new_event(True)
            start.record(stream.handle)
            plan.step()
            stop.record(stream.handle)
            machine.synchronize()
            times.append(start.elapsed_time(stop))
        found.append((min(times), param.copy_to_host().tobytes()))
    (fast, expected), (slow, got) = found
    assert got == expected and slow > 2 * fast
    with pytest.raises(ValueError, match=r"expected a number that can be reserved out of \d+, got 10000"):
        machine.new_stream(10_000)
