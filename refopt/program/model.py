"""The parts of a program: variables, which name arrays, and ops, which say what to do with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import collected, flag, is_whole, mapped, number, shown, whole
from refopt.checks.dtypes import ITEM_SIZES

ROLES = "forward", "backward", "communicate", "optimize", "startup"
UNKNOWN = (-1,)  # the shape of a buffer, whose padding depends on the machine

AXES = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32  # the most axes of a NumPy array
BYTES = 2**63 - 1
# Numbers from here on round to inf: the largest number plus half a step.
_LARGEST = {
    "float16": 2.0**16 - 2.0**4, "bfloat16": 2.0**128 - 2.0**119, "float32": 2.0**128 - 2.0**103, "float64": math.inf,
}

_FIELDS = frozenset(["inputs", "outputs", "attrs", "role", "layer", "device"])  # of an op, other than its type
Slots = Mapping[str, tuple[str, ...]]


class Part(NamedTuple):
    """The part of a whole variable that another variable holds.

    Attributes:
        name, shape: of the whole, which the program need not contain.
        first: the index of the first element, in C order.
    """

    name: str
    shape: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Var:
    """An array that ops name.

    Attributes:
        name: unique in the program.
        shape: its extents; ``(-1,)`` for a buffer of coalesced tensors.
        dtype: its plain name, such as ``"float32"``.
        persistable: whether it lives from step to step: parameters, states, scalars. The caller passes it to `bind`.
        sparse: whether it is a pair of row numbers, int64 of shape (n,), and rows, of shape ``(n, *shape[1:])``; n may
            change in each step, and repeated rows are added up.
        initial: its value if the caller does not provide it: a number of its dtype, or the name of the variable that it
            is copied from; ``None`` if the caller must provide it.
        part: for a variable that holds a run of another one's elements, flat or as rows, which part it is: a checkpoint
            has the whole. If it is copied from a variable, it gets the same part of that.

    Raises:
        TypeError, ValueError: naming the variable and the field.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    persistable: bool = False
    sparse: bool = False
    initial: float | str | None = None
    part: Part | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"Var: name: expected a name, got {shown(self.name)}")
        where = f"Var: {self.name!r}"
        if not isinstance(self.dtype, str) or self.dtype not in ITEM_SIZES:
            raise TypeError(f"{where}: dtype: expected one of {', '.join(ITEM_SIZES)}, got {shown(self.dtype)}")
        own = vars(self)  # a frozen dataclass can be set only so
        own["shape"] = extents_of(f"{where}: shape", self.shape, ITEM_SIZES[self.dtype], UNKNOWN)
        for key in ("persistable", "sparse"):
            if type(own[key]) is not bool:
                own[key] = flag(f"{where}: {key}", own[key])
        if self.initial is not None and not isinstance(self.initial, str):
            own["initial"] = _initial(f"{where}: initial", self.initial, self.dtype)
        if self.sparse and not self.shape:
            expected = "expected at least one axis, that of the rows of a sparse variable"
            raise ValueError(f"{where}: shape: {expected}, got ()")
        if self.part is not None:
            _check_part(f"{where}: part", self.part, self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {'sparse ' if self.sparse else ''}{self.dtype} {self.shape}"


@dataclass(frozen=True)
class Op:
    """One operation of a step.

    Attributes:
        type: what it does: a name of `refopt.catalog.KNOWN`, that name prefixed by ``merged_``, or one of
            `refopt.program.ops`. A program with ops of other types is for passes only, not for `bind`.
        inputs, outputs: by slot, the names of variables. A variable changed in place is in both.
        attrs: numbers and choices by name.
        role: one of `ROLES`.
        layer: the layer of the model that it belongs to, if any.
        device: the device that it is placed on; ``None`` for all.
        reads, writes: all names of the inputs, and of the outputs.

    Raises:
        TypeError, ValueError: naming the op's type and the field.
    """

    type: str
    inputs: Slots = field(default_factory=dict)
    outputs: Slots = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    role: str = "forward"
    layer: str | None = None
    device: int | None = None
    reads: tuple[str, ...] = field(init=False, repr=False, compare=False)
    writes: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            raise TypeError(f"Op: type: expected a name, got {shown(self.type)}")
        self._settle(_FIELDS)

    def _settle(self, keys: Collection[str]) -> None:
        """Check fields other than the type, and store them as immutable values."""
        own, kind, role, layer = vars(self), self.type, self.role, self.layer
        if "inputs" in keys:
            own["inputs"], own["reads"] = _slots(kind, "inputs", own["inputs"])
        if "outputs" in keys:
            own["outputs"], own["writes"] = _slots(kind, "outputs", own["outputs"])
        if "attrs" in keys:
            own["attrs"] = MappingProxyType(mapped(f"Op: {kind}: attrs", own["attrs"]))
        if not isinstance(role, str) or role not in ROLES:
            raise ValueError(f"Op: {kind}: role: expected one of {', '.join(ROLES)}, got {shown(role)}")
        if layer is not None and not isinstance(layer, str):
            raise TypeError(f"Op: {kind}: layer: expected a name or None, got {shown(layer)}")
        if own["device"] is not None:
            own["device"] = whole(f"Op: {kind}: device", own["device"], 0)

    def __reduce__(self) -> tuple[Any, ...]:
        """Ops can be copied and sent to other processes, though their read-only mappings cannot."""
        sides = dict(self.inputs), dict(self.outputs)
        return type(self), (self.type, *sides, dict(self.attrs), self.role, self.layer, self.device)

    def __hash__(self) -> int:
        return hash((self.type, self.reads, self.writes))

    def replace(self, **changes: Any) -> Op:
        """The op with other fields."""
        own, kind = vars(self), changes.pop("type", self.type)
        if type(kind) is not str or not kind or not changes.keys() <= _FIELDS:
            return replace(self, type=kind, **changes)
        op = object.__new__(type(self))  # unchanged fields have been checked
        vars(op).update(own, **changes, type=kind)
        op._settle(changes)
        return op

    def with_names(self, names_of: Callable[[str, tuple[str, ...]], Iterable[str]], **changes: Any) -> Op:
        """The op with other variables, from a function of slot and names, and with other fields."""
        inputs, outputs = (
            {slot: tuple(names_of(slot, names)) for slot, names in side.items()} for side in (self.inputs, self.outputs)
        )
        return self.replace(inputs=inputs, outputs=outputs, **changes)


def extents_of(where: str, shape: Any, item: int, unknown: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """A shape as a tuple of ints, for an array of ``item`` bytes per element that NumPy can describe.

    The ``unknown`` shape is accepted; an error names the shape, or the index of an extent.
    """
    if type(shape) is not tuple or not {int}.issuperset(map(type, shape)):
        extents = collected(where, shape, "extents")
        shape = tuple(whole(f"{where}[{k}]", extent) for k, extent in enumerate(extents))
    if shape == unknown:
        return shape
    if min(shape, default=0) < 0:
        raise ValueError(f"{where}: expected extents of at least 0, got {shown(shape)}")
    if len(shape) > AXES:
        raise ValueError(f"{where}: expected at most {AXES} axes, got {len(shape)}")
    if math.prod(filter(None, shape)) * item > BYTES:
        raise ValueError(f"{where}: expected at most 2**63 - 1 bytes, got {shown(shape)} of {item} bytes per element")
    return shape


def _check_part(where: str, part: Any, shape: tuple[int, ...]) -> None:
    """Raise unless a variable is a run of elements of its whole."""
    if not isinstance(part, Part) or not isinstance(part.name, str):
        raise TypeError(f"{where}: expected a Part, got {shown(part)}")
    size = math.prod(extents_of(f"{where}: shape", part.shape, 1))
    rows = len(shape) == len(part.shape) and shape[1:] == part.shape[1:]
    if not (rows or len(shape) == 1) or whole(f"{where}: first", part.first, 0) + math.prod(shape) > size:
        expected = f"expected some of the {size} elements of {part.name!r}, from {part.first}"
        raise ValueError(f"{where}: {expected}, got shape {shape}")


def _initial(where: str, value: Any, dtype: str) -> float:
    """A valid initial value for a dtype; floating-point dtypes round it, others must represent it."""
    if dtype == "bool":
        return flag(where, bool(value) if is_whole(value) and value in (0, 1) else value)
    if dtype in _LARGEST:
        converted = value if type(value) is float else number(where, value)
        if math.isnan(converted) or _LARGEST[dtype] <= abs(converted) < math.inf:
            raise ValueError(f"{where}: expected a number of {dtype}, got {shown(value)}")
        return converted
    bits, signed = 8 * ITEM_SIZES[dtype], dtype.startswith("int")
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    least = -(2 ** (bits - 1)) if signed else 0
    return whole(where, value, least, least + 2**bits - 1)


def _slots(kind: str, key: str, value: Any) -> tuple[Slots, tuple[str, ...]]:
    """The names of variables by slot, and all of them; raises for anything else."""
    slots = mapped(f"Op: {kind}: {key}", value)
    every: list[str] = []
    for slot, entries in slots.items():
        names = entries if type(entries) is tuple else collected(f"Op: {kind}: {slot}", entries, "names")
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"Op: {kind}: {slot}: expected a sequence of names, got {shown(entries)}")
        slots[slot] = names
        every += names
    return MappingProxyType(slots), tuple(every)
