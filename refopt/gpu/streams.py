"""Contexts, streams and events of a CUDA GPU, through the driver API.

`cuda.core` also has classes for them, but importing it takes as long as everything else before a first step.
"""

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from cuda.bindings import driver

from refopt import simt
from refopt.checks.arguments import is_whole, shown


def handle_of(stream: Any, where: str = "stream") -> int:
    """The driver's handle of a stream: an integer, or a stream of Numba, PyTorch, CuPy or cuda.core."""
    if is_whole(stream) and stream >= 0:
        return int(stream)
    if isinstance(stream, simt.outside.Stream):
        raise TypeError(f"{where}: expected a CUDA stream or its handle, got a stream of the executor")
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            handle = getattr(stream, name)
            return int(getattr(handle, "value", handle) or 0)
    raise TypeError(f"{where}: expected a CUDA stream or its handle, got {shown(stream)}")


def checked(answer: tuple) -> Any:
    """The result of a driver call; raises its error."""
    if error := answer[0]:
        raise RuntimeError(f"{error.name}: {driver.cuGetErrorString(error)[1].decode()}")
    return answer[1] if len(answer) > 1 else None


@lru_cache
def primary(index: int) -> int:
    """The primary context of a device, which all libraries share; it is never released."""
    device_count()
    return int(checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(index)))))


@lru_cache
def device_count() -> int:
    """Initialize the driver, and return the number of GPUs."""
    checked(driver.cuInit(0))
    return checked(driver.cuDeviceGetCount())


def context() -> int:
    """The current context of this thread, which driver calls need; if there is none, the first device's becomes it."""
    device_count()
    if current := int(checked(driver.cuCtxGetCurrent())):
        return current
    checked(driver.cuCtxSetCurrent(primary(0)))
    return primary(0)


@contextlib.contextmanager
def relaxed() -> Iterator[Any]:
    """Let this thread allocate and free memory while a stream is being captured."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver.cuThreadExchangeStreamCaptureMode(mode))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def capturing(stream: int) -> bool:
    """Whether work enqueued on a stream is captured into a graph instead of run; never on default streams, 0 to 2."""
    if stream <= 2:
        return False
    status = checked(driver.cuStreamIsCapturing(stream))
    return status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


_confined: dict[int, int] = {}  # by handle of a stream, the number of multiprocessors that it may use


class Stream:
    """A new stream; it is destroyed when nothing refers to it any more, after its work is done.

    It does not wait for other streams, nor they for it, the legacy default stream included.

    Args:
        multiprocessors: how many of the device's its kernels may use, rounded up to what can be reserved (8 on
            Hopper); ``None`` for all. Streams with the same number use the same ones.

    Raises:
        ValueError: if the device cannot reserve that many.
    """

    def __init__(self, multiprocessors: int | None = None) -> None:
        context()
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        if multiprocessors is None:
            self._stream = checked(driver.cuStreamCreate(flags))
        else:
            part = _part(int(checked(driver.cuCtxGetDevice())), multiprocessors)
            self._stream = checked(driver.cuGreenCtxStreamCreate(part, flags, 0))
            _confined[int(self._stream)] = multiprocessors
        self.handle = int(self._stream)

    @classmethod
    def like(cls, stream: int) -> "Stream":
        """A new stream whose kernels use the same multiprocessors as another's."""
        return cls(_confined.get(stream))

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            _confined.pop(int(self._stream), None)
            driver.cuStreamDestroy(self._stream)


@lru_cache
def _part(device: int, multiprocessors: int) -> Any:
    """A green context of some multiprocessors of a device; it is never destroyed."""
    every = checked(driver.cuDeviceGetDevResource(device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    error, parts, *_ = driver.cuDevSmResourceSplitByCount(1, every, 0, multiprocessors)
    if error == driver.CUresult.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION:
        expected = f"expected a number that can be reserved out of {every.sm.smCount}"
        raise ValueError(f"multiprocessors: {expected}, got {multiprocessors}")
    checked((error,))
    described = checked(driver.cuDevResourceGenerateDesc(parts[:1], 1))
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM  # which the driver insists on
    return checked(driver.cuGreenCtxCreate(described, device, flags))


class Event:
    """`refopt.gpu.machine.Event`, of the driver."""

    def __init__(self, timing: bool = False) -> None:
        context()
        flags = driver.CUevent_flags
        self._event = checked(driver.cuEventCreate(flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING))

    def record(self, stream: int) -> None:
        checked(driver.cuEventRecord(self._event, stream))

    def wait(self, stream: int) -> None:
        checked(driver.cuStreamWaitEvent(stream, self._event, 0))

    def is_done(self) -> bool:
        """Whether the work recorded last is done."""
        answer = driver.cuEventQuery(self._event)
        if answer[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        checked(answer)
        return True

    def synchronize(self) -> None:
        """Make the host wait for the work recorded last."""
        checked(driver.cuEventSynchronize(self._event))

    def elapsed_time(self, end: "Event") -> float:
        return checked(driver.cuEventElapsedTime(self._event, end._event))

    def __del__(self) -> None:
        if hasattr(self, "_event"):
            driver.cuEventDestroy(self._event)
