"""Each element is updated by one rank: parameters and gradients in buffers that are cut into a part for each rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

from refopt.checks.arguments import whole
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program.model import UNKNOWN, Op, Part, Var
from refopt.program.ops.coalescing import TILE, padded, part_size
from refopt.program.ops.mixed_precision import tiles_of
from refopt.program.ops.updates import MERGED, SHARED, routine_of
from refopt.program.passes import dependencies
from refopt.program.passes.cast import without_masters
from refopt.program.passes.coalesce import coalesce_op
from refopt.program.passes.collectives import checked
from refopt.program.passes.dependencies import title
from refopt.program.passes.grouping import check_limit, fuse_size
from refopt.program.passes.owners import added_up, nothing_of, part_of, updates_of
from refopt.program.passes.place import on_device
from refopt.program.passes.result import Result
from refopt.program.passes.sharding import declined
from refopt.program.program import Program, expect_program

NOTHING = "no gradient of an elementwise routine is reduced by itself and updated at once"


def shard_elements(program: Program, rank: int, degree: int, limit: float = 32.0) -> Result:
    """The program of one rank of several that share out the optimizer, element by element.

    Gradients lie in buffers, as `refopt.program.passes.coalesce_gradients` would have them, and parameters likewise,
    each tensor padded to a multiple of 1,024 elements, and each buffer to a multiple of 1,024 for every rank. A
    ``reduce_scatter`` leaves a rank the sums in its part of the buffer, which it averages, checks and updates; then an
    ``all_gather`` gives all ranks the parameters. A tensor across the border of two parts is cut there, and of its
    states a rank has those of its elements: ``moment.shard1`` of the second rank.

    So every rank has as many elements, to 1,024 of them in each buffer, whatever the tensors are, and keeps 1 / degree
    of the states, and of the masters, where the parameters are copies of these. What is sent is as much as in an
    all-reduce. No bit changes (numerics, N11): updates of elements depend on no others, and whether a gradient was inf
    or NaN, and the norm of all of them, are added up over the ranks.

    Tensors that are left to all ranks, with reasons: those of routines with norms of tensors, or that round
    stochastically by the number of the element; without elements; whose gradients are sparse, or in buffers already.

    Args:
        program: a program for ``degree`` ranks, which may have masters and casts in its updates: after
            `refopt.program.passes.optimize_cast` and `refopt.program.passes.fold_casts`, fp16 copies are gathered and
            not fp32 parameters. `refopt.program.passes.fuse_optimizer` comes after.
        rank: this rank's number.
        degree: the number of ranks.
        limit: megabytes of 2**20 bytes that the gradients of a buffer may have.

    Source: stage 1 of ZeRO (Rajbhandari et al., 2020), in flat buffers as in Megatron's distributed optimizer.
    """
    expect_program("shard_elements", program)
    degree = whole("shard_elements: degree", degree, 1)
    rank = whole("shard_elements: rank", rank, 0, degree - 1)
    check_limit("shard_elements: limit", limit)
    reason = declined("shard_elements", program, degree)
    if reason:
        return Result(program, False, (reason,))
    search = _Search(program, degree, limit)
    if not search.buckets:
        return Result(program, False, (*search.reasons, NOTHING))
    return Result(_Rewriting(program, search.buckets, rank, degree).program(), True, tuple(search.reasons))


class Tensor(NamedTuple):
    """A parameter that can be cut.

    Attributes:
        param, grad: names.
        reduced: place of its all-reduce.
        updated: place of its update.
        at: which tensor of the update it is.
    """

    param: str
    grad: str
    reduced: int
    updated: int
    at: int


class Bucket(NamedTuple):
    """Tensors whose gradients are in one buffer.

    Attributes:
        tensors: in the order in which they lie.
        averages: places of the multiplications by 1 / W.
        spans: by tensor, the ranks that have some of it, each with the first element and how many.
    """

    tensors: tuple[Tensor, ...]
    averages: tuple[int, ...]
    spans: tuple[Mapping[int, tuple[int, int]], ...]


class _Search:
    """Finds what can be cut."""

    def __init__(self, program: Program, degree: int, limit: float) -> None:
        self._program, self._degree = program, degree
        self.buckets: list[Bucket] = []
        self.reasons: list[str] = []
        scales = dependencies.singles(program, "scale", "communicate")
        tensors = sorted(self._tensors(), key=lambda each: each.reduced)
        vars = [program.vars[each.grad] for each in tensors]
        dtypes = [(var.dtype, program.vars[each.param].dtype) for each, var in zip(tensors, vars, strict=True)]
        for pair in dict.fromkeys(dtypes):
            own = [k for k, each in enumerate(dtypes) if each == pair]
            names, shapes = [vars[k].name for k in own], [vars[k].shape for k in own]
            for group in fuse_size(names, shapes, [pair[0]] * len(own), limit=limit).groups:
                self._add([tensors[own[k]] for k in group], scales)

    def _add(self, tensors: list[Tensor], scales: Mapping[str, list[int]]) -> None:
        """Make a bucket of tensors, unless something is in between."""
        program, places = self._program, [each.reduced for each in tensors]
        averages, reason = checked(program, places, scales, "sum")
        reason = reason or self._needed(tensors, {*places, *averages})
        if reason:
            self.reasons.append(f"{tensors[0].grad!r} to {tensors[-1].grad!r}: {reason}")
        else:
            self.buckets.append(Bucket(tuple(tensors), tuple(averages), tuple(self._spans(tensors))))

    def _tensors(self) -> Iterator[Tensor]:
        """What can be cut; why other tensors cannot is added to the reasons."""
        program = self._program
        sums = dependencies.singles(program, "all_reduce")
        for i, op in enumerate(program.main):
            routine = routine_of(op)
            for k, param in enumerate(op.inputs["params"] if routine else ()):
                grad = op.inputs["grads"][k]
                reason = self._why_not(op, k, i, sums.get(grad, []))
                if reason:
                    self.reasons.append(f"{param!r} is left to all ranks: {reason}")
                else:
                    yield Tensor(param, grad, sums[grad][0], i, k)

    def _why_not(self, op: Op, k: int, place: int, sums: Sequence[int]) -> str:
        """Why a tensor of an update cannot be cut. Empty if it can."""
        program, routine = self._program, routine_of(op)
        assert routine is not None
        param, grad = op.inputs["params"][k], op.inputs["grads"][k]
        if not routine.elementwise:
            return f"{routine.name} has norms of tensors"
        if op.attrs.get("rounding") == "stochastic":
            return "stochastic rounding counts the elements of each tensor"
        if len(sums) != 1:
            return f"{grad!r} has no all_reduce of its own" if not sums else f"{grad!r} is reduced twice"
        if math.prod(program.vars[param].shape) == 0:
            return "it has no elements"
        for slot, names in op.inputs.items():
            if slot in (*SHARED, *routine.scalars):
                continue
            name = names[k]
            if name in program.buffer_of or name in program.parts or name in program.whole_of:
                return f"{name!r} is in a buffer, or cut, already"
            if slot not in ("params", "grads") and (
                not program.vars[name].persistable or program.vars[name].part is not None
                or {*chain(*program.users[name])} != {place}
            ):  # fmt: skip
                return f"{name!r} is no memory that only its update uses from step to step"
        if program.vars[grad].persistable or program.writers[param] != 1:
            return f"{grad!r} lives from step to step" if program.writers[param] == 1 else "other ops change it, too"
        return ""

    def _needed(self, tensors: Sequence[Tensor], members: set[int]) -> str:
        """Which op needs the whole of what a rank has a part of. Empty if none does."""
        program, last = self._program, max(each.updated for each in tensors)
        for each in tensors:
            for i in program.users[each.param][0]:
                op = program.main[i]
                if each.updated < i and (i <= last or op.role == "optimize"):
                    return f"{title(op)} needs {each.param!r} after its update; fold_casts comes before"
            for i in program.users[each.grad][0]:
                op = program.main[i]
                if i > each.reduced and i not in (each.updated, *members) and op.type != "check_gradients":
                    return f"{title(op)} needs {each.grad!r} after its reduction"
        return ""

    def _spans(self, tensors: Sequence[Tensor]) -> Iterator[dict[int, tuple[int, int]]]:
        """What each rank has of each tensor."""
        vars = [self._program.vars[each.grad] for each in tensors]
        lengths = [padded(_layout(var.dtype), math.prod(var.shape), var.dtype, 0) for var in vars]
        part, start = part_size(sum(lengths), self._degree), 0
        for var, length in zip(vars, lengths, strict=True):
            stop = start + math.prod(var.shape)
            borders = [start, *range((start // part + 1) * part, stop, part), stop]
            yield {first // part: (first - start, end - first) for first, end in pairwise(borders)}
            start += length


def _layout(dtype: str) -> dict[str, Any]:
    """Where tensors lie: at multiples of a tile."""
    return {"use_align": True, "align_size": TILE * ITEM_SIZES[dtype], "size_of_dtype": -1}


class _Rewriting:
    """Writes the program of a rank."""

    def __init__(self, program: Program, buckets: Sequence[Bucket], rank: int, degree: int) -> None:
        self._program, self._buckets, self._rank, self._degree = program, buckets, rank, degree
        self._spans = {
            name: span for bucket in buckets for each, span in zip(bucket.tensors, bucket.spans, strict=True)
            for name in (each.param, each.grad)
        }  # fmt: skip
        self._vars: dict[str, Var] = {}
        self._startup: list[Op] = []
        self._gone: set[str] = set()  # masters of which the rank has a part, or nothing

    def program(self) -> Program:
        program = self._program
        instead: dict[int, list[Op]] = {}
        after: dict[int, list[Op]] = {}
        for bucket in self._buckets:
            grads, params = self._buffer(bucket, "grad"), self._buffer(bucket, "param")
            places = [*(each.reduced for each in bucket.tensors), *bucket.averages]
            instead |= {place: [] for place in places}
            instead[max(places)] = self._summed(bucket, grads)
            gather = self._collective("all_gather", self._own(each.param for each in bucket.tensors), [params])
            after.setdefault(max(each.updated for each in bucket.tensors), []).append(gather)
        main = self._cuts(each.param for bucket in self._buckets for each in bucket.tensors)
        for i, op in enumerate(program.main):
            main += instead[i] if i in instead else self._part_of(op)
            main += after.get(i, [])
        kinds = {op.type.removeprefix(MERGED) for op in updates_of(program.replace(main=main))}
        first = {op.type.removeprefix(MERGED): op for op in reversed(updates_of(program))}
        main += [nothing_of(op) for kind, op in first.items() if kind not in kinds]
        changed = program.replace(
            vars={**program.vars, **self._vars}, startup=[*program.startup, *self._startup], main=main
        )
        return on_device(without_masters(changed, sorted(self._gone)), self._rank)

    def _buffer(self, bucket: Bucket, what: str) -> str:
        """The buffer of the gradients, or of the parameters, made at startup."""
        names = [getattr(each, what) for each in bucket.tensors]
        var, buffer = self._program.vars[names[0]], f"Sharded{what.capitalize()}_{names[0]}"
        self._vars[buffer] = Var(buffer, UNKNOWN, var.dtype, var.persistable)
        layout = _layout(var.dtype)
        self._startup.append(coalesce_op(names, buffer, copy_data=what == "param", parts=self._degree, **layout))
        return buffer

    def _summed(self, bucket: Bucket, buffer: str) -> list[Op]:
        """The sums of what the rank has of a buffer's gradients, and their averages."""
        own = self._own(each.grad for each in bucket.tensors)
        ops = [*self._cuts(each.grad for each in bucket.tensors), self._collective("reduce_scatter", [buffer], own)]
        if bucket.averages and own:
            ops.append(self._program.main[bucket.averages[0]].with_names(lambda *_: own, layer=None))
        return ops

    def _collective(self, kind: str, x: list[str], out: list[str]) -> Op:
        return Op(kind, {"x": x}, {"out": out}, {"ranks": self._degree}, "communicate")

    def _own(self, names: Iterable[str]) -> list[str]:
        """What the rank has of some variables."""
        return [self._piece(name) for name in names if self._rank in self._spans[name]]

    def _piece(self, name: str, of: str = "") -> str:
        """The name of what the rank has of a variable, which is cut as another one is."""
        return name if len(self._spans[of or name]) == 1 else f"{name}.shard{self._rank}"

    def _cuts(self, names: Iterable[str]) -> list[Op]:
        """The cuts of variables at the borders of parts."""
        ops = []
        for name in names:
            if len(self._spans[name]) > 1:
                parts = {f"{name}.shard{rank}": size for rank, (_, size) in self._spans[name].items()}
                dtype = self._program.vars[name].dtype
                self._vars |= {part: Var(part, (size,), dtype) for part, size in parts.items()}
                ops.append(Op("split_by_ref", {"x": (name,)}, {"out": tuple(parts)}, {}, "communicate"))
        return ops

    def _part_of(self, op: Op) -> list[Op]:
        """What the rank does of an op."""
        if routine_of(op) is not None:
            return self._update(op)
        if op.type == "check_gradients" and not self._spans.keys().isdisjoint(op.inputs["x"]):
            return self._check(op)
        return [op]

    def _update(self, op: Op) -> list[Op]:
        """The update of what the rank has: of its states, too."""
        params = op.inputs["params"]
        own = [k for k, name in enumerate(params) if self._rank in self._spans.get(name, (self._rank,))]
        pieces: dict[str, str] = {}
        for slot, names in op.inputs.items():
            if slot in (*SHARED, *self._scalars(op)):
                continue
            for param, name in zip(params, names, strict=True):
                if param in self._spans:
                    pieces[name] = self._piece(name, param)
                    if slot not in ("params", "grads"):
                        self._state(name, param)
        if not own:
            return []
        return [part_of(op, own).with_names(lambda _, names: [pieces.get(name, name) for name in names])]

    def _scalars(self, op: Op) -> tuple[str, ...]:
        routine = routine_of(op)
        return () if routine is None else tuple(routine.scalars)

    def _state(self, name: str, param: str) -> None:
        """The part of a state, or of a master, that the rank has; the whole goes."""
        span, var = self._spans[param], self._program.vars[name]
        if len(span) > 1 or self._rank not in span:
            self._gone |= {name} if var.initial is None else set()
        if len(span) > 1 and self._rank in span:
            first, size = span[self._rank]
            self._vars[f"{name}.shard{self._rank}"] = Var(
                f"{name}.shard{self._rank}", (size,), var.dtype, True, False,
                name if var.initial is None else var.initial, Part(name, var.shape, first),
            )  # fmt: skip

    def _check(self, op: Op) -> list[Op]:
        """The check of what the rank has; the first one checks what all have, too. Then the sums over the ranks."""
        sums = added_up(self._program, op, self._degree)
        cut = [k for k, x in enumerate(op.inputs["x"]) if len(self._spans.get(x, ())) > 1 and len(sums) > 1]
        own = [k for k, x in enumerate(op.inputs["x"]) if self._rank in self._spans.get(x, (0,)) and k not in {*cut}]
        pieces = [k for k in cut if self._rank in self._spans[op.inputs["x"][k]]]
        check = part_of(op, [*own, *pieces]).with_names(
            lambda slot, names: [self._piece(x) if x in self._spans else x for x in names] if slot == "x" else names
        )
        return self._tiles(op, check, sums, cut, pieces) if cut else [check, *sums]

    def _tiles(
        self, op: Op, check: Op, over: Sequence[Op], cut: Sequence[int], pieces: Sequence[int]
    ) -> list[Op]:  # fmt: skip
        """The check with sums of tiles of what is cut, of which the sums of tensors are formed on every rank."""
        names, (sums,), positions = op.inputs["x"], op.outputs["sums"], op.attrs["positions"]
        tiles, counts = f"{sums}@TILES", [tiles_of(self._program.vars[names[k]].shape) for k in cut]
        self._vars[tiles] = Var(tiles, (sum(counts),), "float32")
        starts = dict(zip(cut, accumulate(counts, initial=0), strict=False))
        firsts = [starts[k] + self._spans[names[k]][self._rank][0] // TILE for k in pieces]
        attrs = {**check.attrs, "pieces": len(pieces)}
        attrs["positions"] = (*check.attrs["positions"][: len(check.inputs["x"]) - len(pieces)], *firsts)
        x, kept = {"tiles": (tiles,), "sums": (sums,)}, {"sums": (sums,)}
        join = Op("join_tiles", x, kept, {"counts": tuple(counts), "positions": tuple(positions[k] for k in cut)}, op.role)
        return [
            check.replace(outputs={**check.outputs, "tiles": (tiles,)}, attrs=attrs),
            *over, self._collective("all_reduce", [tiles], [tiles]), join,
        ]
