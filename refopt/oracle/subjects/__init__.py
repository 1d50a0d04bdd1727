"""What can be checked: functions, and optimizers of libraries, recognized without importing the libraries."""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from refopt.catalog import Routine
from refopt.checks.arguments import chosen, kind_of, mapped, shown
from refopt.oracle.subject import Optimizer, Subject
from refopt.oracle.subjects.arrays import NAMES, arrays_of
from refopt.oracle.subjects.function import Function
from refopt.oracle.subjects.names import accepted, public_name
from refopt.oracle.subjects.step import step_of
from refopt.oracle.subjects.timm import peer_of


def optimizer_of(
    subject: Any, *, numbers: Any = None, states: Any = None, arrays: str | None = None, device: str | None = None,
    options: Mapping[str, Any] | None = None, where: str = "check",
) -> Optimizer:
    """The `Optimizer` for a PyTorch, optax or Keras optimizer, or for a function of lists of arrays.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    options = dict(options or {})
    if hasattr(subject, "start") and hasattr(subject, "gated"):
        return subject
    kind = chosen(f"{where}: arrays", "numpy" if arrays is None else arrays, NAMES)
    found = _optimizer_of_library(subject, options, device) if arrays is None else None
    if found is not None:
        for what, values in (("set", numbers), ("states", states)):
            if values:
                raise TypeError(f"{where}: {what}: expected it only for a function, got {shown(values)}")
        return found
    for what, value in options.items():
        raise TypeError(f"{where}: {what}: expected none, which is for optimizers of libraries, got {shown(value)}")
    if not callable(subject):
        raise TypeError(f"{where}: subject: expected a function, or an optimizer, got {kind_of(subject)}")
    given = mapped(f"{where}: set", numbers or {}), mapped(f"{where}: states", states or {})
    return step_of(subject, *given, arrays_of(kind, device))


def _optimizer_of_library(subject: Any, options: Mapping[str, Any], device: str | None) -> Any:
    """An optimizer of a library that has been imported; ``None`` for anything else."""
    found: Any = None
    if (keras := sys.modules.get("keras")) is not None:  # before optax, since both have learning_rate
        from refopt.oracle.subjects.keras import of_keras

        found = of_keras(keras, subject, options, device)
    if found is None and "optax" in sys.modules:
        from refopt.oracle.subjects.optax import of_optax

        found = of_optax(subject, options)
    if found is None and (torch := sys.modules.get("torch")) is not None:
        from refopt.oracle.subjects.torch import of_torch

        found = of_torch(torch, subject, options, device or "cpu")
    return found


def subject_of(
    row: Routine, subject: Any, *, arrays: str | None = None, device: str | None = None,
    names: Mapping[str, str] | None = None, options: Mapping[str, Any] | None = None,
) -> Subject:
    """The `Subject` for an optimizer or step, as a routine.

    Args:
        row: the routine.
        subject: a `Subject`; a class derived from ``torch.optim.Optimizer``, an instance of one, or a function
            ``make(params, **numbers)`` that returns one; a function of ``learning_rate`` and other numbers that returns
            an optax ``GradientTransformation``; or a step.
        arrays: the arrays that a step gets, from "numpy", "torch", "jax" and "cupy"; by default "numpy".
        device: of PyTorch's tensors; "cpu" by default.
        names: what an optimizer calls its states and numbers, by refopt's names, if it differs from PyTorch, and what a
            step calls its arguments, if it differs from refopt.
        options: further arguments of the class.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    known = ("step", *row.slot_names[2:-1], *(hyper.name for hyper in row.hypers), *row.choices)
    options, own = dict(options or {}), mapped("check: names", {} if names is None else names, known)
    kind = chosen("check: arrays", "numpy" if arrays is None else arrays, NAMES)
    if arrays is None and (tested := _of_library(row, subject, own, options, device)) is not None:
        return tested
    for what, values in options.items():
        raise TypeError(f"check: {what}: expected none, which is for optimizers of libraries, got {shown(values)}")
    if not isinstance(subject, type) and hasattr(subject, "run") and hasattr(subject, "takes"):
        return subject
    if not callable(subject):
        raise TypeError(f"check: subject: expected a function, or a Subject, got {kind_of(subject)}")
    step = Function(row, subject, arrays_of(kind, device), own)
    step.name += "".join(f", {name}={x!r}" for name, x in (("arrays", arrays), ("device", device)) if x is not None)
    return step


def _of_library(
    row: Routine, subject: Any, names: dict[str, str], options: dict[str, Any], device: str | None
) -> Subject | None:
    """An optimizer of a library that has been imported."""
    tested: Subject | None = None
    if (keras := sys.modules.get("keras.optimizers")) is not None:
        kind = subject if isinstance(subject, type) else type(subject)
        if issubclass(kind, keras.Optimizer):
            expected = f"expected a step, or an optimizer of PyTorch or optax, as {row.name}"
            raise TypeError(f"check: subject: {expected}, got one of Keras, for laws without a formula")
    if "optax" in sys.modules:
        tested = _of_optax(row, subject, names, options, device)
    if tested is None and (torch := sys.modules.get("torch")) is not None:
        tested = _of_torch(torch, row, subject, names, options, device or "cpu")
    return tested


def _of_optax(
    row: Routine, subject: Any, names: dict[str, str], options: dict[str, Any], device: str | None
) -> Subject | None:
    """An optax optimizer, if the subject is a function of a learning rate and not of parameters."""
    from refopt.oracle.subjects.optax import is_one, unpacked
    from refopt.oracle.subjects.optax_routine import OptaxRoutine, numbers_of

    if is_one(subject):
        raise TypeError("check: subject: expected a function of learning_rate that makes one, got a transformation")
    subject, options, taken = unpacked(subject, options)
    numbers = numbers_of(row, names)
    if numbers["lr"] not in taken or taken[0] not in numbers.values():
        return None
    if device is not None:
        raise ValueError(f"check: device: expected none except for torch, got {device!r} for optax")
    name = public_name(subject, options | ({"names": names} if names else {}))
    return OptaxRoutine(row, subject, name, options=options, names=names)


def _of_torch(
    torch: Any, row: Routine, subject: Any, names: dict[str, str], options: dict[str, Any], device: str
) -> Subject | None:
    """A PyTorch optimizer, if the subject is one, or a function that returns one."""
    from refopt.oracle.subjects.torch import unpacked
    from refopt.oracle.subjects.torch_routine import TorchRoutine, renamed

    base = torch.optim.Optimizer
    subject, options, held = unpacked(torch, subject, options)
    kind = subject if isinstance(subject, type) else None
    if kind is not None and not issubclass(kind, base):
        return None
    if kind is not None and held:  # an instance's numbers vary with cases; its options are kept
        peer = renamed(peer_of(row.name, kind, {})[0], names)
        known = accepted(kind)
        numbers = {"betas", *peer.numbers.values()}
        options = {x: held[x] for x in held if x in known and x not in numbers and held[x] != known[x]} | options
    own = ({"names": names} if names else {}) | ({"device": device} if device != "cpu" else {})
    name = public_name(subject, options | own)
    for _ in range(2):
        peer, without_lr = peer_of(row.name, kind, options)
        peer = renamed(peer, names)
        theirs = {"betas", *peer.numbers.values()} - {"nesterov"}
        accepts = {*accepted(subject)} if isinstance(subject, type) else _accepted_beside_params(subject, theirs)
        if accepts is None:
            return None
        optimizer = TorchRoutine(
            row, subject, name, options=options, accepts=accepts, peer=peer, step=names.get("step", "step"),
            without_lr=without_lr, device=device,
        )
        if optimizer.kind is kind:
            break
        kind = optimizer.kind  # of what a function has returned
    return optimizer


def _accepted_beside_params(function: Callable[..., Any], all_names: set[str]) -> set[str] | None:
    """The names that a function takes in addition to parameters; ``None`` if it requires other arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if not parameters or "grads" in {p.name for p in parameters} or parameters[0].kind is parameters[0].VAR_POSITIONAL:
        return None
    rest = parameters[1:]
    if any(p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD and p.name not in all_names for p in rest):
        return None
    return all_names - {"beta1", "beta2"} if any(p.kind is p.VAR_KEYWORD for p in rest) else {p.name for p in rest}
