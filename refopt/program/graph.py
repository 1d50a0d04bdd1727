"""Ops over named arrays, with queries: which ops read and write a variable, and where it is in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

from refopt.checks.arguments import chosen, collected, mapped, shown
from refopt.program.model import Op, Var

COUNTED = "type", "role", "layer", "device"


@dataclass(frozen=True)
class Graph:
    """The variables and ops of a program; `refopt.program.Program` adds the public methods.

    Attributes:
        vars: by name; in order.
        startup: ops that run once, before the first step.
        main: the ops of a step.
    """

    vars: Mapping[str, Var]
    startup: tuple[Op, ...] = ()
    main: tuple[Op, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "vars", MappingProxyType(mapped("Program: vars", self.vars)))
        for key, var in self.vars.items() if {*map(type, self.vars.values())} - {Var} else ():
            if not isinstance(var, Var):
                raise TypeError(f"Program: vars[{key!r}]: expected a Var, got {shown(var)}")
        for part in ("startup", "main"):
            ops = collected(f"Program: {part}", getattr(self, part), "ops")
            for k, op in enumerate(ops) if {*map(type, ops)} - {Op} else ():
                if not isinstance(op, Op):
                    raise TypeError(f"Program: {part}[{k}]: expected an Op, got {shown(op)}")
            object.__setattr__(self, part, ops)

    def __hash__(self) -> int:
        return hash((self.startup, self.main))

    def __reduce__(self) -> tuple[Any, ...]:
        """Programs can be copied, and sent to other processes."""
        return type(self), (dict(self.vars), self.startup, self.main)

    def replace(
        self, *, vars: Mapping[str, Var] | None = None, startup: Iterable[Op] | None = None,
        main: Iterable[Op] | None = None,
    ) -> Self:
        """The program with some parts replaced."""
        return type(self)(
            self.vars if vars is None else vars,
            self.startup if startup is None else startup,  # type: ignore[arg-type]  # which becomes a tuple
            self.main if main is None else main,  # type: ignore[arg-type]
        )

    def with_vars(self, new: Iterable[Var]) -> Self:
        """The program with more variables.

        Raises:
            ValueError: the program already has one of that name.
        """
        more: dict[str, Var] = {}
        for k, var in enumerate(collected("program: new", new, "variables")):
            if not isinstance(var, Var):
                raise TypeError(f"program: new[{k}]: expected a Var, got {shown(var)}")
            if var.name in self.vars or var.name in more:
                raise ValueError(f"program: {var.name!r}: expected a new name, got one that the program already has")
            more[var.name] = var
        return self.replace(vars={**self.vars, **more})

    def counts(self, by: str = "type", part: str = "main") -> dict[Any, int]:
        """How many ops there are of each type, role, layer or device, in the order in which they first appear.

        Args:
            by: one of `COUNTED`.
            part: ``"main"`` or ``"startup"``.
        """
        chosen("counts: by", by, COUNTED)
        chosen("counts: part", part, ("main", "startup"))
        return dict(Counter(getattr(op, by) for op in getattr(self, part)))

    @cached_property
    def views(self) -> Mapping[str, tuple[str, ...]]:
        """By name of a buffer that a startup op makes, the variables that become views into it, in memory order."""
        return MappingProxyType({buffer: op.outputs["output"] for buffer, op in self.makers.items()})

    @cached_property
    def makers(self) -> Mapping[str, Op]:
        """By name of a buffer, the startup op that makes it."""
        coalesced = (op for op in self.startup if op.type == "coalesce_tensor")
        return MappingProxyType({op.outputs["fused_output"][0]: op for op in coalesced})

    @cached_property
    def buffer_of(self) -> Mapping[str, str]:
        """By name of a variable that is a view, its buffer."""
        return MappingProxyType({view: buffer for buffer, views in self.views.items() for view in views})

    @cached_property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """By name of a variable that a ``split_by_ref`` op cuts, its blocks, which are views of it."""
        cuts = (op for op in self.main if op.type == "split_by_ref")
        return MappingProxyType({op.inputs["x"][0]: op.outputs["out"] for op in cuts})

    @cached_property
    def whole_of(self) -> Mapping[str, str]:
        """By name of a block, the variable that it belongs to."""
        return MappingProxyType({block: whole for whole, blocks in self.parts.items() for block in blocks})

    @cached_property
    def wholes(self) -> frozenset[str]:
        """Names of the variables that others are views or blocks of."""
        return frozenset((*self.views, *self.parts))

    def memory(self, name: str) -> tuple[str, ...]:
        """The disjoint variables that make up a variable's memory: itself, its views, or its blocks."""
        if not isinstance(name, str):
            raise TypeError(f"memory: name: expected a name, got {shown(name)}")
        if name not in self.wholes:
            return (name,)
        return tuple(cell for view in self.views.get(name, (name,)) for cell in self.parts.get(view, (view,)))

    def cells(self, names: Iterable[str]) -> set[str]:
        """The memory of some variables, as the names of disjoint tensors."""
        cells = set(names)
        return cells if cells.isdisjoint(self.wholes) else {cell for name in cells for cell in self.memory(name)}

    @cached_property
    def sparse(self) -> frozenset[str]:
        """Names of the sparse variables."""
        return frozenset(name for name, var in self.vars.items() if var.sparse)

    @cached_property
    def place_of(self) -> Mapping[str, int]:
        """By name of a view, its index in its buffer."""
        return MappingProxyType({view: k for views in self.views.values() for k, view in enumerate(views)})

    @cached_property
    def users(self) -> Mapping[str, tuple[Sequence[int], Sequence[int]]]:
        """By name of a variable that overlaps no other, places of the ops of a step that read and that write it."""
        by_cell: dict[str, tuple[list[int], list[int]]] = {}
        for i, op in enumerate(self.main):
            for side, names in enumerate((op.reads, op.writes)):
                for cell in self.cells(names):
                    by_cell.setdefault(cell, ([], []))[side].append(i)
        return MappingProxyType(by_cell)

    @cached_property
    def writers(self) -> Counter[str]:
        """By name of a variable that does not overlap others, how many ops of a step change it."""
        return Counter({cell: len(writes) for cell, (_, writes) in self.users.items() if writes})
