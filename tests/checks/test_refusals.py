"""Arrays that look like others and are not: every function refuses them, by name, and has changed nothing."""

import numpy as np
import pytest
from refusal_cases import ENTRIES, bytes_of, put

from checks.refused import refuses
from refopt import cpu, gpu
from refopt.gpu.arrays import describer

entries = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


class Plain(np.ndarray):
    """A subclass that changes nothing."""


def swapped(x):
    """The same values in the other byte order."""
    return x.astype(x.dtype.newbyteorder()) if x.dtype != "bfloat16" else None


SUBCLASS = "expected a plain NumPy array, got {module}.{kind}"
SPOILED = {"byte order": (swapped, "expected native byte order, got {x.dtype.str}"),
           "subclass": (lambda x: x.view(Plain), SUBCLASS),
           "masked": (lambda x: np.ma.array(x, mask=[True, *[False] * (x.size - 1)]), SUBCLASS),
           "matrix": (lambda x: x.view(np.matrix), SUBCLASS),
           "scalar": (lambda x: x[0], "expected a NumPy array, got {module}.{kind}")}


@pytest.mark.parametrize("kind", SPOILED)
@entries
def test_host_arrays_of_another_kind(entry, kind):
    spoil, message = SPOILED[kind]
    for name in entry.make():
        arrays = entry.make()
        if arrays[name] is None or (bad := spoil(arrays[name])) is None:
            continue
        if kind == "scalar" and name == "scale":
            continue  # which takes numbers, too
        arrays[name] = bad
        before = bytes_of(arrays)
        where = message.format(x=bad, module=type(bad).__module__, kind=type(bad).__name__)
        with refuses(TypeError, f"{entry.name}: {name}: {where}"):
            entry.run(cpu, arrays)
        assert bytes_of(arrays) == before


@entries
def test_device_arrays_of_another_byte_order(entry):
    for name in entry.make():
        arrays = entry.make()
        if arrays[name] is None or (bad := swapped(arrays[name])) is None:
            continue
        there = put(arrays | {name: bad})
        before = bytes_of(there)
        words = f"{entry.name}: {name}: expected native byte order, got {bad.dtype.str}"
        with gpu.use("executor"), refuses(TypeError, words):
            entry.run(gpu, there)
        assert bytes_of(there) == before


@entries
def test_the_table_is_of_calls_that_are_accepted(entry, tmp_path):
    """On both sides alike, and of arrays in a file; what is said to be written is."""
    arrays, stored = entry.make(), entry.make()
    for name, x in stored.items():
        if x is not None and x.dtype != "bfloat16":
            stored[name] = np.memmap(tmp_path / name, x.dtype, "w+", shape=x.shape)
            stored[name][...] = x
    there, before = put(arrays), bytes_of(arrays)
    entry.run(cpu, arrays)
    entry.run(cpu, stored)
    with gpu.use("executor"):
        entry.run(gpu, there)
    assert bytes_of(arrays) == bytes_of(there) == bytes_of(stored)
    changed = {name.partition("[")[0] for name, x in bytes_of(arrays).items() if x != before[name]}
    assert changed == set(entry.written)


class Interface:
    """An array of four fp32 on a GPU, by the interface alone."""

    def __init__(self, dtype=None, **changed):
        base = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3, "strides": None}
        self.__cuda_array_interface__ = base | changed
        if dtype:
            self.dtype = np.dtype(dtype)


@pytest.mark.parametrize(("value", "error", "message"), [
    (Interface(typestr=">f4"), TypeError, "expected native byte order, got >f4"),
    (Interface(">f4"), TypeError, "expected native byte order, got >f4"),
    (Interface("float32", typestr=">f4"), TypeError, "expected native byte order, got >f4"),
    (Interface("int32"), TypeError, "expected a dtype and an interface that agree, got int32 and <f4"),
    (Interface(mask=Interface(typestr="|b1")), TypeError, "expected an array without a mask, got one with a mask"),
    (Interface(data=(4098, False)), ValueError,
     "expected an address divisible by 4, as float32 needs, got one with remainder 2"),
    (Interface(shape=(2**62, 2**62)), ValueError,
     f"expected an array that ends below 2**64, got shape {(2**62, 2**62)}")])
def test_interfaces_of_another_kind(value, error, message):
    with refuses(error, f"f: x[0]: {message}"):
        describer("gpu")(value, "f: x[0]")


def test_a_negated_view_of_pytorch():
    class Negated:
        is_cuda, data_ptr, is_neg = True, int, staticmethod(lambda: True)

    with pytest.raises(ValueError, match=r"^f: x\[0\]: expected values stored in memory, got a negated view"):
        describer("gpu")(Negated(), "f: x[0]")


@pytest.mark.parametrize(("value", "message"), [
    (np.ma.array([1.0, 2.0], mask=[True, False]), "expected a plain NumPy array, got numpy.ma.MaskedArray"),
    (np.eye(2).view(np.matrix), "expected a plain NumPy array, got numpy.matrix"),
    ([1.0, 2.0], "expected a NumPy array, got builtins.list"), (np.array([None]), "expected numbers, got object")])
def test_only_arrays_go_to_a_device(value, message):
    with gpu.use("executor"), pytest.raises(TypeError) as caught:
        gpu.to_device(value)
    assert str(caught.value).replace("numpy.ma.core.", "numpy.ma.") == f"to_device: array: {message}"


@pytest.mark.parametrize("change", [
    lambda x: x, lambda x: x.transpose(2, 0, 1), lambda x: x[:, ::-1], lambda x: x[:, 1:], lambda x: x[:0],
    lambda x: x[1, 1, 1:2].reshape(()), lambda x: np.broadcast_to(x, (2, *x.shape)), swapped])
def test_any_order_goes_to_a_device_and_back(machine, change):
    x = change(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    there = machine.to_device(x)
    assert there.dtype == x.dtype and there.shape == x.shape and (there.copy_to_host() == x).all()
