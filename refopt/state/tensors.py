"""Reading the state of one parameter in PyTorch's layout as refopt's slots."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks.arguments import is_number, kind_of, number, shown
from refopt.checks.dtypes import arithmetic, arithmetic_name, name_of, numpy_dtype
from refopt.state.peers import PEERS
from refopt.state.saved import host_of, native
from refopt.state.steps import BASES, power_after, rho_after


def read_tensors(
    where: str, row: Routine, entry: Mapping[str, Any], param: Any, absent: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """The tensors by refopt's names; zeros if PyTorch has none yet.

    Args:
        where: function and parameter, for the error.
        row: the routine.
        entry: its state, empty before the first step.
        param: an array or a tensor, for its shape and dtype.
        absent: the slots of switches that are off in its group, with the switches.
    """
    peer = PEERS[row.name]
    _check_keys(where, row, entry, absent)
    arrays = {}
    for ours, theirs in peer.states.items():
        if ours in absent.values() or ours in row.scalars:
            continue
        value = entry.get(theirs)
        if value is not None:
            arrays[ours] = _tensor(f"{where}: {theirs}", value, param)
        elif entry and theirs != "momentum_buffer":
            raise TypeError(f"{where}: {theirs}: expected an array, got none")
        else:
            arrays[ours] = np.zeros(tuple(param.shape), numpy_dtype(name_of(param.dtype)))
    return arrays


def _check_keys(where: str, row: Routine, entry: Mapping[str, Any], absent: Mapping[str, str]) -> None:
    """Refuse unexpected entries of a tensor's state, and entries whose switch is off."""
    peer = PEERS[row.name]
    known = [*["step"] * peer.counts, *peer.states.values(), *["momentum_buffer"] * (row.name == "sgd")]
    if unknown := [name for name in entry if name not in known]:
        raise ValueError(f"{where}: expected no more than {', '.join(sorted(known))}, got {', '.join(unknown)}")
    for name in known:
        off = next((switch for switch, ours in absent.items() if peer.states[ours] == name), None)
        off = "momentum" if row.name == "sgd" else off
        if off and entry.get(name) is not None:
            raise ValueError(f"{where}: {name}: expected none, as {off} is off, got {kind_of(entry[name])}")


def _tensor(where: str, value: Any, param: Any) -> np.ndarray:
    """A copy as a NumPy array with the parameter's shape, and its dtype or arithmetic type."""
    shape, dtype = tuple(param.shape), name_of(param.dtype)
    dtypes = list(dict.fromkeys((dtype, arithmetic_name(dtype))))
    host = _host(where, value)
    if host is None:
        host = _of_numbers(where, value, dtype)
    if host.shape != shape or name_of(host.dtype) not in dtypes:
        got = f"{name_of(host.dtype)} of shape {host.shape}"
        raise ValueError(f"{where}: expected {' or '.join(dtypes)} of shape {shape}, got {got}")
    return host


def _host(where: str, value: Any) -> np.ndarray | None:
    """A copy of an array or of a PyTorch tensor, which NumPy accepts only on the CPU and not in bf16."""
    if hasattr(value, "detach"):
        return host_of(where, value).astype(numpy_dtype(name_of(value.dtype)), order="K")
    if isinstance(value, np.ndarray | np.generic):
        if type(value) not in (np.ndarray, np.memmap) and not isinstance(value, np.generic):
            raise TypeError(f"{where}: expected a tensor or a NumPy array, got {kind_of(value)}")
        return native(np.array(value))
    return None


def _of_numbers(where: str, value: Any, dtype: str) -> np.ndarray:
    """A number, or nested lists of numbers as in JSON, in a dtype that represents them exactly."""

    def shape_of(part: Any) -> tuple[int, ...]:
        if not isinstance(part, list | tuple):
            if not is_number(part):
                raise TypeError(f"{where}: expected a tensor, a NumPy array or lists of numbers, got {shown(part)}")
            return ()
        shapes = {shape_of(inner) for inner in part}
        if len(shapes) > 1:
            raise ValueError(f"{where}: expected lists of one length, got {len(shapes)} shapes side by side")
        return len(part), *next(iter(shapes), ())

    shape_of(value)
    exact = np.array(value, np.float64)
    with np.errstate(all="ignore"):
        host = exact.astype(numpy_dtype(dtype))
    lost = ~((host == exact) | np.isnan(exact))
    if lost.any():
        raise ValueError(f"{where}: expected numbers of {dtype}, got {exact[lost][0]}")
    return host


def read_scalars(
    where: str, row: Routine, numbers: Mapping[str, Any], entry: Mapping[str, Any], real: Any
) -> dict[str, np.ndarray]:
    """The scalars after the entry's number of steps, each of shape (1,)."""
    steps = 0
    if entry and PEERS[row.name].counts:
        count = number(f"{where}: step", host_of(f"{where}: step", entry.get("step")), 0, finite=True)
        if count % 1:
            raise ValueError(f"{where}: step: expected a whole number of steps, got {count}")
        steps = int(count)
    values = {name: power_after(real(numbers[BASES[name]]), steps) for name in row.scalars if name in BASES}
    if "rho" in row.scalars:
        values["rho"] = rho_after(real(numbers["beta2"]), steps)
    if "mu_product" in row.scalars:
        label = f"{where}: mu_product"
        values["mu_product"] = real(number(label, host_of(label, entry.get("mu_product")) if entry else 1.0, 0, 1))
    return {name: np.full(1, value, real) for name, value in values.items()}


def divided(where: str, array: np.ndarray, divisor: float) -> np.ndarray:
    """The array divided by a number, in the arithmetic type."""
    real: Any = arithmetic(array.dtype.name)
    with np.errstate(all="ignore"):
        quotient = (array.astype(real) / real(divisor)).astype(array.dtype)
    if (np.isinf(quotient) & ~np.isinf(array)).any():
        expected = f"values that are finite in {array.dtype.name} divided by lr {divisor}"
        raise ValueError(f"{where}: expected {expected}, got inf")
    return quotient
