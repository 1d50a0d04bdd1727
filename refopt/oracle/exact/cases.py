"""Cases, the inputs of some steps of a routine, and outcomes, the arrays that they leave, compared bit for bit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.catalog import Routine, Spec
from refopt.checks import flat
from refopt.checks.arguments import kind_of, mapped, shown
from refopt.checks.dtypes import lacking
from refopt.oracle.differing import shown as shown_bits
from refopt.oracle.ulp import same_bits

Outcome = dict[str, list[Any]]


class Case:
    """A routine, its lists of arrays, the hyperparameters of each step, and the named choices.

    ``slots`` has every slot of the routine; gradients and optional entries may be ``None``, and so may a whole
    optional slot. Each slot is also an attribute: ``case.params``. The first step has the number ``count``, from 1.
    """

    def __init__(
        self, routine: Routine, slots: dict[str, list[Any] | None], steps: list[dict[str, Any]],
        choices: dict[str, Any] | None = None, count: int = 1,
    ) -> None:
        if not isinstance(routine, Routine):
            raise TypeError(f"Case: routine: expected a row of refopt.catalog.ROUTINES, got {shown(routine)}")
        self.routine, self.steps, self.choices, self.count = routine, steps, choices or {}, count
        mapped(f"Case: slots of {routine.name}", slots, routine.slot_names)
        self.slots = {name: slots.get(name) for name in routine.slot_names}

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("slots", ()):
            return self.slots[name]
        raise AttributeError(name)

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self.params)

    def replace(self, **changed: Any) -> "Case":
        """The case with other slots, ``steps``, ``choices`` or ``count``; the others are shared."""
        others = [changed.pop(name, getattr(self, name)) for name in ("steps", "choices", "count")]
        return Case(self.routine, self.slots | changed, *others)

    def copy(self) -> "Case":
        """The same case with copies of the arrays, in the same memory order."""
        return self.replace(**copied(self.slots))

    def fill(self, other: "Case") -> None:
        """Overwrite the arrays with those of a case of the same shapes."""
        for name, values in other.slots.items():
            for x, given in zip(self.slots[name] or (), values or (), strict=True):
                if x is not None:
                    x[...] = given

    def only(self, indices: Sequence[int]) -> "Case":
        """The case with some of the tensors, in the order given."""

        def pick(values: Any) -> Any:
            return [values[i] for i in indices] if isinstance(values, list) else values

        steps = [{name: pick(value) for name, value in step.items()} for step in self.steps]
        return self.replace(**{name: pick(values) for name, values in self.slots.items()}, steps=steps)

    def part(self, tensor: int, start: int, stop: int) -> "Case":
        """The case with some elements of one of its tensors, in memory order, flat."""
        changed = {}
        for name, values in self.slots.items():
            if values is not None and values[tensor] is not None and name not in self.routine.scalars:
                piece = memory(values[tensor])[start:stop].copy()
                changed[name] = [piece if i == tensor else x for i, x in enumerate(values)]
        return self.replace(**changed)

    def tensor(self, i: int) -> dict[str, Any]:
        """The arrays of one tensor, by slot."""
        return {name: values[i] for name, values in self.lists().items()}

    def numbers_of(self, i: int) -> dict[str, Any]:
        """The numbers of the only step for one tensor, including ``grad_factor``."""
        step = {name: x for name, x in self.steps[0].items() if name != "found_inf"}
        return {name: _one(x, i) for name, x in step.items()}

    def lists(self) -> dict[str, list[Any]]:
        """Every slot with an entry per tensor."""
        return {name: [None] * len(self) if values is None else values for name, values in self.slots.items()}

    def outcome(self) -> Outcome:
        """The arrays that a step writes, in their present state."""
        return {slot.name: self.lists()[slot.name] for slot in self.routine.slots if slot.written}

    def specs(self) -> list[Spec]:
        """The tensors with a gradient, as launch and byte counts take them."""
        columns = list(zip(*self.lists().values(), strict=True))
        rows = [tuple(x if x is None else x.dtype.name for x in column) for column in columns]
        return [Spec(p.size, row) for (p, g, *_), row in zip(columns, rows, strict=True) if g is not None]

    def __repr__(self) -> str:
        columns = zip(*self.lists().values(), strict=True)
        tensors = "; ".join(
            f"{p.shape} {' '.join('None' if x is None else x.dtype.name for x in (p, *rest))}" for p, *rest in columns
        )
        return f"Case({self.routine.name}: {tensors}; steps={self.steps}, choices={self.choices})"


def _one(x: Any, i: int) -> Any:
    return x[i] if isinstance(x, list) else np.ravel(x)[0] if isinstance(x, np.ndarray) else x


def memory(x: np.ndarray) -> np.ndarray:
    """A dense array's elements in memory order."""
    elements = flat(x)
    assert elements is not None
    return elements


def elements_of(case: Case) -> int:
    """The number of elements of all its tensors."""
    return sum(x.size for x in case.params)


def has(dtype: str) -> bool:
    """Whether NumPy has the dtype in this installation."""
    return not lacking(dtype)


Run = Callable[[Case], Outcome]


def arguments(routine: Routine, slots: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A routine's lists as arguments of its functions: required ones by position, optional ones by name."""
    positional = [slots[slot.name] for slot in routine.slots if not slot.optional]
    return positional, {slot.name: slots[slot.name] for slot in routine.slots if slot.optional}


def runner(merged_step: Callable[..., None]) -> Run:
    """A function that runs a case by a merged step with the signature of its namesake in `refopt.cpu`.

    The step gets copies of the lists, so that replacing an array in one does not count as changing it in place.
    """

    def run(case: Case) -> Outcome:
        before, case = case, case.copy()
        for hyper in case.steps:
            slots = {name: values and list(values) for name, values in case.slots.items()}
            positional, named = arguments(case.routine, slots)
            merged_step(*positional, **named, **hyper, **case.choices)
        assert_unwritten(before, case)
        return case.outcome()

    return run


def assert_unwritten(before: Case, after: Case) -> None:
    """Raise an AssertionError if a step has written what it only reads."""
    for slot in before.routine.slots:
        if not slot.written:
            assert_same({slot.name: before.lists()[slot.name]}, after.lists(), "must not be written")


def assert_same(expected: Outcome, got: Outcome, clause: str) -> None:
    """Raise an AssertionError that names the clause and the first element that differs, or is not an array."""
    __tracebackhide__ = True
    assert isinstance(got, Mapping), f"{clause}: expected the arrays of each slot, got {kind_of(got)}"
    for slot, arrays in expected.items():
        values = got.get(slot)
        assert isinstance(values, list | tuple), f"{clause}: {slot}: expected a list of arrays, got {kind_of(values)}"
        assert len(values) == len(arrays), f"{clause}: {slot}: expected {len(arrays)} arrays, got {len(values)}"
        for i, (x, y) in enumerate(zip(arrays, values, strict=True)):
            where = f"{clause}: {slot}[{i}]"
            if x is None:
                assert y is None, f"{where}: expected None, got {kind_of(y)}"
                continue
            assert isinstance(y, np.ndarray), f"{where}: expected an array, got {kind_of(y)}"
            assert x.shape == y.shape, f"{where}: expected shape {x.shape}, got {y.shape}"
            assert x.dtype == y.dtype, f"{where}: expected {x.dtype}, got {y.dtype}"
            x, y = np.ascontiguousarray(x).reshape(-1), np.ascontiguousarray(y).reshape(-1)
            same = same_bits(x, y)
            if not same.all():
                k = int(np.argmin(same))
                raise AssertionError(
                    f"{where}, element {k} of {x.size} {x.dtype} ({(~same).sum()} differ): "
                    f"expected {shown_bits(x[k])}, got {shown_bits(y[k])}"
                )


def copied(lists: Mapping[str, list[Any] | None], order: Any = "K") -> dict[str, Any]:
    """Slots with copies of the arrays, by default in the same memory order."""
    return {
        name: values and [None if x is None else x.copy(order=order) for x in values] for name, values in lists.items()
    }
