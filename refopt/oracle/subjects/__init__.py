"""What can be checked: functions, and optimizers of libraries, recognized without importing the libraries."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from refopt.catalog import Routine
from refopt.checks.arguments import chosen, kind_of, mapped, shown
from refopt.oracle.subjects.arrays import NAMES, arrays_of
from refopt.oracle.subjects.function import Function
from refopt.oracle.subjects.names import accepted, public_name

__all__ = ["accepted", "public_name", "subject_of"]


def subject_of(
    row: Routine | None, subject: Any, *, numbers: Any = None, states: Any = None, arrays: str | None = None,
    device: str | None = None, names: Mapping[str, str] | None = None, options: Mapping[str, Any] | None = None,
    where: str = "check",
) -> Any:
    """The `Subject` for an optimizer or step, as a routine or without a formula.

    Args:
        row: the routine; ``None`` for none.
        subject: a `Subject`; a class derived from ``torch.optim.Optimizer``, an instance of one, or a function
            ``make(params, **numbers)`` that returns one; a function of ``learning_rate`` and other numbers that returns
            an optax ``GradientTransformation``; without a routine also a transformation, and what makes an optimizer of
            Keras; or a step.
        numbers: of a step without a routine.
        states: of a step; with a routine, they are in few bits, and of an optimizer "8bit".
        arrays: the arrays that a step gets, from "numpy", "torch", "jax" and "cupy"; by default "numpy".
        device: of PyTorch's tensors; "cpu" by default.
        names: what an optimizer calls its states and numbers, by refopt's names, if it differs from PyTorch, and what a
            step calls its arguments, if it differs from refopt.
        options: further arguments of the class.
        where: the function that errors name.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    known = () if row is None else ("step", *row.slot_names[2:], *(hyper.name for hyper in row.hypers), *row.choices)
    options, own = dict(options or {}), mapped(f"{where}: names", {} if names is None else names, known)
    if not isinstance(subject, type) and all(hasattr(subject, x) for x in (("run", "takes") if row else ("start",))):
        return subject
    kind = chosen(f"{where}: arrays", "numpy" if arrays is None else arrays, NAMES)
    coded = row is not None and bool(states)
    found = None if arrays is not None else _of_library(row, subject, own, options, device, coded)
    if (declared := isinstance(states, str)) and not getattr(found, "coded", False):
        expected = "expected it for an optimizer of PyTorch as a routine, or a function's by name in a dictionary"
        raise TypeError(f"{where}: states: {expected}, got {states!r}")
    if found is not None:
        for what, values in (("set", numbers), ("states", None if declared else states)):
            if values:
                raise TypeError(f"{where}: {what}: expected it only for a function, got {shown(values)}")
        return found
    for what, values in options.items():
        raise TypeError(f"{where}: {what}: expected none, which is for optimizers of libraries, got {shown(values)}")
    if not callable(subject):
        raise TypeError(f"{where}: subject: expected a function, or an optimizer, got {kind_of(subject)}")
    given = mapped(f"{where}: set", numbers or {}), mapped(f"{where}: states", states or {}, row and row.states)
    step = Function(row, subject, arrays_of(kind, device), *given, names=own)
    if row is not None:
        step.name += "".join(f", {name}={x!r}" for name, x in (("arrays", arrays), ("device", device)) if x is not None)
    return step


def _of_library(
    row: Routine | None, subject: Any, names: Mapping[str, str], options: Mapping[str, Any], device: str | None,
    coded: bool,
) -> Any:
    """An optimizer of a library that has been imported; ``None`` for anything else."""
    found: Any = None
    if isinstance(subject, partial) and isinstance(subject.func, type) and not subject.args:
        subject, options = subject.func, {**subject.keywords, **options}
    if (keras := sys.modules.get("keras")) is not None:  # before optax, since both have learning_rate
        from refopt.oracle.subjects.keras import of_keras

        found = of_keras(keras, row, subject, options, device)
    if found is None and "optax" in sys.modules:
        from refopt.oracle.subjects.optax import of_optax

        found = of_optax(row, subject, names, options, device)
    if found is None and (torch := sys.modules.get("torch")) is not None:
        from refopt.oracle.subjects.torch import of_torch

        found = of_torch(torch, row, subject, names, options, device or "cpu", coded)
    return found
