"""docs/glossary.md has each name of a routine, and the names of PyTorch and optax are theirs."""

import inspect
import re
from pathlib import Path

import pytest

from refopt.catalog import ROUTINES

torch = pytest.importorskip("torch")
optax = pytest.importorskip("optax")

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]
TORCH = {"sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop",
         "adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam"}
OPTAX = {"momentum": "sgd", "lars_momentum": "lars"}
ELSEWHERE = {"params", ".grad", "GradScaler", "clip_grad_norm_", "clip_by_global_norm", "apply_if_finite"}


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def routines_of(cell):
    """The routines that a row names; all of them, if it names none, or those that it is not of."""
    named = [name for name in ROUTINES if re.search(rf"\b{name}\b", cell)]
    return list(ROUTINES) if cell.startswith("all") else named or list(ROUTINES)


def names_of_torch(name):
    """Arguments of an optimizer of PyTorch, and what is in its state after a step."""
    make = getattr(torch.optim, TORCH[name])
    parameters = inspect.signature(make).parameters
    more = {"momentum": 0.9, "amsgrad": True, "centered": True}
    weights = torch.nn.Parameter(torch.ones(3))
    weights.grad = torch.ones(3)
    optimizer = make([weights], lr=0.1, **{k: v for k, v in more.items() if k in parameters})
    optimizer.step()
    return {*parameters, *optimizer.state[weights]}


def names_of_optax(name):
    """The same of optax; AMSGrad is another function there."""
    names = set()
    for make in {"adam": ["adam", "amsgrad"]}.get(name, [OPTAX.get(name, name)]):
        parameters = inspect.signature(getattr(optax, make)).parameters
        more = {"momentum": 0.9, "centered": True}
        state = getattr(optax, make)(0.1, **{k: v for k, v in more.items() if k in parameters})
        names |= {*parameters, *fields(state.init({"w": torch.ones(3).numpy()}))}
    return names


def fields(state):
    for part in state if isinstance(state, tuple) else ():
        yield from fields(part)
    yield from getattr(state, "_fields", ())


def test_each_name_of_a_routine_is_there():
    listed = {name for row in ROWS for name in quoted(row[0])}
    every = {*("grad_factor", "found_inf")}
    for row in ROUTINES.values():
        every |= {*row.slot_names, *(hyper.name for hyper in row.hypers), *row.choices}
    assert every <= listed and listed - every == {"param", "grad", "master_param"}


def test_names_are_of_the_routines_that_are_named():
    for names, of, *_ in ROWS:
        for name in routines_of(of):
            row = ROUTINES[name]
            own = {*row.slot_names, *(hyper.name for hyper in row.hypers), *row.choices, "grad_factor", "found_inf"}
            one = {"param": "params", "grad": "grads", "master_param": "master_params"}
            few = "grad_averaging" in names or "all but" in of or "one launch" in of
            assert few or own & {one.get(x, x) for x in quoted(names)}, (names, name)


@pytest.mark.parametrize(("column", "known", "names_of"), [
    (2, TORCH, names_of_torch), (3, dict.fromkeys(ROUTINES), names_of_optax)], ids=["PyTorch", "optax"])
def test_names_of_others(column, known, names_of):
    """Each is one of an argument or a state of one at least of the row's routines."""
    for row in ROWS:
        for name in set(quoted(row[column])) - ELSEWHERE:
            assert any(name in names_of(routine) for routine in routines_of(row[1]) if routine in known), (row, name)
