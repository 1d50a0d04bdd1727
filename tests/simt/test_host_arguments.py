"""Arguments of the host's functions that are none: named, with what was expected and what came."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, memory


@cuda.jit
def kernel():
    pass


def observed(**arguments):
    with simt.observe(**arguments):
        pass


X = cuda.to_device(np.zeros(4))
ARGUMENTS = {
    "stream": [
        lambda j: kernel[1, 1, j], lambda j: X.copy_to_host(stream=j),
        lambda j: X.copy_to_device(np.zeros(4), stream=j), lambda j: cuda.event().record(j),
        lambda j: cuda.event().wait(j), cuda.external_stream],
    "bytes of dynamic shared memory": [lambda j: kernel[1, 1, 0, j]],
    "seed": [lambda j: observed(schedule="random", seed=j)], "shape": [cuda.device_array],
    "address": [lambda j: memory.load(j, np.float64), lambda j: memory.store(j, np.float64, (1,))]}
INTEGERS = [(name, call) for name, calls in ARGUMENTS.items() for call in calls]
NO_INTEGERS = ["a", b"a", 1.5, True, float("nan"), {}, object(), np.array([1, 2]), np.float64(1)]


@pytest.mark.parametrize(("name", "call"), INTEGERS, ids=[f"{name}-{k}" for k, (name, _) in enumerate(INTEGERS)])
@pytest.mark.parametrize("junk", NO_INTEGERS, ids=lambda x: type(x).__name__)
def test_no_integers(name, call, junk):
    with pytest.raises(TypeError, match=f"^{name}: expected an integer, got "):
        call(junk)


REFUSED = {
    "a stream below 0": (
        lambda: kernel[1, 1, -1], simt.LaunchError, "stream: expected an integer of at least 0, got -1"),
    "a shape below 0": (
        lambda: cuda.device_array((2, -1)), ValueError, "shape: expected an integer of at least 0, got -1"),
    "a grid that is true": (lambda: kernel[True, 1], simt.LaunchError, "grid must be one to three integers, not True"),
    "a schedule that is an array": (
        lambda: observed(schedule=np.array(["forward"] * 2)), ValueError, "schedule must be forward, reverse or random",
    ),
    "count": (lambda: observed(count="no"), TypeError, "count: expected True or False, got 'no'"),
    "watch": (lambda: observed(watch=1), TypeError, "watch: expected True or False, got 1"),
    "a dtype that is none": (lambda: cuda.device_array(3, "x"), TypeError, "dtype: expected a dtype, got 'x'"),
    "objects": (lambda: cuda.device_array(3, object), TypeError, "dtype: expected a dtype of numbers, got object"),
    "text": (lambda: cuda.device_array(3, "S"), TypeError, "dtype: expected a dtype of numbers, got |S0"),
    "an order that is none": (lambda: cuda.device_array(3, order="K"), ValueError, "order: expected C or F, got 'K'"),
    "strides of another shape": (
        lambda: cuda.device_array(3, strides=(8, 8)), ValueError, "strides: expected 1, as shape has, got 2"),
    "strides below 0": (
        lambda: cuda.device_array(3, strides=(-8,)), ValueError, "strides: expected an integer of at least 0"),
    "objects to a device": (lambda: cuda.to_device(None), TypeError, "obj: expected a dtype of numbers, got object"),
    "a place that is none": (
        lambda: cuda.to_device(np.zeros(4), to=np.zeros(4)), TypeError, "to: expected a device array, got an array of"),
    "a copy to a list": (lambda: X.copy_to_host([0] * 4), TypeError, "ary: expected a NumPy array, got [0, 0, 0, 0]"),
    "no device array": (
        lambda: cuda.as_cuda_array(np.zeros(3)), TypeError,
        "expected an array with the CUDA array interface, got an array"),
    "no event": (lambda: cuda.event_elapsed_time(cuda.event(), 3), TypeError, "end: expected an event, got 3"),
    "a load of objects": (lambda: memory.load(X.address, object), TypeError, "dtype: expected a dtype of numbers, got")}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    call, error, message = REFUSED[what]
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert X.copy_to_host().tolist() == [0] * 4


@pytest.mark.parametrize(("length", "shown"), [(78, "'" + 78 * "x" + "'"), (79, "'" + 76 * "x" + "...")])
def test_values_are_shown_on_80_columns(length, shown):
    with pytest.raises(TypeError) as caught:
        kernel[1, 1, length * "x"]
    assert str(caught.value).endswith(f", got {shown}")
