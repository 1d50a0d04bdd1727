"""State dictionaries in the layout of the optimizers in ``torch.optim``, without PyTorch.

refopt keeps running powers of beta where PyTorch keeps a step count.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks import check_hypers
from refopt.checks.arguments import is_whole, kind_of, listed, mapped, whole
from refopt.checks.dtypes import SIZES, arithmetic, name_of
from refopt.state.peers import Peer, from_group, peer_of, to_group
from refopt.state.plain import VERSION, parse, routine_of, saved_slots
from refopt.state.saved import check_alike, check_values
from refopt.state.steps import BASES, rho_after, steps_of
from refopt.state.tensors import divided, read_scalars, read_tensors

_MOST_STEPS = 2**24  # PyTorch counts in fp32, where adding 1 to this changes nothing


def to_torch(saved: Mapping[str, Any], *, step: int | Sequence[int] | None = None) -> dict[str, Any]:
    """A state dictionary for ``load_state_dict()`` of the routine's PyTorch optimizer.

    Its arrays are NumPy's. PyTorch needs tensors; ``torch.from_numpy`` makes them, from bf16 by its bits::

        def tensor(x):
            if x.dtype.name == "bfloat16":
                return torch.from_numpy(x.view("i2")).view(torch.bfloat16)
            return torch.from_numpy(x)

        made = state.to_torch(step.state_dict())
        made["state"] = {i: {name: tensor(x) for name, x in entry.items()} for i, entry in made["state"].items()}
        optimizer.load_state_dict(made)

    Tensors with the same numbers form a group, in order; the optimizer must have the same groups. Options for how
    PyTorch runs a step (``foreach``, ``fused``, ``capturable``) keep their defaults.

    The momentum of RMSprop, which PyTorch keeps without lr, is divided by lr unless ``lr_at`` is ``"step"``; the decay
    of AdamW is coeff times lr_ratio.

    Args:
        saved: a result of `state_dict` for sgd, momentum, adam, adamw, adagrad, rmsprop, adadelta, adamax, nadam or
            radam. Masters are PyTorch's parameters, and must not be in it.
        step: how many steps have been taken, one number or one per tensor, at most 2**24, as far as PyTorch counts.
            Needed only if it does not follow from the powers: if there are none, or they have reached their minimum.

    Raises:
        ValueError, TypeError: naming the slot and the index: PyTorch lacks the routine or number, the states do not
            fit one parameter, or the powers belong to no step, to different ones, or to another than ``step``.
    """
    row, slots, hypers = parse(saved, "to_torch")
    peer, where, count = peer_of("to_torch", row), f"to_torch: {row.name}", len(slots["master_params"])
    numbers = _checked(where, row, slots, hypers)
    steps = _counted(f"{where}: step", step, count)
    groups: dict[tuple, list[int]] = {}
    entries = {}
    for i in range(count):
        one = {name: value[i] if isinstance(value, list) else value for name, value in numbers.items()}
        arrays = {name: array for name, values in slots.items() if (array := values[i]) is not None}
        groups.setdefault(tuple(to_group(where, row, one, arrays).items()), []).append(i)
        entry = _tensors(where, row, peer, i, one, arrays)
        if peer.counts:
            entry["step"] = np.array(_steps(where, row, i, one, arrays, steps[i]), np.float32)
        if entry:
            entries[i] = entry
    return {"state": entries, "param_groups": [dict(key) | {"params": members} for key, members in groups.items()]}


def _checked(where: str, row: Routine, slots: dict[str, list], hypers: dict[str, Any]) -> dict[str, Any]:
    """The numbers; raises unless the states are possible after a PyTorch step."""
    for i, master in enumerate(slots["master_params"]):
        if master is not None:
            expected = "None, since masters are the parameters of PyTorch's optimizer"
            raise ValueError(f"{where}: master_params[{i}]: expected {expected}, got an array")
    count = len(slots["master_params"])
    reals = {check_alike(where, row, i, {name: values[i] for name, values in slots.items()}) for i in range(count)}
    numbers = check_hypers(row, hypers, count, reals or {np.float64})
    for slot in saved_slots(row):
        for i, array in enumerate(slots[slot.name]):
            if array is not None:
                check_values(f"{where}: {slot.name}[{i}]", row, slot, array, numbers)
    return numbers


def _counted(where: str, step: Any, count: int) -> list[int | None]:
    """The step of each tensor, None if the caller leaves it to the powers."""
    if step is None:
        return [None] * count
    if is_whole(step) or not isinstance(step, Sequence | np.ndarray):
        return [whole(where, step, 0, _MOST_STEPS)] * count
    values = listed(where, list(step) if type(step) is np.ndarray else step, "integers")
    if len(values) != count:
        raise ValueError(f"{where}: expected one number or one per tensor, {count}, got {len(values)}")
    return [whole(f"{where}[{i}]", value, 0, _MOST_STEPS) for i, value in enumerate(values)]


def _tensors(
    where: str, row: Routine, peer: Peer, i: int, numbers: dict, arrays: dict[str, np.ndarray]
) -> dict[str, Any]:
    """The state of one tensor, by PyTorch's names."""
    entry = {}
    for ours, theirs in peer.states.items():
        if ours not in arrays or (theirs == "momentum_buffer" and numbers["mu"] == 0):
            continue
        array = arrays[ours].copy(order="K")
        if ours == "velocity" and numbers["lr_at"] == "velocity":
            if numbers["lr"] == 0:
                raise ValueError(f"{where}: lr: expected a number above 0, by which PyTorch's momentum is less, got 0")
            array = divided(f"{where}: velocity[{i}]", array, numbers["lr"])
        entry[theirs] = array.reshape(()) if ours in row.scalars else array
    return entry


def _steps(where: str, row: Routine, i: int, numbers: dict, arrays: dict[str, np.ndarray], step: Any) -> int:
    """How many steps a tensor has taken, by its powers or, if these are ambiguous, by the caller's argument."""
    scalars = {name: arrays[name].reshape(-1)[0] for name in row.scalars}
    low, high = 0, math.inf
    for name in scalars.keys() & BASES.keys():
        base = scalars[name].dtype.type(numbers[BASES[name]])
        span = steps_of(scalars[name], base)
        if span is None:
            raise ValueError(f"{where}: {name}[{i}]: expected a power of {BASES[name]} {base}, got {scalars[name]}")
        low, high = max(low, span[0]), min(high, span[1])
    if low > high:
        got = ", ".join(f"{name} {value}" for name, value in scalars.items())
        raise ValueError(f"{where}: tensor {i}: expected scalars of one step, got {got}")
    if step is None and low != high:
        raise ValueError(f"{where}: step: expected the number of steps of tensor {i}, at least {low}, got None")
    steps = whole(f"{where}: tensor {i}: steps, by its powers", low, 0, _MOST_STEPS) if step is None else step
    if not low <= steps <= high:
        expected = f"{low}" if low == high else f"an integer of at least {low}"
        raise ValueError(f"{where}: step: expected {expected} for tensor {i}, by its powers, got {step}")
    if "rho" in scalars:
        rho = rho_after(scalars["rho"].dtype.type(numbers["beta2"]), steps)
        if rho != scalars["rho"]:
            raise ValueError(f"{where}: rho[{i}]: expected {rho}, as after {steps} steps, got {scalars['rho']}")
    return steps


def from_torch(routine: str, saved: Mapping[str, Any], params: Sequence[Any]) -> dict[str, Any]:
    """A state dictionary for ``Plan.load_state_dict`` or `load` from one of PyTorch.

    Powers are running products over the steps taken, with the same bits as in refopt. RMSprop's ``lr_at`` is
    ``"step"``, which keeps its momentum unchanged.

    Args:
        routine: sgd or momentum (both SGD there), adam, adamw, adagrad, rmsprop, adadelta, adamax, nadam or radam.
        saved: the ``state_dict()`` of the optimizer, with its tensors, or with arrays or nested lists of numbers
            instead. Indices that JSON has turned into text are accepted.
        params: the optimizer's parameters, in the order of its groups; only their shapes and dtypes are used. A
            parameter without a state has taken no step yet.

    Returns:
        The dictionary described in `refopt.state`, without masters, and with the choices for PyTorch's rule, such as
        ``epsilon_at``. Numbers that differ between groups are lists of one per tensor.

    Raises:
        ValueError, TypeError: naming the group or the tensor and the key: something is missing or unexpected; a shape,
            dtype or value cannot come from PyTorch; a parameter is in two groups; or the rule is not the routine's
            (``lr_decay``, sums of Adagrad that start above 0, ``dampening`` before a parameter's first step, which
            PyTorch does not dampen).
    """
    row = routine_of("from_torch", routine)
    peer, where = peer_of("from_torch", row), f"from_torch: {row.name}"
    parts = mapped(where, saved, ("state", "param_groups"), ("state", "param_groups"))
    params = listed(f"{where}: params", params)
    for i, param in enumerate(params):
        _check_param(f"{where}: params[{i}]", param)
    groups = _groups(f"{where}: param_groups", parts["param_groups"])
    group_of = _members(where, groups, len(params))
    entries = _entries(f"{where}: state", parts["state"], len(params))
    per_group = [from_group(f"{where}: param_groups[{k}]", row, group) for k, group in enumerate(groups)]
    per_tensor = {hyper.name for hyper in row.hypers if hyper.per_tensor}
    shared: dict[str, Any] = {}
    for name, theirs in peer.numbers.items():
        values = [numbers[name] for numbers in per_group]
        shared[name] = _common(f"{where}: param_groups", theirs, values, group_of, name in per_tensor)
    reals = {arithmetic(name_of(param.dtype)) for param in params} or {np.float64}
    hypers = check_hypers(row, shared | dict(peer.choices), len(params), reals)
    slots: dict[str, list] = {slot.name: [] for slot in saved_slots(row)}
    for i, param in enumerate(params):
        one = {name: value[i] if isinstance(value, list) else value for name, value in hypers.items()}
        absent = {theirs: ours for ours, theirs in peer.switches.items() if not per_group[group_of[i]][theirs]}
        arrays = _of_tensor(f"{where}: state[{i}]", row, entries.get(i, {}), param, absent, one)
        for name in slots:
            slots[name].append(arrays.get(name))
    return {"routine": row.name, "version": VERSION, "hypers": hypers, "slots": slots}


def _groups(where: str, groups: Any) -> list[dict[str, Any]]:
    mappings = [mapped(f"{where}[{k}]", group) for k, group in enumerate(listed(where, groups, "groups"))]
    if not mappings:
        raise ValueError(f"{where}: expected at least one group, got none")
    return mappings


def _of_tensor(
    where: str, row: Routine, entry: Mapping[str, Any], param: Any, absent: Mapping[str, str], numbers: dict[str, Any]
) -> dict[str, np.ndarray]:
    """The states of a tensor by refopt's names, checked."""
    peer = peer_of("from_torch", row)
    arrays = read_tensors(where, row, entry, param, absent)
    arrays |= read_scalars(where, row, numbers, entry, arithmetic(name_of(param.dtype)))
    for slot in saved_slots(row):
        if slot.name in arrays:
            check_values(f"{where}: {peer.states.get(slot.name, slot.name)}", row, slot, arrays[slot.name], numbers)
    if row.name == "momentum" and numbers["dampening"] and entry.get("momentum_buffer") is None:
        expected = "an array, as after a first step, which PyTorch does not dampen"
        raise ValueError(f"{where}: momentum_buffer: expected {expected}, got none beside dampening")
    return arrays


def _check_param(where: str, param: Any) -> None:
    """Refuse anything without a shape and a valid dtype."""
    if getattr(param, "is_nested", False) or not hasattr(param, "shape") or not hasattr(param, "dtype"):
        raise TypeError(f"{where}: expected a dense array or tensor, got {kind_of(param)}")
    if name_of(param.dtype) not in SIZES or not getattr(param.dtype, "isnative", True):
        raise TypeError(f"{where}: expected one of {', '.join(SIZES)}, got {param.dtype}")


def _members(where: str, groups: list[dict[str, Any]], count: int) -> dict[int, int]:
    """The group of each parameter; raises unless each is in one."""
    group_of: dict[int, int] = {}
    for k, group in enumerate(groups):
        if "params" not in group:
            raise TypeError(f"{where}: param_groups[{k}]: params: expected a list of indices, got none")
        for j, index in enumerate(listed(f"{where}: param_groups[{k}]: params", group["params"], "indices")):
            i = whole(f"{where}: param_groups[{k}]: params[{j}]", index, 0)
            if i in group_of:
                place = f"{where}: param_groups[{k}]: params[{j}]"
                raise ValueError(f"{place}: expected a parameter of one group, got {i}, of group {group_of[i]}, too")
            group_of[i] = k
    if len(group_of) != count:
        raise ValueError(f"{where}: params: expected {len(group_of)}, those of param_groups, got {count}")
    if group_of.keys() != set(range(count)):
        missing = min(set(range(count)) - group_of.keys())
        raise ValueError(f"{where}: param_groups: expected parameters 0 to {count - 1}, got none of index {missing}")
    return group_of


def _entries(where: str, value: Any, count: int) -> dict[int, dict[str, Any]]:
    """The state of each parameter that has one; indices may be text, as in JSON."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{where}: expected a dictionary of dictionaries by parameter, got {kind_of(value)}")
    entries: dict[int, dict[str, Any]] = {}
    indices = {str(i): i for i in range(count)}
    for key in value:
        text = isinstance(key, str) and key in indices
        i = whole(f"{where}: keys", indices[key] if text else key, 0)
        if i >= count:
            raise ValueError(f"{where}[{key!r}]: expected the index of a parameter below {count}, got {i}")
        if i in entries:
            raise ValueError(f"{where}[{key!r}]: expected one state for each parameter, got another of index {i}")
        entries[i] = mapped(f"{where}[{i}]", value[key])
    return entries


def _common(where: str, name: str, values: list, group_of: dict[int, int], per_tensor: bool) -> Any:
    """A number that all groups have in common, or a list of one per tensor."""
    if all(value == values[0] for value in values):
        return values[0]
    if not per_tensor:
        k = next(k for k, value in enumerate(values) if value != values[0])
        raise ValueError(f"{where}[{k}]: {name}: expected {values[0]}, as in the first, got {values[k]}")
    return [values[group_of[i]] for i in range(len(group_of))]
