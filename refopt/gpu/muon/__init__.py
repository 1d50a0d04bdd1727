"""Muon: ``refopt.cpu.muon``, merged, with products on tensor cores.

A step takes three launches, and three more for each iteration, for any number of matrices of any shapes whose arrays
have the same dtypes: `elements` has the former, `refopt.gpu.products` the latter. Between them everything stays on the
device: fp32 for what is made orthogonal, and 16 bits for x, A and B. `matrices` says where.
"""

from typing import Any

import numpy as np

from refopt.checks import Call
from refopt.cpu.blocks import cuts
from refopt.cpu.matmul import tensor_core
from refopt.cpu.muon import COEFFICIENTS, MUON, WHOLE, ratio, schedule
from refopt.gpu import tables
from refopt.gpu.group import Group
from refopt.gpu.launches import Launches
from refopt.gpu.muon.elements import momentum_kernel, normalize_kernel, update_kernel
from refopt.gpu.muon.matrices import Workspace, matrices_of, uploaded
from refopt.gpu.norms import NORM_BOUNDS, UPDATE_BOUNDS
from refopt.gpu.plan import Plan
from refopt.gpu.products import merged, tiles, tiling
from refopt.gpu.tensor_core import MMA

ONE = np.float32(1)


class MuonPlan(Plan):
    """Muon bound to its arrays: a `refopt.gpu.Plan` that takes ``coefficients`` and ``blocks``, too.

    Another number of iterations builds the tables anew.
    """

    def __init__(
        self, slots: dict[str, Any], hypers: dict[str, Any], form: str, stream: Any, shared: dict[str, Any]
    ) -> None:
        own = {"coefficients": COEFFICIENTS, "blocks": WHOLE}
        self._coefficients, self._blocks = (hypers.get(name, default) for name, default in own.items())
        numbers = {name: value for name, value in hypers.items() if name not in own}
        super().__init__(MUON, self._launches_of, slots, numbers, form, stream, shared)

    def _build(self) -> None:
        name, params, compute = MUON.merged_name, self._call.arrays["params"], self._choices["compute"]
        tensor_core(self.device.properties.capability)
        if compute not in MMA:
            raise ValueError(f"{name}: compute: expected one of {', '.join(MMA)} on a device, got {compute}")
        for i, param in enumerate(params):
            if param and param.dtype == "float64":
                raise TypeError(f"{name}: params[{i}]: expected float32, float16 or bfloat16 on a device, got float64")
        self._iterations = int(self._hypers["iterations"])
        triples = schedule(self._coefficients, self._iterations)
        self._triples = np.array(triples if len(triples) > 1 else triples * self._iterations, np.float32).reshape(-1, 3)
        self._cuts = cuts(name, [x for x in params if x], self._blocks)
        self._workspaces: list[Workspace] = []  # kept alive: launches know their addresses
        super()._build()

    def _set(self, hyper: dict[str, Any]) -> None:
        if "iterations" in hyper:
            schedule(self._coefficients, hyper["iterations"])
        super()._set(hyper)
        if self._hypers["iterations"] != self._iterations:
            self._build()

    def _exchange(self, call: Call, bound: Any, moved: Any, values: Any) -> None:
        before = self._call
        super()._exchange(call, bound, moved, values)
        if call is not before and _orders(call) != _orders(before):
            self._build()

    def _launches_of(
        self, group: Group, form: str, *, use_nesterov: bool, average: bool, adjust_lr: str, compute: str
    ) -> Launches:
        """All launches of a step of a group."""
        machine, factor = group.machine, group.factor_dtype if any(group.gate) else None
        matrices = [m for k, i in enumerate(group.members) for m in matrices_of(k, self._cuts[i])]
        count, work = len(matrices), Workspace(machine, matrices)
        aligned = [m.regular() and group.aligned[m.tensor] for m in matrices]
        host = tables.build([m.size for m in matrices], aligned, group.chunk_tiles)
        chunks, nodes = uploaded(machine, host.chunks), uploaded(machine, host.nodes)
        counters = machine.to_device(np.zeros(len(host.nodes), np.uint32))
        sums, norms = group.zeros(2, max(1, host.slots)), group.zeros(max(1, count))
        ratios = [ratio(m.rows, m.columns, adjust_lr, np.float32) for m in matrices]
        places = uploaded(machine, work.table(self._iterations))
        factor_at, found_at = group.gate
        threads, pieces = UPDATE_BOUNDS[0], len(host.chunks) * group.chunk_tiles
        moving = momentum_kernel(group.dtypes, use_nesterov, average, factor)
        args = group.addresses, places, chunks, nodes, counters, sums, norms, group.hypers.values, factor_at, found_at
        steps = [machine.prepare(moving, len(host.chunks), NORM_BOUNDS[0], args)]
        normalize = normalize_kernel(compute, group.chunk_tiles)
        steps.append(machine.prepare(normalize, pieces, threads, (places, chunks, norms)))
        steps += self._iterating(machine, work, compute)
        update = update_kernel(group.dtypes[0], group.dtypes[-1], compute, factor, group.chunk_tiles)
        moved = group.addresses, places, chunks, uploaded(machine, ratios, np.float32), group.hypers.values, found_at
        steps.append(machine.prepare(update, pieces, threads, moved))
        self._workspaces.append(work)
        return Launches(machine, steps)

    def _iterating(self, machine: Any, work: Workspace, compute: str) -> list:
        """The launches of the products."""
        steps, held = [], {}
        for n, (a, b, c) in enumerate(self._triples):
            numbers = ((ONE, ONE), (c, b), (ONE, a))
            for which, products in enumerate(work.products(n)):
                symmetric, key = which < 2, (which, n % 2 if which != 1 else 0)
                if key not in held:
                    cut = tiling(products)
                    held[key] = cut, *(uploaded(machine, x) for x in (tiles(products, symmetric, cut.side), products))
                cut, *pair = held[key]
                made = merged(compute, which == 0, symmetric, which > 0, cut)
                steps.append(machine.prepare(made, pair[0].shape[0], cut.threads, (*pair, *numbers[which]), "whole"))
        return steps


def _orders(call: Call) -> list:
    return [x and x.strides for x in call.arrays["params"]]
