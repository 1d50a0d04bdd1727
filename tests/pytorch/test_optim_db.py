"""PyTorch's own configurations of its optimizers, and its own wrong arguments: ``common_optimizers.optim_db``.

Each configuration of each class that `refopt.torch` has takes steps with new gradients. At each of them it starts from
PyTorch's parameters, states and gradients, and both are held to the bound of one step (`bound`).
"""

import inspect

import pytest

from pytorch.bound import before, hold
from pytorch.subjects import BUSY, PYTORCHS, all_bits, class_of, each_of_pytorchs, every_class, theirs, torch
from pytorch.trials import beside, held_step, new_gradients, one, steps

db = pytest.importorskip("torch.testing._internal.common_optimizers", exc_type=ImportError)

STEPS = {"RAdam": 7}  # which rectifies from the sixth
HOW = {name: {"foreach", "fused"} & inspect.signature(theirs(name)).parameters.keys() for name in PYTORCHS}
# The same of wrong arguments that are refused by other exceptions than PyTorch's.
OTHERWISE = {("Muon", "only support 2D parameters"): (ValueError, r"expected a matrix, got shape \(2, 3, 4\); Blocks"),
             ("Muon", "does not support complex parameters"): (TypeError, "expected .*, got complex64")}


def configurations(device):
    """(class, description, arguments) of PyTorch's inputs."""
    of_classes = [info for info in db.optim_db if info.name in PYTORCHS]
    return [pytest.param(info.name, given, id=f"{info.name}-{given.desc.replace(' ', '_')}")
            for info in of_classes for given in info.optim_inputs_func(device=device)]


@pytest.mark.parametrize(("name", "given"), configurations("cpu"))
def test_every_configuration(name, given):
    """A step from PyTorch's parameters, states and gradients is within the bound, and so is PyTorch's."""
    beside(name, given.kwargs, STEPS.get(name, 3))


@each_of_pytorchs
def test_fp64(name):
    """With fp64 as PyTorch's default dtype, which the product of NAdam is of."""
    torch.set_default_dtype(torch.float64)
    try:
        beside(name, BUSY[name], STEPS.get(name, 3), dtype=torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@every_class
def test_16_bit(name, dtype):
    """In fp32 arithmetic, as PyTorch's fused classes have it: from its own parameters and states, step by step."""
    params, optimizer = one(name, dtype=getattr(torch, dtype))
    for step in range(STEPS.get(name, 2)):
        held_step(optimizer, params, step)


@pytest.mark.parametrize(("name", "how"), [(name, how) for name in PYTORCHS for how in sorted(HOW[name])])
def test_how_a_step_is_run_changes_no_bit(name, how):
    """What PyTorch's classes are told of it is taken, and has no effect."""
    kept = []
    for given in ({}, {how: False}, {how: True}):
        params, optimizer = one(name, **given)
        steps(optimizer, params, range(2))
        kept.append(all_bits(params, optimizer))
    assert kept[0] == kept[1] == kept[2]


def wrong_arguments():
    """(class, description, arguments, error) of PyTorch's wrong inputs."""
    return [pytest.param(info.name, wrong, id=f"{info.name}-{wrong.optimizer_error_input.desc.replace(' ', '_')}")
            for info in db.optim_db if info.name in (*PYTORCHS, "Muon")
            for wrong in info.optim_error_inputs_func(device="cpu", dtype=torch.float32)]


@pytest.mark.parametrize(("name", "wrong"), wrong_arguments())
def test_wrong_arguments(name, wrong):
    """What PyTorch's class refuses is refused with the same exception, whose text PyTorch's tests know."""
    params, kwargs = wrong.optimizer_error_input.params, wrong.optimizer_error_input.kwargs
    if (name, wrong.optimizer_error_input.desc) in OTHERWISE:
        kind, said = OTHERWISE[name, wrong.optimizer_error_input.desc]
        with pytest.raises(kind, match=said):
            class_of(name)(params, **kwargs)
    elif issubclass(wrong.error_type, Warning):  # of parameters that are there twice, as one launch would write them
        refused = pytest.raises(ValueError, match="expected memory of its own")
        with pytest.warns(wrong.error_type, match=wrong.error_regex), refused:
            class_of(name)(params, **kwargs)
    elif wrong.error_on is db.OptimizerErrorEnum.CONSTRUCTION_ERROR:
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            class_of(name)(params, **kwargs)
    else:
        optimizer = class_of(name)(params, **kwargs)
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            optimizer.step()


@each_of_pytorchs
def test_a_wrong_step_is_outside_of_the_bound(name):
    """What is compared is compared so closely that a change of 2**-15 shows."""
    params, optimizer = one(name, kind=theirs)
    new_gradients(params, 0)
    known = before(optimizer)
    optimizer.step()
    assert 0 < hold(optimizer, known) <= 1
    with torch.no_grad():
        params[0].mul_(1 + 2**-15)
    with pytest.raises(AssertionError, match=f"{name}, parameter 0: params"):
        hold(optimizer, known)
