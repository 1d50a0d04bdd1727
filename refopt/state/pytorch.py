"""State dictionaries in the layout of the optimizers in ``torch.optim``, without PyTorch.

What refopt carries as running powers of beta, PyTorch carries as a number of steps.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks import check_hypers
from refopt.dtypes import SIZES, arithmetic, name_of, numpy_dtype
from refopt.state.peers import Peer, from_group, peer_of, to_group
from refopt.state.plain import VERSION, parse, routine_of, saved_slots
from refopt.state.steps import BASES, power_after, rho_after, steps_of


def to_torch(saved: Mapping[str, Any], *, step: int | Sequence[int] | None = None) -> dict[str, Any]:
    """A state dictionary for ``load_state_dict()`` of the PyTorch optimizer that the routine is.

    Arrays are NumPy's. PyTorch wants tensors; ``torch.from_numpy`` makes them, of bf16 by way of its bits::

        def tensor(x):
            if x.dtype.name == "bfloat16":
                return torch.from_numpy(x.view("i2")).view(torch.bfloat16)
            return torch.from_numpy(x)

        made = state.to_torch(step.state_dict())
        made["state"] = {i: {name: tensor(x) for name, x in entry.items()} for i, entry in made["state"].items()}
        optimizer.load_state_dict(made)

    Tensors with the same numbers form a group, in the order in which they come; the optimizer must have the same
    groups. How PyTorch runs a step (``foreach``, ``fused``, ``capturable``) is left at its default.

    The momentum of RMSprop, which PyTorch keeps without lr, is divided by lr; the decay of AdamW is coeff times
    lr_ratio.

    Args:
        saved: what `state_dict` has returned, of sgd, momentum, adam, adamw, adagrad, rmsprop, adadelta, adamax,
            nadam or radam. Masters are what PyTorch calls parameters, and may not be in it.
        step: how many steps have been taken, one number or one per tensor. Needed only where it does not follow
            from the powers: where there are none, and where they are as small as they get.

    Raises:
        ValueError, TypeError: naming the slot and the index: PyTorch has no such routine or number, or the powers
            are those of no step, of different ones, or of another than ``step``.
    """
    row, slots, hypers = parse(saved, "to_torch")
    peer, where, count = peer_of("to_torch", row), f"to_torch: {row.name}", len(saved["slots"]["master_params"])
    numbers = check_hypers(row, hypers, count, {np.float64})
    steps: list = list(step) if np.ndim(step) else [step] * count  # type: ignore[arg-type]
    if len(steps) != count:
        raise ValueError(f"{where}: step: expected one number or one per tensor, {count}, got {len(steps)}")
    groups: dict[tuple, list[int]] = {}
    entries = {}
    for i in range(count):
        if slots["master_params"][i] is not None:
            expected = "None, since masters are the parameters of PyTorch's optimizer"
            raise ValueError(f"{where}: master_params[{i}]: expected {expected}, got an array")
        one = {name: value[i] if isinstance(value, list) else value for name, value in numbers.items()}
        given = {name: np.asarray(values[i]) for name, values in slots.items() if values[i] is not None}
        groups.setdefault(tuple(to_group(where, row, one, given).items()), []).append(i)
        entry = _tensors(where, row, peer, one, given)
        if peer.counts:
            entry["step"] = np.array(_steps(where, row, i, one, given, steps[i]), np.float32)
        if entry:
            entries[i] = entry
    return {"state": entries, "param_groups": [dict(key) | {"params": members} for key, members in groups.items()]}


def _tensors(where: str, row: Routine, peer: Peer, numbers: dict, given: dict[str, np.ndarray]) -> dict[str, Any]:
    """The state of one tensor, by PyTorch's names."""
    entry = {}
    for ours, theirs in peer.states.items():
        if ours not in given or (theirs == "momentum_buffer" and numbers["mu"] == 0):
            continue
        array = given[ours].copy(order="K")
        if ours == "velocity":
            if numbers["lr"] == 0:
                raise ValueError(f"{where}: lr: expected a number above 0, by which PyTorch's momentum is less, got 0")
            array = _times(array, 1, numbers["lr"])
        entry[theirs] = array.reshape(()) if ours in row.scalars else array
    return entry


def _steps(where: str, row: Routine, i: int, numbers: dict, given: dict[str, np.ndarray], step: Any) -> int:
    """How many steps a tensor has taken, by its powers or, if they leave it open, by what the caller says."""
    scalars = {name: given[name].reshape(-1)[0] for name in row.scalars}
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
    steps = low if step is None else int(step)
    if step is not None and (steps != step or not low <= steps <= high):
        expected = f"{low}" if low == high else f"an integer of at least {low}"
        raise ValueError(f"{where}: step: expected {expected} for tensor {i}, by its powers, got {step}")
    if "rho" in scalars:
        rho = rho_after(scalars["rho"].dtype.type(numbers["beta2"]), steps)
        if rho != scalars["rho"]:
            raise ValueError(f"{where}: rho[{i}]: expected {rho}, as after {steps} steps, got {scalars['rho']}")
    return steps


def from_torch(routine: str, saved: Mapping[str, Any], params: Sequence[Any]) -> dict[str, Any]:
    """A state dictionary for ``Plan.load_state_dict`` or `load` from one of PyTorch.

    Powers are running products over the steps taken, the bits that refopt would have come to by itself. The
    momentum of RMSprop is multiplied by the lr of its group.

    Args:
        routine: sgd or momentum (both SGD there), adam, adamw, adagrad, rmsprop, adadelta, adamax, nadam or radam.
        saved: what ``state_dict()`` of the optimizer has returned, with its tensors or anything in their place that
            ``numpy.asarray`` takes.
        params: the optimizer's parameters, in the order of its groups; only their shapes and dtypes are looked at.
            One without a state has taken no step yet.

    Returns:
        The dictionary described in `refopt.state`, without masters, and with the choices that are PyTorch's rule,
        such as ``epsilon_at``. Numbers that differ between groups are lists of one per tensor.

    Raises:
        ValueError, TypeError: naming the group or the tensor: something is missing or has another shape, or the
            rule is not the routine's (``maximize``, ``dampening``, ``lr_decay``, Adamax with an epsilon, weight decay
            where the routine has none).
    """
    row = routine_of("from_torch", routine)
    peer, where = peer_of("from_torch", row), f"from_torch: {row.name}"
    if not isinstance(saved, Mapping) or "state" not in saved or not saved.get("param_groups"):
        raise TypeError(f"{where}: expected a dictionary with state and param_groups, got {type(saved).__name__}")
    groups = list(saved["param_groups"])
    group_of = {i: k for k, group in enumerate(groups) for i in group["params"]}
    if group_of.keys() != set(range(len(params))):
        raise ValueError(f"{where}: params: expected {len(group_of)}, those of param_groups, got {len(params)}")
    for i, param in enumerate(params):
        if name_of(param.dtype) not in SIZES:
            raise TypeError(f"{where}: params[{i}]: expected one of {', '.join(SIZES)}, got {name_of(param.dtype)}")
    found = [from_group(f"{where}: param_groups[{k}]", peer, group) for k, group in enumerate(groups)]
    per_tensor = {hyper.name for hyper in row.hypers if hyper.per_tensor}
    given: dict[str, Any] = {}
    for name, theirs in peer.numbers.items():
        values = [numbers[name] for numbers in found]
        given[name] = _common(f"{where}: param_groups", theirs, values, group_of, name in per_tensor)
    reals = {arithmetic(name_of(param.dtype)) for param in params} or {np.float64}
    hypers = check_hypers(row, given | dict(peer.choices), len(params), reals)
    slots: dict[str, list] = {slot.name: [] for slot in saved_slots(row)}
    for i, param in enumerate(params):
        one = {name: value[i] if isinstance(value, list) else value for name, value in hypers.items()}
        entry = saved["state"].get(i) or {}
        known = {"step", "momentum_buffer", *peer.states.values()}
        if unknown := ", ".join(sorted(entry.keys() - known)):
            raise ValueError(f"{where}: state[{i}]: expected no more than {', '.join(sorted(known))}, got {unknown}")
        absent = {ours for ours, theirs in peer.switches.items() if not groups[group_of[i]].get(theirs)}
        arrays = _arrays(f"{where}: state[{i}]", row, peer, entry, param, absent)
        arrays |= _scalars(f"{where}: state[{i}]", row, one, entry, arithmetic(name_of(param.dtype)))
        if "velocity" in arrays:
            arrays["velocity"] = _times(arrays["velocity"], one["lr"], 1)
        for name in slots:
            slots[name].append(arrays.get(name))
    return {"routine": row.name, "version": VERSION, "hypers": hypers, "slots": slots}


def _common(where: str, name: str, values: list, group_of: dict[int, int], per_tensor: bool) -> Any:
    """A number that all groups have in common, or a list of one per tensor."""
    if all(value == values[0] for value in values):
        return values[0]
    if not per_tensor:
        k = next(k for k, value in enumerate(values) if value != values[0])
        raise ValueError(f"{where}[{k}]: {name}: expected {values[0]}, as in the first, got {values[k]}")
    return [values[group_of[i]] for i in range(len(group_of))]


def _arrays(where: str, row: Routine, peer: Peer, entry: Mapping, param: Any, absent: set[str]) -> dict[str, Any]:
    """The states of one tensor by refopt's names; zeros where PyTorch has none yet."""
    shape, arrays = tuple(param.shape), {}
    for ours, theirs in peer.states.items():
        if ours in absent or ours in row.scalars:
            continue
        value = entry.get(theirs)
        if value is None:
            if entry and theirs != "momentum_buffer":
                raise TypeError(f"{where}: {theirs}: expected an array, got none")
            value = np.zeros(shape, numpy_dtype(name_of(param.dtype)))
        array = arrays[ours] = _host(value)
        if array.shape != shape or name_of(array.dtype) not in SIZES:
            got = f"{name_of(array.dtype)} of shape {array.shape}"
            raise ValueError(f"{where}: {theirs}: expected one of {', '.join(SIZES)} of shape {shape}, got {got}")
    return arrays


def _scalars(where: str, row: Routine, numbers: dict[str, Any], entry: Mapping, real: Any) -> dict[str, Any]:
    """The scalars of one tensor, as they are after so many steps."""
    if not row.scalars:
        return {}
    count = entry.get("step", None if entry else 0)
    if count is None or int(count) != count or count < 0:
        raise ValueError(f"{where}: step: expected a number of steps, got {count}")
    steps = int(count)
    made = {name: power_after(real(numbers[BASES[name]]), steps) for name in row.scalars if name in BASES}
    if "rho" in row.scalars:
        made["rho"] = rho_after(real(numbers["beta2"]), steps)
    if "mu_product" in row.scalars:
        if entry and "mu_product" not in entry:
            raise TypeError(f"{where}: mu_product: expected a number, got none")
        made["mu_product"] = real(float(entry.get("mu_product", 1)))
    return {name: np.full(1, value, real) for name, value in made.items()}


def _times(array: np.ndarray, factor: float, divisor: float) -> np.ndarray:
    """The array times one number over another, of which one is 1, in the arithmetic type."""
    real: Any = arithmetic(array.dtype.name)
    values = array.astype(real)
    values *= real(factor)
    values /= real(divisor)
    return values.astype(array.dtype)


def _host(value: Any) -> np.ndarray:
    """A copy as NumPy's array; of a tensor of PyTorch, too, which NumPy takes from the CPU alone and not of bf16."""
    if not hasattr(value, "detach"):
        return np.array(value)
    value = value.detach().cpu()
    if name_of(value.dtype) == "bfloat16":
        return value.float().numpy().astype(numpy_dtype("bfloat16"))
    return value.numpy().copy(order="K")
