"""Junk in place of each argument: refused by name on both sides alike, or taken with the same bits."""

import decimal
from fractions import Fraction

import numpy as np
import pytest

from refopt import cpu, gpu
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments

F = np.float32


class Odd:
    """Fails at whatever NumPy or Python would ask of a number or a list."""

    def __repr__(self):
        return "Odd()"

    def __bool__(self):
        raise AssertionError("asked whether it is true")

    def __eq__(self, other):
        raise AssertionError("compared")

    __hash__ = None


# Made anew for each call: generators are exhausted, arrays are written.
JUNK = {"None": lambda: None, "text": lambda: "abc", "a digit": lambda: "1", "bytes": lambda: b"abc",
        "no text": lambda: "", "bytearray": lambda: bytearray(b"ab"), "memoryview": lambda: memoryview(b"ab"),
        "True": lambda: True, "np.True_": lambda: np.True_, "0": lambda: 0, "1": lambda: 1, "-1": lambda: -1,
        "2**31": lambda: 2**31, "2**64": lambda: 2**64, "10**400": lambda: 10**400, "-10**400": lambda: -(10**400),
        "0.5": lambda: 0.5, "-0.0": lambda: -0.0, "1e39": lambda: 1e39, "1e-60": lambda: 1e-60,
        "inf": lambda: float("inf"), "-inf": lambda: -float("inf"), "nan": lambda: float("nan"), "complex": lambda: 1j,
        "np.complex64": lambda: np.complex64(1), "Fraction": lambda: Fraction(1, 2),
        "Decimal": lambda: decimal.Decimal(1), "float16": lambda: np.float16(0.5),
        "longdouble": lambda: np.longdouble(0.5), "int8": lambda: np.int8(1), "timedelta": lambda: np.timedelta64(1),
        "datetime": lambda: np.datetime64(1, "s"), "no list": list, "tuple": lambda: (1.0, 1.0),
        "list": lambda: [0.5, 0.5], "nested": lambda: [[1.0], [1.0]], "texts": lambda: ["a", "b"],
        "Nones": lambda: [None, None], "bools": lambda: [True, False], "range": lambda: range(2), "set": lambda: {1.0},
        "dict": lambda: {0: 1.0, 1: 1.0}, "generator": lambda: (x for x in (1.0, 1.0)), "type": lambda: float,
        "function": lambda: len, "slice": lambda: slice(2), "odd": Odd, "odds": lambda: [Odd(), Odd()],
        "array": lambda: np.full(2, 0.5), "array of one": lambda: np.ones(1), "no dimensions": lambda: np.array(0.5),
        "int array": lambda: np.ones((), int), "bool array": lambda: np.ones((), bool),
        "objects": lambda: np.array([None, 1]), "an object": lambda: np.array(None),
        "texts of NumPy": lambda: np.array(["a", "b"]), "empty": lambda: np.ones(0),
        "matrix": lambda: np.eye(2).view(np.matrix), "masked": lambda: np.ma.array([1.0, 2.0], mask=[1, 0]),
        "masked constant": lambda: np.ma.masked, "swapped": lambda: np.ones(2, ">f8"),
        "record": lambda: np.ones(2, "f4,f4"), "time array": lambda: np.ones(2, "m8[s]"),
        "complex array": lambda: np.ones(2, complex), "arrays": lambda: [np.ones(3, F), np.ones(3, F)],
        "mixed": lambda: [np.ones(3, F), 1.0]}
# What a message may call an argument, beside its name.
ALSO = {"params": ("grads",), "sources": ("targets",), "inputs": ("shapes", "outputs"),
        "size_of_dtype": ("align_size", "inputs"), "align_size": ("inputs",), "align_unit": ("align_size",)}


def _step(routine):
    def given():
        case = make(routine, [3, 3], ("float32",) * 3, optional=tuple(s.name for s in routine.slots if s.optional))
        positional, named = arguments(routine, case.slots)
        lists = dict(zip([s.name for s in routine.slots if not s.optional], positional, strict=True)) | named
        choices = {name: values[0] for name, values in routine.choices.items()}
        return lists | step_of(routine) | choices | {"grad_factor": np.ones(1, F), "found_inf": np.zeros(1, F)}

    return routine.merged_name, given


def _floats(n=2):
    return [np.full(3, k + 1, F) for k in range(n)]


def _ones():
    one, none = np.full(1, 8, F), np.zeros(1, np.int32)
    return {"found_inf": one * 0, "loss_scale": one, "good_steps": none, "bad_steps": none.copy()}


CALLS = dict([
    *(_step(ROUTINES[name]) for name in ("adamw", "lars_momentum")),
    ("merged_cast", lambda: {"sources": _floats(), "targets": _floats(), "scale": 2.0}),
    ("check_gradients", lambda: {"grads": _floats(), "loss_scale": np.ones(1, F), "max_norm": 1.0, "epsilon": 1e-6}),
    ("update_loss_scaling", lambda: _ones() | {
        "incr_every_n_steps": 1, "decr_every_n_nan_or_inf": 1, "incr_ratio": 2.0, "decr_ratio": 0.5}),
    ("coalesce_tensor", lambda: {
        "inputs": _floats(), "scale": 1.0, "dtype": "float32", "shapes": [(3,), (3,)], "copy_data": True,
        "set_constant": False, "constant": 0.0, "outputs": _floats(), "persist_output": False, "use_align": True,
        "align_size": 256, "align_unit": "bytes", "size_of_dtype": 4})])


def on_side(module, value):
    """Arguments with arrays where the side has them."""
    if isinstance(value, list):
        return [on_side(module, x) for x in value]
    if module is gpu and type(value) is np.ndarray and not value.dtype.hasobject:
        return gpu.device("executor").to_device(value)
    return value


def arrays_in(values):
    """What is in all arrays of either kind among some arguments."""
    found = []
    for value in values:
        if isinstance(value, list | tuple):
            found += arrays_in(value)
        elif hasattr(value, "copy_to_host"):
            found.append(value.copy_to_host().tobytes())
        elif type(value) is np.ndarray and not value.dtype.hasobject:
            found.append(value.tobytes())
    return found


def results_in(module, answer):
    """The arrays that a call returned."""
    if answer is None:
        return []
    if module is gpu and hasattr(answer, "launches") and callable(answer):
        answer()
        answer = answer.grad_factor, answer.found_inf, answer.grad_norm
    return arrays_in([list(answer) if not hasattr(answer, "views") else [*answer.views]])


def attempt(module, name, given):
    """What a call said, what was in its arrays before, and what is in them, and in what it returned, after."""
    function = getattr(module, "gradient_check" if (module is gpu and name == "check_gradients") else name)
    kept, before = list(given.values()), arrays_in(given.values())
    answer, error = None, None
    try:
        answer = function(**given) if name != "coalesce_tensor" else function(given.pop("inputs"), **given)
    except (TypeError, ValueError) as caught:
        error = caught
    return error, before, arrays_in(kept), results_in(module, answer)


REPEATS = "merged_lars_momentum"  # what a step takes, as AdamW


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x == REPEATS)) for x in CALLS])
def test_junk(name, junk):
    with gpu.use("executor"):
        for argument, usual in CALLS[name]().items():
            if (argument, junk) == ("align_size", "2**31"):
                continue  # which would take as much memory
            lists = isinstance(usual, list) and isinstance(usual[0], np.ndarray)
            takes_arrays = lists or isinstance(usual, np.ndarray) or argument == "scale"
            outcomes = []
            for module in (cpu, gpu):
                given = {key: on_side(module, value) for key, value in CALLS[name]().items()}
                value = JUNK[junk]()
                given[argument] = on_side(module, value) if takes_arrays else value
                error, before, after, results = attempt(module, name, given)
                where = f"{name}, {argument}={junk}, {module.__name__}: {error!r}"
                if error is not None:
                    assert after == before, where
                    known = (argument, *ALSO.get(argument, ()))
                    assert any(str(error).startswith(f"{name}: {key}") for key in known), where
                said = type(error) if "object" not in junk else error is None  # objects are on no device
                outcomes.append((said, after, results, where))
            assert outcomes[0][:3] == outcomes[1][:3], (outcomes[0][3], outcomes[1][3])


@pytest.mark.parametrize("junk", JUNK)
def test_junk_to_a_plan(executor, junk):
    """A plan and a check that refuse addresses, arrays, a number or a stream go on as they were.

    What is given for the rates is compared with the list that is in force.
    """
    params, grads = ([executor.to_device(np.ones(3, F)) for _ in range(2)] for _ in range(2))
    at = [grad.address for grad in grads]
    step, check = gpu.plan("sgd", params, grads, lr=[0.5, 0.5]), gpu.gradient_check(grads)
    indices, values = [executor.to_device(np.zeros(1, int))], [executor.to_device(np.ones(1, F))]
    lazy = gpu.lazy_plan("sgd", [executor.to_device(np.ones(3, F))], indices, values, lr=0.5)
    calls = {"merged_sgd: move: slot": lambda x: step.move(x, at, grads),
             "merged_sgd: move: addresses": lambda x: step.move("grads", x, grads),
             "merged_sgd: move: arrays": lambda x: step.move("grads", at, x),
             "merged_sgd: stream": lambda x: setattr(step, "stream", x),
             "merged_sgd: stream: ": lambda x: gpu.plan("sgd", [], [], stream=x),
             "merged_sgd: form": lambda x: gpu.plan("sgd", params, grads, form=x),
             "merged_sgd: lr": lambda x: step.set(lr=x), "merged_sgd: seed": lambda x: step.set(seed=x),
             "merged_sgd: rescale_grad": lambda x: step.set(rescale_grad=x),
             "merged_sgd: params": lambda x: step.rebind(params=x), "merged_sgd: grads": lambda x: step.rebind(grads=x),
             "merged_sgd: master_params": lambda x: step.rebind(master_params=x),
             "merged_lazy_sgd: indices": lambda x: lazy.rebind(x, values),
             "merged_lazy_sgd: values": lambda x: lazy.rebind(indices, x),
             "merged_lazy_sgd: lr": lambda x: lazy.set(lr=x),
             "check_gradients: move: addresses": lambda x: check.move(x, grads),
             "check_gradients: move: arrays": lambda x: check.move(at, x),
             "check_gradients: grads": lambda x: check.rebind(x),
             "check_gradients: max_norm": lambda x: check.set(max_norm=x)}
    for where, call in calls.items():
        try:
            call(JUNK[junk]())
        except (TypeError, ValueError) as error:
            assert str(error).startswith(where), (where, repr(error))
        else:
            step.set(lr=[0.5, 0.5], rescale_grad=1.0, seed=0)
            step.rebind(params=params, grads=grads, master_params=None)
            check.move(at, grads)
            check.set(max_norm=np.inf)
        assert {x.copy_to_host().tobytes() for x in params} == {np.ones(3, F).tobytes()}
    step.stream = 0
    step()
    check()
    lazy()
    lazy.check_indices()
    assert [x.copy_to_host()[0] for x in params] == [0.5, 0.5]
    assert check.grad_norm.copy_to_host()[0] == np.float32(6) ** np.float32(0.5)
