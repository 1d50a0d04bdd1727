"""The parts of a routine: slots, numbers, named choices and forms. `refopt.catalog` has a row for each routine."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

from refopt.checks.dtypes import bytes_of


class Slot(NamedTuple):
    """One list of arrays of a routine: tensors, or a ``scalar`` per tensor that is passed from step to step.

    ``signed`` says whether its elements may be negative. ``initial`` is the value of a scalar before the first step: a
    number, or the name of the hyperparameter whose running powers it holds (numerics, N9). ``by_row`` marks states with
    a number for each row of each matrix, in the arithmetic type.
    """

    name: str
    written: bool = True
    optional: bool = False
    scalar: bool = False
    signed: bool = True
    initial: float | str | None = None
    by_row: bool = False

    @property
    def like_param(self) -> bool:
        """Whether its arrays have the shape of the parameters."""
        return not self.scalar and not self.by_row


class Hyper(NamedTuple):
    """One number of a routine, at least 0. If ``default`` is None, the caller must pass it."""

    name: str
    default: float | None
    positive: bool = False
    per_tensor: bool = True
    below: float = math.inf
    whole: bool = False

    @property
    def other(self) -> float:
        """A number other than the default, for checks whose tables do not list its name."""
        if self.whole:
            return 1 if self.default == 0 else 0
        return 0.75 * (self.default or min(1.0, self.below))

    def allows(self, x: float) -> bool:
        """Whether it may have this value."""
        least = x > 0 if self.positive else x >= 0
        return least and x < self.below and (not self.whole or x == int(x))

    def times(self, x: float, factor: float) -> float:
        """An allowed number times a factor; if the bound is 1 or less, that many times closer to the bound."""
        return x * factor if self.below > 1 or factor <= 1 else self.below - (self.below - x) / factor

    def usual(self, table: Mapping[str, float]) -> float:
        """The value in a table under its name, if that is allowed, or else `other`."""
        return table[self.name] if self.name in table and self.allows(table[self.name]) else self.other


class Limit(NamedTuple):
    """The allowed values of a hyperparameter, as in `Hyper`: by default at least 0, and one or one per tensor."""

    positive: bool = False
    per_tensor: bool = True
    below: float = math.inf
    whole: bool = False


FRACTION = Limit(below=1.0)


class Spec(NamedTuple):
    """A tensor for counts of launches and bytes: its elements and the dtype of each slot, None if absent."""

    size: int
    dtypes: tuple[str | None, ...]


class Form(NamedTuple):
    """One way to run a routine on the device: launches for one dtype signature, merged or for each tensor.

    ``usual`` marks the form that plans use, if it is not the first merged one. ``iterated`` are the additional launches
    for each of the routine's ``iterations``.
    """

    launches: int
    merged: bool = True
    norm_reads_param: bool = True
    usual: bool = False
    iterated: int = 0


class _Row(NamedTuple):
    name: str
    slots: tuple[Slot, ...]
    hypers: tuple[Hyper, ...]
    choices: Mapping[str, tuple]
    forms: Mapping[str, Form]
    traffic: Callable[..., dict[str, int]]
    source: str
    rule: Callable[..., tuple]
    trial: Mapping[str, float]
    elementwise: bool
    norms: int = 0
    own: Mapping[str, Any] = {}
    matrix_arguments: Callable[..., list[dict[str, Any]]] | None = None


class Routine(_Row):
    """A routine: its slots in order, its numbers, its named choices (the first is the default), its forms.

    ``rule`` is the routine's formula in `refopt.cpu`: ``(p, g, *states, *scalars, **numbers)``, as `refopt.cpu.merged`
    calls it. ``trial`` has numbers for ``refopt verify`` if the usual ones would make the gradient negligible.
    ``elementwise`` says that elements are updated independently: in one pass, by the kernel that such routines share.
    ``norms`` is how many norms of a tensor a rule takes, in one order: each by `refopt.cpu.reduce.sum_of_squares`.
    ``own`` has the function's arguments other than numbers and choices, with their defaults, and
    ``matrix_arguments(row, arrays, numbers, **own)`` returns more arguments of the rule for each tensor, then always a
    matrix or several; ``arrays`` are those of a call, by slot.

    Raises:
        TypeError: when a row is constructed, naming what is missing or misplaced.
    """

    __slots__ = ()

    def __new__(cls, *fields: Any, **named: Any) -> Self:
        row = super().__new__(cls, *fields, **named)
        _check(row)
        return row

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def merged_name(self) -> str:
        return "merged_" + self.name

    @property
    def states(self) -> tuple[str, ...]:
        """The slots of tensors that a step changes, apart from the parameters."""
        return tuple(
            slot.name for slot in self.slots
            if slot.written and not slot.scalar and slot.name not in ("params", "master_params")
        )

    @property
    def scalars(self) -> tuple[str, ...]:
        """The slots of scalars."""
        return tuple(slot.name for slot in self.slots if slot.scalar)

    @property
    def carried(self) -> tuple[str, ...]:
        """The states and scalars, in slot order, which a rule takes and returns in addition to the parameter."""
        own = {*self.states, *self.scalars}
        return tuple(name for name in self.slot_names if name in own)

    @property
    def merged_form(self) -> str:
        """The form that plans use."""
        merging = [name for name, form in self.forms.items() if form.merged]
        return next((name for name in merging if self.forms[name].usual), merging[0])

    @property
    def defaults(self) -> dict[str, Any]:
        """The arguments other than arrays by name, with their defaults; ``None`` for a number without one."""
        numbers = {hyper.name: hyper.default for hyper in self.hypers}
        return numbers | {choice: values[0] for choice, values in self.choices.items()} | {**self.own}

    def parted(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments by name, split into those that are not in ``own`` and those that are."""
        own = {name: x for name, x in arguments.items() if name in self.own}
        return {name: x for name, x in arguments.items() if name not in own}, own

    @property
    def whole(self) -> str:
        """Why tensors cannot be split; empty for elementwise routines."""
        needed = "iterates matrices, each as a whole" if self.matrix_arguments else "has norms of tensors"
        return "" if self.elementwise else f"{self.name} {needed}"

    @property
    def of_each(self) -> frozenset[str]:
        """The arguments that may be a list with one value per tensor."""
        return frozenset([*(hyper.name for hyper in self.hypers if hyper.per_tensor), *({"blocks"} & self.own.keys())])

    @property
    def slot_names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)

    def launches(self, specs: Iterable[Spec], form: str, iterations: float = 0) -> int:
        """Launches of one step: separate for each dtype signature, none for tensors without elements or scalars."""
        specs = [spec for spec in specs if spec.size or self.scalars]
        units = {spec.dtypes for spec in specs} if self.forms[form].merged else specs
        return len(units) * (self.forms[form].launches + int(iterations) * self.forms[form].iterated)

    def bytes(self, specs: Iterable[Spec], form: str, **choices: Any) -> int:
        """Bytes of tensors that one step reads and writes, without tables, scalars, partial sums and states by row."""
        total = 0
        for spec in specs:
            passes = self.traffic(self.forms[form], spec.dtypes, **choices)
            dtypes = {n: d for n, d in zip(self.slot_names, spec.dtypes, strict=True) if d}
            total += sum(passes.get(name, 0) * bytes_of(dtype, spec.size) for name, dtype in dtypes.items())
        return total


def _check(row: Routine) -> None:
    """Refuse a row that functions, plans or kernels could not implement."""
    expect = partial(_expect, row.name)
    slots, hypers = [slot.name for slot in row.slots], [hyper.name for hyper in row.hypers]
    expect(slots[:2] == ["params", "grads"], "slots: expected params and grads first", slots)
    masters = slots[-1] == "master_params" and row.slots[-1].optional
    expect(masters, "slots: expected optional master_params last", slots)
    written = {slot.name for slot in row.slots if slot.written}
    expect(written == {*slots} - {"grads"}, "slots: expected all but grads to be written", sorted(written))
    names = [*slots, *hypers, *row.choices]
    expect(len({*names}) == len(names), "expected each name for only one slot, number or choice", names)
    _check_initial(row, hypers)
    expect("rescale_grad" in hypers, "hypers: expected rescale_grad", hypers)
    if row.elementwise:
        expect(hypers[-1] == "seed", "hypers: expected seed last, as elementwise kernels take it", hypers)
        expect("rounding" in row.choices, "choices: expected rounding, as elementwise kernels take it", row.choices)
    for name, values in row.choices.items():
        expect(len(values) > 1, f"choices: {name}: expected two values or more", map(repr, values))
    merging = not row.forms or any(form.merged for form in row.forms.values())
    expect(merging, "forms: expected none or at least one merged", row.forms)
    _check_traffic(row, slots)


def _expect(routine: str, holds: bool, what: str, got: Iterable[str]) -> None:
    if not holds:
        raise TypeError(f"catalog: {routine}: {what}, got {', '.join(got) or 'none'}")


def _check_initial(row: Routine, hypers: list[str]) -> None:
    """Check initial values: a scalar starts as a number or a hyperparameter, other slots as zeros."""
    for slot in row.slots:
        first = slot.initial
        known = isinstance(first, float) or first in hypers if slot.scalar else first is None
        what = "a number or a hyperparameter" if slot.scalar else "none, since it is not a scalar"
        got = [] if first is None else [repr(first)]
        _expect(row.name, known, f"slots: {slot.name}: initial: expected {what}", got)


def _check_traffic(row: Routine, slots: list[str]) -> None:
    """Check that each form counts passes over every required slot of tensors, and only over slots."""
    expect = partial(_expect, row.name)
    for name, form in row.forms.items():
        passes = row.traffic(form, ("float32",) * len(slots))
        expect({*passes} <= {*slots}, f"traffic: {name}: expected passes over slots", passes)
        tensors = [slot.name for slot in row.slots if slot.like_param and not slot.optional]
        missing = [f"none over {slot}" for slot in tensors if not passes.get(slot)]
        expect(not missing, f"traffic: {name}: expected passes over every slot", missing)
