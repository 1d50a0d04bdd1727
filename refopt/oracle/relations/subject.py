"""Which optimizer something is: one of PyTorch, optax or Keras, or a function of lists of arrays."""

import sys
from collections.abc import Mapping
from typing import Any

from refopt.checks.arguments import chosen, kind_of, mapped, shown
from refopt.oracle.relations.of_keras import of_keras
from refopt.oracle.relations.of_optax import of_optax
from refopt.oracle.relations.of_torch import of_torch
from refopt.oracle.relations.runs import Optimizer, Step
from refopt.oracle.subjects.arrays import NAMES, arrays_of


def optimizer_of(
    subject: Any, *, numbers: Any = None, states: Any = None, arrays: str | None = None, device: str | None = None,
    options: Mapping[str, Any] | None = None, where: str = "check",
) -> Optimizer:  # fmt: skip
    """What makes runs of something: an optimizer of PyTorch, optax or Keras, or a function of lists of arrays.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    options = dict(options or {})
    if hasattr(subject, "start") and hasattr(subject, "gated"):
        return subject
    kind = chosen(f"{where}: arrays", "numpy" if arrays is None else arrays, NAMES)
    found: Any = None
    if arrays is None and (keras := sys.modules.get("keras")) is not None:  # before optax, for both have learning_rate
        found = of_keras(keras, subject, options, device)
    if found is None and arrays is None and "optax" in sys.modules:
        found = of_optax(subject, options)
    if found is None and arrays is None and (torch := sys.modules.get("torch")) is not None:
        found = of_torch(torch, subject, options, device or "cpu")
    if found is not None:
        for what, values in (("set", numbers), ("states", states)):
            if values:
                raise TypeError(f"{where}: {what}: expected none but for a function, got {shown(values)}")
        return found
    for what, value in options.items():
        raise TypeError(f"{where}: {what}: expected none, which is for optimizers of libraries, got {shown(value)}")
    if not callable(subject):
        raise TypeError(f"{where}: subject: expected a function, or an optimizer, got {kind_of(subject)}")
    given = mapped("check: set", numbers or {}), mapped("check: states", states or {})
    return Step(subject, *given, arrays=arrays_of(kind, device))
