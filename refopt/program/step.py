"""The usual training step for a list of parameters, as a program for passes to start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from refopt.catalog import KNOWN, Routine
from refopt.checks.arguments import RANKS, chosen, collected, flag, names, number, shown, whole
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program.model import UNKNOWN, Op, Var, extents_of
from refopt.program.parameter import CONFIGS, Config, Parameter
from refopt.program.program import Program


def step_program(
    params: Iterable[tuple[str, tuple[int, ...]]],
    optimizer: str | Mapping[str, str],
    *,
    config: str | Config | Mapping[str, str | Config] = "fp32",
    world_size: int = 1,
    early: bool = False,
    grad_dtype: str | Mapping[str, str] | None = None,
    state_dtype: str | Mapping[str, str] | None = None,
    optional: Iterable[str] = (),
    sparse: Iterable[str] = (),
    layer: Callable[[str], str] | None = None,
    **numbers: Any,
) -> Program:
    """The program of a step that averages gradients over ranks and has a separate update op for every parameter.

    Per parameter, from the last to the first, it has a ``backward`` op and, with several ranks, one ``all_reduce`` and
    one ``scale`` by 1 / world_size (numerics, N10); then, from the first to the last, one op of the optimizer.

    Arguments that concern a parameter may be one value for all, or a mapping by the parameter's name.

    Args:
        params: names and shapes in the model's order, such as the tensors of a `refopt.catalog.workloads.Workload`.
        optimizer: a name of `refopt.catalog.KNOWN`.
        config: dtypes: a name of `CONFIGS`, or a `Config`.
        world_size: the number of ranks.
        early: for routines whose scalars are powers of beta: advance each by a ``scale`` op after all updates, as
            Paddle did in 2019; by default the update does it.
        grad_dtype: a dtype for gradients other than that of the config.
        state_dtype: one for states by element. Parameters with states in 8 bits must be C-contiguous.
        optional: the optional states to include, such as ``moment2_max``.
        sparse: names of parameters whose gradients are sparse: with several ranks an ``all_gather`` op gathers them
            instead of reducing them, and a ``scatter_add`` op adds them to a dense gradient of the arithmetic type;
            `passes.update_rows` avoids it.
        layer: the layer that a parameter belongs to; by default its name up to the first dot.
        numbers: hyperparameters and choices of the optimizer; for Muon also ``blocks`` and ``coefficients``.

    Returns:
        A program. With several ranks, rank 0 broadcasts its parameters at startup, and there are no other startup ops.
        Variables are named as in Paddle, so that ``fc`` has ``fc@GRAD``, ``fc_moment1_0``, ``fc_beta1_pow_acc_0``,
        ``fc_fp32_master_0``; states start at 0, scalars at the routine's values, masters at the parameter.
    """
    world_size = whole("step_program: world_size", world_size, 1, RANKS)
    early = flag("step_program: early", early)
    listed = named_shapes("step_program: params", params)
    steps = parameters(
        listed, optimizer, numbers, layer=layer, optional=optional, config=config, grad_dtype=grad_dtype,
        state_dtype=state_dtype, sparse=sparse, world_size=world_size, early=early,
    )
    ops = [op for step in reversed(steps) for op in step.gradient()]
    ops += [step.update() for step in steps]
    ops += [op for step in steps for op in step.advances()]
    return begun(Program(variables(steps), (), tuple(ops)), world_size)


def begun(program: Program, ranks: int) -> Program:
    """A checked step of several ranks, with the broadcasts that give them equal parameters."""
    program = program.replace(startup=begun_alike(program, ranks))
    program.check()
    return program


def begun_alike(program: Program, ranks: int) -> list[Op]:
    """Broadcasts from rank 0 of what the caller must provide, the parameters, so that all ranks start equal."""
    layers = {name: op.layer for op in program.main for name in op.reads} if ranks > 1 else {}
    return [
        Op("broadcast", {"x": (name,)}, {"out": (name,)}, {"ranks": ranks, "root": 0}, "startup", layers.get(name))
        for name, var in program.vars.items()
        if ranks > 1 and var.persistable and var.initial is None and var.shape != UNKNOWN
    ]


def parameters(
    listed: list[tuple[str, tuple[int, ...]]], optimizer: Any, numbers: Mapping[str, Any], *, layer: Any, optional: Any,
    config: Any = "fp32", grad_dtype: Any = None, state_dtype: Any = None, sparse: Any = (), world_size: int = 1,
    early: bool = False, where: str = "step_program",
) -> list[Parameter]:
    """The `Parameter` objects of a step; ``where`` is the function that errors name."""
    if not isinstance(optimizer, Mapping):
        find_routine(f"{where}: optimizer", optimizer)  # though there may be no parameters
    rows, wanted = frozenset(names(f"{where}: sparse", sparse)), names(f"{where}: optional", optional)
    _check_names(where, [name for name, _ in listed], rows, layer)
    steps = []
    for name, shape in listed:
        dtypes = _dtypes(where, name, config, grad=grad_dtype, state=state_dtype)
        routine = find_routine(f"{where}: optimizer", _of(optimizer, name, f"{where}: optimizer"))
        own = _checked_numbers(where, routine, _numbers(where, name, routine, numbers))
        part = layer(name) if layer else name.partition(".")[0]
        steps.append(Parameter(name, shape, routine, dtypes, world_size, early, own, name in rows, wanted, part))
    if steps:
        _check_known(where, [step.routine for step in steps], numbers, wanted)
    return steps


def variables(steps: list[Parameter], where: str = "step_program") -> dict[str, Var]:
    """The variables of all parameters by name; raises if two parameters share a name."""
    vars: dict[str, Var] = {}
    owners: dict[str, str] = {}
    for step in steps:
        for var in step.vars():
            check_owner(where, owners, var.name, step.name)
            vars[var.name] = var
    return vars


def _check_names(where: str, params: list[str], sparse: frozenset[str], layer: Any) -> None:
    """Raise if a parameter occurs twice, a name is unknown, or ``layer`` is not a function."""
    if len(set(params)) != len(params):
        raise ValueError(f"{where}: params: expected each name once, got one again")
    if layer is not None and not callable(layer):
        raise TypeError(f"{where}: layer: expected a function of a name, or None, got {shown(layer)}")
    for unknown in sorted(sparse - set(params)):
        raise ValueError(f"{where}: sparse: expected names of params, got {unknown!r}")


def _dtypes(where: str, name: str, config: Any, **others: Any) -> Config:
    """The dtypes of a parameter; raises if they are invalid."""
    entry = _of(config, name, f"{where}: config")
    if not isinstance(entry, Config) and not (isinstance(entry, str) and entry in CONFIGS):
        expected = f"expected one of {', '.join(CONFIGS)} or a Config"
        raise ValueError(f"{where}: config: {expected}, got {shown(entry)}")
    dtypes = entry if isinstance(entry, Config) else CONFIGS[entry]
    for key, dtype in dtypes._asdict().items():
        if not (key == "master" and dtype is None):
            chosen(f"{where}: config: {key}", dtype, ITEM_SIZES)
    for key, value in others.items():
        own = _of(value, name, f"{where}: {key}_dtype")
        if own is not None:
            dtypes = dtypes._replace(**{key: chosen(f"{where}: {key}_dtype", own, ITEM_SIZES)})
    return dtypes


def _numbers(where: str, name: str, routine: Routine, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and choices of a parameter; raises if one is a list."""
    own = {key: _of(value, name, f"{where}: {key}") for key, value in numbers.items()}
    for key, value in own.items():
        if type(value) in (list, tuple, np.ndarray) and key in routine.defaults.keys() - routine.own.keys():
            expected = "expected one value, or a mapping that has one for each parameter"
            raise TypeError(f"{where}: {key}: {expected}, got {shown(value)}")
    return own


def _checked_numbers(where: str, routine: Routine, own: dict[str, Any]) -> dict[str, Any]:
    """Numbers as Python numbers, and valid choices of the routine."""
    checked = dict(own)
    for hyper in (hyper for hyper in routine.hypers if hyper.name in own):
        value = number(f"{where}: {hyper.name}", own[hyper.name])
        if type(own[hyper.name]) not in (int, float):
            checked[hyper.name] = value
    for choice in routine.choices.keys() & own.keys():
        checked[choice] = chosen(f"{where}: {choice}", own[choice], routine.choices[choice])
    return checked


def _check_known(where: str, routines: list[Routine], numbers: Mapping[str, Any], wanted: tuple[str, ...]) -> None:
    """Raise if no routine has a number or optional state of a name, or if a required number is missing."""
    known = {name for routine in routines for name in routine.defaults}
    for unknown in sorted(set(numbers) - known):
        raise TypeError(f"{where}: {unknown}: expected one of {', '.join(sorted(known))}")
    missing = (hyper.name for routine in routines for hyper in routine.hypers if hyper.default is None)
    for name in missing:
        if name not in numbers:
            raise TypeError(f"{where}: {name}: expected a number, got none")
    states = {slot.name for routine in routines for slot in routine.slots if slot.optional} - {"master_params"}
    for unknown in sorted(set(wanted) - states):
        expected = ", ".join(sorted(states)) or "none"
        raise ValueError(f"{where}: optional: expected some of {expected}, got {unknown!r}")


def check_owner(where: str, owners: dict[str, str], name: str, owner: str) -> None:
    """Record the parameter that owns a variable, or "" for the whole step; raises if another owns it already."""
    if owners.setdefault(name, owner) != owner:
        raise ValueError(f"{where}: params: expected names that are unique in the program, got {name!r}")


def named_shapes(where: str, params: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of parameters; an error names the entry by its index or its name."""
    pairs = []
    for k, entry in enumerate(collected(where, params, "names and shapes")):
        pair = collected(f"{where}[{k}]", entry, "a name and a shape")
        if len(pair) != 2:
            raise TypeError(f"{where}[{k}]: expected a name and a shape, got {shown(entry)}")
        name, shape = pair
        if not isinstance(name, str) or not name:
            raise TypeError(f"{where}[{k}]: expected a name and a shape, got {shown(name)} for the name")
        pairs.append((name, extents_of(f"{where}: {name!r}: shape", shape, ITEM_SIZES["float64"])))
    return pairs


def _of(value: Any, name: str, key: str) -> Any:
    """The value for a parameter: the common one, or its entry in a mapping."""
    if isinstance(value, str | float) or not isinstance(value, Mapping):
        return value
    if name not in value:
        raise ValueError(f"{key}: expected an entry for every parameter, got none for {name!r}")
    return value[name]


def find_routine(where: str, name: str) -> Routine:
    """A routine by name; raises if there is none."""
    return KNOWN[chosen(where, name, KNOWN)]
