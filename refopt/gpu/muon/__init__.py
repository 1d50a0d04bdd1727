"""Muon and NorMuon: ``refopt.cpu.muon``, merged, with products on tensor cores.

A step takes three launches, of NorMuon five, and three more for each standard iteration, for any number of matrices of
any shapes whose arrays have the same dtypes: `elements` and `rows` have the former, `refopt.gpu.products` the latter.
`iterations` says how many there are with restarts. Between them everything stays on the device, in the memory of
`matrices`: the matrix to orthogonalize in the arithmetic type, and x and its squares in the dtype of the iterations.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks import Call, check_hyper
from refopt.checks.dtypes import arithmetic
from refopt.cpu.blocks import Cut, cuts_of
from refopt.cpu.matmul import tensor_core
from refopt.cpu.muon import ratio
from refopt.cpu.newton_schulz import restarting, schedule, takes_gram
from refopt.gpu import tables
from refopt.gpu.group import Group
from refopt.gpu.launches import Launches
from refopt.gpu.muon import rows
from refopt.gpu.muon.elements import momentum_kernel, normalize_kernel, update_kernel
from refopt.gpu.muon.iterations import launches, stages
from refopt.gpu.muon.matrices import Workspace, matrices_of, uploaded
from refopt.gpu.norms import NORM_BOUNDS, UPDATE_BOUNDS
from refopt.gpu.plan import Plan
from refopt.gpu.tensor_core import MMA

COMPUTED = {"float32": (*MMA, "float32"), "float64": ("float64",)}  # by the arithmetic type


class MuonPlan(Plan):
    """Muon or NorMuon bound to its arrays: a `refopt.gpu.Plan` with ``coefficients``, ``restarts`` and ``blocks``.

    A change of the number of iterations rebuilds the tables.
    """

    def __init__(
        self, routine: Routine, slots: dict[str, Any], hypers: dict[str, Any], form: str, stream: Any,
        shared: dict[str, Any],
    ) -> None:
        numbers, own = routine.parted(hypers)
        own = {**routine.own, **own}
        self._coefficients, self._restarts, self._blocks = own["coefficients"], own["restarts"], own["blocks"]
        super().__init__(routine, self._launched, slots, numbers, form, stream, shared)

    def _build(self) -> None:
        name, params, compute = self.routine.merged_name, self._call.arrays["params"], self._choices["compute"]
        for i, param in enumerate(params):
            if param and compute not in (kinds := computed(param.dtype)):
                expected = f"expected one of {', '.join(kinds)} on a device for params[{i}] of {param.dtype}"
                raise ValueError(f"{name}: compute: {expected}, got {compute}")
        if compute in MMA:
            tensor_core(self.device.properties.capability)
        self._iterations = int(self._hypers["iterations"])
        triples, self._starts = self._schedule(self._iterations)
        self._triples = np.array(triples, arithmetic(compute)).reshape(-1, 3)
        self._cuts = cuts_of(self.routine, self._call.arrays, self._blocks)
        self._workspaces: list[Workspace] = []  # kept alive, since launches use their addresses
        super()._build()

    def _set(self, hyper: dict[str, Any]) -> None:
        if "iterations" in hyper:
            rows, number = self._rows, hyper["iterations"]
            counted: Any = check_hyper(self.routine, rows["iterations"], number, self._count, self._reals)
            self._schedule(int(counted))
        super()._set(hyper)
        if self._hypers["iterations"] != self._iterations:
            self._build()

    def _schedule(self, iterations: int) -> tuple[list, tuple[int, ...] | None]:
        name, compute = self.routine.merged_name, self._choices["compute"]
        triples = schedule(f"{name}: coefficients", self._coefficients, iterations)
        return triples, restarting(f"{name}: restarts", self._restarts, iterations, compute)

    def _exchange(self, call: Call, bound: Any, moved: Any, values: Any, aligned: bool = False) -> None:
        before = self._call
        super()._exchange(call, bound, moved, values, aligned)
        if call is not before and _orders(call) != _orders(before):
            self._build()

    def _launched(self, group: Group, form: str, **choices: Any) -> Launches:
        """All launches of a step of a group."""
        cut = [self._cuts[i] for i in group.members]
        made, work = launches_of(group, cut, self._triples, self._starts, **choices)
        self._workspaces.append(work)
        return made


def computed(dtype: str) -> tuple[str, ...]:
    """The dtypes in which a device can run the iterations for parameters of a dtype."""
    return COMPUTED["float64" if dtype == "float64" else "float32"]


def launches_of(
    group: Group, cut: Sequence[Cut], triples: np.ndarray, restarts: tuple[int, ...] | None, *, use_nesterov: bool,
    average: bool, adjust_lr: str, compute: str,
) -> tuple[Launches, Workspace]:
    """All launches of a step of a group, and the memory that they use.

    Args:
        group: of tensors that have matrices.
        cut: how each of its tensors is cut.
        triples: (iterations, 3), coefficients in the arithmetic type of the iterations.
        restarts: those of Gram Newton-Schulz, or None.
        use_nesterov, average, adjust_lr, compute: the choices.
    """
    machine, factor = group.machine, group.factor_dtype if any(group.gate) else None
    matrices = [m for k, parts in enumerate(cut) for m in matrices_of(k, parts)]
    gram = [takes_gram(m.rows, m.columns, restarts) for m in matrices]
    count, work = len(matrices), Workspace(machine, matrices, compute, group.real, gram)
    every, last = stages(triples, restarts)
    aligned = [m.regular() and group.aligned[m.tensor] for m in matrices]
    host = tables.build([m.size for m in matrices], aligned, group.chunk_tiles)
    chunks, nodes = uploaded(machine, host.chunks), uploaded(machine, host.nodes)
    counters = machine.to_device(np.zeros(len(host.nodes), np.uint32))
    sums, norms = group.zeros(2, max(1, host.slots)), group.zeros(max(1, count))
    ratios = [ratio(m.rows, m.columns, adjust_lr, group.real) for m in matrices]
    places = uploaded(machine, work.table(last))
    factor_at, found_at = group.gate
    threads, pieces = UPDATE_BOUNDS[0], len(host.chunks) * group.chunk_tiles
    moving = momentum_kernel(group.dtypes, use_nesterov, average, factor)
    args = group.addresses, places, chunks, nodes, counters, sums, norms, group.hypers.values, factor_at, found_at
    steps = [machine.prepare(moving, len(host.chunks), NORM_BOUNDS[0], args)]
    normalize = normalize_kernel(group.real, compute, group.chunk_tiles)
    steps.append(machine.prepare(normalize, pieces, threads, (places, chunks, norms)))
    steps += launches(machine, work, every, compute)
    own = rows.none(group)
    if any(slot.by_row for slot in group.routine.slots):
        own, between = rows.launches(group, matrices, compute, places, factor)
        steps += between
    update = update_kernel(group.routine, group.dtypes, compute, factor, group.chunk_tiles)
    moved = group.addresses, places, chunks, uploaded(machine, ratios, group.real), group.hypers.values, *own, found_at
    steps.append(machine.prepare(update, pieces, threads, moved))
    return Launches(machine, steps), work


def _orders(call: Call) -> list:
    return [x and x.strides for x in call.arrays["params"]]
