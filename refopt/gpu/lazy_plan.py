"""The interface of lazy steps: tables and sparse gradients, which may be replaced at every step."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt import checks
from refopt.catalog import ROUTINES, Routine
from refopt.checks.dtypes import ACCESSES, arithmetic
from refopt.cpu.lazy import check_lazy, check_range, has_scalars_by_row, lazy_row, parted, sparse
from refopt.gpu import lazy
from refopt.gpu.arrays import describer
from refopt.gpu.exclusive import in_turn
from refopt.gpu.group import HyperBlock
from refopt.gpu.lazy import ALIGNED, COLUMNS, INDICES, NUMBER, OUTSIDE, PLACES, ROWS, START, WORD
from refopt.gpu.plan import Numbered, complete
from refopt.gpu.runtime import Device, machine_of
from refopt.gpu.transfer import Transfer


class Group:
    """The tables of a plan with the same dtypes: their addresses and numbers on the device, and the launches."""

    def __init__(
        self, machine: Device, row: Routine, members: list[int], call: checks.Call, words: Any, firsts: Sequence[int],
        clock: Any,
    ) -> None:
        self._machine, self._row, self._members = machine, row, members
        self._dtypes = call.spec(members[0]).dtypes
        real = arithmetic(self._dtypes[0])  # type: ignore[arg-type]
        self.hypers = HyperBlock(machine, row, real, members)
        self._host = np.zeros((len(members) + 1, len(self._dtypes) + START + 1), np.int64)
        self._own = own = self._host[:, len(self._dtypes):].T
        params = [x for i in members if (x := call.arrays["params"][i])]
        own[ROWS, :-1], own[WORD, :-1] = [x.shape[0] for x in params], [firsts[i] for i in members]
        own[COLUMNS, :-1], own[NUMBER, :-1] = [x.size // max(1, x.shape[0]) for x in params], members
        self._fill(call)
        self._tables = machine.to_device(self._host)
        self._upload = machine.uploader(self._tables)
        by_row, routine = has_scalars_by_row(row), ROUTINES[row.name.removeprefix("lazy_")]
        carried = machine.to_device(np.zeros((max(1, len(routine.scalars)), len(members)), real))
        first, kept = self._row.slot_names.index(routine.scalars[0]) if routine.scalars else 0, len(routine.scalars)
        choices = tuple(sorted((x, call.hypers[x]) for x in row.choices))
        factor = call.shared["grad_factor"].dtype if "grad_factor" in call.shared else "float32"
        gates = [call.shared[x].address if x in call.shared else 0 for x in ("grad_factor", "found_inf")]
        args = self._tables, words, clock
        self._kernels = [
            (lazy.marker(len(self._dtypes), first, 0 if by_row else kept, real), lazy.MARK_BLOCK, 1,
             (*args, carried), ""),
            (lazy.lazy_update(routine, self._dtypes, choices, by_row, factor), lazy.BLOCK, 32,
             (*args, self.hypers.values, carried, *gates), "overlapping"),
        ]
        self.launches, self._room = len(self._kernels), 0

    def _fill(self, call: checks.Call) -> int:
        """Write what may differ from step to step to the table; returns the number of occurrences."""
        own, count = self._own, len(self._dtypes)
        for n, name in enumerate(self._row.slot_names):
            self._host[:-1, n] = [x.address if (x := call.arrays[name][i]) else 0 for i in self._members]
        indices = [x for i in self._members if (x := call.arrays["indices"][i])]
        own[INDICES, :-1], own[START, 1:] = [x.address for x in indices], np.cumsum([x.size for x in indices])
        units = [ACCESSES[dtype] if dtype and slot.like_param else 1
                 for slot, dtype in zip(self._row.slots, self._dtypes, strict=True)]
        own[ALIGNED] = (self._host[:, :count] % units == 0).all(1) & (own[COLUMNS] % 4 == 0)
        return int(own[START, -1])

    def take(self, call: checks.Call, stream: Any) -> None:
        """Take other sparse gradients, in stream order."""
        before = self._host.copy()
        total = self._fill(call)
        if (self._host != before).any():
            self._upload(0, self._host.reshape(-1), stream)
        if total > self._room or not self._room:
            self._room = max(2 * self._room, total, 1)
            self.run = self._machine.sequence([
                self._machine.prepare(of, -(-self._room * threads // block), block, args, mode)
                for of, block, threads, args, mode in self._kernels
            ])


class LazyPlan(Numbered):
    """`refopt.cpu.merged_lazy` bound to its arrays. Made by `refopt.gpu.lazy_plan`.

    The plan keeps the arrays alive; their memory must not move. It has 16 bytes of scratch memory for each row. Calls
    from several threads run one after another; a plan cannot be copied.

    The host does not see the indices. An occurrence whose index is no row of its table is left out, and nothing
    outside the table is read or written; `check_indices` raises if there has been one.

    Attributes:
        launches: kernel launches of one step: two for each combination of dtypes.
    """

    def __init__(
        self, routine: str, params: Any, indices: Any, values: Any, states: Sequence[Any], count: str, stream: Any,
        arguments: Mapping[str, Any],
    ) -> None:
        self.routine = lazy_row(routine, count)
        super().__init__(machine_of(params, indices, values), stream, self.routine.merged_name)
        self._describe = describer(self.device.name, self.device.index)
        self._begin(*parted(self.routine, params, states, arguments), indices, values)

    @in_turn
    def _begin(self, slots: dict, hypers: dict, shared: dict, indices: Any, values: Any) -> None:
        numbers = complete(self.routine, hypers)
        call = check_lazy(self.routine, slots, indices, values, numbers, self._describe, shared)
        self._take(call, hypers)
        self._sizes = [param.shape[0] for param in call.arrays["params"] if param]
        scratch = self.device.to_device(np.zeros(max(1, 2 * sum(self._sizes)), np.int64))
        self._clock = self.device.to_device(np.zeros(3, np.int64))
        firsts = np.cumsum([0, *(2 * rows for rows in self._sizes)])[:-1].tolist()
        self._group = partial(Group, self.device, self.routine, words=scratch, firsts=firsts, clock=self._clock)
        self._build(call)

    def _build(self, call: checks.Call) -> None:
        self._call = call
        members: dict[tuple, list[int]] = {}
        for i in call.active:
            members.setdefault(call.spec(i).dtypes, []).append(i)
        self._groups = [self._group(members=each, call=call) for each in members.values()]
        self._upload(self._hypers)
        for group in self._groups:
            group.take(call, self._stream)
        self.launches = sum(group.launches for group in self._groups)

    @in_turn
    def step(self, **hyper: Any) -> None:
        """One step, in stream order. Hyperparameters given here also apply to later steps."""
        self._before(hyper)
        for group in self._groups:
            group.run(self._stream)

    __call__ = step

    @in_turn
    def rebind(self, indices: Any, values: Any) -> None:
        """Replace the sparse gradients, in stream order, for the next step or the next replay of a captured one.

        Their lengths may differ from those before. If other tables have gradients, or dtypes change, the tables on the
        device are built anew, and graphs that were captured before must not be replayed.
        """
        self._refuse_capture("indices", "rebind")
        call, before = sparse(self._call, indices, values, self._describe), self._call
        now, then = ([x and x.dtype for x in each.arrays["grads"]] for each in (call, before))
        if now != then:
            self._build(call)
            return
        self._call = call
        for group in self._groups:
            group.take(call, self._stream)

    def refresh(self) -> None:
        """As that of other plans; nothing to do, since each step reads the scalars again."""

    @in_turn
    def set(self, **hyper: Any) -> None:
        """Change hyperparameters, in stream order, for the next step or the next replay of a captured one."""
        self._set(hyper)

    @in_turn
    def _refuse_outside(self) -> None:
        """Copy the indices of the next step to the host, and raise a ValueError if one is no row of its table."""
        for i, array in enumerate(self._call.arrays["indices"]):
            if array:
                given = self._call.slots["indices"][i]
                host = Transfer(given, self._stream, self._name).read(given, array)
                check_range(self.routine, i, host, self._sizes[i])

    @in_turn
    def check_indices(self) -> None:
        """Wait for the device, and raise a ValueError if an index of any step so far was no row of its table."""
        self.device.synchronize()
        if outside := int(self._clock.copy_to_host()[OUTSIDE]):
            i, k = divmod(outside - 1, PLACES)
            expected = f"expected a row from 0 to {self._sizes[i] - 1}"
            raise ValueError(f"{self._name}: indices[{i}][{k}]: {expected}, got another number; it was left out")


def lazy_plan(
    routine: str, params: Any, indices: Any, values: Any, *states: Any, count: str = "global", stream: Any = 0,
    **arguments: Any,
) -> LazyPlan:
    """Bind `refopt.cpu.merged_lazy` to its arrays on the device; its numbers may be given at a step.

    Args:
        routine, params, indices, values, states, count, arguments: as there, with device arrays.
        stream: the stream that steps run on; the legacy default stream if not given.
    """
    return LazyPlan(routine, params, indices, values, states, count, stream, arguments)


def merged_lazy(
    routine: str, params: Any, indices: Any, values: Any, *states: Any, count: str = "global", stream: Any = 0,
    **arguments: Any,
) -> None:
    """`refopt.cpu.merged_lazy` for device arrays; the indices are copied to the host, and checked before the step."""
    plan = LazyPlan(routine, params, indices, values, states, count, stream, arguments)
    plan._refuse_outside()
    plan()
    plan.device.synchronize()
