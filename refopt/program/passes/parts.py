"""Writing the program of a rank that has a part of each buffer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.dtypes import ITEM_SIZES, arithmetic, stored_shape
from refopt.program.model import UNKNOWN, Op, Part, Var
from refopt.program.ops.coalescing import TILE
from refopt.program.ops.mixed_precision import tiles_of
from refopt.program.ops.updates import MERGED, SHARED, norms_of, routine_of
from refopt.program.passes.cast import without_masters
from refopt.program.passes.coalesce import coalesce_op
from refopt.program.passes.dependencies import among
from refopt.program.passes.owners import added_up, nothing_of, part_of, updates_of
from refopt.program.passes.place import on_device
from refopt.program.program import Program

PAIRS = "cast", "sum", "scale"  # gradients from gradients, element by element


class Tensor(NamedTuple):
    """A parameter that can be cut.

    Attributes:
        param, grad: names, the gradient as the update reads it.
        sources: the gradients that are summed over ranks: that one, or those of micro-steps that it is computed from.
        made: what is computed from the sums.
        reduced: place of the first sum.
        updated: place of the update.
    """

    param: str
    grad: str
    sources: tuple[str, ...]
    made: tuple[str, ...]
    reduced: int
    updated: int


class Owned(NamedTuple):
    """A parameter that is not cut, places of the all-reduces of its gradients, and the rank that updates it."""

    tensor: Tensor
    places: tuple[int, ...]
    rank: int


class Reduction(NamedTuple):
    """Gradients that are summed over ranks together, one per tensor.

    Attributes:
        names: of the gradients, in the memory order of their buffer.
        places: of the all-reduces.
        further: places of the all-reduces along each other axis.
        averages: places of the multiplications by 1 / W.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    further: tuple[tuple[int, ...], ...]
    averages: tuple[int, ...]

    @property
    def members(self) -> list[int]:
        """All places of replaced ops."""
        return [*self.places, *chain(*self.further), *self.averages]


class Bucket(NamedTuple):
    """Contiguous tensors, cut alike in the buffer of the parameters and in those of gradients.

    Attributes:
        tensors: in memory order.
        reductions: one, or one for each micro-step.
        spans: by tensor, the ranks that have a part of it, each with its first element and size.
    """

    tensors: tuple[Tensor, ...]
    reductions: tuple[Reduction, ...]
    spans: tuple[Mapping[int, tuple[int, int]], ...]


def layout_of(dtype: str) -> dict[str, Any]:
    """The layout of tensors: aligned to multiples of a tile."""
    return {"use_align": True, "align_size": TILE * ITEM_SIZES[dtype], "size_of_dtype": -1}


class Rewriting:
    """Writes the program of a rank."""

    def __init__(
        self, program: Program, buckets: Sequence[Bucket], owned: Sequence[Owned], rank: int, along: Mapping[str, Any]
    ) -> None:
        self._program, self._buckets, self._rank, self._along = program, buckets, rank, along
        self._owned = owned
        self._spans = {
            name: span for bucket in buckets for each, span in zip(bucket.tensors, bucket.spans, strict=True)
            for name in (each.param, *each.sources, *each.made)
        }
        for each, _, owner in owned:
            span = {owner: (0, math.prod(program.vars[each.param].shape))}
            self._spans |= dict.fromkeys((each.param, *each.sources, *each.made), span)
        self._vars: dict[str, Var] = {}
        self._startup: list[Op] = []
        self._gone: set[str] = set()  # masters of which the rank has a part, or nothing

    def program(self) -> Program:
        program = self._program
        instead = self._with_norms()
        after: dict[int, list[Op]] = {}
        for bucket in self._buckets:
            for reduction in bucket.reductions:
                instead |= {place: [] for place in reduction.members}
                instead[max(reduction.members)] = self._summed(reduction)
            params = [each.param for each in bucket.tensors]
            gather = self._collective("all_gather", self._own(params), [self._buffer("Param", params)])
            after.setdefault(max(each.updated for each in bucket.tensors), []).append(gather)
        for _, places, owner in self._owned:
            for place in places:
                op = program.main[place]
                instead[place] = [op.replace(type="reduce", attrs={**op.attrs, "root": owner})]
        main = self._cuts(each.param for bucket in self._buckets for each in bucket.tensors)
        for i, op in enumerate(program.main):
            main += instead[i] if i in instead else self._part_of(op)
            main += after.get(i, [])
        for (param, *_), _, owner in self._owned:
            sent = self._collective("broadcast", [param], [param])
            main.append(sent.replace(attrs={**sent.attrs, "root": owner}))
        kinds = {op.type.removeprefix(MERGED) for op in updates_of(program.replace(main=main))}
        first = {op.type.removeprefix(MERGED): op for op in reversed(updates_of(program))}
        main += [nothing_of(op) for kind, op in first.items() if kind not in kinds]
        changed = program.replace(
            vars={**program.vars, **self._vars}, startup=[*program.startup, *self._startup], main=main
        )
        return on_device(without_masters(changed, sorted(self._gone)), self._rank)

    def _buffer(self, what: str, names: Sequence[str]) -> str:
        """The buffer of some gradients, or of parameters, made at startup."""
        var, buffer = self._program.vars[names[0]], f"Sharded{what}_{names[0]}"
        self._vars[buffer] = Var(buffer, UNKNOWN, var.dtype, var.persistable)
        attrs = {"copy_data": var.persistable, "parts": self._along["ranks"], **layout_of(var.dtype)}
        self._startup.append(coalesce_op(list(names), buffer, **attrs))
        return buffer

    def _summed(self, reduction: Reduction) -> list[Op]:
        """The sums of the rank's part of a buffer's gradients, and their averages."""
        own, buffer = self._own(reduction.names), self._buffer("Grad", reduction.names)
        ops = [*self._cuts(reduction.names), self._collective("reduce_scatter", [buffer], own)]
        layout = layout_of(self._program.vars[reduction.names[0]].dtype)
        for places, more in (*((row, layout) for row in reduction.further), (reduction.averages, {})):
            if places and own:
                first = self._program.main[places[0]]
                ops.append(first.with_names(lambda *_: own, attrs={**first.attrs, **more}, layer=None))
        return ops

    def _collective(self, kind: str, x: list[str], out: list[str]) -> Op:
        return Op(kind, {"x": tuple(x)}, {"out": tuple(out)}, self._along, "communicate")

    def _own(self, names: Iterable[str]) -> list[str]:
        """The rank's parts of some variables."""
        return [self._piece(name) for name in names if self._rank in self._spans[name]]

    def _piece(self, name: str, of: str = "") -> str:
        """The name of the rank's part of a variable, which is cut like another one."""
        return name if len(self._spans[of or name]) == 1 else f"{name}.shard{self._rank}"

    def _cuts(self, names: Iterable[str]) -> list[Op]:
        """The cuts of variables at the borders of parts."""
        ops = []
        for name in names:
            if len(self._spans[name]) > 1:
                var = self._program.vars[name]
                out = [
                    Var(f"{name}.shard{rank}", (size,), var.dtype, part=Part(name, var.shape, first))
                    for rank, (first, size) in self._spans[name].items()
                ]
                self._vars |= {each.name: each for each in out}
                slots = {"x": (name,)}, {"out": tuple(each.name for each in out)}
                ops.append(Op("split_by_ref", *slots, {}, "communicate"))
        return ops

    def _part_of(self, op: Op) -> list[Op]:
        """The rank's part of an op."""
        if routine_of(op) is not None:
            return self._update(op)
        if op.type in (*PAIRS, "all_reduce") and not self._spans.keys().isdisjoint(op.outputs["out"]):
            return self._pairs(op)
        if op.type == "check_gradients" and not self._spans.keys().isdisjoint(op.inputs["x"]):
            return self._check(op)
        return [op]

    def _with_norms(self) -> dict[int, list[Op]]:
        """By place, what replaces updates that need norms of tensors that are cut.

        Neighbours that are independent share the sums of tiles, which ranks add up at once: all is at the first place.
        """
        main, runs = self._program.main, list[list[int]]()
        for i, op in enumerate(main):
            if norms_of(op):
                last = runs[-1] if runs and runs[-1][-1] == i - 1 else []
                if last and not among(self._program, [main[j] for j in (*last, i)]):
                    last.append(i)
                else:
                    runs.append([i])
        runs = [run for run in runs if any(self._cut(main[i]) for i in run)]
        return {i: self._joined([main[j] for j in run]) if i == run[0] else [] for run in runs for i in run}

    def _cut(self, op: Op) -> list[int]:
        """Which tensors of an update are cut."""
        return [k for k, name in enumerate(op.inputs["params"]) if len(self._spans.get(name, ())) > 1]

    def _joined(self, updates: Sequence[Op]) -> list[Op]:
        """Updates that need norms of tensors that are cut, and before them what forms the norms."""
        before: list[Op] = []
        after: list[Op] = []
        for real in dict.fromkeys(map(self._real, updates)):
            cut_updates, counts = list[Op](), list[int]()
            for op in (op for op in updates if self._real(op) == real):
                cut, places, norms = self._cut(op), list[tuple[int, ...]](), norms_of(op)
                for k in cut:
                    places.append(tuple(range(len(counts), len(counts) + norms)))
                    counts += [tiles_of(self._program.vars[op.inputs["params"][k]].shape)] * norms
                after += self._update(part_of(op, [k for k in range(len(op.inputs["params"])) if k not in cut]))
                part = part_of(op, cut)
                cut_updates += [part.replace(attrs={**part.attrs, "positions": tuple(places)})] if cut else []
            if not counts:
                continue
            name, firsts = cut_updates[0].inputs["params"][0], [*accumulate(counts, initial=0)]
            tiles, sums = Var(f"{name}@TILES", (sum(counts),), real), Var(f"{name}@SUMS", (len(counts),), real)
            self._vars |= {tiles.name: tiles, sums.name: sums}
            for k, op in enumerate(cut_updates):
                own = self._update(op)
                before.append(self._norm_tiles(op, own[0] if own else part_of(op, ()), firsts, tiles.name, add=k > 0))
                after += [each.replace(inputs={**each.inputs, "sums": (sums.name,)}) for each in own]
            before.append(self._collective("all_reduce", [tiles.name], [tiles.name]))
            attrs = {"counts": tuple(counts), "positions": tuple(range(len(counts)))}
            before.append(Op("join_tiles", {"tiles": (tiles.name,)}, {"sums": (sums.name,)}, attrs, updates[0].role))
        return [*before, *after]

    def _norm_tiles(self, whole: Op, own: Op, firsts: Sequence[int], tiles: str, add: bool) -> Op:
        """The op that sums the tiles of the rank's parts; ``firsts`` has the first tile of each tensor and norm."""
        starts = [self._spans[name][self._rank][0] // TILE for name in whole.inputs["params"]
                  if self._rank in self._spans[name]]
        pairs = zip(starts, own.attrs["positions"], strict=True)
        positions = tuple(tuple(firsts[n] + start for n in places) for start, places in pairs)
        routine = routine_of(whole)
        assert routine is not None
        return own.replace(
            type="norm_tiles", inputs={**own.inputs, **({"tiles": (tiles,)} if add else {})},
            outputs={"tiles": (tiles,), **{slot: own.inputs[slot] for slot in routine.states}},
            attrs={**own.attrs, "routine": routine.name, "positions": positions},
        )

    def _real(self, op: Op) -> str:
        """The arithmetic type of an update."""
        return np.dtype(arithmetic(self._program.vars[op.inputs["params"][0]].dtype)).name

    def _update(self, op: Op) -> list[Op]:
        """The update of the rank's parts, including states."""
        params, routine = op.inputs["params"], routine_of(op)
        assert routine is not None
        own = [k for k, name in enumerate(params) if self._rank in self._spans.get(name, (self._rank,))]
        pieces: dict[str, str] = {}
        for slot, names in op.inputs.items():
            if slot in (*SHARED, *routine.scalars):
                continue
            for param, name in zip(params, names, strict=True):
                if param in self._spans:
                    pieces[name] = self._piece(name, param)
                    if slot not in ("params", "grads"):
                        self._state(name, param)
        if not own:
            return []
        return [part_of(op, own).with_names(lambda _, names: [pieces.get(name, name) for name in names])]

    def _pairs(self, op: Op) -> list[Op]:
        """The rank's part of an op on sums; ops before the sums are kept."""
        outs = op.outputs["out"]
        if self._spans.keys().isdisjoint(op.inputs["x"]):
            return [op]
        own = [k for k, name in enumerate(outs) if self._rank in self._spans.get(name, (self._rank,))]
        pieces = {name: self._piece(name) for name in (*op.reads, *outs) if name in self._spans}
        for name in outs:
            if name in pieces and pieces[name] != name and self._rank in self._spans[name]:
                size = self._spans[name][self._rank][1]
                self._vars.setdefault(pieces[name], Var(pieces[name], (size,), self._program.vars[name].dtype))
        if not own:
            return []
        return [part_of(op, own).with_names(lambda _, names: [pieces.get(name, name) for name in names])]

    def _state(self, name: str, param: str) -> None:
        """Replace a state or master by the rank's part."""
        span, var = self._spans[param], self._program.vars[name]
        if len(span) > 1 or self._rank not in span:
            self._gone |= {name} if var.initial is None else set()
        if len(span) > 1 and self._rank in span:
            # Borders are at whole tiles, and so at whole groups of states in 8 bits.
            (first,), size = (stored_shape(var.dtype, (n,)) for n in span[self._rank])
            own, initial = self._piece(name, param), name if var.initial is None else var.initial
            self._vars[own] = Var(own, size, var.dtype, True, initial=initial, part=Part(name, var.shape, first))

    def _check(self, op: Op) -> list[Op]:
        """The check of the rank's parts, on the first rank also of what all have; then the sums over the ranks."""
        sums = added_up(self._program, op, self._along["ranks"], self._along.get("axis"))
        cut = [k for k, x in enumerate(op.inputs["x"]) if len(self._spans.get(x, ())) > 1 and len(sums) > 1]
        own = [k for k, x in enumerate(op.inputs["x"]) if self._rank in self._spans.get(x, (0,)) and k not in {*cut}]
        pieces = [k for k in cut if self._rank in self._spans[op.inputs["x"][k]]]
        check = part_of(op, [*own, *pieces]).with_names(
            lambda slot, names: [self._piece(x) if x in self._spans else x for x in names] if slot == "x" else names
        )
        return self._tiles(op, check, sums, cut, pieces) if cut else [check, *sums]

    def _tiles(
        self, op: Op, check: Op, over: Sequence[Op], cut: Sequence[int], pieces: Sequence[int]
    ) -> list[Op]:
        """The check with sums of tiles for cut tensors, from which every rank forms the sums of tensors."""
        names, (sums,), positions = op.inputs["x"], op.outputs["sums"], op.attrs["positions"]
        tiles, counts = f"{sums}@TILES", [tiles_of(self._program.vars[names[k]].shape) for k in cut]
        self._vars[tiles] = Var(tiles, (sum(counts),), "float32")
        starts = dict(zip(cut, accumulate(counts, initial=0), strict=False))
        firsts = [starts[k] + self._spans[names[k]][self._rank][0] // TILE for k in pieces]
        attrs = {**check.attrs, "pieces": len(pieces)}
        attrs["positions"] = (*check.attrs["positions"][: len(check.inputs["x"]) - len(pieces)], *firsts)
        x, kept = {"tiles": (tiles,), "sums": (sums,)}, {"sums": (sums,)}
        joined = {"counts": tuple(counts), "positions": tuple(positions[k] for k in cut)}
        return [
            check.replace(outputs={**check.outputs, "tiles": (tiles,)}, attrs=attrs),
            *over, self._collective("all_reduce", [tiles], [tiles]),
            Op("join_tiles", x, kept, joined, op.role),
        ]
