"""A stand-in for the driver, with the host's memory: what is called, and what it answers."""

import ctypes
import gc
import types

import numpy as np
import pytest

pytest.importorskip("cuda.bindings")

from refopt.gpu import driver, memory, staging, streams
from refopt.gpu.machine import Properties

CUDA = driver.driver
HERE = 500  # the context of this thread
ASKED = "cuInit", "cuDeviceGetCount", "cuCtxGetCurrent", "cuCtxGetDevice"  # which nobody counts
MADE = "cuGreenCtxStreamCreate", "cuStreamEndCapture", "cuGraphInstantiate"
SUCCESS, INVALID = CUDA.CUresult.CUDA_SUCCESS, CUDA.CUresult.CUDA_ERROR_INVALID_VALUE
TOO_MANY = CUDA.CUresult.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION


MODULES = driver, memory, staging, streams


class Fake:
    """What is called, with handles from 100 on; copies are done at once."""

    copies = "cuMemcpyAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync"

    def __init__(self):
        self.answers = {"cuDeviceGetCount": 1, "cuCtxGetCurrent": HERE, "cuCtxGetDevice": 0,
                        "cuThreadExchangeStreamCaptureMode": CUDA.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL}
        self.calls, self.answer, self.memory, self.most = [], SUCCESS, {}, 132
        for name in dir(CUDA):
            if name.startswith("CU"):
                setattr(self, name, getattr(CUDA, name))
        self.cuGetErrorString = lambda error: (SUCCESS, b"as told")

    def __getattr__(self, name):
        assert hasattr(CUDA, name)

        def call(*args):
            if name not in ASKED:
                self.calls.append((name, *(int(arg) if hasattr(arg, "__int__") else arg for arg in args)))
            if name in self.answers:
                return self.answer, self.answers[name]
            if name in ("cuMemHostAlloc", "cuMemAlloc"):
                memory = (ctypes.c_uint8 * args[0])()
                self.memory[ctypes.addressof(memory)] = memory
                return self.answer, ctypes.addressof(memory)
            if name in ("cuMemFreeHost", "cuMemFree"):
                del self.memory[args[0]]
            if name in self.copies:
                ctypes.memmove(*map(int, args[:3]))  # target, source, bytes
            if name == "cuEventElapsedTime":
                return self.answer, 1.5
            if name == "cuDeviceGetDevResource":
                return self.answer, types.SimpleNamespace(sm=types.SimpleNamespace(smCount=132))
            if name == "cuDevSmResourceSplitByCount":
                enough = args[3] <= self.most
                return self.answer if enough else TOO_MANY, ["part"], 1, "rest"
            if name == "cuStreamIsCapturing":
                return self.answer, CUDA.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
            made = name.endswith("Create") or name in MADE
            return (self.answer, 100 + len(self.calls)) if made else (self.answer,)

        return call


def stand_in(monkeypatch):
    """What the fixture ``fake`` gives."""
    made = Fake()
    for module in MODULES:
        monkeypatch.setattr(module, "driver", made)
    kept = streams._part, streams.primary, streams.device_count, driver._loaded
    for each in kept:
        each.cache_clear()
    yield made
    gc.collect()
    for each in kept:
        each.cache_clear()


def of(**attributes):
    return types.SimpleNamespace(**attributes)


def host(array):
    """The elements of an array in page-locked memory."""
    address = array.__cuda_array_interface__["data"][0]
    memory = (ctypes.c_uint8 * (array.size * array.dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def of_capability(*capability):
    """The GPU of the stand-in, which says that it has this one."""
    machine = driver.Gpu()
    machine.properties = Properties("a GPU", capability, 132, 50 << 20)
    return machine
