"""A case: what some steps of a routine are given. An outcome: what they leave behind, compared bit for bit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.catalog import Routine, Spec
from refopt.checks import flat
from refopt.checks.arguments import kind_of, mapped, shown
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.differing import shown as shown_bits
from refopt.oracle.ulp import same_bits

Outcome = dict[str, list[Any]]


class Case:
    """A routine, its lists of arrays, the hyperparameters of each step, and the named choices.

    ``slots`` has every slot of the routine; gradients and optional entries may be ``None``, and so may an
    optional slot as a whole. Each slot is an attribute, too: ``case.params``. The first step is number ``count`` of the
    tensors, from 1.
    """

    def __init__(
        self,
        routine: Routine,
        slots: dict[str, list[Any] | None],
        steps: list[dict[str, Any]],
        choices: dict[str, Any] | None = None,
        count: int = 1,
    ) -> None:
        row(self.__class__.__name__, routine)
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
        """The case with other slots, ``steps``, ``choices`` or ``count``; what is not named is shared."""
        others = [changed.pop(name, getattr(self, name)) for name in ("steps", "choices", "count")]
        return Case(self.routine, self.slots | changed, *others)

    def copy(self) -> "Case":
        """The same case with arrays of its own, of the same memory order."""
        return self.replace(**{name: values and _copies(values) for name, values in self.slots.items()})

    def fill(self, other: "Case") -> None:
        """Write what the arrays of a case of the same shapes hold into these."""
        for name, values in other.slots.items():
            for x, given in zip(self.slots[name] or (), values or (), strict=True):
                if x is not None:
                    x[...] = given

    def only(self, indices: Sequence[int]) -> "Case":
        """The case of some of the tensors, in the order given."""

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
        """The numbers of the only step for one tensor, ``grad_factor`` among them."""
        step = {name: x for name, x in self.steps[0].items() if name != "found_inf"}
        return {name: _one(x, i) for name, x in step.items()}

    def lists(self) -> dict[str, list[Any]]:
        """Every slot with an entry per tensor."""
        return {name: [None] * len(self) if values is None else values for name, values in self.slots.items()}

    def outcome(self) -> Outcome:
        """The arrays that a step writes, as they are now."""
        return {slot.name: self.lists()[slot.name] for slot in self.routine.slots if slot.written}

    def specs(self) -> list[Spec]:
        """What the tensors with a gradient are to launch and byte counts."""
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


def has(dtype: str) -> bool:
    """Whether NumPy has the dtype here."""
    try:
        numpy_dtype(dtype)
    except ImportError:
        return False
    return True


Run = Callable[[Case], Outcome]


def row(where: str, routine: Any) -> Routine:
    """A row of the catalogue; raises for anything else, a name among it."""
    if not isinstance(routine, Routine):
        raise TypeError(f"{where}: routine: expected a row of refopt.catalog.ROUTINES, got {shown(routine)}")
    return routine


def arguments(routine: Routine, slots: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A routine's lists as its functions take them: required ones by position, optional ones by name."""
    positional = [slots[slot.name] for slot in routine.slots if not slot.optional]
    return positional, {slot.name: slots[slot.name] for slot in routine.slots if slot.optional}


def runner(merged_step: Callable[..., None]) -> Run:
    """What a merged step in the signature of its namesake in `refopt.cpu` makes of a case.

    The step has lists of its own, so that an array put into one is no array changed in place.
    """

    def run(case: Case) -> Outcome:
        before, case = case, case.copy()
        for hyper in case.steps:
            slots = {name: values and list(values) for name, values in case.slots.items()}
            positional, named = arguments(case.routine, slots)
            merged_step(*positional, **named, **hyper, **case.choices)
        for slot in case.routine.slots:
            if not slot.written:
                kept = {slot.name: before.lists()[slot.name]}
                assert_same(kept, case.lists(), "not to be written")
        return case.outcome()

    return run


def assert_same(expected: Outcome, got: Outcome, clause: str) -> None:
    """Raise an AssertionError that names the clause and the first element that differs, or what is no array."""
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


def _copies(arrays: Sequence[np.ndarray | None]) -> list[Any]:
    return [None if x is None else x.copy(order="K") for x in arrays]
