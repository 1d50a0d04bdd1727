"""Plans over arrays of a GPU that is not the current one, with the executor in place of both."""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from refopt import gpu, simt
from refopt.gpu import arrays, dlpack, runtime
from refopt.gpu.machine import Properties

F = np.float32


class Entered(runtime.Executor):
    """A machine that is to be entered for whatever is made or launched, and left again."""

    def __init__(self):
        self.inside, self.times = 0, 0

    def enter(self):
        self.inside, self.times = self.inside + 1, self.times + 1
        return self.leave

    def leave(self):
        self.inside -= 1

    def __getattribute__(self, name):
        if name in ("to_device", "filler", "uploader", "prepare", "sequence", "new_event"):
            assert object.__getattribute__(self, "inside"), f"{name} outside the device"
        return object.__getattribute__(self, name)


@pytest.fixture
def machine(monkeypatch):
    made = Entered()
    for name in ("refopt.gpu.plan", "refopt.gpu.check_plan"):
        monkeypatch.setattr(sys.modules[name], "machine_of", lambda *lists: made)
    return made


def test_calls_are_made_on_the_device(machine):
    x, g, other = ([gpu.to_device(np.ones(3, F))] for _ in range(3))
    plan, check = gpu.plan("sgd", x, g, lr=0.5), gpu.gradient_check(g)
    plan(lr=0.25)
    plan.rebind(grads=other)
    plan.move("grads", [g[0].address], g)
    plan.move("grads", [0])
    plan.set(lr=[0.5])
    check.rebind([None])
    check(max_norm=1.0)
    plan.stream = 7
    with pytest.raises(TypeError):
        plan(nothing=3)
    assert machine.inside == 0 and machine.times >= 11 and x[0].copy_to_host()[0] == 0.75


class OnGpu:
    """An array of PyTorch's, as far as it says where it is."""

    is_cuda = True

    def __init__(self, index, address=1024):
        self.index, self.address = index, address
        self.shape, self.dtype = (4,), np.dtype(F)

    def get_device(self):
        return self.index

    def data_ptr(self):
        return self.address

    def is_neg(self):
        return False

    def stride(self):
        return (1,)

    def element_size(self):
        return 4


def test_arrays_say_which(monkeypatch):
    monkeypatch.setattr(runtime, "_why_no_gpu", lambda: "")
    about = Properties.of(simt.cuda.get_current_device())
    monkeypatch.setattr(runtime, "_gpu", lambda index=None: SimpleNamespace(name="gpu", index=index, properties=about))
    for count, expected in ((1, None), (2, 1)):
        monkeypatch.setattr(runtime, "gpus", lambda count=count: count)
        assert runtime.machine_of(3, None, [None], [None, OnGpu(1), OnGpu(0)]).index == expected
    assert runtime.machine_of([gpu.device("executor").to_device(np.ones(3))]).name == "executor"
    describe = arrays.describer("gpu", 1)
    silent = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}
    assert describe(SimpleNamespace(__cuda_array_interface__=silent), "x").address == 4096
    for address in (1024, 2**64 - 16):
        assert describe(OnGpu(1, address), "x").address == address
    with pytest.raises(ValueError, match=r"^x: expected an array that ends below 2\*\*64, got shape \(4,\)$"):
        describe(OnGpu(1, 2**64 - 12), "x")
    with pytest.raises(ValueError, match=r"^x: expected an array on GPU 1, as the others are, got one on GPU 0"):
        describe(OnGpu(0), "x")


class Exported:
    """An array by DLPack alone, as far as it says where it is."""

    def __init__(self, kind=dlpack.CUDA, name=b"dltensor_versioned", major=1, flags=0, **changed):
        self.kind, self.name = kind, name
        self.shape = (ctypes.c_int64 * 2)(3, 4)
        base = dict(data=4096, device_type=kind, ndim=2, code=2, bits=32, lanes=1, shape=self.shape)
        tensor = dlpack._Tensor(**base | changed)
        self.memory = tensor if name == b"dltensor" else dlpack._Versioned(major=major, flags=flags, tensor=tensor)

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, stream, max_version):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.memory), self.name, None)


@pytest.mark.parametrize(("changed", "expected"), [
    ({}, (4096, (3, 4), "float32", (16, 4), True)), ({"name": b"dltensor"}, (4096, (3, 4), "float32", (16, 4), False)),
    ({"flags": 1}, (4096, (3, 4), "float32", (16, 4), False)), ({"flags": 2}, (4096, (3, 4), "float32", (16, 4), True)),
    ({"byte_offset": 64, "code": 4, "bits": 16}, (4160, (3, 4), "bfloat16", (8, 2), True)),
    ({"code": 6, "bits": 8}, (4096, (3, 4), "bool", (4, 1), True)),
    ({"code": 0, "bits": 64, "ndim": 1, "kind": dlpack.CUDA_MANAGED}, (4096, (3,), "int64", (8,), True)),
    ({"code": 1, "bits": 16}, (4096, (3, 4), "uint16", (8, 2), True)),
    ({"lanes": 2}, "expected single elements, got float32 in vectors of 2"),
    ({"major": 2}, r"expected DLPack of version 1, got 2\.0"),
    ({"kind": 1}, r"expected a device array, got .*Exported in host memory")])
def test_arrays_by_dlpack(changed, expected):
    describe = arrays.describer("gpu")
    if isinstance(expected, str):
        with pytest.raises(TypeError, match=f"^x: {expected}$"):
            describe(Exported(**changed), "x")
    else:
        assert tuple(describe(Exported(**changed), "x")) == expected


def interface(**changed):
    return {"shape": (4,), "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3} | changed


def test_arrays_by_their_interface():
    """Read-only ones as such; before version 3 DLPack's word counts, which says when the data are there."""
    describe, exported = arrays.describer("gpu"), Exported()
    for read_only in (False, True):
        one = SimpleNamespace(__cuda_array_interface__=interface(data=(4096, read_only)))
        assert tuple(describe(one, "x")) == (4096, (4,), "float32", (4,), not read_only)
    for version, shape in ((2, (3, 4)), (3, (4,))):
        exported.__cuda_array_interface__ = interface(version=version)
        assert describe(exported, "x").shape == shape
    for device, index in ((SimpleNamespace(id=3), 3), ("gpu", None), (None, None)):
        assert arrays.ordinal_of(SimpleNamespace(device=device)) == index


def tensors():
    """One of PyTorch, another that lies elsewhere, and others that say something else of themselves."""
    others = []
    for name, value in (("shape", (2, 2)), ("dtype", np.dtype("f8")), ("is_neg", lambda: True),
                        ("stride", lambda: (2,)), ("index", 1)):
        others.append(OnGpu(0))
        setattr(others[-1], name, value)
    return OnGpu(0), OnGpu(0, 2048), others


def interfaces():
    """The same of arrays that have an interface."""
    changed = {"shape": (2, 2)}, {"typestr": "<i4"}, {"strides": (8,)}, {"data": (4096, True)}, {"mask": 1}
    return [SimpleNamespace(__cuda_array_interface__=x) for x in (interface(), interface(data=(8192, False)))] + [
        [SimpleNamespace(__cuda_array_interface__=interface(**x)) for x in changed]
        + [SimpleNamespace(__cuda_array_interface__=interface(), dtype=np.dtype("i4"))]]


def executors():
    """And of the executor's."""
    to_device = gpu.device("executor").to_device
    one, another, frozen = (to_device(np.ones((2, 3), F)) for _ in range(3))
    frozen.data.flags.writeable = False
    return one, another, [frozen, one.T, to_device(np.ones((2, 3), "i4")), to_device(np.ones((3, 3), F))]


@pytest.mark.parametrize("made", [tensors, interfaces, executors])
def test_arrays_are_looked_at(made):
    """Once described, by what they say of themselves; anything else than before is described again, or refused."""
    (one, moved, others), described = made(), []
    describe = arrays.describer("executor" if made is executors else "gpu")
    locate, quick = arrays.locator(describe), arrays.locator(lambda value, where: described.append(value))
    about, there = describe(one, "x"), describe(moved, "x").address
    for place in (0, 1):
        kept, before, ones, moveds = [], [None, None], [None, None], [None, None]
        before[place], ones[place], moveds[place] = about, one, moved
        assert locate("x", ones, before, kept)[place] == about.address and kept
        assert quick("x", moveds, before, kept) == [there * (k == place) for k in range(2)] and not described
    for other in others:
        assert quick("x", [None, other], before, kept) is None and described.pop() is other
    assert quick("x", [one, one], before, kept) is None and quick("x", [None, None], before, kept) is None
    assert locate("x", [one], [about._replace(strides=(8, 8))], []) is None
