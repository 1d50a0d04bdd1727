"""How an op of a routine is run, on tensors or on flat buffers of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from refopt import checks
from refopt.catalog import Routine
from refopt.checks.dtypes import SIZES, arithmetic
from refopt.program import kinds
from refopt.program.backward import Backward
from refopt.program.ops import Op

if TYPE_CHECKING:
    from refopt.program.bound import Bound


class Runner:
    """An op bound to its arrays.

    Attributes:
        run: does it.
        numbers: names of the numbers that steps may change.
    """

    numbers: frozenset[str] = frozenset()

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run

    def check(self, name: str, value: Any) -> None:
        """Raise if a number cannot be what is asked for."""

    def set(self, numbers: Mapping[str, Any]) -> None:
        """Change numbers that have been checked."""

    def check_gradients(self) -> None:
        """Raise if what the caller provides for gradients cannot be written."""
        if isinstance(self.run, Backward):
            self.run.check()


class Update(Runner):
    """An op of a routine, bound to its arrays by a plan."""

    def __init__(self, bound: Bound, op: Op, routine: Routine) -> None:
        self._bound, self._op, self._routine = bound, op, routine
        dtypes = {bound.program.vars[name].dtype for name in op.inputs["params"]}
        # An update of no tensors refuses what other ranks refuse, whose tensors are like those that are here.
        self._dtypes = dtypes or {var.dtype for var in bound.program.vars.values() if var.dtype in SIZES}
        self._count = len(op.inputs["params"])
        own = kinds.advances(op, routine)
        fixed = set() if own else {"beta1", "beta2"}  # what other ops advance the scalars by
        self.numbers = frozenset(hyper.name for hyper in routine.hypers) - fixed
        flat = kinds.is_flat(bound.program, op)
        slots = {slot: [bound.arrays[name] for name in names] for slot, names in op.inputs.items()}
        shared = {slot: slots.pop(slot)[0] for slot in kinds.SHARED if slot in slots}
        backend, before, after = bound.backend, [], []
        for name in routine.scalars if flat else ():
            self._check_equal(op.inputs[name][0])
            slots[name] = [backend.part(slots[name][0], 0, 1)]
        if flat:
            self._check_layouts()
        if not own:
            before.append(self._keep(slots))
        elif flat and routine.scalars:
            after.append(self._spread(slots))
        step = self._step = backend.step(routine, slots, shared, op.attrs)
        if not own or self._shares_scalars():
            before.append(step.refresh)  # what a step has carried on is not what is there
        calls = (*before, step, *after)

        def run() -> None:
            for call in calls:
                call()

        super().__init__(run)

    def check(self, name: str, value: Any) -> None:
        row = next(hyper for hyper in self._routine.hypers if hyper.name == name)
        checks.check_hyper(self._routine, row, value, self._count, {arithmetic(dtype) for dtype in self._dtypes})

    def set(self, numbers: Mapping[str, Any]) -> None:
        if numbers:
            self._step.set(**numbers)

    def _shares_scalars(self) -> bool:
        """Whether another op of a step changes a scalar of this one, too."""
        program = self._bound.program
        own = (name for slot in self._routine.scalars for name in self._op.inputs[slot])
        return any(program.writers[cell] > 1 for name in own for cell in program.memory(name))

    def _keep(self, slots: dict[str, list]) -> Any:
        """Give the routine copies of the scalars, which it may advance; what they are copies of stays."""
        backend, vars = self._bound.backend, self._bound.program.vars
        sources, copies = [], []
        for name in self._routine.scalars:
            sources += slots[name]
            slots[name] = [backend.full((1,), vars[var].dtype, 0.0) for var in self._op.inputs[name]]
            copies += slots[name]
        return backend.cast(sources, copies)

    def _spread(self, slots: dict[str, list]) -> Any:
        """Leave in all scalars of a buffer what the first has become."""
        sources, targets = [], []
        for name in self._routine.scalars:
            others = self._bound.program.views[self._op.inputs[name][0]][1:]
            sources += slots[name] * len(others)
            targets += [self._bound.arrays[view] for view in others]
        return self._bound.backend.cast(sources, targets)

    def _check_equal(self, buffer: str) -> None:
        """One scalar does for all tensors of a buffer only if theirs are equal."""
        first, *others = self._bound.program.views[buffer]
        expected = self._bound.read(first)
        for name in others:
            value = self._bound.read(name)
            if value.tobytes() != expected.tobytes():
                raise ValueError(
                    f"{self._op.type}: {name!r}: expected {expected.item()!r}, as {first!r} has, since a flat step has "
                    f"one scalar for all its tensors, got {value.item()!r}; the merged form has one for each"
                )

    def _check_layouts(self) -> None:
        """Element k of each buffer must belong to the same tensor."""
        backend, arrays, views = self._bound.backend, self._bound.arrays, self._bound.program.views
        places = {}
        for slot, (buffer,) in ((s, n) for s, n in self._op.inputs.items() if s not in kinds.SHARED):
            whole = backend.describe(arrays[buffer], slot)
            item = arrays[buffer].dtype.itemsize
            described = (backend.describe(arrays[view], slot) for view in views[buffer])
            place = [((x.address - whole.address) // item, x.size) for x in described]
            for view, (first, _) in zip(views[buffer], place, strict=True):
                if not 0 <= first < whole.size:
                    raise ValueError(f"{self._op.type}: {slot}: expected {view!r} in its buffer, got it elsewhere")
            if slot not in self._routine.scalars:
                places[slot] = place
        for slot, place in places.items():
            if place != places["params"]:
                raise ValueError(
                    f"{self._op.type}: {slot}: expected tensors where those of params lie in their buffer, "
                    f"{places['params']}, got {place}"
                )
