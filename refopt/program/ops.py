"""What a program is made of: variables, which name arrays, and ops, which say what is done with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from refopt.checks.arguments import whole
from refopt.dtypes import ITEM_SIZES

ROLES = "forward", "backward", "communicate", "optimize", "startup"
UNKNOWN = (-1,)  # the shape of a buffer, whose padding depends on the machine

Slots = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Var:
    """An array that ops name.

    Attributes:
        name: unique in the program.
        shape: its extents; ``(-1,)`` for a buffer of coalesced tensors.
        dtype: its plain name, such as ``"float32"``.
        persistable: whether it lives from step to step: parameters, states, scalars. The caller brings it to `bind`.
        sparse: whether it is a pair of row numbers, int64 of shape (n,), and rows, shape (n, *shape[1:]), n being
            another in each step; a row may come more than once, and what it holds then adds up.
        initial: what it holds if the caller does not bring it: a number, or the name of the variable whose values it
            starts from; ``None`` if the caller must bring it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    persistable: bool = False
    sparse: bool = False
    initial: float | str | None = None

    def __post_init__(self) -> None:
        where = f"Var: {self.name!r}: shape"
        extents = enumerate(_entries(where, self.shape, "extents"))
        object.__setattr__(self, "shape", tuple(whole(f"{where}[{k}]", extent) for k, extent in extents))
        if self.dtype not in ITEM_SIZES:
            raise TypeError(f"Var: {self.name!r}: dtype: expected one of {', '.join(ITEM_SIZES)}, got {self.dtype!r}")
        if self.shape != UNKNOWN and any(extent < 0 for extent in self.shape):
            raise ValueError(f"{where}: expected extents of at least 0, got {self.shape}")
        if self.sparse and not self.shape:
            raise ValueError(f"{where}: expected at least one axis, that of the rows of a sparse variable, got ()")

    def __str__(self) -> str:
        return f"{self.name}: {'sparse ' if self.sparse else ''}{self.dtype} {self.shape}"


@dataclass(frozen=True)
class Op:
    """One operation of a step.

    Attributes:
        type: what it does: a name of `refopt.catalog.ROUTINES`, that name with ``merged_`` before it, or one of
            `refopt.program.kinds`. A program may hold ops of other types; it is then only for passes, not for `bind`.
        inputs, outputs: by slot, the names of variables. What is changed in place is in both.
        attrs: numbers and choices by name.
        role: one of `ROLES`.
        layer: the layer of the model that it belongs to, if any.
        device: the device that it is placed on; ``None`` for every one.
    """

    type: str
    inputs: Slots = field(default_factory=dict)
    outputs: Slots = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    role: str = "forward"
    layer: str | None = None
    device: int | None = None

    def __post_init__(self) -> None:
        for key in ("inputs", "outputs"):
            slots = {slot: _names(f"Op: {self.type}: {slot}", names) for slot, names in getattr(self, key).items()}
            object.__setattr__(self, key, MappingProxyType(slots))
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))
        if self.role not in ROLES:
            raise ValueError(f"Op: {self.type}: role: expected one of {', '.join(ROLES)}, got {self.role!r}")

    def __hash__(self) -> int:
        return hash((self.type, self.reads, self.writes))

    @property
    def reads(self) -> tuple[str, ...]:
        """All names of the inputs."""
        return tuple(name for names in self.inputs.values() for name in names)

    @property
    def writes(self) -> tuple[str, ...]:
        """All names of the outputs."""
        return tuple(name for names in self.outputs.values() for name in names)

    def replace(self, **changes: Any) -> Op:
        """The op with other fields."""
        return replace(self, **changes)


def _names(where: str, names: Any) -> tuple[str, ...]:
    found = _entries(where, names, "names")
    if isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"{where}: expected a sequence of names, got {names!r}")
    return found


def _entries(where: str, values: Any, kind: str) -> tuple[Any, ...]:
    """What a sequence holds, or anything that can be gone through once."""
    if not isinstance(values, Iterable):
        raise TypeError(f"{where}: expected a sequence of {kind}, got {values!r}")
    return tuple(values)
