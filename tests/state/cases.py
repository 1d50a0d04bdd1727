"""State dictionaries, refopt's own and PyTorch's, and changes of them, for tests of what is refused."""

import numpy as np
import pytest

from refopt import state
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.exact.build import step_of
from refopt.state.peers import PEERS
from refopt.state.steps import power_after, rho_after

GONE = object()  # in the place of a value: none


def array(value, dtype="f4"):
    return np.array(value, dtype)


def changed(saved, place, value):
    """A dictionary with a value at a place such as ``slots.moment1.0``, or what a function makes of that before.

    Without a place the value is there instead of the dictionary.
    """
    if place == "":
        return value
    if isinstance(place, str):
        place = [int(key) if key.isdecimal() else key for key in place.split(".")]
    *path, last = place
    inner = saved
    for key in path:
        inner = inner[key]
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value(inner[last]) if callable(value) else value
    return saved


def refusals(table):
    """The rows of a table by the kind of error, each with its kind."""
    rows = [(error, *row) for error, rows in table.items() for row in rows]
    return pytest.mark.parametrize("row", rows, ids=[row[-1] for row in rows])


def refused(error, message, call, *arguments, **named):
    """The words in which a call is refused, which have a message in them."""
    with pytest.raises(error) as caught:
        call(*arguments, **named)
    assert message in str(caught.value)
    return str(caught.value)


def same(first, second):
    """Two dictionaries have the same numbers, and arrays of the same bits."""
    assert first["hypers"] == second["hypers"] and first["slots"].keys() == second["slots"].keys()
    for slot, values in first["slots"].items():
        for x, y in zip(values, second["slots"][slot], strict=True):
            assert (x is None) == (y is None), slot
            assert x is None or (x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()), slot


TAKEN = (0, 1, 7)  # steps of each tensor
SHAPES = [(3,), (), (2, 5)]
DIFFERENT = {"lr": [0.1, 0.2, 0.1], "l2_decay": [0.0, 0.5, 0.0], "coeff": [0.25, 0.5, 0.25], "lr_ratio": 1.0,
             "weight_decay": [0.25, 0.0, 0.25], "mu": [0.5, 0.75, 0.5], "rho": [0.5, 0.75, 0.5],
             "dampening": [0.5, 0.0, 0.5]}


def numbers_for(routine):
    """Numbers that PyTorch has, some of them different between tensors."""
    changed = {"epsilon": 1e-6, "decay_base": 0.96**0.004, **DIFFERENT}
    plain = {"rescale_grad": 1.0, "seed": 0.0}
    numbers = {name: changed.get(name, value) for name, value in step_of(routine).items()} | plain
    return {hyper.name: numbers[hyper.name] for hyper in routine.hypers}


def refopts(name, dtype="float32"):
    """A state dictionary of three tensors after different numbers of steps, and their parameters."""
    routine, rng = ROUTINES[name], np.random.default_rng(5)
    real, dtype = np.float64 if dtype == "float64" else np.float32, numpy_dtype(dtype)
    params = [rng.random(shape).astype(dtype) for shape in SHAPES]
    numbers, slots = numbers_for(routine), {"params": params}
    for slot in routine.states:
        slots[slot] = [rng.random(shape).astype(dtype) for shape in SHAPES]
        if slot in PEERS[name].switches:
            slots[slot][1] = None
    for slot, base in (("beta1_pow", "beta1"), ("beta2_pow", "beta2"), ("momentum_decay_pow", "decay_base")):
        if slot in routine.scalars:
            slots[slot] = [np.full(1, power_after(real(numbers[base]), steps)) for steps in TAKEN]
    if "rho" in routine.scalars:
        slots["rho"] = [np.full(1, rho_after(real(numbers["beta2"]), steps)) for steps in TAKEN]
    if "mu_product" in routine.scalars:
        slots["mu_product"] = [np.full(1, 0.25, real) for _ in TAKEN]
    choices = {choice: values[0] for choice, values in routine.choices.items()} | dict(PEERS[name].choices)
    return state.state_dict(name, slots, numbers | choices), params


def torchs(name="adam", dtype="float32"):
    """PyTorch's dictionary of the same, of two groups, and the parameters."""
    saved, params = refopts(name, dtype)
    return state.to_torch(saved, step=TAKEN), params
