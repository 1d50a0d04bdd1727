"""The registry of op types: slots, checks and runners."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from refopt.program.graph import Graph
from refopt.program.model import Op
from refopt.program.ops.context import Context
from refopt.program.ops.runner import Runner

Check = Callable[[Graph, Op], None]
Bind = Callable[[Context, Op], "Runner | Callable[[], Any]"]
B = TypeVar("B", bound=Bind)

ANY = "*"  # among the names of slots: there may be others
WAYS = "memory", "network", "message", "host"

TYPES: dict[str, OpType] = {}  # by name, all but those of the routines


@dataclass(frozen=True)
class OpType:
    """A type of op. Registered by `op`.

    Attributes:
        name: the value of `refopt.program.Op.type`.
        inputs, outputs: names of the slots; one with ``?`` is optional, and ``*`` allows further ones.
        bind: a function of a context and an op that returns the op's runner, once its arrays exist.
        check: raises if the op is invalid; slots have been checked before.
        gpu: the binder on a device, as ``"module:function"``, imported when a program is bound. If it is empty,
            ``bind`` serves all machines.
        way: the resource that an op uses: the device's ``"memory"``, the ``"network"`` for a collective, a
            ``"message"`` from one rank to another, or the connection to the ``"host"``.
        startup: whether it belongs to startup.
        dense: whether none of its variables may be sparse.
        fills: whether its outputs then hold values; a type that only allocates says for which ops they do.
        drops: whether its inputs are freed.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bind: Bind
    check: Check
    gpu: str = ""
    way: str = "memory"
    startup: bool = False
    dense: bool = True
    fills: Callable[[Op], bool] | None = None
    drops: bool = False

    @property
    def doc(self) -> str:
        """What it does."""
        return self.bind.__doc__ or ""


def op(
    name: str, inputs: str = "", outputs: str = "", *, check: Check | None = None, **about: Any
) -> Callable[[B], B]:
    """Register a type of op, whose runner the decorated function binds.

    Args:
        name: the type.
        inputs, outputs: names of the slots, separated by blanks.
        check: as in `OpType`; by default only slots are checked.
        about: other attributes of `OpType`.

    Raises:
        ValueError: the type is already registered, or an attribute is unknown.
    """
    if name in TYPES:
        raise ValueError(f"op: name: expected a new type, got {name!r}, which is registered already")
    if about.get("way", "memory") not in WAYS:
        raise ValueError(f"op: way: expected one of {', '.join(WAYS)}, got {about['way']!r}")

    def register(bind: B) -> B:
        TYPES[name] = OpType(name, tuple(inputs.split()), tuple(outputs.split()), bind, check or _anything, **about)
        return bind

    return register


def find(name: str) -> OpType | None:
    """The registered type of a name; ``None`` if there is none."""
    return TYPES.get(name)


def of_way(way: str) -> tuple[str, ...]:
    """The types that use a resource; see `OpType.way`."""
    return tuple(name for name, known in TYPES.items() if known.way == way)


def check_slots(op: Op, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    """Raise if slots are missing, or unknown, among names as those of `OpType`."""
    for slots, expected in ((op.inputs, inputs), (op.outputs, outputs)):
        for name in expected:
            if name not in slots and name != ANY and not name.endswith("?"):
                raise TypeError(f"{name}: expected variables, got none")
    for side, slots, expected in (("input", op.inputs, inputs), ("output", op.outputs, outputs)):
        for name in slots:
            if name not in expected and f"{name}?" not in expected and ANY not in expected:
                names = [name.removesuffix("?") for name in expected]
                what = f"one of {', '.join(names)}" if names else "no variables"
                raise TypeError(f"{name}: expected {what}, got an unknown {side}")


def check_op(graph: Graph, op: Op, known: OpType) -> None:
    """Raise if an op does not fit its type; the error names slot and index."""
    check_slots(op, known.inputs, known.outputs)
    for slot, names in {**op.inputs, **op.outputs}.items() if known.dense and graph.sparse else ():
        for k, name in enumerate(names):
            if name in graph.sparse:
                raise TypeError(f"{slot}[{k}]: expected a dense variable, got {name!r}, which is sparse")
    known.check(graph, op)


def binder(known: OpType, backend: str) -> Bind:
    """The binder of a type on a machine, by name."""
    if backend != "gpu" or not known.gpu:
        return known.bind
    module, _, name = known.gpu.partition(":")
    bind: Bind = getattr(importlib.import_module(module), name)
    return bind


def _anything(graph: Graph, op: Op) -> None:
    """The check of a type for which checking the slots suffices."""
